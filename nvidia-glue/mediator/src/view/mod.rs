//! The driver's answers as a container is to see them: a card of exactly its grant, no other card,
//! no other container's process.
//!
//! In [`cards`], [`memory`], [`processes`] and [`utilization`] every function works on the bytes of
//! one control's parameters (after the driver has filled them in) and cannot fail on any of them:
//! what does not lie within the bytes is left alone, and what they promise beyond is not there.

pub(crate) mod cards;
pub(crate) mod memory;
mod memory_controls;
mod process_controls;
pub(crate) mod processes;
pub(crate) mod utilization;
pub(crate) mod utilization_controls;

use self::utilization_controls::CardUtilization;

/// View of the container, as far as it is remembered.
#[derive(Debug)]
pub(crate) struct View {
    /// By the cards' numbers.
    utilizations: Vec<CardUtilization>,
}

impl View {
    pub(crate) fn new(cards: usize) -> Self {
        Self { utilizations: (0..cards).map(|_| CardUtilization::default()).collect() }
    }
}
