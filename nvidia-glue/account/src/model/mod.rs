//! A driver and its processes in the plainest terms, and programs that run on it: whatever a
//! program does, the account must never say less than the driver holds, and the same once
//! everything that has ended was reported.
//!
//! It only knows what is public. A test of this crate runs it on random programs, a fuzz target on
//! those that libFuzzer finds.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::cast_lossless,
    reason = "for tests"
)]

mod objects;
mod pinned;
mod pools;
mod processes;
mod program;
mod registrations;
mod sharing;
mod virtual_memory;
mod world;

pub use program::run;

/// Names that the model needs.
mod api {
    pub(super) use abi::{
        Handle,
        memory::{FRAME, GRANULE, Layout},
    };
    pub(super) use base::{Bytes, Pid};

    pub(super) use crate::*;

    pub(super) const GROUP: Kind = Kind::ChannelGroup(Card(0));
    pub(super) const CHANNEL: Kind = Kind::Channel { card: Card(0), is_bare: false };
}
