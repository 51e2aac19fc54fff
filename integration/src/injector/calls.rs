//! System calls that faults are injected into, and the errors that each can give.

use std::fs;

use nix::errno::Errno::{self, EAGAIN, EINTR, EIO, EMFILE, ENOLCK, ENOMEM, ENOSPC};

/// A system call that can fail.
#[derive(Debug)]
pub(super) struct Call {
    number: i64,
    /// Its name, as in the manual.
    pub(super) name: &'static str,
    /// It may leave something behind: a process that is killed here is killed between two states.
    pub(super) changes: bool,
    errors: &'static [Errno],
}

macro_rules! calls {
    ($($changes:literal $errors:expr => $($name:ident)*;)*) => {
        &[$($(Call { number: libc::$name, name: stringify!($name), changes: $changes, errors: &$errors },)*)*]
    };
}

/// Calls that cannot fail for want of anything (signals, identities) can still be a process's last.
/// Not here: what changes nothing outside of the process and does not fail (`close`, `prctl`,
/// `futex`), and memory (`mmap`), without which a process ends as by SIGKILL.
const CALLS: &[Call] = calls! {
    true [EIO, EMFILE, EINTR, ENOSPC] => SYS_open SYS_openat SYS_openat2 SYS_creat;
    true [EIO, ENOSPC, EINTR] => SYS_write SYS_pwrite64 SYS_writev;
    true [EIO, EINTR] => SYS_sendfile SYS_splice SYS_copy_file_range;
    true [EIO, ENOSPC, ENOMEM] => SYS_mkdir SYS_mkdirat SYS_rename SYS_renameat SYS_renameat2 SYS_link SYS_linkat
        SYS_symlink SYS_symlinkat SYS_mknod SYS_mknodat SYS_bind;
    true [EIO, ENOMEM] => SYS_unlink SYS_unlinkat SYS_rmdir SYS_execve SYS_execveat SYS_pivot_root SYS_chroot;
    true [EIO, ENOSPC] => SYS_fsync SYS_fdatasync SYS_ftruncate SYS_fallocate SYS_chmod SYS_fchmod SYS_fchmodat
        SYS_chown SYS_lchown SYS_fchown SYS_fchownat SYS_utimensat;
    true [ENOMEM, ENOSPC] => SYS_mount SYS_move_mount SYS_fsmount SYS_mount_setattr SYS_setns SYS_unshare;
    true [EMFILE, ENOMEM] => SYS_open_tree SYS_fsopen SYS_seccomp SYS_memfd_create;
    true [ENOMEM] => SYS_umount2 SYS_bpf;
    true [EAGAIN, ENOMEM] => SYS_clone SYS_clone3 SYS_fork SYS_vfork;
    true [ENOMEM, EINTR] => SYS_connect SYS_sendto SYS_sendmsg;
    true [EIO, ENOMEM, EINTR] => SYS_ioctl;
    true [ENOLCK, EINTR] => SYS_flock;
    true [] => SYS_kill SYS_pidfd_send_signal SYS_setresuid SYS_setgroups SYS_capset SYS_exit_group;
    false [EMFILE, ENOMEM] => SYS_socket SYS_socketpair SYS_pipe2 SYS_epoll_create1 SYS_eventfd2 SYS_inotify_init1
        SYS_timerfd_create SYS_signalfd4 SYS_pidfd_open SYS_pidfd_getfd SYS_dup;
    false [EMFILE, ENOMEM, EINTR] => SYS_accept4;
    false [ENOMEM, ENOSPC] => SYS_epoll_ctl SYS_inotify_add_watch;
    false [ENOMEM] => SYS_fsconfig;
    false [ENOMEM, EINTR] => SYS_recvfrom SYS_recvmsg;
    false [EIO, EINTR] => SYS_read SYS_pread64 SYS_readv;
    false [EIO] => SYS_stat SYS_lstat SYS_newfstatat SYS_statx SYS_access SYS_faccessat SYS_faccessat2
        SYS_readlink SYS_readlinkat SYS_getdents64 SYS_statfs SYS_fstatfs;
    false [EMFILE] => SYS_fcntl;
    false [EINTR] => SYS_wait4 SYS_waitid SYS_poll SYS_ppoll SYS_epoll_wait SYS_epoll_pwait SYS_nanosleep
        SYS_clock_nanosleep;
};

impl Call {
    /// Finds it by its number. Of `fcntl` only what makes descriptors can fail.
    pub(super) fn find(number: i64, arguments: [u64; 3]) -> Option<&'static Self> {
        let makes_descriptors = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].map(|command| u64::from(command.unsigned_abs()));
        if number == libc::SYS_fcntl && !makes_descriptors.contains(&arguments[1]) {
            return None;
        }
        CALLS.iter().find(|call| call.number == number)
    }

    /// The errors that it can give a process with these arguments: only what makes a file needs
    /// room, only what waits is interrupted, and what is no file (an eventfd) takes any write.
    pub(super) fn errors(&self, pid: i32, arguments: [u64; 3]) -> impl Iterator<Item = Errno> {
        let makes_none = self.number == libc::SYS_openat && arguments[2] & u64::from(libc::O_CREAT.unsigned_abs()) == 0;
        let never_waits = is_nonblocking(pid, arguments[0]);
        let never_fails = self.number == libc::SYS_write && is_anonymous(pid, arguments[0]);
        let cannot_be = move |error| never_fails || (makes_none && error == ENOSPC) || (never_waits && error == EINTR);
        self.errors.iter().copied().filter(move |&error| !cannot_be(error))
    }
}

/// Returns whether a number is that of a descriptor which never waits.
fn is_nonblocking(pid: i32, descriptor: u64) -> bool {
    let information = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = information.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_NONBLOCK != 0)
}

fn is_anonymous(pid: i32, descriptor: u64) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap_or_default();
    link.to_string_lossy().starts_with("anon_inode:")
}
