//! Calls that the mediator makes on its own account.

pub(super) use crate::driver::Raw;
