//! The classes of `NV_ESC_RM_ALLOC`.
