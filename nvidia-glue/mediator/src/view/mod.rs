//! The driver's answers as a container is to see them: a card of exactly its grant, no other card,
//! no other container's process.
//!
//! In [`cards`], [`memory`], [`processes`] and [`utilization`] every function works on the bytes of
//! one control's parameters (after the driver has filled them in) and cannot fail on any of them:
//! what does not lie within the bytes is left alone, and what they promise beyond is not there.

pub(crate) mod card_utilization;
pub(crate) mod cards;
pub(crate) mod memory;
pub(crate) mod processes;
pub(crate) mod utilization;

use account::Card;

use self::card_utilization::CardUtilization;

/// View of the container, as far as it is remembered.
#[derive(Debug)]
pub(crate) struct View {
    /// By the cards' numbers.
    utilizations: Vec<CardUtilization>,
}

impl View {
    pub(crate) const fn new(utilizations: Vec<CardUtilization>) -> Self {
        Self { utilizations }
    }

    pub(crate) fn utilization(&self, card: Card) -> Option<&CardUtilization> {
        self.utilizations.get(usize::from(card.0))
    }
}
