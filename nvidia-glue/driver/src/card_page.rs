//! Pages of a card's memory, mapped for reading.

use std::{fmt, io, os::fd::AsFd};

use abi::{Abi, Handle, Node};

use super::{Driver, OwnClient, Raw};
use crate::sys::ReadOnlyMapping;

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

#[derive(Debug)]
struct NvidiaPage {
    mapping: ReadOnlyMapping,
    /// Offset of the place in the page.
    place: usize,
}

impl MappedPage for NvidiaPage {
    fn word(&self, at: usize) -> Option<u64> {
        self.mapping.word(self.place.checked_add(at)?)
    }
}

/// Maps the page through an own open file of the card's node, which the mapping keeps.
pub(super) fn map(driver: &dyn Driver, abi: Abi, own: &OwnClient, place: CardPlace) -> io::Result<Box<dyn MappedPage>> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let page = rustix::param::page_size();
    let length = u64::try_from(page).map_err(invalid)?;
    let within = place.offset % length;
    let target = driver.open(Node::Card(place.minor))?;
    let raw = Raw { driver, abi, file: &own.control, client: own.client };
    let status = raw.map_for_reading((place.device, place.memory), (place.offset - within, length), &target)?;
    if !status.is_ok() {
        return Err(io::Error::other(format!("the driver refuses a mapping with status {:#x}", status.0)));
    }
    let mapping = ReadOnlyMapping::new(target.file.as_fd(), page)?;
    Ok(Box::new(NvidiaPage { mapping, place: usize::try_from(within).map_err(invalid)? }))
}
