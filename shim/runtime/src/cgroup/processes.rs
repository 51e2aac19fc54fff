//! Processes of the cgroup.

use std::collections::BTreeSet;

use base::cgroup_tree;

use super::{Cgroup, CgroupError};

impl Cgroup {
    /// The processes in the cgroup and the cgroups below it, ascending; empty when it is gone.
    /// Zombies are not among them.
    pub fn pids(&self) -> Result<Vec<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        // A process is in every hierarchy; one that escaped from one is still in others.
        for directory in self.directories() {
            let found = cgroup_tree::pids(directory);
            let found = found.map_err(|source| CgroupError::Read { path: directory.to_owned(), source })?;
            // 0 stands for a process that this pid namespace cannot see; it cannot be named, let
            // alone signalled.
            pids.extend(found.into_iter().flatten().filter(|&pid| pid > 0));
        }
        Ok(pids.into_iter().collect())
    }

    /// True when no process is left in it; zombies do not count.
    pub fn is_empty(&self) -> Result<bool, CgroupError> {
        Ok(self.pids()?.is_empty())
    }
}
