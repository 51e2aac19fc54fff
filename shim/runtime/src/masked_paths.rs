//! `linux.maskedPaths`: libcontainer 0.7.0 takes a path that it cannot look at for one that is not
//! there, and leaves it open.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use nix::sys::{
    stat::{major, minor},
    statfs::{TMPFS_MAGIC, fstatfs},
    statvfs::FsFlags,
};
use pathrs::{Root, error::ErrorKind};

/// Checks that what is there of these paths, below the root of a process, is hidden.
pub(super) fn verify(root: &Path, masked: &[PathBuf]) -> Result<(), String> {
    let text = |path: &Path, error: &dyn std::fmt::Display| format!("cannot mask {}: {error}", path.display());
    let inside = Root::from_fd(File::open(root).map_err(|error| text(root, &error))?);
    for path in masked {
        let place = match inside.resolve(path) {
            Err(error) if is_absent(error.kind()) => continue,
            place => place.map_err(|error| text(path, &error))?,
        };
        if !is_hidden(place.into()).map_err(|error| text(path, &error))? {
            return Err(text(path, &"it can still be read"));
        }
    }
    Ok(())
}

fn is_absent(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::OsError(Some(libc::ENOENT | libc::ENOTDIR)))
}

/// A directory is an empty tmpfs that nobody may write, anything else `/dev/null`.
fn is_hidden(place: std::os::fd::OwnedFd) -> io::Result<bool> {
    let place = File::from(place);
    let status = place.metadata()?;
    if status.is_dir() {
        let system = fstatfs(&place)?;
        return Ok(system.filesystem_type() == TMPFS_MAGIC && system.flags().contains(FsFlags::ST_RDONLY));
    }
    Ok(status.file_type().is_char_device() && (major(status.rdev()), minor(status.rdev())) == (1, 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_has_to_be_hidden() {
        let root = tempfile::tempdir().unwrap();
        let check = |path: &str| verify(root.path(), &[path.into()]);
        std::fs::write(root.path().join("secret"), "x").unwrap();
        std::fs::create_dir(root.path().join("folder")).unwrap();
        assert_eq!(check("/absent/too"), Ok(()));
        assert_eq!(check("/secret/no/directory"), Ok(()));
        assert_eq!(check("/secret"), Err("cannot mask /secret: it can still be read".into()));
        assert_eq!(check("/folder"), Err("cannot mask /folder: it can still be read".into()));
        assert_eq!(verify(Path::new("/"), &["/dev/null".into()]), Ok(()));
    }
}
