//! Errors of the ledger's files.

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
};

use base::format::FormatError;

use crate::ContainerKey;

/// Error of the ledger's files.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error("cannot {action} {}{}", path.display(), hint(source))]
    Io {
        /// The attempted action.
        action: &'static str,
        /// To what.
        path: PathBuf,
        source: io::Error,
    },
    /// A record cannot be read, so what it grants is not known.
    #[error(
        "record {} is not understood; sums that were made before count it still, and where they have to be made anew, nothing is granted; move it away once its container is gone",
        path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        source: serde_json::Error,
    },
    /// A record of another version of egpu.
    #[error(
        "record {} has {source}; end its container with the egpu that started it, or install a version of egpu that knows both",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        source: FormatError,
    },
    /// Settings of another version of egpu.
    #[error(
        "the settings {} have {source}; install the egpu that wrote them, or move the file away and set policies and periods anew",
        path.display()
    )]
    Settings {
        /// The file.
        path: PathBuf,
        /// Their format.
        source: FormatError,
    },
    /// Two containers' records have one name.
    #[error("record {} is of another container, {other}", path.display())]
    Collision {
        /// The file.
        path: PathBuf,
        /// The container that it is of.
        other: ContainerKey,
    },
    /// Somebody holds the lock.
    #[error("the ledger's lock {} was held by others for {waited_ms} ms; `fuser` on it tells by whom", path.display())]
    LockTimeout {
        /// The lock file.
        path: PathBuf,
        /// Milliseconds that were waited.
        waited_ms: u128,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room on its file system",
        ErrorKind::PermissionDenied => "; run egpu as root",
        ErrorKind::ReadOnlyFilesystem => "; choose another state_dir",
        _ => "",
    }
}

impl StoreError {
    /// Returns whether a file is there that this build does not understand.
    pub(crate) fn is_not_understood(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Version { .. } | Self::Settings { .. })
    }
}
