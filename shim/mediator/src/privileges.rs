//! Privileges that a mediator and its broker drop before the mediator reads the first byte of a
//! container's.
//!
//! The driver judges each call by the capabilities of the calling thread: with CAP_SYS_ADMIN a
//! container would get channels that reach all of a card's memory, with CAP_SYS_NICE and
//! CAP_PERFMON priorities and neighbours' counters. Two are kept:
//! - CAP_SYS_PTRACE: to duplicate callers' descriptors (`pidfd_getfd`), and to write to their
//!   memory.
//! - CAP_DAC_OVERRIDE: `/proc/TID/mem` belongs to the caller's user, with mode 0600.
//!   (`process_vm_writev` would do without, but it names a process by number, which may have become
//!   another's between the check and the write.)
//!
//! The driver looks at neither. With both, whoever could name files and processes would be root on
//! the host. So the mediator can open nothing but what its mount namespace has
//! ([`mount_namespace`](super::mount_namespace)), and gets processes from its broker only.

use std::io;

use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall, error::SeccompError};
use rustix::{
    io::Errno,
    process::{DumpableBehavior, Resource, Rlimit, dumpable_behavior, getrlimit, set_dumpable_behavior, setrlimit},
    thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits,
        capability_is_in_bounding_set, clear_ambient_capability_set, no_new_privs, remove_capability_from_bounding_set,
        set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
    },
};

const KEPT: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_OVERRIDE);

/// Secure bits: user id 0 gives no capabilities, none can be raised again; locked.
const SECURE_BITS: CapabilitiesSecureBits = CapabilitiesSecureBits::NO_ROOT
    .union(CapabilitiesSecureBits::NO_ROOT_LOCKED)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED)
    .union(CapabilitiesSecureBits::KEEP_CAPS_LOCKED)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// Process that drops its privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The mediator; `shim` is its parent.
    Mediator { shim: i32 },
    /// The broker; `mediator` is its parent.
    Broker { mediator: i32 },
}

/// Error that forbids the mediator to run.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// A step failed.
    #[error("cannot {step}")]
    Step {
        step: &'static str,
        #[source]
        source: io::Error,
    },
    /// A step did not do what it should.
    #[error("{0} after privileges were dropped")]
    Kept(String),
    /// Its own filter.
    #[error("cannot confine the mediator to the system calls that it needs")]
    Filter(#[source] SeccompError),
}

/// Drops all privileges that are not needed, for good, and verifies that.
///
/// Only with one thread: the sets are each thread's own.
pub(super) fn drop_privileges(role: Role) -> Result<(), PrivilegeError> {
    let step = |step| move |source: Errno| PrivilegeError::Step { step, source: source.into() };
    nix::unistd::setgroups(&[])
        .map_err(|error| PrivilegeError::Step { step: "leave supplementary groups", source: error.into() })?;
    let files = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files })
        .map_err(step("raise the limit of open files"))?;
    bound_real_time().map_err(step("limit real-time priorities"))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(step("forbid core dumps"))?;
    set_no_new_privs(true).map_err(step("set no_new_privs"))?;
    set_capabilities_secure_bits(SECURE_BITS).map_err(step("set the secure bits"))?;
    for capability in all().filter(|capability| !KEPT.contains(*capability)) {
        match remove_capability_from_bounding_set(capability) {
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            removed => removed.map_err(step("shrink the bounding set"))?,
        }
    }
    clear_ambient_capability_set().map_err(step("clear the ambient set"))?;
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(step("drop capabilities"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("become undumpable"))?;
    let bound = match role {
        // It sees the end of the shim by the control socket: then it has to free objects first.
        Role::Mediator { shim } => sys::outlive_parent(shim),
        Role::Broker { mediator } => sys::die_with_parent(mediator),
    };
    bound.map_err(|source| PrivilegeError::Step { step: "end with its parent", source })?;
    confine(role).map_err(PrivilegeError::Filter)?;
    verify(KEPT)
}

/// Bounds real-time threads: one that computes for a second without waiting is stuck, and the
/// kernel ends the process before it takes a core from the host.
///
/// A thread without such a priority cannot take one.
fn bound_real_time() -> Result<(), Errno> {
    let only = |value| Rlimit { current: Some(value), maximum: Some(value) };
    setrlimit(Resource::Rtprio, only(0))?;
    setrlimit(Resource::Nice, only(0))?;
    setrlimit(Resource::Rttime, only(1_000_000))
}

