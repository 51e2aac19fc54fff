//! Checks for kernel calls that egpu needs.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// Calls that egpu needs and not every kernel has.
#[derive(Debug, Clone, Copy)]
pub struct KernelFeatures {
    /// `pidfd_getfd(2)`.
    pub pidfd_getfd: bool,
    /// `mount_setattr(2)`.
    pub mount_setattr: bool,
    /// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`.
    pub wait_killable: bool,
}

/// The flag that is looked for; it is refused without the first one.
const LISTENER_WITH_WAIT_KILLABLE: libc::c_ulong =
    libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

/// Asks the kernel for each of them, without an effect.
pub fn kernel_features() -> KernelFeatures {
    KernelFeatures {
        pidfd_getfd: has_pidfd_getfd(),
        mount_setattr: has_mount_setattr(),
        wait_killable: has_seccomp_flags(LISTENER_WITH_WAIT_KILLABLE),
    }
}

/// Returns whether the kernel has `pidfd_getfd(2)` (5.6, and some older kernels of distributions).
///
/// Asks for a descriptor that cannot exist, of this process: nothing is duplicated.
fn has_pidfd_getfd() -> bool {
    // SAFETY: both calls take integers only. The first returns a new descriptor or -1.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    let Ok(pidfd) = i32::try_from(opened) else { return false };
    if pidfd < 0 {
        return false;
    }
    // SAFETY: `pidfd` was opened above and belongs to nobody else.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: integers only; descriptor -1 is none, so that the call ends with EBADF where it
    // exists.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), -1, 0) };
    got == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}

/// Returns whether the kernel has `mount_setattr(2)` (5.12).
///
/// Asks with no attributes at all, which is refused before anything is read.
fn has_mount_setattr() -> bool {
    // SAFETY: a size of 0 ends the call with EINVAL before a pointer is read.
    let answer =
        unsafe { libc::syscall(libc::SYS_mount_setattr, -1, std::ptr::null::<u8>(), 0, std::ptr::null::<u8>(), 0) };
    answer == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// Returns whether the kernel knows these flags of `seccomp(SECCOMP_SET_MODE_FILTER)`.
///
/// With no program given, the call checks the flags, then fails for want of the program (`EFAULT`):
/// the way that seccomp(2) describes. No filter is installed.
fn has_seccomp_flags(flags: libc::c_ulong) -> bool {
    // SAFETY: the kernel reads the program through its own checked copy; a null pointer is an
    // error, not a fault here.
    let answer = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, std::ptr::null::<libc::sock_fprog>())
    };
    answer == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}
