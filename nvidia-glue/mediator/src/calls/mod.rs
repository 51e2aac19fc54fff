//! Driver calls: each is decoded, checked, executed and answered here.
//!
//! Handlers are methods of [`Session`](crate::Session).

mod alloc;
mod check_version;
mod context;
mod control;
pub(crate) mod dispatch;
mod dup;
mod export;
mod free;
mod heap;
mod managed;
mod managed_advice;
mod mapping;
#[cfg(feature = "parking")]
mod movable;
mod object_alloc;
mod pin;
mod preemption;
mod quota;
mod root_clients;
mod schedule;
pub(crate) mod sequel;
mod uvm;
mod uvm_files;
mod view;
mod view_memory;
mod view_processes;
mod view_utilization;
