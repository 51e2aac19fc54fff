//! Pages of a card's memory that NVIDIA's driver maps.

use std::{io, os::fd::AsFd};

use abi::{Abi, Node};

use super::{CardPlace, Driver, MappedPage, OwnClient, Raw};
use crate::sys::ReadOnlyMapping;

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
