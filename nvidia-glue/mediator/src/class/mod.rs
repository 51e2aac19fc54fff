//! Fields that the driver is told otherwise than the program said them, in the parameters of an
//! allocation.

use abi::{
    Handle, Status,
    classes::ClassKind,
    layout::{read_u32, write_u32},
    memory::MemoryRequest,
    params::{
        NV_MEMORY_ALLOCATION_PARAMS, NV_VASPACE_ALLOCATION_PARAMETERS, NV0005_ALLOC_PARAMETERS, NV0080_ALLOC_PARAMETERS,
    },
};

use crate::in_flight::CallEnd;

/// `NV_DEVICE_ALLOCATION_FLAGS_VASPACE_PTABLE_PMA_MANAGED` (nvos.h).
const PAGE_TABLES_OF_ALL_MEMORY: u32 = 0x1000;
/// `NV_VASPACE_ALLOCATION_FLAGS_*` (nvos.h): all but `ENABLE_NVLINK_ATS` (4), `IS_FLA` (9),
/// `PTETABLE_HEAP_MANAGED` (13), `ENABLE_NVLINK_ATS_TEST` (14).
const ALLOWED_ADDRESS_SPACE_FLAGS: u32 = 0x1def;
/// `NV01_EVENT_WITHOUT_EVENT_DATA` (nvos.h).
const WITHOUT_DATA: u32 = 0x1000_0000;

/// Values that the program has there.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct SavedFields(Vec<(usize, u32)>);

impl SavedFields {
    /// Once the driver has read them, they are the program's again, which may have them where it
    /// cannot be written.
    pub(crate) fn restore(self, params: &mut [u8]) {
        for (at, value) in self.0 {
            let _ = write_u32(params, at, value);
        }
    }
}

/// Puts into an allocation's parameters what the driver is to read there instead, and refuses what
/// nobody is to have.
///
/// - **Devices.** A device has an address space for whoever names none: without `hClientShare` one
///   that all clients of the card have in common, neighbours too; it gets one of its own. Its page
///   tables are to come from the card's memory like everybody's, not from the driver's own small
///   heap, without which no new program starts on the card (device_share.c,
///   `deviceInitClientShare`).
/// - **Address spaces** are the program's own (index 0), and their page tables come from the card's
///   memory, too (vaspace_api.c).
/// - **Memory of a card** in pages smaller than 2 MiB is contiguous where that is left to the
///   driver: what is scattered is counted at its worst. The driver says afterwards which it was, in
///   any case.
/// - **Events** wake, and bring no data: those that bring some are queued in the kernel without
///   limit until they are read, and each interrupt of an engine makes one (kernel-open/nvidia/nv.c,
///   `nv_post_event`). CUDA has all of its own without data.
pub(crate) fn apply(kind: ClassKind, client: Handle, params: &mut [u8]) -> Result<SavedFields, CallEnd> {
    let invalid = CallEnd::Status(Status::INVALID_ARGUMENT);
    let mut saved = SavedFields::default();
    let mut tell = |at: usize, change: &dyn Fn(u32) -> u32| {
        let said = read_u32(params, at).ok_or(invalid)?;
        let is_put = write_u32(params, at, change(said));
        saved.0.push((at, said));
        if is_put { Ok(()) } else { Err(invalid) }
    };
    match kind {
        ClassKind::Device => {
            tell(NV0080_ALLOC_PARAMETERS::hClientShare.at(), &|share| if share == 0 { client.0 } else { share })?;
            tell(NV0080_ALLOC_PARAMETERS::flags.at(), &|flags| flags | PAGE_TABLES_OF_ALL_MEMORY)?;
        }
        ClassKind::Event(_) => tell(NV0005_ALLOC_PARAMETERS::notifyIndex.at(), &|index| index | WITHOUT_DATA)?,
        ClassKind::VideoMemory => {
            if let Some(attr) = MemoryRequest::of_params(params).and_then(|request| request.contiguous_attr()) {
                let _ = NV_MEMORY_ALLOCATION_PARAMS::attr.set(params, attr);
            }
        }
        ClassKind::AddressSpace => {
            use NV_VASPACE_ALLOCATION_PARAMETERS as Params;
            let (index, flags) = (Params::index.get(params), Params::flags.get(params));
            if index.is_some_and(|index| index != 0)
                || flags.is_some_and(|flags| flags & !ALLOWED_ADDRESS_SPACE_FLAGS != 0)
            {
                return Err(invalid);
            }
        }
        _ => {}
    }
    Ok(saved)
}
