//! `MPS_COMPUTE`: says that a server of MPS runs. The accounts can be asked whether there is one.

use std::time::Duration;

use abi::Handle;
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct Mps;

impl ObjectClass for Mps {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        Ok(new.counted(Kind::Engine(new.alloc.class)))
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
