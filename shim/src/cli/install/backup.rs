//! Copies of files before they are changed. They are for the administrator: nothing writes them
//! back.

use std::{
    fs,
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
    changes::replace(&copy, Some(text))?;
    Ok(copy)
}

/// Removes the copies of a file that is again as the oldest says. Returns those that are left.
pub(super) fn remove(path: &Path) -> Result<Vec<PathBuf>, InstallError> {
    let copies = copies(path);
    let Some(oldest) = copies.first() else { return Ok(Vec::new()) };
    if changes::read(oldest)? != changes::read(path)? {
        return Ok(copies);
    }
    // The oldest last: a run that is killed in between leaves what the next one removes.
    for copy in copies.iter().rev() {
        fs::remove_file(copy).map_err(|source| InstallError::Write { path: copy.clone(), source })?;
        let state = Path::new(STATE);
        for folder in copy.ancestors().skip(1).take_while(|folder| folder.starts_with(state) && *folder != state) {
            // One that is not empty has somebody else's copies.
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
    }
    Ok(Vec::new())
}
