//! What a mediator gives up before it reads the first byte of a container's.
//!
//! The driver judges each call by the capabilities of the calling thread: with CAP_SYS_ADMIN a container would get channels
//! that reach all of a card's memory, with CAP_SYS_NICE and CAP_PERFMON priorities and neighbours' counters. Two are kept:
//! - CAP_SYS_PTRACE: to duplicate callers' descriptors (`pidfd_getfd`), and to open their memory.
//! - CAP_DAC_OVERRIDE: `/proc/TID/mem` belongs to the caller's user, with mode 0600. (`process_vm_writev` would do without,
//!   but it names a process by number, which may have become another's between the check and the write.)
//!
//! The driver looks at neither.

use std::io;

use libseccomp::{ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall, error::SeccompError};
use rustix::{
    io::Errno,
    process::{DumpableBehavior, Resource, Rlimit, dumpable_behavior, getrlimit, set_dumpable_behavior, setrlimit},
    thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits,
        capability_is_in_ambient_set, capability_is_in_bounding_set, clear_ambient_capability_set, no_new_privs,
        remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
    },
};

use crate::sys;

const KEPT: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_OVERRIDE);

/// User id 0 means nothing, and nothing can be raised again; locked.
const SECURE_BITS: CapabilitiesSecureBits = CapabilitiesSecureBits::NO_ROOT
    .union(CapabilitiesSecureBits::NO_ROOT_LOCKED)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED)
    .union(CapabilitiesSecureBits::KEEP_CAPS_LOCKED)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// Why the mediator must not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivilegeError {
    /// A step failed.
    #[error("cannot {step}")]
    Step {
        step: &'static str,
        #[source]
        source: io::Error,
    },
    /// A step did not do what it should.
    #[error("{0} after it was given up")]
    Kept(String),
    /// Its own filter.
    #[error("cannot confine the mediator to the system calls that it needs")]
    Filter(#[source] SeccompError),
}

/// Gives up everything that is not needed, for good, and looks whether it is gone. Only with one thread: the sets are each
/// thread's own. `shim` is the parent.
pub(super) fn drop_for_good(shim: i32) -> Result<(), PrivilegeError> {
    let step = |step| move |source: Errno| PrivilegeError::Step { step, source: source.into() };
    nix::unistd::setgroups(&[])
        .map_err(|error| PrivilegeError::Step { step: "leave supplementary groups", source: error.into() })?;
    let files = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files }).map_err(step("raise the limit of files"))?;
    bound_real_time().map_err(step("bound real-time priorities"))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(step("forbid core dumps"))?;
    set_no_new_privs(true).map_err(step("set no_new_privs"))?;
    set_capabilities_secure_bits(SECURE_BITS).map_err(step("set the secure bits"))?;
    for capability in all().filter(|capability| !KEPT.contains(*capability)) {
        match remove_capability_from_bounding_set(capability) {
            // The kernel does not know so many.
            Err(Errno::INVAL) => break,
            removed => removed.map_err(step("shrink the bounding set"))?,
        }
    }
    clear_ambient_capability_set().map_err(step("clear the ambient set"))?;
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(step("give up capabilities"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("become undumpable"))?;
    // Its end of the control socket tells of the shim's end: then there is something to be freed first.
    sys::outlive_parent(shim).map_err(|source| PrivilegeError::Step { step: "outlive the shim", source })?;
    confine().map_err(PrivilegeError::Filter)?;
    verify()
}

/// A thread of real-time priority that computes for a second without waiting for anything has lost its way: the kernel ends the process before it
/// takes a core from the host. Nor can anybody take such a priority who has none yet.
fn bound_real_time() -> Result<(), Errno> {
    let only = |value| Rlimit { current: Some(value), maximum: Some(value) };
    setrlimit(Resource::Rtprio, only(0))?;
    setrlimit(Resource::Nice, only(0))?;
    setrlimit(Resource::Rttime, only(1_000_000))
}

/// Every capability by itself.
fn all() -> impl Iterator<Item = CapabilitySet> {
    (0..64).map(|bit| CapabilitySet::from_bits_retain(1 << bit))
}

