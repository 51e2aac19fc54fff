//! Pages of a card's memory, mapped for reading.

use std::fmt;

use abi::Handle;

/// Place in a card's memory.
#[derive(Debug, Clone, Copy)]
pub struct CardPlace {
    /// Number of the card's node.
    pub minor: u32,
    /// Device that the memory is below, in the mediator's own client.
    pub device: Handle,
    /// The memory there.
    pub memory: Handle,
    /// Offset in it.
    pub offset: u64,
}

/// The page of a card's memory that a place is in. It must be gone before the memory is freed: the
/// addresses are another one's then.
pub trait MappedPage: fmt::Debug + Send {
    /// The 8 bytes at `at` behind the place, read at once; `None`: not in the page, or not at a
    /// multiple of 8.
    fn word(&self, at: usize) -> Option<u64>;
}
