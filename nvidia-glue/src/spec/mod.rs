//! Reads an OCI `config.json` for what it says about GPUs.
//!
//! The spec stays a [`Value`]: a round trip through typed structs would lose the fields that they
//! do not know. Nothing in it is trusted to have the right shape; what has not is passed over here
//! and refused by the runtime's own typed reading.

mod hooks;
mod nodes;
mod privileges;

use std::path::{Component, Path};

pub(crate) use hooks::hook_is_nvidias;
pub(crate) use nodes::{NVIDIA_MAJOR, integer};
use runtime_config::request::{PodContainer, Source};
use serde_json::Value;

/// Result of [`read`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Input of requests.
    pub source: Source,
    /// `namespace/owner/container` in Kubernetes: the same for all replicas of a workload, as far
    /// as a pod's name tells.
    pub workload: Option<String>,
    /// Its names in Kubernetes.
    pub pod: Option<PodContainer>,
    /// Its pod's uid there.
    pub pod_uid: Option<String>,
    /// The seccomp profile asks for a listener of its own (`SCMP_ACT_NOTIFY` or `listenerPath`).
    /// The kernel has one listener for a process's filters, so that cannot be had together with a
    /// quota.
    pub seccomp_listener: bool,
}

/// Looks through a spec. Any JSON is fine.
pub fn read(spec: &Value) -> ContainerSpec {
    let annotations = spec
        .get("annotations")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect::<std::collections::BTreeMap<_, _>>();
    let annotation = |name: &str| annotations.get(name).map(String::as_str);
    let is_sandbox = ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"]
        .into_iter()
        .any(|name| annotation(name) == Some("sandbox"));
    let pod = annotation("io.kubernetes.cri.sandbox-name").map(|pod| {
        let name = |name| annotation(name).unwrap_or_default().to_owned();
        PodContainer {
            namespace: name("io.kubernetes.cri.sandbox-namespace"),
            pod: pod.to_owned(),
            container: name("io.kubernetes.cri.container-name"),
        }
    });
    let workload = pod
        .as_ref()
        .map(|PodContainer { namespace, pod, container }| format!("{namespace}/{}/{container}", owner_of_pod(pod)));
    ContainerSpec {
        workload,
        pod_uid: annotation("io.kubernetes.cri.sandbox-uid").map(str::to_owned),
        pod,
        seccomp_listener: asks_for_listener(spec),
        source: Source {
            env: strings(spec.pointer("/process/env")),
            nodes: nodes::present(spec),
            hook: hooks::request(spec),
            volume_mount_devices: volume_mount_devices(spec),
            privileges: privileges::read(spec),
            is_sandbox,
            annotations,
        },
    }
}

/// The strings of an array; other items are passed over.
pub(crate) fn strings(value: Option<&Value>) -> Vec<String> {
    items(value).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The items of an array; none if it is something else.
pub(crate) fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The path without `.`, `..` and doubled slashes, as if `/` were its own parent. Lexical: no link
/// is looked at.
pub(crate) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(part) => parts.extend(part.to_str()),
            Component::ParentDir => {
                parts.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    format!("/{}", parts.join("/"))
}

/// `NAME`s of mounts of /dev/null at `/var/run/nvidia-container-devices/NAME`.
fn volume_mount_devices(spec: &Value) -> Vec<String> {
    const ROOTS: [&str; 2] = ["/var/run/nvidia-container-devices/", "/run/nvidia-container-devices/"];
    items(spec.get("mounts"))
        .iter()
        .filter(|mount| mount.get("source").and_then(Value::as_str) == Some("/dev/null"))
        .filter_map(|mount| mount.get("destination").and_then(Value::as_str))
        .filter_map(|destination| {
            let destination = clean(destination);
            let name = ROOTS.iter().find_map(|root| destination.strip_prefix(root))?;
            (!name.contains('/')).then(|| name.to_owned())
        })
        .collect()
}

/// See [`ContainerSpec::seccomp_listener`].
fn asks_for_listener(spec: &Value) -> bool {
    const NOTIFY: &str = "SCMP_ACT_NOTIFY";
    let Some(profile) = spec.pointer("/linux/seccomp") else { return false };
    let has_path = profile.get("listenerPath").and_then(Value::as_str).is_some_and(|path| !path.is_empty());
    let actions = std::iter::once(profile.get("defaultAction"))
        .chain(items(profile.get("syscalls")).iter().map(|rule| rule.get("action")));
    has_path || actions.flatten().any(|action| action.as_str() == Some(NOTIFY))
}

/// A pod's name without the part that distinguishes replicas: the generated suffix of five letters
/// and digits (ReplicaSet, Job, DaemonSet), or a StatefulSet's number.
fn owner_of_pod(pod: &str) -> &str {
    /// Kubernetes' alphabet for generated names (apimachinery util/rand): no vowels, no digits that
    /// look like letters.
    const GENERATED: &str = "bcdfghjklmnpqrstvwxz2456789";
    match pod.rsplit_once('-') {
        Some((owner, suffix)) if !owner.is_empty() && !suffix.is_empty() => {
            let generated = suffix.len() == 5 && suffix.chars().all(|letter| GENERATED.contains(letter));
            let ordinal = suffix.chars().all(|digit| digit.is_ascii_digit());
            if generated || ordinal { owner } else { pod }
        }
        _ => pod,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::any_json;
