//! Reading and writing the kernel's control files.

use std::{fs, io, path::Path};

use super::CgroupError;

/// A whole control file.
pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|source| CgroupError::Read { path: path.to_owned(), source })
}

/// A whole control file; `None` when it, or the cgroup, does not exist.
pub(super) fn read_if_present(path: &Path) -> Result<Option<String>, CgroupError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(source) => Err(CgroupError::Read { path: path.to_owned(), source }),
    }
}

/// Writes a control file in one `write(2)`, as the kernel wants it. It must exist: nothing is
/// created.
pub(super) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).truncate(false).open(path)?;
        io::Write::write_all(&mut file, value.as_bytes())
    };
    write().map_err(|source| CgroupError::Write { path: path.to_owned(), value: value.to_owned(), source })
}

/// The cgroup went away: open says ENOENT, a read through an open file or a removed directory
/// ENODEV.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ENODEV)
}

/// Value of one key in a flat keyed file (`oom_kill 3`).
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once([' ', '\t'])?;
        (name == key).then(|| value.trim().parse().ok()).flatten()
    })
}
