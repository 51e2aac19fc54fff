//! `seccomp(2)` and the ioctls of a filter's listener (linux/seccomp.h).

use std::{
    io,
    mem::{size_of, zeroed},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// One instruction of a classic BPF program, as `struct sock_filter`.
pub use libc::sock_filter as SeccompInstruction;

/// Installs a seccomp filter on the calling thread; all that it forks or executes inherits it.
///
/// Needs CAP_SYS_ADMIN in the caller's user namespace, or `no_new_privs`.
pub fn install_seccomp_filter(program: &[SeccompInstruction]) -> io::Result<()> {
    install(program, 0).map(drop)
}

/// Installs a filter as [`install_seccomp_filter`], with a listener for the calls that the filter
/// notifies. EBUSY where one of the filters that the thread already has was installed with a
/// listener.
///
/// Once a notification has been received, only a deadly signal takes the caller out of its call
/// (`WAIT_KILLABLE_RECV`, Linux 5.19). Kernels before that interrupt it by any, and it makes the
/// call again.
pub fn install_seccomp_listener(program: &[SeccompInstruction]) -> io::Result<OwnedFd> {
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let installed = match install(program, listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(program, listener)?,
        installed => installed?,
    };
    // SAFETY: with NEW_LISTENER the answer is a descriptor that the kernel has just installed for
    // the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(installed) })
}

/// The filter says nothing about speculation (`SPEC_ALLOW`): before Linux 5.16 the kernel else
/// mitigates speculative stores and indirect branches in every thread that has one, which halves
/// what interpreters do.
fn install(program: &[SeccompInstruction], flags: libc::c_ulong) -> io::Result<i32> {
    let flags = flags | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` points at `len` instructions that live through the call; the kernel only
    // reads them.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    i32::try_from(answer).ok().filter(|answer| *answer >= 0).ok_or_else(io::Error::last_os_error)
}

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub struct Notification {
    /// Names it; never used twice by a listener.
    pub id: u64,
    /// The calling thread in the receiver's pid namespace; 0 when it is not in there.
    pub tid: i32,
    /// The system call's number.
    pub nr: i32,
    /// `AUDIT_ARCH_*` of the entry that it came by.
    pub arch: u32,
    /// The registers.
    pub arguments: [u64; 6],
}

/// The response to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// The call returns this.
    Return(i64),
    /// The call fails with this errno.
    Errno(i32),
    /// The kernel executes it.
    Continue,
}

/// Checks that this kernel's notifications have the size that this program knows.
pub fn require_notification_sizes() -> io::Result<()> {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel writes one structure of this type.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    let known = (size_of::<libc::seccomp_notif>(), size_of::<libc::seccomp_notif_resp>());
    if (usize::from(sizes.seccomp_notif), usize::from(sizes.seccomp_notif_resp)) == known {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, format!("the kernel's notifications are of other sizes: {sizes:?}")))
}

/// Waits for a notification. ENOENT: its caller was gone before it could be received, or nobody has
/// the filter any more. EINTR: a signal came.
pub fn receive(listener: BorrowedFd<'_>) -> io::Result<Notification> {
    // SAFETY: all fields are integers. The kernel wants zeroes.
    let mut notification: libc::seccomp_notif = unsafe { zeroed() };
    ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification)?;
    Ok(Notification {
        id: notification.id,
        tid: notification.pid.cast_signed(),
        nr: notification.data.nr,
        arch: notification.data.arch,
        arguments: notification.data.args,
    })
}

/// Returns whether the call still waits.
pub fn is_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    let mut id = id;
    ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id).is_ok()
}

/// Answers a call. ENOENT: nobody waits for it any more.
pub fn respond(listener: BorrowedFd<'_>, id: u64, response: Response) -> io::Result<()> {
    let (val, error, flags) = match response {
        Response::Return(value) => (value, 0, 0),
        Response::Errno(errno) => (0, -errno, 0),
        #[expect(clippy::cast_possible_truncation, reason = "the flag is 1")]
        Response::Continue => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
    };
    let mut answer = libc::seccomp_notif_resp { id, val, error, flags };
    ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer).map(drop)
}

/// Installs a file in the caller's table, close-on-exec, under a number of the kernel's choice or
/// in place of `replaced`.
pub fn add_file(listener: BorrowedFd<'_>, id: u64, file: BorrowedFd<'_>, replaced: Option<i32>) -> io::Result<i32> {
    let (flags, newfd) = match replaced {
        #[expect(clippy::cast_possible_truncation, reason = "the flag is 1")]
        Some(fd) => (libc::SECCOMP_ADDFD_FLAG_SETFD as u32, fd.cast_unsigned()),
        None => (0, 0),
    };
    let mut request = libc::seccomp_notif_addfd {
        id,
        flags,
        srcfd: file.as_raw_fd().cast_unsigned(),
        newfd,
        newfd_flags: libc::O_CLOEXEC.cast_unsigned(),
    };
    ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut request)
}

/// Has callers and receivers hand the processor to each other (Linux 6.6): both wait for one
/// another anyway.
pub fn wake_synchronously(listener: BorrowedFd<'_>) -> io::Result<()> {
    const SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: u64 = 1;
    // SAFETY: this ioctl takes its flags by value.
    let answer = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS as _, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `argument` is of the type that `request` is defined with.
fn ioctl<T>(listener: BorrowedFd<'_>, request: libc::Ioctl, argument: *mut T) -> io::Result<i32> {
    // SAFETY: every caller in this file passes the address of a live structure of the type that
    // linux/seccomp.h names for the request. On a descriptor that is no listener the number means
    // nothing ('!' is seccomp's alone), and the call fails.
    let answer = unsafe { libc::ioctl(listener.as_raw_fd(), request as _, argument) };
    if answer >= 0 { Ok(answer) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_filter_turns_mitigations_of_speculation_on() {
        // `struct seccomp_data`: the number, and the low half of the second argument.
        const NUMBER: u32 = 0;
        const FLAGS: u32 = 24;
        let instruction = |code, jt, jf, k| SeccompInstruction { code, jt, jf, k };
        let [load, equal, has_bits, answer] = [0x20, 0x15, 0x45, 0x06];
        let allow = instruction(answer, 0, 0, libc::SECCOMP_RET_ALLOW);
        let seccomp = u32::try_from(libc::SYS_seccomp).unwrap();
        let spec_allow = u32::try_from(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW).unwrap();
        let errno = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EXDEV).unwrap();
        let refuses_others = [
            instruction(load, 0, 0, NUMBER),
            instruction(equal, 0, 3, seccomp),
            instruction(load, 0, 0, FLAGS),
            instruction(has_bits, 1, 0, spec_allow),
            instruction(answer, 0, 0, errno),
            allow,
        ];
        // A filter is of a thread's.
        let thread = std::thread::spawn(move || {
            nix::sys::prctl::set_no_new_privs().unwrap();
            install_seccomp_filter(&refuses_others).unwrap();
            // SAFETY: the kernel gets as far as the filter, which refuses a call without flags.
            let refused = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, 0) };
            assert_eq!((refused, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EXDEV)));
            install_seccomp_filter(&[allow]).unwrap();
            install_seccomp_listener(&[allow]).unwrap();
        });
        thread.join().unwrap();
    }
}
