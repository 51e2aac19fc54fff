//! Work that channels have submitted, by their USERD: memory of the program's in which it writes up
//! to where a channel's ring is filled (`GP_PUT`), and the card up to where it has fetched
//! (`GP_GET`).
//!
//! The page is mapped through a duplicate of the memory in the mediator's own client. The duplicate
//! keeps the memory, whatever the program frees in whichever order, until the page is unmapped.
//! That is when the channel goes, to which the memory is charged until then. A duplicate of any
//! other memory would keep what is charged no more: one that has got the handle of a USERD's is
//! never duplicated, or only until the call is over that makes it.
//!
//! **Trust.** The program may write anything there. What is read only says whether the container's
//! own work waits.

use std::{collections::BTreeMap, ops::RangeInclusive};

use abi::Handle;
use account::ObjectName;
use driver::{CardPlace, MappedPage};
use schedule::Submitted;

use crate::{channels::gate::CardGate, locks::lock};

/// `GP_GET`, and `GP_PUT` in the upper half (`Nvc36fControl` to `Nvcb6fControl`:
/// src/common/sdk/nvidia/inc/class). One read of a card's memory takes a microsecond.
const GET_AND_PUT: usize = 0x88;
/// The most channels that are read: one read takes a microsecond.
const MOST_READ: usize = 64;
/// The most pages that one question maps, which takes four driver calls each.
const MOST_MAPPED_AT_ONCE: usize = 2;

/// Place of a channel's USERD.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Userd {
    /// Memory of its client's.
    pub(crate) memory: Handle,
    pub(crate) offset: u64,
}

/// The USERDs of a card's channels.
pub(super) type Userds = BTreeMap<ObjectName, ChannelUserd>;

#[derive(Debug)]
pub(super) struct ChannelUserd {
    /// Memory of its client's that it is in.
    memory: Option<Handle>,
    access: Access,
    /// Its channel is one that is looked at.
    is_asked_for: bool,
}

#[derive(Debug)]
enum Access {
    /// Nobody has asked yet.
    New(Userd),
    Mapped(Mapping),
    /// It is in memory of the driver's own or of a handle that has become another's, or the driver
    /// does not map it.
    Impossible,
}

#[derive(Debug)]
struct Mapping {
    page: Box<dyn MappedPage>,
    /// Its memory in the mediator's own client.
    duplicate: Handle,
}

impl Access {
    fn is_mapped(&self) -> bool {
        matches!(self, Self::Mapped(_))
    }

    /// `GP_GET` and `GP_PUT`.
    fn read(&self) -> Option<(u32, u32)> {
        let Self::Mapped(mapping) = self else { return None };
        let word = mapping.page.word(GET_AND_PUT)?;
        Some((u32::try_from(word & u64::from(u32::MAX)).ok()?, u32::try_from(word >> 32).ok()?))
    }
}

/// The names of all objects of a client.
pub(super) const fn all_of(client: Handle) -> RangeInclusive<ObjectName> {
    ObjectName::new(client, Handle(0))..=ObjectName::new(client, Handle(u32::MAX))
}

impl CardGate {
    pub(super) fn add_userd(&self, name: ObjectName, userd: Option<Userd>) {
        let (memory, access) = (userd.map(|userd| userd.memory), userd.map_or(Access::Impossible, Access::New));
        let before = lock(&self.userds).insert(name, ChannelUserd { memory, access, is_asked_for: false });
        self.unmap(before.map(|before| before.access));
    }

    /// An object has come to be. What has had its handle is gone, and what was mapped by that may
    /// be the new one.
    pub(crate) fn replace_userd_memory(&self, name: ObjectName) {
        let before: Vec<Access> = {
            let mut userds = lock(&self.userds);
            let of_client = userds.range_mut(all_of(name.client)).map(|(_, userd)| userd);
            let replaced = of_client.filter(|userd| userd.memory == Some(name.object));
            replaced.map(|userd| std::mem::replace(&mut userd.access, Access::Impossible)).collect()
        };
        self.unmap(before);
    }

    /// Channels are gone. Whoever calls has taken them out of `state` before, so that none is
    /// mapped again.
    pub(super) fn remove_userds(&self, names: RangeInclusive<ObjectName>) {
        let gone: Vec<Access> = {
            let mut userds = lock(&self.userds);
            let names: Vec<ObjectName> = userds.range(names).map(|(name, _)| *name).collect();
            names.iter().filter_map(|name| userds.remove(name)).map(|userd| userd.access).collect()
        };
        self.unmap(gone);
    }

    /// See [`Gate::submitted`](schedule::Gate::submitted).
    pub(super) fn read_userds(&self) -> Option<Submitted> {
        let mut userds = lock(&self.userds);
        self.with(|channels| {
            userds.iter_mut().for_each(|(name, userd)| userd.is_asked_for = channels.does_compute(*name));
        });
        if userds.values().filter(|userd| userd.is_asked_for || userd.access.is_mapped()).count() > MOST_READ {
            return None;
        }
        let is_new = |userd: &&mut ChannelUserd| userd.is_asked_for && matches!(userd.access, Access::New(_));
        let new = userds.iter_mut().map(|(name, userd)| (name.client, userd)).filter(|(_, userd)| is_new(userd));
        for (client, userd) in new.take(MOST_MAPPED_AT_ONCE) {
            if let Access::New(place) = userd.access {
                userd.access = self.map(client, place).map_or(Access::Impossible, Access::Mapped);
            }
        }
        let mut submitted = Submitted::default();
        for userd in userds.values().filter(|userd| userd.is_asked_for) {
            let (get, put) = userd.access.read()?;
            submitted.is_pending |= get != put;
            submitted.puts = submitted.puts.wrapping_add(u64::from(put));
        }
        Some(submitted)
    }

    fn map(&self, client: Handle, Userd { memory, offset }: Userd) -> Option<Mapping> {
        let raw = self.raw();
        let duplicate = match raw.dup((self.device, Handle::NONE), (client, memory)) {
            Ok((status, duplicate)) if status.is_ok() => duplicate,
            refused => {
                tracing::debug!(?refused, card = self.uuid, "the memory of a channel's USERD is not duplicated");
                return None;
            }
        };
        let place = CardPlace { minor: self.minor, device: self.device, memory: duplicate, offset };
        match self.driver.map_page(&self.abi, &self.own, place) {
            Ok(page) => Some(Mapping { page, duplicate }),
            Err(error) => {
                tracing::debug!(%error, card = self.uuid, "a channel's USERD is not mapped");
                // What is not freed goes with the mediator's client.
                let _ = raw.free(duplicate);
                None
            }
        }
    }

    fn unmap(&self, gone: impl IntoIterator<Item = Access>) {
        for access in gone {
            if let Access::Mapped(Mapping { page, duplicate }) = access {
                // Before its memory.
                drop(page);
                let _ = self.raw().free(duplicate);
            }
        }
    }
}
