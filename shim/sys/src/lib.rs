//! System calls for which no library has a safe wrapper, and what else the shim's processes share
//! below everything: frames on sockets, locks, marks of time. It has their only unsafe code.
#![allow(unsafe_code)]

#[cfg(feature = "parking")]
mod cuda;
pub mod frame;
mod kernel_features;
mod mount;
mod process;
mod program;
mod seccomp;
pub mod spans;
pub mod sync;

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

#[cfg(feature = "parking")]
pub use cuda::{Cuda, CudaPool};
// For `program!`.
pub use kernel_features::{KernelFeatures, kernel_features};
#[doc(hidden)]
pub use libm;
pub use mount::{MountAttributes, map_mount_ids, set_mount_attributes};
pub use process::{
    is_there, let_signal_interrupt, memory_is_there, namespace_kind, parent_namespace, pidfd_getfd, pidfd_open,
    pidfd_open_thread, pidfd_send_signal, share_descriptors, share_memory, signal_on_input, signal_own_thread,
};
pub use program::prepare_process;
pub use seccomp::{
    Notification, Response, SeccompInstruction, add_file, install_seccomp_filter, install_seccomp_listener, is_waiting,
    receive, require_notification_sizes, respond, wake_synchronously,
};

/// Has all threads of the process take memory from one arena. glibc gives each new thread one of
/// its own, of which what the thread used stays: for threads that come and go, and seldom allocate
/// at once, that is memory for nothing.
pub fn share_one_arena() {
    // SAFETY: takes two integers. (It fails for values that are out of range only; then the arenas
    // stay as they are.)
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives pages of freed memory back to the kernel, also those between what is still in use: glibc
/// itself gives back the end only.
pub fn give_back_free_memory() {
    // SAFETY: takes an integer, and reads the allocator's own lists under its own locks.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::malloc_trim(0) };
}

/// The process that goes on after [`fork`].
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

/// `fork(2)`. Refuses when the process has more than one thread: the child could not allocate
/// safely.
pub fn fork() -> io::Result<Forked> {
    require_single_thread()?;
    // SAFETY: the process has one thread (checked above), so no lock can be held by a thread that
    // the child lacks.
    forked(i64::from(unsafe { libc::fork() }))
}

/// A process that [`clone_sibling`] made.
#[derive(Debug)]
pub struct Sibling {
    /// Its pid in the caller's namespace.
    pub pid: i32,
    /// Made with the process: it is bound to no other, whatever becomes of the pid.
    pub pidfd: OwnedFd,
}

/// Clones the calling process; the new one is a child of the caller's parent (`CLONE_PARENT`), not
/// of the caller. `None`: this is the new process.
///
/// Its exit signal is the caller's own. Refuses when the process has more than one thread.
/// `in_pid_namespace`: it is the first process of a new one.
pub fn clone_sibling(in_pid_namespace: bool) -> io::Result<Option<Sibling>> {
    let new = if in_pid_namespace { libc::CLONE_NEWPID } else { 0 };
    let mut pidfd: i32 = -1;
    sibling(clone_with(libc::CLONE_PIDFD | new, &mut pidfd)?, pidfd)
}

/// [`clone_sibling`] without a pidfd, for who may have no room for a descriptor.
pub fn clone_sibling_by_number() -> io::Result<Forked> {
    forked(clone_with(0, &mut -1)?)
}

fn clone_with(more: i32, pidfd: &mut i32) -> io::Result<i64> {
    require_single_thread()?;
    let flags = libc::CLONE_PARENT | libc::SIGCHLD | more;
    // SAFETY: without CLONE_VM this is a fork: a zero stack means that the child goes on with a
    // copy of the caller's. The kernel writes the pidfd where it would write the parent's thread
    // id, an integer that lives through the call. The raw call skips libc's fork handlers, which
    // guard locks against other threads; there are none (checked above).
    Ok(unsafe { libc::syscall(libc::SYS_clone, i64::from(flags), 0, &raw mut *pidfd, 0, 0) })
}

/// [`clone_sibling`] of a process that begins its life in this cgroup (a directory of cgroup v2).
/// Kernel 5.7.
pub fn clone_sibling_into(cgroup: &OwnedFd, in_pid_namespace: bool) -> io::Result<Option<Sibling>> {
    require_single_thread()?;
    // SAFETY: all zeroes is a valid value of this structure of integers.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    // The exit signal stays 0: with CLONE_PARENT it is the caller's own, and clone3 takes no other.
    let new = if in_pid_namespace { libc::CLONE_NEWPID } else { 0 };
    let mut pidfd: i32 = -1;
    arguments.flags = CLONE_INTO_CGROUP | u64::from((libc::CLONE_PARENT | libc::CLONE_PIDFD | new).unsigned_abs());
    arguments.pidfd = (&raw mut pidfd).expose_provenance() as u64;
    arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    let size = std::mem::size_of_val(&arguments);
    // SAFETY: as clone_sibling: a fork, for there is neither CLONE_VM nor a stack; the kernel reads
    // one structure of the size that is given.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) };
    sibling(pid, pidfd)
}

fn sibling(pid: i64, pidfd: i32) -> io::Result<Option<Sibling>> {
    match forked(pid)? {
        Forked::Child => Ok(None),
        // SAFETY: the kernel has just installed it for the caller.
        Forked::Parent { pid } => Ok(Some(Sibling { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })),
    }
}

/// linux/sched.h; libc has it as an `int`, which cannot hold it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn forked(pid: i64) -> io::Result<Forked> {
    match i32::try_from(pid) {
        Ok(0) => Ok(Forked::Child),
        Ok(pid) if pid > 0 => Ok(Forked::Parent { pid }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks the kernel, not `/proc`, which may be a container's: `CLONE_THREAD` unshares nothing, and
/// is refused to who has a second thread (`unshare(2)`).
fn require_single_thread() -> io::Result<()> {
    match nix::sched::unshare(nix::sched::CloneFlags::CLONE_THREAD) {
        Err(nix::Error::EINVAL) => Err(io::Error::other("a process with several threads must not fork and run on")),
        asked => Ok(asked?),
    }
}

/// Returns whether the calling thread is the process's first.
pub fn is_main_thread() -> bool {
    nix::unistd::gettid() == nix::unistd::getpid()
}

/// Ends the process at once: no destructors, no exit handlers, no flushing of inherited buffers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Asks for SIGKILL when the parent's thread that made this process ends, and ends at once if it
/// has already.
pub fn die_with_parent(parent: i32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw() != parent {
        exit_now(1);
    }
    Ok(())
}

/// Undoes [`die_with_parent`] for a process that hears of its parent's end by itself; ends at once
/// if that has come already.
pub fn outlive_parent(parent: i32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(None)?;
    if nix::unistd::getppid().as_raw() != parent {
        exit_now(1);
    }
    Ok(())
}

/// Sets every signal back to its default action and unblocks all of them, as a freshly executed
/// program expects.
pub fn reset_signals() -> io::Result<()> {
    for number in 1..=libc::SIGRTMAX() {
        if number == libc::SIGKILL || number == libc::SIGSTOP {
            continue;
        }
        // SAFETY: SIG_DFL installs no handler. The two numbers that libc reserves answer EINVAL,
        // which is harmless.
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

/// Undoes [`ignore_child_exits`].
pub fn heed_child_exits() {
    // SAFETY: SIG_DFL installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Takes ownership of a descriptor that the kernel has just installed in this process (by
/// SCM_RIGHTS).
pub fn received_fd(fd: i32) -> OwnedFd {
    debug_assert!(fd >= 0);
    // SAFETY: recvmsg(2) installed the number for this call's result, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A descriptor of a directory through a mount of its own that is read-only, for whoever reaches
/// files through it, and that is in nobody's tree of mounts. Kernel 5.12; CAP_SYS_ADMIN.
pub fn read_only_view(directory: &std::ffi::CStr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads a C string that lives through the call; a non-negative answer is a
    // new descriptor.
    let answer = unsafe {
        let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
        libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, directory.as_ptr(), flags)
    };
    let view = match i32::try_from(answer) {
        // SAFETY: the kernel has just installed it for us.
        Ok(fd) if fd >= 0 => unsafe { OwnedFd::from_raw_fd(fd) },
        _ => return Err(io::Error::last_os_error()),
    };
    let attributes = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..Default::default() };
    set_mount_attributes(view.as_fd(), false, attributes)?;
    Ok(view)
}

/// The process's name in `ps` and `/proc/PID/comm` (at most 15 bytes).
pub fn set_name(name: &std::ffi::CStr) {
    // A name is a convenience only.
    let _ = nix::sys::prctl::set_name(name);
}

/// Gives the calling thread the lowest real-time priority, and all that it starts. Needs
/// CAP_SYS_NICE.
pub fn become_real_time() -> io::Result<()> {
    schedule(libc::SCHED_RR, 1)
}

/// Takes a real-time priority back, if there is one.
pub fn become_ordinary() -> io::Result<()> {
    schedule(libc::SCHED_OTHER, 0)
}

fn schedule(policy: libc::c_int, sched_priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the kernel reads `parameters` only. Not libc's function, which does not exist in
    // every libc.
    let answer = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const parameters) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes the variables of systemd's socket activation, which libcontainer would hand on to
/// containers.
pub fn clear_listen_environment() {
    for name in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET"] {
        // SAFETY: called in the zygote before anything else; the process has one thread, so nobody
        // reads the environment.
        unsafe { std::env::remove_var(name) };
    }
}

/// Closes, in a forked child that never returns to the owner's code, a descriptor that the parent's
/// copy of the owner keeps open.
pub fn close_fd_of(owner: &OwnedFd) {
    // SAFETY: the caller is a forked child that ends without running the owner's destructor or
    // using it again.
    unsafe { libc::close(owner.as_raw_fd()) };
}

/// Closes, in a forked child that never returns to the owners' code, every descriptor but these.
/// Kernel 5.9.
pub fn close_all_but(kept: &[i32]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.unsigned_abs()).collect();
    kept.sort_unstable();
    let mut from = 0;
    for until in kept.into_iter().map(Some).chain([None]) {
        let last = until.map_or(Some(u32::MAX), |fd| fd.checked_sub(1));
        if let Some(last) = last.filter(|last| from <= *last) {
            // SAFETY: integers only. The caller is a forked child that ends without running the
            // owners' destructors or using them again.
            if unsafe { libc::syscall(libc::SYS_close_range, from, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        from = until.map_or(u32::MAX, |fd| fd + 1);
    }
    Ok(())
}

/// Closes descriptors by their numbers, in a process that is about to execute another program; a
/// number that is not open is none of its concern. By close(2) alone, which every seccomp profile
/// allows.
pub fn close_each(numbers: impl Iterator<Item = i32>) {
    for number in numbers {
        // SAFETY: an integer only. The caller does not return to the owners of what is closed.
        unsafe { libc::close(number) };
    }
}

/// Writes to a descriptor of which only the number is known, as far as that goes: last words to
/// whoever still listens.
pub fn write_to(fd: i32, bytes: &[u8]) {
    // SAFETY: the kernel reads as many bytes as the slice has; a number that is not open is an
    // error and no more.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

/// Makes what a descriptor is of not wait, and registers it likewise.
pub fn nonblocking(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
    async_fd(fd)
}

/// Registers a descriptor with the tokio runtime that is current.
pub fn async_fd(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always names the same open descriptor, and the AsyncFd owns it until it is
    // dropped.
    Ok(unsafe { tokio::io::unix::AsyncFd::register(fd) }?)
}

/// Gives the program that `command` starts these descriptors as 3, 4, and so on.
pub fn pass_descriptors<const COUNT: usize>(command: &mut std::process::Command, descriptors: [OwnedFd; COUNT]) {
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
            // SAFETY: integers only. What had the number in the child is closed; every descriptor
            // that Rust code made is close-on-exec and no longer wanted there.
            if unsafe { libc::dup2(copy, number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only; it neither allocates nor
    // takes a lock.
    unsafe { command.pre_exec(place) };
}

/// Joins the session keyring of this name, a new one if there is none; all later children share it.
/// Answers to its serial.
pub fn join_session_keyring(name: &std::ffi::CStr) -> io::Result<i32> {
    // SAFETY: the kernel reads a C string that lives through the call.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, name.as_ptr()) };
    i32::try_from(answer).ok().filter(|serial| *serial >= 0).ok_or_else(io::Error::last_os_error)
}

/// Adds permission bits (`KEY_USR_SEARCH`, ...) to a key.
pub fn add_key_permissions(serial: i32, bits: u32) -> io::Result<()> {
    let mut description = [0u8; 256];
    // SAFETY: the kernel writes at most the given number of bytes into the buffer.
    let length = unsafe {
        libc::syscall(libc::SYS_keyctl, libc::KEYCTL_DESCRIBE, serial, description.as_mut_ptr(), description.len())
    };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    // "type;uid;gid;perm;description", perm in hexadecimal.
    let text = String::from_utf8_lossy(&description);
    let current = text
        .split(';')
        .nth(3)
        .and_then(|perm| u32::from_str_radix(perm, 16).ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    // SAFETY: three integers.
    let answer = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_SETPERM, serial, current | bits) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives a terminal its size.
pub fn set_window_size(terminal: BorrowedFd<'_>, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Opens the other end of a pty by its master, without a path (which a container could have
/// replaced).
pub fn open_pty_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes flags by value; a non-negative answer is a new descriptor that is
    // ours.
    let fd = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just installed it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Programs of type `BPF_PROG_TYPE_CGROUP_DEVICE`, and the two commands that the device filter
/// needs, linux/bpf.h.
pub mod bpf {
    use super::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, io};

    const BPF_PROG_LOAD: i64 = 5;
    const BPF_PROG_ATTACH: i64 = 8;
    const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
    const BPF_CGROUP_DEVICE: u32 = 6;
    /// Others may be attached beside it, here and in the cgroups above and below.
    const BPF_F_ALLOW_MULTI: u32 = 1 << 1;

    /// The leading fields of `union bpf_attr` for BPF_PROG_LOAD.
    #[repr(C)]
    #[derive(Default)]
    struct LoadAttributes {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
    }

    /// The leading fields for BPF_PROG_ATTACH.
    #[repr(C)]
    #[derive(Default)]
    struct AttachAttributes {
        target_fd: u32,
        attach_bpf_fd: u32,
        attach_type: u32,
        attach_flags: u32,
    }

    fn bpf<T>(command: i64, attributes: &mut T) -> io::Result<i32> {
        // SAFETY: `attributes` is a plain struct laid out as the head of the kernel's union for
        // this command, its size is given, and the addresses in it point at memory that outlives
        // the call. The kernel zero-extends what is missing.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, std::mem::size_of::<T>()) };
        i32::try_from(answer).ok().filter(|answer| *answer >= 0).ok_or_else(io::Error::last_os_error)
    }

    fn raw(fd: BorrowedFd<'_>) -> u32 {
        fd.as_raw_fd().unsigned_abs()
    }

    fn owned(fd: i32) -> OwnedFd {
        // SAFETY: bpf(2) has just installed the number for the caller.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    /// Has the verifier check a program of eight-byte instructions and loads it. On refusal the
    /// error has the verifier's reason.
    pub fn load_device_program(instructions: &[u64]) -> io::Result<OwnedFd> {
        let license = c"Apache-2.0";
        let attributes = || LoadAttributes {
            prog_type: BPF_PROG_TYPE_CGROUP_DEVICE,
            insn_cnt: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
            insns: instructions.as_ptr().addr() as u64,
            license: license.as_ptr().addr() as u64,
            ..LoadAttributes::default()
        };
        let refused = match bpf(BPF_PROG_LOAD, &mut attributes()) {
            Ok(fd) => return Ok(owned(fd)),
            Err(e) => e,
        };
        let mut log = vec![0u8; 16 << 10];
        let mut verbose = attributes();
        verbose.log_level = 1;
        verbose.log_size = u32::try_from(log.len()).unwrap_or(0);
        verbose.log_buf = log.as_mut_ptr().addr() as u64;
        match bpf(BPF_PROG_LOAD, &mut verbose) {
            Ok(fd) => Ok(owned(fd)),
            Err(_) => {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                let text = String::from_utf8_lossy(log.get(..end).unwrap_or_default());
                Err(io::Error::new(refused.kind(), format!("{refused}; verifier: {}", text.trim())))
            }
        }
    }

    /// Attaches a device program to a cgroup directory, beside those that are there and those of
    /// its parents; a device is allowed where all of them allow it.
    pub fn attach_device_program(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
        let mut attributes = AttachAttributes {
            target_fd: raw(cgroup),
            attach_bpf_fd: raw(program),
            attach_type: BPF_CGROUP_DEVICE,
            attach_flags: BPF_F_ALLOW_MULTI,
        };
        bpf(BPF_PROG_ATTACH, &mut attributes).map(drop)
    }
}

/// Makes writing to a pipe or socket that nobody reads an error only.
pub fn ignore_broken_pipes() {
    // SAFETY: the action installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Gives signals that are ignored here the actions that programs expect to start with: SIGPIPE, and
/// glibc's own two, which some versions of it ignore in the children that they spawn and let nobody
/// set.
pub fn restore_ignored_signals() {
    /// The kernel's `struct sigaction` of no flags and no handler: `SIG_DFL` is 0.
    const DEFAULT: [u64; 4] = [0; 4];
    for signal in [libc::SIGPIPE, 32, 33] {
        // SAFETY: the kernel reads a struct that is no larger than this one, with a set of 8 bytes;
        // no handler is installed.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), std::ptr::null::<u8>(), 8) };
    }
}
