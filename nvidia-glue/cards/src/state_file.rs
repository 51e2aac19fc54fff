//! Small JSON files in the state directory: a missing or spoilt one is as good as none, a written
//! one is whole.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use base::make_directory;
use serde::{Serialize, de::DeserializeOwned};

/// Reads the value in a file. `None`: it is missing, unreadable or malformed.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Replaces the file atomically: readers see the old one or the new one.
///
/// # Errors
/// When the file cannot be written; the old one is then still there.
pub(super) fn replace<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    /// Distinguishes the threads of one process.
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    if let Some(directory) = path.parent() {
        make_directory(directory, 0o711, 0o711)?;
    }
    let unique = format!("{}.{}.new", process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
    let new = path.with_extension(unique);
    let written = write(&new, &serde_json::to_vec(value)?).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let open = |exclusive: bool| {
        let mut options = OpenOptions::new();
        options.write(true).mode(0o640).create(true).truncate(true).create_new(exclusive);
        options.open(path)
    };
    // Left behind by a process of the same id that was killed here.
    let mut file = open(true).or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => fs::remove_file(path).and_then(|()| open(true)),
        _ => Err(error),
    })?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/state.json");
        assert_eq!(read::<Vec<u32>>(&path), None);
        replace(&path, &[1, 2]).unwrap();
        replace(&path, &[3]).unwrap();
        assert_eq!(read::<Vec<u32>>(&path), Some(vec![3]));
        assert_eq!(read::<String>(&path), None, "another type is a miss");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, &[1]).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
