//! Other processes and threads, by pidfd.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// `pidfd_open(2)`.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    open(pid, 0)
}

/// `pidfd_open(2)` of one thread (`PIDFD_THREAD`, Linux 6.9). EINVAL where the kernel does not know
/// how.
pub fn pidfd_open_thread(tid: i32) -> io::Result<OwnedFd> {
    open(tid, libc::O_EXCL)
}

fn open(pid: i32, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers; a non-negative answer is a new descriptor that is ours.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) })
}

/// `pidfd_getfd(2)`: a duplicate of a descriptor of that process or thread, close-on-exec.
pub fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes three integers; a non-negative answer is a new descriptor that is ours.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })
}

/// The namespace that a pid namespace is in (`ioctl_nsfs(2)`, `NS_GET_PARENT`). EPERM where that is
/// not below the caller's own.
pub fn parent_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_PARENT: libc::Ioctl = 0xb702;
    // SAFETY: takes no argument; a non-negative answer is a new descriptor that is ours.
    owned(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) }.into())
}

/// The kind of a namespace as its `CLONE_NEW` flag (`ioctl_nsfs(2)`, `NS_GET_NSTYPE`); `None` of
/// what is no namespace.
pub fn namespace_kind(file: BorrowedFd<'_>) -> Option<i32> {
    const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
    // SAFETY: takes no argument; what is no namespace answers an error.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    (kind > 0).then_some(kind)
}

fn owned(answer: i64) -> io::Result<OwnedFd> {
    match i32::try_from(answer) {
        // SAFETY: the callers' system calls have just installed it for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `pidfd_send_signal(2)`; ESRCH when the process has ended and was reaped.
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: two integers, a null siginfo (allowed: as kill(2)) and no flags.
    let answer = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether the process or thread is there, if only as a zombie: its number has not gone to
/// another. (That it must not be signalled is an answer, too.)
pub fn is_there(pidfd: BorrowedFd<'_>) -> bool {
    match pidfd_send_signal(pidfd, 0) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() != Some(libc::ESRCH),
    }
}

/// Returns whether two threads have one table of descriptors (`kcmp(2)`).
pub fn share_descriptors(one: i32, other: i32) -> io::Result<bool> {
    const KCMP_FILES: i32 = 2;
    compare(one, other, KCMP_FILES, 0, 0)
}

/// Returns whether two processes have one address space (`kcmp(2)`).
pub fn share_memory(one: i32, other: i32) -> io::Result<bool> {
    const KCMP_VM: i32 = 1;
    compare(one, other, KCMP_VM, 0, 0)
}

/// Returns whether the memory of which this is `/proc/PID/mem`, opened to be written to, is still
/// anybody's. Nothing is written, and nobody waited for: the kernel checks whether the memory is
/// there before it finds that it cannot read what is to be written.
pub fn memory_is_there(memory: BorrowedFd<'_>) -> bool {
    // Nothing can be mapped there, and the number passes for an address.
    const NOWHERE: usize = 8;
    // SAFETY: the kernel is told to read from there, and cannot.
    unsafe { libc::pwrite(memory.as_raw_fd(), std::ptr::without_provenance(NOWHERE), 1, 0) != 0 }
}

fn compare(one: i32, other: i32, what: i32, first: i32, second: i32) -> io::Result<bool> {
    // SAFETY: integers only.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, what, first, second) } {
        0 => Ok(true),
        1..=3 => Ok(false),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn nothing(_: i32) {}

/// Installs a handler for `signal` that only interrupts the system call that a thread is in.
pub fn let_signal_interrupt(signal: i32) -> io::Result<()> {
    // SAFETY: the handler does nothing, so it is safe at any point; without SA_RESTART calls end
    // with EINTR. A zeroed mask is the empty one.
    let answer = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `tgkill(2)` on a thread of this process.
pub fn signal_own_thread(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: integers only; a thread that has ended gives ESRCH, and the number is of this process
    // or of none.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Two ways of having a process sent a signal when something happens to a file; for tests of what
/// a process may do.
pub fn signal_on_input(file: BorrowedFd<'_>, pid: i32) -> [io::Result<()>; 2] {
    const FIOSETOWN: libc::Ioctl = 0x8901;
    let checked = |answer| if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the first takes integers only, the second reads an integer that lives through the
    // call.
    unsafe {
        [
            checked(libc::fcntl(file.as_raw_fd(), libc::F_SETOWN, pid)),
            checked(libc::ioctl(file.as_raw_fd(), FIOSETOWN, &raw const pid)),
        ]
    }
}
