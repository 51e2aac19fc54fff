//! Looking for what is at a path of a container, by the kernel's own resolution.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    io::Errno,
};

/// Tries to find what is being moved: as many as pathrs makes.
const MOST_TRIES: u32 = 128;

/// Opens what is at `path` with `root` as `/`, as a place only (`O_PATH`), with further `flags`. No
/// link leads out of the root, and none of `/proc` is followed.
///
/// This is what pathrs does, which makes an error in ten system calls: not for what is often not
/// there.
///
/// # Errors
/// As those of `openat2` (Linux 5.6).
pub fn find_in_root(root: impl AsFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..MOST_TRIES {
        match openat2(&root, path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), inside) {
            // Something was renamed or mounted meanwhile.
            Err(Errno::AGAIN) => {}
            found => return found,
        }
    }
    Err(Errno::AGAIN)
}
