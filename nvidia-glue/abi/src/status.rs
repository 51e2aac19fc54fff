//! `NV_STATUS`: what the driver writes into a call's struct
//! (src/common/sdk/nvidia/inc/nvstatuscodes.h).

use serde::{Deserialize, Serialize};

/// A status, also one that this crate has no name for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Status(pub u32);

impl Status {
    /// `NV_OK`.
    pub const OK: Self = Self(0);
    /// `NV_ERR_BUSY_RETRY`.
    pub const BUSY_RETRY: Self = Self(0x03);
    /// `NV_ERR_GPU_UUID_NOT_FOUND`.
    pub const GPU_UUID_NOT_FOUND: Self = Self(0x12);
    /// `NV_ERR_ILLEGAL_ACTION`.
    pub const ILLEGAL_ACTION: Self = Self(0x16);
    /// `NV_ERR_INSERT_DUPLICATE_NAME`: the handle is taken.
    pub const INSERT_DUPLICATE_NAME: Self = Self(0x19);
    /// `NV_ERR_INSUFFICIENT_RESOURCES`.
    pub const INSUFFICIENT_RESOURCES: Self = Self(0x1a);
    /// `NV_ERR_INSUFFICIENT_PERMISSIONS`.
    pub const INSUFFICIENT_PERMISSIONS: Self = Self(0x1b);
    /// `NV_ERR_INVALID_ADDRESS`.
    pub const INVALID_ADDRESS: Self = Self(0x1e);
    /// `NV_ERR_INVALID_ARGUMENT`.
    pub const INVALID_ARGUMENT: Self = Self(0x1f);
    /// `NV_ERR_INVALID_CHANNEL`: there is none of that handle.
    pub const INVALID_CHANNEL: Self = Self(0x21);
    /// `NV_ERR_INVALID_CLASS`.
    pub const INVALID_CLASS: Self = Self(0x22);
    /// `NV_ERR_INVALID_CLIENT`.
    pub const INVALID_CLIENT: Self = Self(0x23);
    /// `NV_ERR_INVALID_DEVICE`.
    pub const INVALID_DEVICE: Self = Self(0x26);
    /// `NV_ERR_INVALID_EVENT`.
    pub const INVALID_EVENT: Self = Self(0x28);
    /// `NV_ERR_INVALID_OBJECT`.
    pub const INVALID_OBJECT: Self = Self(0x31);
    /// `NV_ERR_INVALID_OBJECT_HANDLE`.
    pub const INVALID_OBJECT_HANDLE: Self = Self(0x33);
    /// `NV_ERR_INVALID_OBJECT_PARENT`.
    pub const INVALID_OBJECT_PARENT: Self = Self(0x36);
    /// `NV_ERR_INVALID_OFFSET`.
    pub const INVALID_OFFSET: Self = Self(0x37);
    /// `NV_ERR_INVALID_OWNER`.
    pub const INVALID_OWNER: Self = Self(0x39);
    /// `NV_ERR_INVALID_PARAM_STRUCT`: parameters of another size.
    pub const INVALID_PARAM_STRUCT: Self = Self(0x3a);
    /// `NV_ERR_INVALID_POINTER`.
    pub const INVALID_POINTER: Self = Self(0x3d);
    /// `NV_ERR_INVALID_REQUEST`.
    pub const INVALID_REQUEST: Self = Self(0x3f);
    /// `NV_ERR_INVALID_STATE`.
    pub const INVALID_STATE: Self = Self(0x40);
    /// `NV_ERR_NO_FREE_FIFOS`: the card has no number for another channel.
    pub const NO_FREE_FIFOS: Self = Self(0x4f);
    /// `NV_ERR_NO_MEMORY`: what CUDA reports as out of memory.
    pub const NO_MEMORY: Self = Self(0x51);
    /// `NV_ERR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: Self = Self(0x56);
    /// `NV_ERR_OBJECT_NOT_FOUND`.
    pub const OBJECT_NOT_FOUND: Self = Self(0x57);
    /// `NV_ERR_STATE_IN_USE`.
    pub const STATE_IN_USE: Self = Self(0x63);
    /// `NV_ERR_UVM_ADDRESS_IN_USE`.
    pub const UVM_ADDRESS_IN_USE: Self = Self(0x68);
    /// `NV_ERR_GENERIC`.
    pub const GENERIC: Self = Self(0xffff);

    /// Returns whether the call succeeded.
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}