/// Iterates over the capabilities, one by one.
fn all() -> impl Iterator<Item = CapabilitySet> {
    (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit))
}

fn verify(own: CapabilitySet) -> Result<(), PrivilegeError> {
    let failed = |source: Errno| PrivilegeError::Step { step: "read the own capabilities", source: source.into() };
    let kept = |what: &str| Err(PrivilegeError::Kept(what.to_owned()));
    let sets = capabilities(None).map_err(failed)?;
    if (sets.effective, sets.permitted) != (own, own) || !sets.inheritable.is_empty() {
        return kept(&format!("the process has capabilities {sets:?}"));
    }
    // What is not inheritable cannot be ambient (capabilities(7)).
    for capability in all() {
        match capability_is_in_bounding_set(capability) {
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            Ok(true) if !own.contains(capability) => {
                return kept(&format!("{capability:?} is in the bounding set"));
            }
            known => known.map(drop).map_err(failed)?,
        }
    }
    if !capabilities_secure_bits().map_err(failed)?.contains(SECURE_BITS) || !no_new_privs().map_err(failed)? {
        return kept("privileges can be gained again");
    }
    if dumpable_behavior().map_err(failed)? != DumpableBehavior::NotDumpable {
        return kept("the process can be dumped");
    }
    // The filter is active: this call is not in the list below.
    match nix::unistd::chroot("/") {
        Err(nix::Error::ENOSYS) => Ok(()),
        _ => kept("system calls can be made that it does not need"),
    }
}

/// System calls that are allowed with any arguments.
const ALLOWED: &[&str] = &[
    // Files and memory. `openat` and `fcntl` are below.
    "read",
    "readv",
    "pread64",
    "preadv",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "close",
    "lseek",
    "fstat",
    "newfstatat",
    "stat",
    "lstat",
    "statx",
    "readlink",
    "readlinkat",
    "getdents64",
    "flock",
    "fdatasync",
    "dup",
    "dup3",
    "memfd_create",
    "mmap",
    "mprotect",
    "munmap",
    "mremap",
    "madvise",
    "brk",
    "pipe2",
    "access",
    "faccessat",
    "getcwd",
    // Processes.
    "kcmp",
    // The shim.
    "recvmsg",
    "sendmsg",
    "recvfrom",
    "sendto",
    "shutdown",
    // Waiting.
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "poll",
    "ppoll",
    "eventfd2",
    "timerfd_create",
    "timerfd_settime",
    "timerfd_gettime",
    "nanosleep",
    "clock_nanosleep",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "futex",
    "sched_yield",
    "restart_syscall",
    // Threads; `clone` is below.
    "set_robust_list",
    "rseq",
    "set_tid_address",
    "sched_getaffinity",
    "getrandom",
    "gettid",
    "getpid",
    "getppid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "membarrier",
    "sigaltstack",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "get_robust_list",
    "getcpu",
    "sysinfo",
    "uname",
    "getrlimit",
    // To verify that privileges are gone.
    "capget",
    // The end.
    "exit",
    "exit_group",
];

/// Types of the ioctl commands that a mediator makes: the resource manager's, those of seccomp
/// listeners, and unified memory's, which are plain numbers.
const IOCTL_TYPES: [u64; 3] = [0x46, 0x21, 0];
/// Type of the broker's ioctl commands: those of namespaces.
const NAMESPACE_IOCTL_TYPE: u64 = 0xb7;
/// `F_DUPFD_QUERY` (include/uapi/linux/fcntl.h).
const F_DUPFD_QUERY: i32 = 1024 + 3;

/// Commands of `fcntl` that are allowed: none that names a receiver of signals (`F_SETOWN`), which
/// could be any process.
const FCNTL_COMMANDS: [i32; 15] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    F_DUPFD_QUERY,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// Operations of `prctl` that are allowed: those that only read, and the one that names threads.
const PRCTL_OPERATIONS: [i32; 6] = [
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_GET_DUMPABLE,
    libc::PR_CAPBSET_READ,
    libc::PR_GET_SECUREBITS,
    libc::PR_GET_NO_NEW_PRIVS,
];

