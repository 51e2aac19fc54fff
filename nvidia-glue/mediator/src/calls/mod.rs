//! Driver calls: each is decoded, checked, executed and answered here.

pub(crate) mod alloc;
mod alloc_overrides;
pub(crate) mod alloc_params;
mod channel_params;
pub(crate) mod control;
mod dup;
mod export;
pub(crate) mod failures;
mod free;
mod heap;
pub(crate) mod in_flight;
mod mapping;
pub(crate) mod object_alloc;
mod root_clients;
mod uvm;
pub(crate) mod version;
