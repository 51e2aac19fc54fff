//! The program's own address spaces of a card, `FERMI_VASPACE_A` (index 0). Their page tables come
//! from the card's memory, too (vaspace_api.c).

use std::time::Duration;

use abi::{Handle, params::NV_VASPACE_ALLOCATION_PARAMETERS as Params};
use account::Kind;

use super::{INVALID, NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, requirements::AllocRequirements};

/// `NV_VASPACE_ALLOCATION_FLAGS_*` (nvos.h): all but `ENABLE_NVLINK_ATS` (4), `IS_FLA` (9),
/// `PTETABLE_HEAP_MANAGED` (13), `ENABLE_NVLINK_ATS_TEST` (14).
const ALLOWED_FLAGS: u32 = 0x1def;

#[derive(Debug)]
pub(super) struct AddressSpace;

impl ObjectClass for AddressSpace {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        Ok(new.counted(Kind::AddressSpace))
    }

    fn override_params(&self, _client: Handle, params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        let is_other = Params::index.get(params).is_some_and(|index| index != 0);
        let has_others = Params::flags.get(params).is_some_and(|flags| flags & !ALLOWED_FLAGS != 0);
        if is_other || has_others { Err(INVALID) } else { Ok(SavedFields::default()) }
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
