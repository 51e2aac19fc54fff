//! Reading and writing below a container's root file system.
//!
//! Every path is resolved by the kernel with that root as its `/` (openat2, RESOLVE_IN_ROOT), so no
//! link of an image leads out of it. What is written is written under a new name and renamed over
//! the old one, so a link that was there is replaced and not followed.

use std::{
    fs::{File, Permissions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use base::find_in_root;
use pathrs::{
    InodeType, Root,
    error::ErrorKind,
    flags::{OpenFlags, RenameFlags},
};
use rustix::fs::OFlags;

/// A container's root file system.
#[derive(Debug)]
pub(super) struct Rootfs {
    root: Root,
    path: PathBuf,
}

/// Target of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MountPoint {
    Directory,
    File,
}

impl Rootfs {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { root: Root::open(path).map_err(to_io)?, path: std::fs::canonicalize(path)? })
    }

    /// Returns whether there is something at `path`.
    pub(super) fn exists(&self, path: &Path) -> bool {
        self.find(path).is_ok()
    }

    /// Opens what is at `path`, links followed.
    fn find(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        find_in_root(&self.root, path, OFlags::empty())
    }

    /// Device and inode of what is at `path`.
    pub(super) fn identity(&self, path: &Path) -> Option<(u64, u64)> {
        let metadata = File::from(self.find(path).ok()?).metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    }

    /// `path` with the links in it followed, as the container names it, as far as it exists; what
    /// does not is appended.
    pub(super) fn real_path(&self, path: &Path) -> PathBuf {
        for existing in path.ancestors() {
            let Ok(found) = self.find(existing) else { continue };
            let Ok(real) = std::fs::read_link(fd_path(&found)) else { break };
            let Ok(inside) = real.strip_prefix(&self.path) else { break };
            let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
            return Path::new("/").join(inside).join(rest);
        }
        path.to_owned()
    }

    /// The content of the plain file at `path`, at most `limit` bytes. A fifo or device is an error
    /// and is not opened.
    pub(super) fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let handle = self.root.resolve(path).map_err(to_io)?;
        if !std::fs::metadata(fd_path(&handle))?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        let mut content = Vec::new();
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        handle.reopen(OpenFlags::O_RDONLY).map_err(to_io)?.take(limit.saturating_add(1)).read_to_end(&mut content)?;
        if u64::try_from(content.len()).unwrap_or(u64::MAX) > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(content)
    }

    /// Puts a file that all may read at `path`, whatever was there.
    pub(super) fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.replace(path, |temporary| {
            let flags = OpenFlags::O_WRONLY | OpenFlags::O_EXCL | OpenFlags::O_NOFOLLOW | OpenFlags::O_CLOEXEC;
            let mode = Permissions::from_mode(0o644);
            let mut file = self.root.create_file(temporary, flags, &mode).map_err(to_io)?;
            // The umask is the caller's.
            file.set_permissions(mode)?;
            file.write_all(content)
        })
    }

    /// Puts a link to `target` at `path`, whatever was there; one that is right already stays.
    pub(super) fn link(&self, path: &Path, target: &Path) -> io::Result<()> {
        if self.root.readlink(path).is_ok_and(|present| present == target) {
            return Ok(());
        }
        self.replace(path, |temporary| {
            self.root.create(temporary, &InodeType::Symlink(target.to_owned())).map_err(to_io)
        })
    }

    /// Makes sure that there is something at `path` for a mount to go on, and that it is no link to
    /// something else.
    pub(super) fn mount_point(&self, path: &Path, kind: MountPoint) -> io::Result<()> {
        if kind == MountPoint::Directory {
            return self.make_dir(path);
        }
        let handle = match self.root.resolve_nofollow(path) {
            Ok(handle) => handle,
            Err(_) => {
                self.make_parent(path)?;
                return self.write(path, b"");
            }
        };
        // A descriptor that holds a link shows the link: the kernel does not go on from there.
        match std::fs::metadata(fd_path(&handle)) {
            Ok(metadata) if metadata.is_file() => Ok(()),
            Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            _ => self.write(path, b""),
        }
    }

    /// Creates the directory `path` and its parents.
    pub(super) fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.root.mkdir_all(path, &Permissions::from_mode(0o755)).map(drop).map_err(to_io)
    }

    /// Removes the file or link at `path`, if there is one.
    pub(super) fn remove_file(&self, path: &Path) -> io::Result<()> {
        match self.root.remove_file(path).map_err(to_io) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn make_parent(&self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), |parent| self.make_dir(parent))
    }

    /// Makes something under another name beside `path` and renames it.
    fn replace(&self, path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        self.make_parent(path)?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        // Several containers may be made on one directory at once.
        let mut hidden = std::ffi::OsString::from(format!(".egpu-{}-", std::process::id()));
        hidden.push(name);
        let temporary = path.with_file_name(hidden);
        self.remove_file(&temporary)?;
        make(&temporary)?;
        let renamed = self.root.rename(&temporary, path, RenameFlags::empty()).map_err(to_io);
        if renamed.is_err() {
            // The error that counts is the rename's.
            let _ = self.remove_file(&temporary);
        }
        renamed
    }
}

