//! Resource limits of a container's processes.
//!
//! To raise one takes CAP_SYS_RESOURCE on the host, which nobody has in a user namespace. So before
//! such a one is joined, the process sets its own. One that is new must be there first: what its
//! creator may lock, queue and pend is what all of its processes together may. Then the worker sets
//! them, while the process waits for its id maps.

use std::io;

use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::{PosixRlimitType, Spec};
use rustix::process::{Resource, Rlimit, prlimit};

/// A limit that the kernel refuses.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {kind} (process.rlimits) to soft {soft}, hard {hard}")]
pub(crate) struct LimitError {
    kind: PosixRlimitType,
    soft: String,
    hard: String,
    #[source]
    source: io::Error,
}

/// Sets those of the spec's process on `pid`, or on the caller.
pub(crate) fn set(pid: Option<Pid>, spec: &Spec) -> Result<(), LimitError> {
    let process = pid.and_then(|pid| rustix::process::Pid::from_raw(pid.as_raw()));
    let limits = spec.process().as_ref().and_then(|process| process.rlimits().as_deref());
    for limit in limits.unwrap_or_default() {
        let value = |value: u64| (value != libc::RLIM_INFINITY).then_some(value);
        let text = |number| value(number).map_or_else(|| "unlimited".to_owned(), |number| number.to_string());
        let pair = Rlimit { current: value(limit.soft()), maximum: value(limit.hard()) };
        prlimit(process, resource(limit.typ()), pair).map_err(|errno| LimitError {
            kind: limit.typ(),
            soft: text(limit.soft()),
            hard: text(limit.hard()),
            source: errno.into(),
        })?;
    }
    Ok(())
}

fn resource(kind: PosixRlimitType) -> Resource {
    match kind {
        PosixRlimitType::RlimitCpu => Resource::Cpu,
        PosixRlimitType::RlimitFsize => Resource::Fsize,
        PosixRlimitType::RlimitData => Resource::Data,
        PosixRlimitType::RlimitStack => Resource::Stack,
        PosixRlimitType::RlimitCore => Resource::Core,
        PosixRlimitType::RlimitRss => Resource::Rss,
        PosixRlimitType::RlimitNproc => Resource::Nproc,
        PosixRlimitType::RlimitNofile => Resource::Nofile,
        PosixRlimitType::RlimitMemlock => Resource::Memlock,
        PosixRlimitType::RlimitAs => Resource::As,
        PosixRlimitType::RlimitLocks => Resource::Locks,
        PosixRlimitType::RlimitSigpending => Resource::Sigpending,
        PosixRlimitType::RlimitMsgqueue => Resource::Msgqueue,
        PosixRlimitType::RlimitNice => Resource::Nice,
        PosixRlimitType::RlimitRtprio => Resource::Rtprio,
        PosixRlimitType::RlimitRttime => Resource::Rttime,
    }
}
