//! Handles of clients, of which no two on the machine are the same: the driver's are the machine's,
//! and a control may name any client by its handle.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use base::file_lock::FileLock;

/// Client handles are this and an index (`RS_CLIENT_HANDLE_BASE`).
const BASE: u32 = 0xc1d0_0000;
/// The indices before it begins again.
const INDICES: u32 = 0xf_ffff;

/// The index that was given away last, in a file that all processes share which simulate the
/// driver.
#[derive(Debug)]
pub(super) struct ClientHandles {
    path: PathBuf,
}

impl ClientHandles {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join("clients");
        // Here, and not at each use: a mediator may not make files any more by then.
        OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        Ok(Self { path })
    }

    /// The next one. They begin again after a million clients; the caller looks whether its own
    /// still has one.
    pub(super) fn next(&self) -> io::Result<u32> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let file = FileLock::wait(file)?;
        let next = last(&file)? % INDICES + 1;
        file.write_all_at(&next.to_le_bytes(), 0)?;
        Ok(BASE | next)
    }
}

/// Last handle that was given out; 0 in a new file.
fn last(file: &File) -> io::Result<u32> {
    let mut bytes = [0; 4];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        Err(error) => Err(error),
        Ok(()) => Ok(u32::from_le_bytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same_whoever_asks_until_they_begin_again() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) =
            (ClientHandles::new(directory.path()).unwrap(), ClientHandles::new(directory.path()).unwrap());
        assert_eq!([one.next().unwrap(), other.next().unwrap(), one.next().unwrap()], [BASE | 1, BASE | 2, BASE | 3]);
        std::fs::write(&one.path, INDICES.to_le_bytes()).unwrap();
        assert_eq!(other.next().unwrap(), BASE | 1);
    }
}
