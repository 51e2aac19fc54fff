//! Calls that the mediator makes on its own account.

pub(super) use driver::Raw;
