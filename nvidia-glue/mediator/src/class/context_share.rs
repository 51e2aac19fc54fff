//! A share of a channel group, `FERMI_CONTEXT_SHARE_A`.

use std::time::Duration;

use abi::{Handle, params::NV_CTXSHARE_ALLOCATION_PARAMETERS as Params};
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct ContextShare;

impl ObjectClass for ContextShare {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        Ok(AllocRequirements { dependencies: new.handles(&[Params::hVASpace]), ..new.counted(Kind::Other) })
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