/// Installs a filter of the system calls that are made; any other fails with `ENOSYS`, and
/// libraries work around that, or fail.
///
/// It forbids to execute, fork, trace (`ptrace`, `process_vm_*`), mount, load, connect, create
/// files, truncate them, enter namespaces, change directories, send signals to others or set their
/// limits. The mediator cannot get a process's pidfd by its number (`pidfd_open`); and it opens
/// files only by absolute paths, not in directories that are open (it can have any of the
/// container's: a device node that the container has made, and may not open, would open in them).
///
/// It cannot see paths: device nodes and `/proc/TID/mem` have to be opened for writing, and so can
/// be whatever else is writable there. The mount namespace bounds that; the mediator's has nothing
/// but device nodes. With `kcmp` and `sched_getaffinity` one can ask of any process whether it
/// exists, and whether two have the same files or memory.
fn confine(role: Role) -> Result<(), SeccompError> {
    let mut filter = ScmpFilterContext::new(ScmpAction::Errno(libc::ENOSYS))?;
    filter.set_act_badarch(ScmpAction::KillProcess)?;
    filter.set_ctl_nnp(true)?;
    // A tree: the kernel tries each of its calls on the filter when that is installed.
    filter.set_ctl_optimize(2)?;
    for name in ALLOWED {
        // Not every architecture has every call, nor does every libseccomp know it.
        if let Ok(call) = ScmpSyscall::from_name(name) {
            filter.add_rule(ScmpAction::Allow, call)?;
        }
    }
    let mut allow = |name: &str, conditions: &[ScmpArgCompare]| match ScmpSyscall::from_name(name) {
        Ok(call) => filter.add_rule_conditional(ScmpAction::Allow, call, conditions).map(drop),
        // Not every architecture has every call.
        Err(_) => Ok(()),
    };
    let making = mask(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND);
    // A descriptor has 32 bits, whatever the upper half of the register holds.
    let nowhere = masked(0, mask(-1), mask(libc::AT_FDCWD));
    match role {
        Role::Mediator { .. } => {
            allow("openat", &[nowhere, masked(2, making, 0)])?;
            allow("pidfd_getfd", &[])?;
            for kind in IOCTL_TYPES {
                allow("ioctl", &[masked(1, 0xff00, kind << 8)])?;
            }
        }
        Role::Broker { .. } => {
            allow("openat", &[masked(2, making, 0)])?;
            allow("pidfd_open", &[])?;
            allow("ioctl", &[masked(1, 0xff00, NAMESPACE_IOCTL_TYPE << 8)])?;
        }
    }
    allow("open", &[masked(1, making, 0)])?;
    let threads = mask(libc::CLONE_VM | libc::CLONE_THREAD);
    allow("clone", &[masked(0, threads, threads)])?;
    for command in FCNTL_COMMANDS {
        allow("fcntl", &[equals(1, mask(command))])?;
    }
    allow("tgkill", &[equals(0, u64::from(std::process::id()))])?;
    // Its own limits, none of which can be raised.
    allow("prlimit64", &[equals(0, 0)])?;
    // A thread may give its own priority back.
    allow("sched_setscheduler", &[equals(0, 0), equals(1, mask(libc::SCHED_OTHER))])?;
    allow("setpriority", &[equals(0, mask(libc::PRIO_PROCESS.cast_signed())), equals(1, 0)])?;
    // To ask whether a process is there.
    allow("pidfd_send_signal", &[equals(1, 0)])?;
    for operation in PRCTL_OPERATIONS {
        allow("prctl", &[equals(0, mask(operation))])?;
    }
    filter.load()
}

fn equals(argument: u32, value: u64) -> ScmpArgCompare {
    ScmpArgCompare::new(argument, ScmpCompareOp::Equal, value)
}

/// Extends flags to the width of a register.
fn mask(flags: i32) -> u64 {
    u64::from(flags.cast_unsigned())
}

fn masked(argument: u32, mask: u64, value: u64) -> ScmpArgCompare {
    ScmpArgCompare::new(argument, ScmpCompareOp::MaskedEqual(mask), value)
}

#[cfg(test)]
mod tests;
