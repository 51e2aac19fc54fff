//! Taking the cgroup away.

use std::time::Duration;

use base::cgroup_tree;

use super::{Cgroup, CgroupError};

/// Waits between the tries, doubled each time: 2 ms, 4 ms, ... 512 ms, about 1 s in all. A killed
/// process leaves its cgroup only at its exit, which takes as long as it takes to free its memory.
const FIRST_WAIT: Duration = Duration::from_millis(2);
const TRIES: u32 = 10;

impl Cgroup {
    /// Removes the directories and those below them. Waits a moment for processes that are about to
    /// be gone; a process that is left makes it fail. Succeeds when there is nothing.
    pub async fn remove(&self) -> Result<(), CgroupError> {
        let mut wait = FIRST_WAIT;
        for _ in 1..TRIES {
            if self.remove_once().is_ok() {
                return Ok(());
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        self.remove_once()
    }

    /// Kills all, again and again while there is somebody left, and removes: what is left to do
    /// after a crash. Somebody may still come in after the first pass: a process that a dead shim's
    /// worker had begun to make.
    pub async fn destroy(&self) -> Result<(), CgroupError> {
        let mut wait = FIRST_WAIT;
        for _ in 1..TRIES {
            // The usual case is an empty one; killing would freeze it first.
            if !self.is_empty()? {
                self.kill_all().await?;
            }
            if self.remove_once().is_ok() {
                return Ok(());
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        self.remove_once()
    }

    /// Tries to remove every directory once; the first failure is returned after all were tried.
    fn remove_once(&self) -> Result<(), CgroupError> {
        let mut result = Ok(());
        for directory in self.directories() {
            // A cgroup directory's files go with it.
            let removed = cgroup_tree::remove(directory)
                .map_err(|source| CgroupError::Remove { path: directory.to_owned(), source });
            if result.is_ok() {
                result = removed;
            }
        }
        result
    }
}
