//! A driver and its processes in the plainest terms, and programs that run on it: whatever a
//! program does, the account must never say less than the driver holds, and the same once
//! everything that has ended was reported.
//!
//! It only knows what is public, through `api`: the fuzz target includes this file too.

mod objects;
mod pinned;
mod pools;
mod processes;
mod program;
mod registrations;
mod sharing;
mod virtual_memory;
mod world;

pub(crate) use program::run;

use super::api;
