//! The shim's only unsafe code: small safe wrappers around calls for which no library has one.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a process is after [`clone_sibling`] or [`fork`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forked {
    /// The caller; `pid` is the new process.
    Parent {
        /// The new process's pid in the caller's namespace.
        pid: i32,
    },
    /// The new process.
    Child,
}

/// `fork(2)`. Refuses when the process has more than one thread: the child could not allocate safely.
pub fn fork() -> io::Result<Forked> {
    require_single_thread()?;
    // SAFETY: the process has one thread (checked above), so no lock can be held by a thread that the child lacks.
    forked(i64::from(unsafe { libc::fork() }))
}

/// Clones the calling process; the new one is a child of the caller's parent (`CLONE_PARENT`), not of the caller.
///
/// Its exit signal is the caller's own. Refuses when the process has more than one thread.
pub fn clone_sibling() -> io::Result<Forked> {
    require_single_thread()?;
    // SAFETY: without CLONE_VM this is a fork: a zero stack means that the child goes on with a copy of the caller's.
    // The raw call skips libc's fork handlers, which guard locks against other threads; there are none (checked above).
    forked(unsafe { libc::syscall(libc::SYS_clone, i64::from(libc::CLONE_PARENT | libc::SIGCHLD), 0, 0, 0, 0) })
}

fn forked(pid: i64) -> io::Result<Forked> {
    match i32::try_from(pid) {
        Ok(0) => Ok(Forked::Child),
        Ok(pid) if pid > 0 => Ok(Forked::Parent { pid }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn require_single_thread() -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads == 1 {
        return Ok(());
    }
    Err(io::Error::other(format!("a process with {threads} threads must not fork and run on")))
}

/// Ends the process at once: no destructors, no exit handlers, no flushing of inherited buffers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Asks for SIGKILL when the parent's thread that made this process ends, and ends at once if it has already.
pub fn die_with_parent(parent: i32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw() != parent {
        exit_now(1);
    }
    Ok(())
}

/// Sets every signal back to its default action and unblocks all of them, as a freshly executed program expects.
pub fn reset_signals() -> io::Result<()> {
    for number in 1..=libc::SIGRTMAX() {
        if number == libc::SIGKILL || number == libc::SIGSTOP {
            continue;
        }
        // SAFETY: SIG_DFL installs no handler. The two numbers that libc reserves answer EINVAL, which is harmless.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    nix::sys::signal::SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Lets the kernel reap this process's children: none of them becomes a zombie.
pub fn ignore_child_exits() {
    // SAFETY: SIG_IGN installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Takes ownership of a descriptor that the kernel has just installed in this process (by SCM_RIGHTS).
pub(crate) fn received_fd(fd: i32) -> OwnedFd {
    debug_assert!(fd >= 0);
    // SAFETY: recvmsg(2) installed the number for this call's result, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// `pidfd_open(2)`.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers; a non-negative answer is a new descriptor that is ours.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(answer) {
        // SAFETY: the kernel has just installed it for us.
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

/// The process's name in `ps` and `/proc/PID/comm` (at most 15 bytes).
pub fn set_name(name: &std::ffi::CStr) {
    // A name is a convenience only.
    let _ = nix::sys::prctl::set_name(name);
}

/// Removes the variables of systemd's socket activation, which libcontainer would hand on to containers.
pub fn clear_listen_environment() {
    for name in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET"] {
        // SAFETY: called in the zygote before anything else; the process has one thread, so nobody reads the environment.
        unsafe { std::env::remove_var(name) };
    }
}

/// Closes, in a forked child that never returns to the owner's code, a descriptor that the parent's copy of the owner
/// keeps open.
pub(crate) fn close_fd_of(owner: &OwnedFd) {
    // SAFETY: the caller is a forked child that ends without running the owner's destructor or using it again.
    unsafe { libc::close(owner.as_raw_fd()) };
}

/// Registers a descriptor with the tokio runtime that is current.
pub fn async_fd(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always names the same open descriptor, and the AsyncFd owns it until it is dropped.
    Ok(unsafe { tokio::io::unix::AsyncFd::register(fd) }?)
}

/// Gives the program that `command` starts these descriptors as 3, 4, and so on.
pub(crate) fn pass_descriptors<const COUNT: usize>(command: &mut std::process::Command, descriptors: [OwnedFd; COUNT]) {
    use std::os::unix::process::CommandExt;
    let place = move || {
        // First out of the way of the numbers that they shall have.
        let mut moved = [-1; COUNT];
        for (copy, descriptor) in moved.iter_mut().zip(&descriptors) {
            // SAFETY: integers only; the descriptor is open in the child as it was in the parent.
            *copy = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 64) };
            if *copy < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        for (number, copy) in (3..).zip(moved) {
            // SAFETY: integers only. What had the number in the child is closed; every descriptor that Rust code made
            // is close-on-exec and no longer wanted there.
            if unsafe { libc::dup2(copy, number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(place) };
}
