//! The container's root file system: containerd's mounts, and their end.

use std::{
    io::{self, Read},
    os::unix::{ffi::OsStringExt, fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
};

use super::{mapped_rootfs::Mapped, protocol::RootfsMount};

/// A root file system that could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory to mount on.
    #[error("cannot make the mount point {}", path.display())]
    Target {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A mount of the root file system.
    #[error("cannot mount {kind} {source_path:?} at {}", target.display())]
    Mount {
        /// File system type.
        kind: String,
        /// The file system to be mounted.
        source_path: String,
        /// The mount point.
        target: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The table of mounts.
    #[error("cannot read /proc/self/mountinfo")]
    Table(#[source] io::Error),
    /// A mount that stays.
    #[error("cannot unmount {}", path.display())]
    Unmount {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Mounts all, in order, one over the other as containerd means it. On failure the caller unmounts
/// what was done.
pub(crate) fn mount_all(mounts: &[RootfsMount], target: &Path) -> Result<(), MountError> {
    if mounts.is_empty() {
        return Ok(());
    }
    let at = |source| MountError::Target { path: target.to_owned(), source };
    match std::fs::DirBuilder::new().mode(0o711).create(target) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(at(e)),
        _ => {}
    }
    for mount in mounts {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let (kind, source) = (some(&mount.kind), some(&mount.source));
        let make = |options: &[String]| {
            let made = containerd_shim::mount::mount_rootfs(kind.as_deref(), source.as_deref(), options, target);
            made.map_err(io::Error::other)
        };
        let done = Mapped::of(mount).and_then(|mapped| match mapped {
            Some(mapped) => mapped.mount(&mount.kind, target, || make(&mapped.options)),
            None => make(&mount.options),
        });
        // A lowerdir beyond a page makes this change the directory, hence the way back: workers
        // have none to lose.
        nix::unistd::chdir("/").map_err(|e| at(e.into()))?;
        done.map_err(|e| MountError::Mount {
            kind: mount.kind.clone(),
            source_path: mount.source.clone(),
            target: target.to_owned(),
            source: e,
        })?;
    }
    Ok(())
}

/// Unmounts everything that is mounted at or below a directory, the latest first. Succeeds when
/// there is nothing.
pub(crate) fn unmount_below(directory: &Path) -> Result<(), MountError> {
    let Ok(directory) = directory.canonicalize() else { return Ok(()) };
    // In pages: each read waits for whoever mounts or unmounts anything on the machine.
    let mut table = Vec::with_capacity(64 << 10);
    std::fs::File::open("/proc/self/mountinfo")
        .and_then(|mut file| file.read_to_end(&mut table))
        .map_err(MountError::Table)?;
    let mut failure = None;
    for path in mount_points(&table).into_iter().rev().filter(|path| path.starts_with(&directory)) {
        match umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // Gone meanwhile, or with its parent.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => failure = failure.or(Some(MountError::Unmount { path, source: errno.into() })),
        }
    }
    failure.map_or(Ok(()), Err)
}

/// The fifth field of each line, its octal escapes undone.
fn mount_points(table: &[u8]) -> Vec<PathBuf> {
    table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|field| PathBuf::from(std::ffi::OsString::from_vec(unescape(field))))
        .collect()
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let table = b"1 2 0:3 / /a rw - t s rw\n3 4 0:5 / /b\\040c\\134d rw - t s rw\n\nshort\n";
        assert_eq!(mount_points(table), [PathBuf::from("/a"), PathBuf::from("/b c\\d")]);
        assert_eq!(unescape(b"\\9zz\\04"), b"\\9zz\\04");
    }

    #[test]
    fn nothing_mounted_is_nothing_to_unmount() {
        unmount_below(Path::new("/no/such/bundle")).unwrap();
        unmount_below(tempfile::tempdir().unwrap().path()).unwrap();
    }
}