/// A path by which the kernel finds the very file that a descriptor holds.
fn fd_path(handle: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))
}

/// pathrs' errors with the system's number, where there is one, kept for branching.
fn to_io(error: pathrs::error::Error) -> io::Error {
    match error.kind() {
        ErrorKind::OsError(Some(number)) => io::Error::from_raw_os_error(number),
        _ => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A root and, beside it, what must not be touched.
    fn setup() -> (tempfile::TempDir, PathBuf, Rootfs) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("rootfs");
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/file"), "host").unwrap();
        let opened = Rootfs::open(&root).unwrap();
        (directory, root, opened)
    }

    #[test]
    fn links_do_not_lead_out() {
        let (directory, root, rootfs) = setup();
        let outside = directory.path().join("outside");
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../../../../../../../..", root.join("up")).unwrap();
        symlink("../../outside", root.join("etc/relative")).unwrap();
        for path in ["/absolute/file", "/up/outside/file", "/etc/relative/file", "/../outside/file"] {
            let _ = rootfs.write(Path::new(path), b"container");
            let _ = rootfs.link(Path::new(path), Path::new("target"));
            let _ = rootfs.mount_point(Path::new(path), MountPoint::File);
            assert_eq!(fs::read(outside.join("file")).unwrap(), b"host", "{path}");
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }

    #[test]
    fn a_link_in_the_way_is_replaced() {
        let (directory, root, rootfs) = setup();
        let outside = directory.path().join("outside/file");
        symlink(&outside, root.join("etc/ld.so.cache")).unwrap();
        rootfs.write(Path::new("/etc/ld.so.cache"), b"new").unwrap();
        assert_eq!(fs::read(root.join("etc/ld.so.cache")).unwrap(), b"new");
        assert!(fs::symlink_metadata(root.join("etc/ld.so.cache")).unwrap().is_file());

        symlink(&outside, root.join("etc/point")).unwrap();
        rootfs.mount_point(Path::new("/etc/point"), MountPoint::File).unwrap();
        assert!(fs::symlink_metadata(root.join("etc/point")).unwrap().is_file());
        assert_eq!(fs::read(&outside).unwrap(), b"host");
    }

    #[test]
    fn links_are_made_once_and_replaced_when_wrong() {
        let (_directory, root, rootfs) = setup();
        let path = Path::new("/usr/lib/libcuda.so.1");
        for target in ["libcuda.so.2", "libcuda.so.2", "libcuda.so.3"] {
            rootfs.link(path, Path::new(target)).unwrap();
            assert_eq!(fs::read_link(root.join("usr/lib/libcuda.so.1")).unwrap(), Path::new(target));
        }
        rootfs.write(path, b"").unwrap();
        rootfs.link(path, Path::new("libcuda.so.3")).unwrap();
        assert_eq!(fs::read_dir(root.join("usr/lib")).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn only_plain_files_are_read() {
        let (_directory, root, rootfs) = setup();
        nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(root.join("large"), [0; 100]).unwrap();
        symlink("/large", root.join("link")).unwrap();
        assert!(rootfs.read(Path::new("/fifo"), 10).is_err());
        assert!(rootfs.read(Path::new("/etc"), 10).is_err());
        assert_eq!(rootfs.read(Path::new("/large"), 99).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(rootfs.read(Path::new("/link"), 100).unwrap().len(), 100);
    }

    #[test]
    fn real_paths_follow_the_images_links() {
        let (_directory, root, rootfs) = setup();
        fs::create_dir_all(root.join("usr/lib")).unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        symlink("/usr/lib", root.join("usr/lib64")).unwrap();
        for (path, real) in [
            ("/lib/firmware/x", "/usr/lib/firmware/x"),
            ("/usr/lib64/libcuda.so.1", "/usr/lib/libcuda.so.1"),
            ("/nowhere/at/all", "/nowhere/at/all"),
            ("/", "/"),
        ] {
            assert_eq!(rootfs.real_path(Path::new(path)), Path::new(real), "{path}");
        }
    }
}
