//! Channels: which there are, when they are on the card, and what they may ask of it.

mod activity;
pub(crate) mod card_channels;
pub(crate) mod driver_time;
pub(crate) mod gate;
mod preemption;
pub(crate) mod scheduling;
