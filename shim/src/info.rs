//! `-v` and `-info`: what this runtime is and can do.
//!
//! containerd from 2.0 on asks before every create, and CRI offers pods what the answer names: a
//! user namespace needs idmapped mounts, recursive read-only mounts the option `rro`. So nothing is
//! named that is not there.

use std::{
    io::{self, Read, Write},
    str::FromStr,
};

use containerd_shim::protos::types::introspection::{RuntimeInfo, RuntimeVersion};
use libcontainer::syscall::linux::{MountOption, MountRecursive};
use protobuf::{Message, MessageField, well_known_types::any::Any};
use runtime::capabilities::CAPABILITIES;
use serde_json::{Value, json};

use crate::version;

/// The runtime's name.
pub const NAME: &str = "io.containerd.egpu.v1";
/// Name of the program that containerd starts for it.
pub const BINARY: &str = "containerd-shim-egpu-v1";
/// Limit of the input, containerd's own for what it sends.
const MAX_INPUT: u64 = 10 << 20;
/// The name that Go's typeurl registers for OCI features; the value is JSON.
const FEATURES_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// An answer that could not be given.
#[derive(Debug, thiserror::Error)]
pub enum InfoError {
    /// stdin or stdout.
    #[error("cannot talk to containerd on stdin and stdout")]
    Talk(#[from] io::Error),
    /// The options, or the answer.
    #[error("stdin does not hold the runtime options as containerd sends them")]
    Message(#[from] protobuf::Error),
}

/// Runs `-v`.
pub fn print_version() -> Result<(), InfoError> {
    let version = version();
    let (number, revision) = (version.version, version.revision);
    let text = format!("containerd-shim-egpu-v1:\n  Version:  {number}\n  Revision: {revision}\n");
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())?;
    Ok(())
}

/// Runs `-info`: the runtime options, if any, come on stdin.
pub fn print_info() -> Result<(), InfoError> {
    let mut input = Vec::new();
    io::stdin().lock().take(MAX_INPUT).read_to_end(&mut input)?;
    let options = if input.is_empty() { None } else { Some(Any::parse_from_bytes(&input)?) };
    let bytes = info(options).write_to_bytes()?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(&bytes).and_then(|()| stdout.flush())?;
    Ok(())
}

fn info(options: Option<Any>) -> RuntimeInfo {
    let features =
        Any { type_url: FEATURES_URL.to_owned(), value: features().to_string().into(), ..Default::default() };
    RuntimeInfo {
        name: NAME.to_owned(),
        version: MessageField::some(version()),
        options: options.into(),
        features: MessageField::some(features),
        ..Default::default()
    }
}

fn version() -> RuntimeVersion {
    RuntimeVersion { version: version::NUMBER.to_owned(), revision: version::REVISION.to_owned(), ..Default::default() }
}

/// OCI runtime-spec, features.md.
fn features() -> Value {
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": oci_spec::runtime::VERSION,
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": mount_options(),
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"],
            "capabilities": CAPABILITIES,
            "cgroup": { "v1": true, "v2": true, "systemd": true, "systemdUser": false, "rdma": false },
            "seccomp": {
                "enabled": true,
                "actions": [
                    "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD",
                    "SCMP_ACT_LOG", "SCMP_ACT_NOTIFY", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP"
                ],
                "operators": [
                    "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT", "SCMP_CMP_MASKED_EQ",
                    "SCMP_CMP_NE"
                ],
            },
            "apparmor": { "enabled": true },
            "selinux": { "enabled": false },
            "intelRdt": { "enabled": true },
            "mountExtensions": { "idmap": { "enabled": true } },
        },
    })
}

/// Mount options that the helper supports; libcontainer lists only those that are not recursive.
fn mount_options() -> Vec<String> {
    let recursive = [
        "rro",
        "rrw",
        "rnosuid",
        "rsuid",
        "rnodev",
        "rdev",
        "rnoexec",
        "rexec",
        "rnodiratime",
        "rdiratime",
        "rrelatime",
        "rnorelatime",
        "rnoatime",
        "ratime",
        "rstrictatime",
        "rnostrictatime",
        "rnosymfollow",
        "rsymfollow",
    ];
    debug_assert!(recursive.iter().all(|option| MountRecursive::from_str(option).is_ok()));
    MountOption::known_options().into_iter().chain(recursive.map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_what_containerd_decodes() {
        let options = Any { type_url: "containerd.runc.v1.Options".into(), ..Default::default() };
        let bytes = info(Some(options.clone())).write_to_bytes().unwrap();
        let info = RuntimeInfo::parse_from_bytes(&bytes).unwrap();
        assert_eq!(info.name, NAME);
        assert_eq!(info.options.as_ref(), Some(&options));
        assert_eq!(info.version.version, env!("CARGO_PKG_VERSION"));
        let features = info.features.unwrap();
        assert_eq!(features.type_url, FEATURES_URL);
        // The type of the OCI specification takes it, hence Go's does.
        let features: oci_spec::runtime::Features = serde_json::from_slice(&features.value).unwrap();
        assert!(features.mount_options().as_ref().is_some_and(|options| options.iter().any(|option| option == "rro")));
    }

    #[test]
    fn what_pods_are_asked_for_is_announced() {
        assert_eq!(features()["linux"]["cgroup"]["systemd"], true);
        assert_eq!(features()["linux"]["mountExtensions"]["idmap"]["enabled"], true);
    }
}
