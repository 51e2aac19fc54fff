//! Pages of cards' memory that are mapped for reading: USERDs of channels, in which whoever tests
//! writes.

use std::{
    io,
    sync::{
        Arc, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use abi::Status;
use driver::{CardPlace, MappedPage, OwnClient};

use super::{
    objects::{Kind, Memory, VideoMemory},
    state::State,
};

/// `GP_GET`, and `GP_PUT` in the upper half.
const GET_AND_PUT: u64 = 0x88;

/// The mapping keeps no memory: only a handle does.
#[derive(Debug)]
struct Page {
    memory: Weak<VideoMemory>,
    offset: u64,
    has_stale_page: Arc<AtomicBool>,
}

impl MappedPage for Page {
    fn word(&self, at: usize) -> Option<u64> {
        let at = self.offset.checked_add(u64::try_from(at).ok()?)?;
        let Some(memory) = self.memory.upgrade() else {
            self.has_stale_page.store(true, Ordering::Relaxed);
            return Some(u64::MAX);
        };
        let content = memory.content.lock().unwrap_or_else(PoisonError::into_inner);
        Some(content.get(&at).copied().unwrap_or(0))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.memory.strong_count() == 0 {
            self.has_stale_page.store(true, Ordering::Relaxed);
        }
    }
}

/// Maps what belongs to the client, and to the card of the node.
pub(super) fn map(state: &State, own: &OwnClient, place: CardPlace) -> io::Result<Box<dyn MappedPage>> {
    let client = state.clients.get(&own.client.0).ok_or(io::ErrorKind::InvalidInput)?;
    let memory = client.objects.get(&place.memory.0).filter(|memory| memory.parent == place.device.0);
    let Some(Kind::VideoMemory(memory)) = memory.map(|memory| &memory.kind) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let card = state.cards.get(memory.card).filter(|card| card.card.minor == place.minor);
    if card.is_none() || place.offset >= memory.length {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let has_stale_page = Arc::clone(&state.has_stale_page);
    Ok(Box::new(Page { memory: Arc::downgrade(memory), offset: place.offset, has_stale_page }))
}

/// Writes into a channel's USERD what a program and the card would.
pub(super) fn write_userd(state: &State, (client, channel): (u32, u32), get: u32, put: u32) -> Result<(), Status> {
    let client = state.clients.get(&client).ok_or(Status::INVALID_CLIENT)?;
    let Kind::Channel { userd: Some((Memory::Video(memory), offset)), .. } = &client.object(channel)?.kind else {
        return Err(Status::INVALID_OBJECT);
    };
    let mut content = memory.content.lock().unwrap_or_else(PoisonError::into_inner);
    content.insert(offset.saturating_add(GET_AND_PUT), u64::from(put) << 32 | u64::from(get));
    Ok(())
}
