//! Copies of files before they are changed. They are for the administrator: nothing writes them
//! back.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use super::{changes, error::InstallError, programs::STATE};

/// Returns the path of a file's copy: below `/var/lib/egpu/backup`, with a number behind its name,
/// 1 for the oldest.
fn copy_of(path: &Path, number: usize) -> PathBuf {
    let below = path.strip_prefix("/").unwrap_or(path);
    PathBuf::from(format!("{}.{number}", Path::new(STATE).join("backup").join(below).display()))
}

/// Lists the copies of a file, the oldest first.
fn copies(path: &Path) -> Vec<PathBuf> {
    (1..).map(|number| copy_of(path, number)).take_while(|copy| copy.exists()).collect()
}

/// Keeps a copy of a file; that of the last time, if it has not changed since.
pub(super) fn keep(path: &Path, text: &str) -> Result<PathBuf, InstallError> {
    let copies = copies(path);
    if let Some(last) = copies.last()
        && changes::read(last)?.as_deref() == Some(text)
    {
        return Ok(last.clone());
    }
    let copy = copy_of(path, copies.len() + 1);
    // They may hold passwords of registries.
    let folder = Path::new(STATE).join("backup");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|source| InstallError::Write { path: folder, source })?;
    changes::replace(&copy, Some(text))?;
    Ok(copy)
}

/// Removes the copies of a file that is again as the oldest says. Returns those that are left.
pub(super) fn remove(path: &Path) -> Result<Vec<PathBuf>, InstallError> {
    let copies = copies(path);
    changes::remove_stray(&copy_of(path, copies.len() + 1))?;
    let Some(oldest) = copies.first() else { return Ok(Vec::new()) };
    if changes::read(oldest)? != changes::read(path)? {
        return Ok(copies);
    }
    // The oldest last: a run that is killed in between leaves what the next one removes.
    for copy in copies.iter().rev() {
        fs::remove_file(copy).map_err(|source| InstallError::Write { path: copy.clone(), source })?;
    }
    Ok(Vec::new())
}

/// Removes the folders in which there is no copy.
pub(super) fn remove_empty_folders() {
    fn remove(folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            remove(&entry.path());
        }
        // One that is not empty stays.
        let _ = fs::remove_dir(folder);
    }
    remove(&Path::new(STATE).join("backup"));
}
