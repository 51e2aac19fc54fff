//! Rights that a container's process must not have. They are taken away here, and a call that fails
//! is an error: libcontainer 0.7.0 ignores the result of `no_new_privs`, and keeps a capability of
//! the bounding set that it cannot ask about.

use libcontainer::capabilities::CapabilityExt as _;
use oci_spec::runtime::{Capabilities, Process, Spec};
use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};

use crate::capabilities::CAPABILITIES;

/// A right that stays.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}")]
pub(crate) struct PrivilegeError {
    step: &'static str,
    #[source]
    source: Errno,
}

fn failed(step: &'static str) -> impl Fn(Errno) -> PrivilegeError {
    move |source| PrivilegeError { step, source }
}

/// Bounds the rights of what the calling process will ever execute: `noNewPrivileges` and the
/// bounding set. Its own are left as they are. Needs CAP_SETPCAP.
pub(crate) fn bound(process: &Process) -> Result<(), PrivilegeError> {
    if process.no_new_privileges() == Some(true) {
        set_no_new_privs(true).map_err(failed("set no_new_privs (process.noNewPrivileges)"))?;
    }
    let bounding = set(process, |sets| sets.bounding());
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if bounding.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // One that this kernel does not know.
            Err(Errno::INVAL) if CAPABILITIES.get(number as usize).is_none() => break,
            removed => removed.map_err(failed("shrink the bounding set (process.capabilities.bounding)"))?,
        }
    }
    Ok(())
}

/// Drops the calling process's own rights to those of the spec's process, and to those without
/// which libcontainer cannot make that of it: another user, a terminal, a scheduling class, and a
/// seccomp profile without `noNewPrivileges`. For one that a container is about to see.
pub(crate) fn drop_own(spec: &Spec, process: &Process, has_terminal: bool) -> Result<(), PrivilegeError> {
    let own = capabilities(None).map_err(failed("read the own capabilities"))?.permitted;
    let asked = set(process, |sets| sets.permitted()) | set(process, |sets| sets.effective());
    let kept = own & (asked | needed(spec, process, has_terminal));
    let inheritable = own & set(process, |sets| sets.inheritable()) & set(process, |sets| sets.bounding());
    clear_ambient_capability_set().map_err(failed("clear the ambient set"))?;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })
        .map_err(failed("drop capabilities"))
}

fn needed(spec: &Spec, process: &Process, has_terminal: bool) -> CapabilitySet {
    let user = process.user();
    let has_profile = spec.linux().as_ref().is_some_and(|linux| linux.seccomp().is_some());
    let groups = user.additional_gids().as_deref().unwrap_or_default();
    [
        (user.uid() != 0, CapabilitySet::SETUID),
        (user.gid() != 0 || !groups.is_empty(), CapabilitySet::SETGID),
        (has_profile && process.no_new_privileges() != Some(true), CapabilitySet::SYS_ADMIN),
        (process.scheduler().is_some() || process.io_priority().is_some(), CapabilitySet::SYS_NICE),
        // `/dev/ptmx` may have the mode 0, devpts's default.
        (has_terminal, CapabilitySet::DAC_OVERRIDE),
    ]
    .into_iter()
    .filter_map(|(is_needed, capability)| is_needed.then_some(capability))
    .collect()
}

fn set(
    process: &Process,
    which: impl Fn(&oci_spec::runtime::LinuxCapabilities) -> &Option<Capabilities>,
) -> CapabilitySet {
    let sets = process.capabilities().as_ref();
    let names = sets.and_then(|sets| which(sets).as_ref());
    let bits = names.into_iter().flatten().fold(0, |bits, name| bits | name.to_cap().bitmask());
    CapabilitySet::from_bits_retain(bits)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testing::refused_calls;

    use super::*;

    #[test]
    fn a_process_keeps_what_it_is_given_and_what_it_still_has_to_do() {
        let seccomp = json!({ "defaultAction": "SCMP_ACT_ALLOW" });
        for (process, seccomp, terminal, wanted) in [
            (json!({}), json!(null), false, CapabilitySet::empty()),
            (json!({ "user": { "uid": 7, "gid": 0 } }), json!(null), false, CapabilitySet::SETUID),
            (
                json!({ "user": { "uid": 0, "gid": 0, "additionalGids": [3] } }),
                json!(null),
                true,
                CapabilitySet::SETGID | CapabilitySet::DAC_OVERRIDE,
            ),
            (json!({}), seccomp.clone(), false, CapabilitySet::SYS_ADMIN),
            (json!({ "noNewPrivileges": true }), seccomp, false, CapabilitySet::empty()),
            (json!({ "scheduler": { "policy": "SCHED_FIFO" } }), json!(null), false, CapabilitySet::SYS_NICE),
        ] {
            let mut full = json!({ "cwd": "/", "args": ["x"], "user": { "uid": 0, "gid": 0 } });
            full.as_object_mut().unwrap().extend(process.as_object().unwrap().clone());
            let process: Process = serde_json::from_value(full).unwrap();
            let mut spec = json!({ "ociVersion": "1.1.0", "linux": {} });
            if !seccomp.is_null() {
                spec["linux"]["seccomp"] = seccomp;
            }
            let spec: Spec = serde_json::from_value(spec).unwrap();
            assert_eq!(needed(&spec, &process, terminal), wanted, "{process:?}");
        }
    }

    #[test]
    fn a_right_that_cannot_be_taken_away_is_an_error() {
        let process: Process = serde_json::from_value(json!({
            "cwd": "/", "args": ["x"], "user": { "uid": 0, "gid": 0 }, "noNewPrivileges": true,
        }))
        .unwrap();
        for (command, step) in [(libc::PR_SET_NO_NEW_PRIVS, "no_new_privs"), (libc::PR_CAPBSET_DROP, "bounding set")] {
            let (process, command) = (process.clone(), (0, u64::from(command.unsigned_abs())));
            let refused = move || {
                let error = bound(&process).unwrap_err().to_string();
                assert!(error.contains(step), "{error}");
            };
            if !refused_calls::with(&["prctl"], Some(command), libc::EINVAL, refused) {
                eprintln!("skipped: a_right_that_cannot_be_taken_away_is_an_error: needs root");
            }
        }
    }

    #[test]
    fn sets_are_read_by_the_kernels_numbers() {
        let process: Process = serde_json::from_value(json!({
            "cwd": "/", "args": ["x"], "user": { "uid": 0, "gid": 0 },
            "capabilities": { "bounding": ["CAP_KILL", "CAP_CHECKPOINT_RESTORE"] },
        }))
        .unwrap();
        let bounding = CapabilitySet::KILL | CapabilitySet::CHECKPOINT_RESTORE;
        assert_eq!(set(&process, |sets| sets.bounding()), bounding);
        assert_eq!(set(&process, |sets| sets.ambient()), CapabilitySet::empty());
    }
}
