//! Files on the host that belong to one container: what is mounted into it and is no file of the
//! driver.

use std::{
    fs, io,
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
    match path(state_dir, grant_id).map(|path| fs::read(path.join(HELD_FILE))) {
        Ok(Ok(said)) => said == b"1",
        Ok(Err(error)) => error.kind() != io::ErrorKind::NotFound,
        Err(_) => false,
    }
}

/// Notes that the driver holds nothing for the grant any more. Fine if somebody who has seen that
/// as well has removed its files meanwhile.
///
/// # Errors
/// When that cannot be written.
pub fn mark_freed(state_dir: &Path, grant_id: &str) -> Result<(), GrantFilesError> {
    let path = path(state_dir, grant_id)?.join(HELD_FILE);
    match fs::write(&path, "0") {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(GrantFilesError::Write { path, source }),
        _ => Ok(()),
    }
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
        mark_freed(state.path(), "one").unwrap();
        assert!(!may_be_held(state.path(), "one"));
        remove_files(state.path(), "one").unwrap();
        mark_freed(state.path(), "one").unwrap();
        assert!(!may_be_held(state.path(), "one"));
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
