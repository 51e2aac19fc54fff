//! The container's processes that have made driver calls.

use base::Pid;
use foldhash::HashMap;

use crate::Numbers;

/// Every process that has made a call and whose end is not known.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    /// Numbers of each.
    known: HashMap<Pid, Numbers>,
}

impl ProcessTable {
    /// Returns whether the process is known already.
    pub(crate) fn knows(&self, pid: Pid) -> bool {
        self.known.contains_key(&pid)
    }

    /// A process made its first call; `false`: it is known already.
    pub(crate) fn add(&mut self, pid: Pid, numbers: Numbers) -> bool {
        match self.known.entry(pid) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(numbers);
                true
            }
        }
    }

    /// It has ended.
    pub(crate) fn remove(&mut self, pid: Pid) {
        self.known.remove(&pid);
    }

    pub(crate) fn pids(&self) -> Vec<Pid> {
        self.known.keys().copied().collect()
    }

    pub(crate) fn pid_in_container(&self, pid: Pid) -> Option<i32> {
        self.known.get(&pid).map(Numbers::in_container)
    }

    /// Returns the pid that another process of the container sees; `None`: there it does not
    /// exist.
    pub(crate) fn pid_seen_by(&self, pid: Pid, viewer: Pid) -> Option<u32> {
        let seen = self.known.get(&pid)?.seen_by(self.known.get(&viewer)?)?;
        u32::try_from(seen).ok()
    }
}