fn verify() -> Result<(), PrivilegeError> {
    let failed = |source: Errno| PrivilegeError::Step { step: "look at the own rights", source: source.into() };
    let kept = |what: &str| Err(PrivilegeError::Kept(what.to_owned()));
    let sets = capabilities(None).map_err(failed)?;
    if (sets.effective, sets.permitted) != (KEPT, KEPT) || !sets.inheritable.is_empty() {
        return kept(&format!("there are capabilities {sets:?}"));
    }
    for capability in all() {
        // Beyond the last that the kernel knows, both fail.
        let is_bounding = capability_is_in_bounding_set(capability).unwrap_or(false);
        if is_bounding && !KEPT.contains(capability) {
            return kept(&format!("{capability:?} is in the bounding set"));
        }
        if capability_is_in_ambient_set(capability).unwrap_or(false) {
            return kept(&format!("{capability:?} is in the ambient set"));
        }
    }
    if !capabilities_secure_bits().map_err(failed)?.contains(SECURE_BITS) || !no_new_privs().map_err(failed)? {
        return kept("privileges could be gained again");
    }
    if dumpable_behavior().map_err(failed)? != DumpableBehavior::NotDumpable {
        return kept("the process can be dumped");
    }
    // The filter holds: this is none of the calls below.
    match nix::unistd::chroot("/") {
        Err(nix::Error::ENOSYS) => Ok(()),
        _ => kept("system calls can be made that it does not need"),
    }
}

/// Calls that are allowed whatever their arguments.
const ALLOWED: &[&str] = &[
    // Files and memory. `openat` is below.
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
    "fcntl",
    "flock",
    "ftruncate",
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
    // The driver and listeners.
    "ioctl",
    "pidfd_open",
    "pidfd_getfd",
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
    "prlimit64",
    "getrlimit",
    // To look whether rights are gone.
    "capget",
    // The end.
    "exit",
    "exit_group",
];

/// Installs a filter that knows the calls a mediator makes. Any other "does not exist": libraries have a way around that, or
/// fail. What it cannot do any more: execute, fork, trace, mount, load, connect, create or truncate files, signal others.
fn confine() -> Result<(), SeccompError> {
    let mut filter = ScmpFilterContext::new(ScmpAction::Errno(libc::ENOSYS))?;
    filter.set_act_badarch(ScmpAction::KillProcess)?;
    filter.set_ctl_nnp(true)?;
    for name in ALLOWED {
        // Not every machine has every call, nor does every libseccomp know it.
        if let Ok(call) = ScmpSyscall::from_name(name) {
            filter.add_rule(ScmpAction::Allow, call)?;
        }
    }
    let threads = mask(libc::CLONE_VM | libc::CLONE_THREAD);
    filter.add_rule_conditional(ScmpAction::Allow, ScmpSyscall::from_name("clone")?, &[masked(0, threads, threads)])?;
    let making = mask(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND);
    for (name, flags) in [("openat", 2), ("open", 1)] {
        if let Ok(call) = ScmpSyscall::from_name(name) {
            filter.add_rule_conditional(ScmpAction::Allow, call, &[masked(flags, making, 0)])?;
        }
    }
    let own = u64::from(std::process::id());
    let equals = |argument, value| ScmpArgCompare::new(argument, ScmpCompareOp::Equal, value);
    filter.add_rule_conditional(ScmpAction::Allow, ScmpSyscall::from_name("tgkill")?, &[equals(0, own)])?;
    // A thread may give its own priority back.
    let priority = ScmpSyscall::from_name("sched_setscheduler")?;
    filter.add_rule_conditional(ScmpAction::Allow, priority, &[equals(0, 0), equals(1, mask(libc::SCHED_OTHER))])?;
    let nice = ScmpSyscall::from_name("setpriority")?;
    filter.add_rule_conditional(
        ScmpAction::Allow,
        nice,
        &[equals(0, mask(libc::PRIO_PROCESS.cast_signed())), equals(1, 0)],
    )?;
    // Whether somebody is there.
    let signal = ScmpSyscall::from_name("pidfd_send_signal")?;
    filter.add_rule_conditional(ScmpAction::Allow, signal, &[equals(1, 0)])?;
    // Only to look; threads are given names, too.
    let harmless = [
        libc::PR_SET_NAME,
        libc::PR_GET_NAME,
        libc::PR_GET_DUMPABLE,
        libc::PR_CAPBSET_READ,
        libc::PR_GET_SECUREBITS,
        libc::PR_GET_NO_NEW_PRIVS,
    ];
    let prctl = ScmpSyscall::from_name("prctl")?;
    for operation in harmless {
        filter.add_rule_conditional(ScmpAction::Allow, prctl, &[equals(0, mask(operation))])?;
    }
    let ambient = mask(libc::PR_CAP_AMBIENT);
    let is_set = mask(libc::PR_CAP_AMBIENT_IS_SET);
    filter.add_rule_conditional(ScmpAction::Allow, prctl, &[equals(0, ambient), equals(1, is_set)])?;
    filter.load()
}

/// Flags are never negative.
fn mask(flags: i32) -> u64 {
    u64::from(flags.cast_unsigned())
}

fn masked(argument: u32, mask: u64, value: u64) -> ScmpArgCompare {
    ScmpArgCompare::new(argument, ScmpCompareOp::MaskedEqual(mask), value)
}
