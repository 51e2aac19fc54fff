//! The driver's answers as a container is to see them: a card of exactly its grant, no other card, no other container's process.
//!
//! Every function works on the bytes of one control's parameters (after the driver has filled them in) and cannot fail on any of
//! them: what does not lie within the bytes is left alone, and what they promise beyond is not there.

pub(super) mod cards;
pub(super) mod memory;
pub(super) mod processes;
pub(super) mod utilization;
