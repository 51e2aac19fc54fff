//! The controls of `NV_ESC_RM_CONTROL`.
