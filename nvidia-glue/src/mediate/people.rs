//! The container's processes that have made driver calls.

use foldhash::HashMap;

use super::{Numbers, Pid};
use crate::account::Mm;

/// One process.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// What it is called in the container.
    numbers: Numbers,
    /// Its address space; `None` until it matters.
    memory: Option<Mm>,
}

/// Every process that has made a call and whose end is not known.
#[derive(Debug, Default)]
pub(super) struct People {
    known: HashMap<Pid, Known>,
    address_spaces: u64,
}

impl People {
    /// Whether the process is known already.
    pub(super) fn knows(&self, pid: Pid) -> bool {
        self.known.contains_key(&pid)
    }

    /// A process made its first call; `false`: it is known already.
    pub(super) fn add(&mut self, pid: Pid, numbers: Numbers) -> bool {
        let known = Known { numbers, memory: None };
        match self.known.entry(pid) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(known);
                true
            }
        }
    }

    /// It has ended.
    pub(super) fn remove(&mut self, pid: Pid) {
        self.known.remove(&pid);
    }

    pub(super) fn pids(&self) -> Vec<Pid> {
        self.known.keys().copied().collect()
    }

    pub(super) fn pid_in_container(&self, pid: Pid) -> Option<i32> {
        self.known.get(&pid).map(|known| known.numbers.in_container())
    }

    /// What another process of the container would call it; `None`: there it does not exist.
    pub(super) fn pid_seen_by(&self, pid: Pid, viewer: Pid) -> Option<u32> {
        let seen = self.known.get(&pid)?.numbers.seen_by(&self.known.get(&viewer)?.numbers)?;
        u32::try_from(seen).ok()
    }

    /// The other processes whose address space has a number.
    pub(super) fn in_address_spaces(&self, but: Pid) -> Vec<(Pid, Mm)> {
        let numbered = self.known.iter().filter_map(|(pid, known)| Some((*pid, known.memory?)));
        numbered.filter(|(pid, _)| *pid != but).collect()
    }

    /// The address space of a process, which shares that of `sharers` now.
    pub(super) fn address_space(&mut self, pid: Pid, sharers: &[Mm]) -> Mm {
        let own = self.known.get(&pid).and_then(|known| known.memory);
        // One that executed a program after it shared (vfork) has an address space of its own from then on.
        let others = self.in_address_spaces(pid);
        let is_alone_in = |memory: Mm| others.iter().all(|(_, theirs)| *theirs != memory);
        let memory = match (own, sharers.first()) {
            (Some(own), _) if sharers.contains(&own) => own,
            (_, Some(shared)) => *shared,
            (Some(own), None) if is_alone_in(own) => own,
            (_, None) => {
                self.address_spaces += 1;
                Mm(self.address_spaces)
            }
        };
        if let Some(known) = self.known.get_mut(&pid) {
            known.memory = Some(memory);
        }
        memory
    }
}
