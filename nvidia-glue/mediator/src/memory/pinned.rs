//! Pages of a program's own that the driver keeps pinned (`NV_ESC_RM_ALLOC_MEMORY`, class `0071`).
//!
//! Only the kernel can do that, and only in the caller's place, from a struct that the caller's
//! other threads can rewrite after the mediator has looked at it. They could make memory of the
//! host's of it (class `003e`), of any length, under any handle, or pin more than was said. So the
//! call is led into a client of the mediator's own, in which there is nothing else
//! ([`super::staging`]), under a handle that no other call has. What the kernel has made there is
//! moved to where the program wants it, if it is what was asked for. Anything else is freed, and
//! the container ended: no program does so by mistake, and the processor may have mapped it
//! already, by the same call.
//!
//! Nobody tells when the kernel is done. A program can use what it has pinned in no other way than
//! by another call of somebody's: so before any call of the container's is looked at, what is there
//! by then is moved, while something is to come yet. A call is over when the thread that made it is
//! back with another one, or has ended; if it has brought nothing by then, it has failed. Until
//! then the staging client is looked through from time to time, though something has come under the
//! call's handle: that may have been another thread's.

use std::sync::OnceLock;

use crate::memory::{inflight_pins::InflightPins, staging::Staging};

/// Pinned memory that calls are bringing: they are led into a client of the mediator's own.
#[derive(Debug, Default)]
pub(crate) struct PinnedMemory {
    /// Calls that pin memory, of which it is not known yet what came of them.
    pub(crate) inflight: InflightPins,
    /// The client into which the kernel pins; from the first card's file on.
    pub(crate) staging: OnceLock<Staging>,
}

/// Most calls in a container that have brought nothing yet: a thread has one.
pub(crate) const MOST: usize = 256;
/// Most that are not over.
pub(crate) const MOST_OPEN: usize = 4096;
