//! Objects that only count: nothing is decided about them, and they hold no memory of note.

use std::time::Duration;

use abi::Handle;
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct Plain(pub(super) Kind);

impl ObjectClass for Plain {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        Ok(new.counted(self.0))
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
