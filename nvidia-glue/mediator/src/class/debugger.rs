//! A debugger's session, `GT200_DEBUGGER`; CUDA makes one for itself.
//!
//! The driver would let anybody of its own user look into an object of any client that CUDA made,
//! and all mediators are of one user. What it does not find it writes into the kernel's log.

use std::time::Duration;

use abi::{
    Handle, Status,
    params::{Field, NV83DE_ALLOC_PARAMETERS as Params},
};
use account::{Kind, ObjectName};

use super::{INVALID, NewObject, ObjectClass, SavedFields};
use crate::{
    in_flight::CallEnd,
    locks::lock,
    requirements::{AllocAbort, AllocRequirements},
};

#[derive(Debug)]
pub(super) struct Debugger;

impl ObjectClass for Debugger {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let field = |field: Field<Handle>| field.get(new.params()).ok_or(INVALID);
        let (obsolete, named) = (field(Params::hDebuggerClient_Obsolete)?, field(Params::hAppClient)?);
        let object = field(Params::hClass3dObject)?;
        if obsolete != Handle::NONE {
            return Err(INVALID);
        }
        let named = if named == Handle::NONE { new.alloc.client } else { named };
        new.session.check_client(named)?;
        let known = lock(&new.session.objects.accounts).object(ObjectName::new(named, object));
        known.map(|_| new.counted(Kind::Other)).ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }

    fn complete(&self, new: &NewObject<'_, '_>, made: ObjectName) -> Result<(), AllocAbort> {
        new.session.mute_debugger(new.flight, made)
    }
}
