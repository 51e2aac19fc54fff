//! Who is in the cgroup.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{Cgroup, CgroupError, Layout, files};

impl Cgroup {
    /// The processes in the cgroup and the cgroups below it, ascending; empty when it is gone. Zombies are not among
    /// them.
    pub fn pids(&self) -> Result<Vec<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        match &self.layout {
            Layout::V2 { directory, .. } => collect(directory, &mut pids)?,
            // A process is in every hierarchy that libcontainer joined; one that escaped from one is still in others.
            Layout::V1 { hierarchies } => {
                for hierarchy in hierarchies {
                    collect(&hierarchy.directory, &mut pids)?;
                }
            }
        }
        Ok(pids.into_iter().collect())
    }

    /// True when no process is left in it; zombies do not count.
    pub fn is_empty(&self) -> Result<bool, CgroupError> {
        Ok(self.pids()?.is_empty())
    }
}

fn collect(directory: &Path, pids: &mut BTreeSet<i32>) -> Result<(), CgroupError> {
    for cgroup in tree(directory)? {
        if let Some(text) = files::read_if_present(&cgroup.join("cgroup.procs")).or_else(ignore_threaded)? {
            // 0 stands for a process that this pid namespace cannot see; it cannot be named, let alone signalled.
            pids.extend(text.lines().filter_map(|line| line.trim().parse::<i32>().ok()).filter(|&pid| pid > 0));
        }
    }
    Ok(())
}

/// `cgroup.procs` of a threaded v2 cgroup answers EOPNOTSUPP; its processes are listed in the domain above it.
fn ignore_threaded(error: CgroupError) -> Result<Option<String>, CgroupError> {
    match error {
        CgroupError::Read { source, .. } if source.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => Ok(None),
        error => Err(error),
    }
}

/// A cgroup and those below it, parents first; empty when it is gone.
pub(super) fn tree(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let read = |path: &Path| -> Result<Vec<PathBuf>, CgroupError> {
        let wrap = |source| CgroupError::Read { path: path.to_owned(), source };
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if files::is_gone(&error) => return Ok(Vec::new()),
            Err(error) => return Err(wrap(error)),
        };
        let mut children = Vec::new();
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if files::is_gone(&error) => break,
                Err(error) => return Err(wrap(error)),
            };
            if entry.file_type().map_err(wrap)?.is_dir() {
                children.push(entry.path());
            }
        }
        Ok(children)
    };
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let mut found = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        found.extend(read(&directory)?);
        next += 1;
    }
    Ok(found)
}
