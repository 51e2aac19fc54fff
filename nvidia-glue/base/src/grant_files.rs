//! Files on the host that belong to one container: what is mounted into it and is no file of the
//! driver.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Files of a grant cannot be named or removed.
#[derive(Debug, thiserror::Error)]
pub enum GrantFilesError {
    /// The grant's id cannot name a directory.
    #[error("`{id}` cannot name a directory: letters, digits, `.`, `-` and `_` are accepted")]
    Id {
        /// As it is in the record.
        id: String,
    },
    /// One cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// They cannot be removed.
    #[error("cannot remove {}", path.display())]
    Remove {
        /// Their directory.
        path: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
}

/// Below the state directory.
const DIRECTORY: &str = "inject";

/// `<state_dir>/inject`: such files of all grants, each in a directory of its own.
pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join(DIRECTORY)
}

/// `<state_dir>/inject/<grant>`.
///
/// # Errors
/// When `grant_id` cannot name a directory.
pub fn path(state_dir: &Path, grant_id: &str) -> Result<PathBuf, GrantFilesError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if grant_id.is_empty() || grant_id.starts_with('.') || !grant_id.bytes().all(plain) {
        return Err(GrantFilesError::Id { id: grant_id.to_owned() });
    }
    Ok(directory(state_dir).join(grant_id))
}

/// Returns the file in which the mediator of a grant's container publishes what it uses:
/// `<state_dir>/inject/<grant>/usage`. It goes with the grant's other files.
///
/// # Errors
/// When `grant_id` is none.
pub fn usage_file(state_dir: &Path, grant_id: &str) -> Result<PathBuf, GrantFilesError> {
    Ok(path(state_dir, grant_id)?.join("usage"))
}

/// Returns the file in which the mediator of a grant publishes its scheduling.
///
/// # Errors
/// When `grant_id` is none.
pub fn status_file(state_dir: &Path, grant_id: &str) -> Result<PathBuf, GrantFilesError> {
    Ok(path(state_dir, grant_id)?.join("schedule"))
}

/// Beside the usage file: the mediator of a grant says whether the driver holds something for it,
/// `1` from the container's first call on, `0` once all is freed.
pub const HELD_FILE: &str = "held";

/// Returns whether the driver may hold something for a grant whose mediator has ended: that was
/// killed before it had freed all. `false` where no mediator has said anything.
pub fn may_be_held(state_dir: &Path, grant_id: &str) -> bool {
    path(state_dir, grant_id).is_ok_and(|path| says_held(&path.join(HELD_FILE)))
}

/// Returns whether a mark says that, or cannot be read.
pub fn says_held(mark: &Path) -> bool {
    match fs::read(mark) {
        Ok(said) => said == b"1",
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// A grant's mark as it is now: that of its next mediator is another file.
#[derive(Debug)]
pub struct HeldMark {
    path: PathBuf,
    file: Option<File>,
}

impl HeldMark {
    /// Opens the mark. Fine if there is none: nothing is held.
    ///
    /// # Errors
    /// When it cannot be opened, or `grant_id` is none.
    pub fn open(state_dir: &Path, grant_id: &str) -> Result<Self, GrantFilesError> {
        let path = path(state_dir, grant_id)?.join(HELD_FILE);
        match File::options().write(true).open(&path) {
            Ok(file) => Ok(Self { path, file: Some(file) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self { path, file: None }),
            Err(source) => Err(GrantFilesError::Write { path, source }),
        }
    }

    /// Notes that the driver holds nothing any more for the mediator whose mark this is.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn clear(&self) -> Result<(), GrantFilesError> {
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(b"0", 0).map_err(|source| GrantFilesError::Write { path: self.path.clone(), source })
    }
}

/// Makes the directory for such files, with the grant. Whatever makes files there later makes none
/// once it is removed.
///
/// # Errors
/// When it cannot be made, or `grant_id` is none.
pub fn make_directory(state_dir: &Path, grant_id: &str) -> Result<(), GrantFilesError> {
    let path = path(state_dir, grant_id)?;
    crate::make_directory(&path, 0o711, 0o711).map_err(|source| GrantFilesError::Write { path, source })
}

/// Removes what an injection made on the host for a grant. Fine if there is
/// nothing.
///
/// # Errors
/// When the files cannot be removed, or `grant_id` is none.
pub fn remove_files(state_dir: &Path, grant_id: &str) -> Result<(), GrantFilesError> {
    let path = path(state_dir, grant_id)?;
    match fs::remove_dir_all(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(GrantFilesError::Remove { path, source }),
        _ => Ok(()),
    }
}

/// Removes such files of all grants that are not live: of shims that were killed. To be called
/// under the ledger's lock.
///
/// # Errors
/// When files cannot be removed; the others are.
pub fn remove_stale_files(state_dir: &Path, is_live: impl Fn(&str) -> bool) -> Result<(), GrantFilesError> {
    let mut result = Ok(());
    for entry in fs::read_dir(directory(state_dir)).into_iter().flatten().flatten() {
        if let Some(grant) = entry.file_name().to_str()
            && !is_live(grant)
            && let Err(error) = remove_files(state_dir, grant)
        {
            result = Err(error);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_ids_stay_below_the_state_directory() {
        for id in ["", ".", "..", "../x", "a/b", "a\0b", "ä"] {
            assert!(path(Path::new("/run/egpu"), id).is_err(), "{id}");
        }
        assert_eq!(path(Path::new("/s"), "k8s.io_a-1").unwrap(), Path::new("/s/inject/k8s.io_a-1"));
    }

    #[test]
    fn what_a_mediator_has_not_freed_may_be_held() {
        let state = tempfile::tempdir().unwrap();
        assert!(!may_be_held(state.path(), "one"), "no mediator has said anything");
        let directory = path(state.path(), "one").unwrap();
        fs::create_dir_all(&directory).unwrap();
        for (said, is_held) in [("0", false), ("1", true)] {
            fs::write(directory.join(HELD_FILE), said).unwrap();
            assert_eq!(may_be_held(state.path(), "one"), is_held, "{said}");
        }
        let mark = HeldMark::open(state.path(), "one").unwrap();
        mark.clear().unwrap();
        assert!(!may_be_held(state.path(), "one"));
        remove_files(state.path(), "one").unwrap();
        mark.clear().unwrap();
        HeldMark::open(state.path(), "one").unwrap().clear().unwrap();
        assert!(!may_be_held(state.path(), "one"), "others who have seen it have removed its files");
    }

    #[test]
    fn only_stale_files_go() {
        let state = tempfile::tempdir().unwrap();
        for id in ["one", "two"] {
            fs::create_dir_all(path(state.path(), id).unwrap().join("gpus")).unwrap();
        }
        remove_stale_files(state.path(), |id| id == "two").unwrap();
        assert!(!state.path().join("inject/one").exists());
        assert!(state.path().join("inject/two").exists());
        remove_files(state.path(), "two").unwrap();
        remove_files(state.path(), "two").unwrap();
        assert_eq!(fs::read_dir(state.path().join("inject")).unwrap().count(), 0);
    }
}
