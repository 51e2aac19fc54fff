//! Parameters of the controls of `NV_ESC_RM_CONTROL` (ctrl/).

use super::{Field, FieldInfo, Handle, Layout, Releases, Struct, params, ptr};

params! {
    // An element of the lists of NV2080_CTRL_CMD_FB_GET_INFO and its like.
    NVXXXX_CTRL_XXX_INFO [8] { index: u32 @0, data: u32 @4 }

    NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS [536] {
        bDisable: u8 @0, numChannels: u32 @4, bOnlyDisableScheduling: u8 @8, bRewindGpPut: u8 @9,
        pRunlistPreemptEvent: ptr @16, hClientList: [Handle; 64] @24, hChannelList: [Handle; 64] @280,
    }

    // NVA06C_CTRL_CMD_SET_TIMESLICE, NVA06C_CTRL_CMD_GET_TIMESLICE
    NVA06C_CTRL_TIMESLICE_PARAMS [8] { timesliceUs: u64 @0 }
}
