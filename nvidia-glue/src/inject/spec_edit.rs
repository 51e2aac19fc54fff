//! Edits of the OCI spec that do not depend on the image: hooks, capabilities, environment, nodes
//! and their rules.

use base::Bytes;
use serde_json::{Map, Value, json};

use super::{InjectError, Injection, host::DeviceNode};
use crate::spec::{clean, hook_is_nvidias, integer, items};

/// Kernel's major of `/dev/dri` (include/uapi/linux/major.h has no name for it;
/// Documentation/admin-guide/devices.txt).
const DRM_MAJOR: u64 = 226;

/// Capabilities that a container with a share may not have: with the first it would set its
/// channels' priority among all, with the second it would read the performance counters of its
/// neighbours (the driver asks for them by capable()).
const WITHHELD: [&str; 2] = ["CAP_SYS_NICE", "CAP_PERFMON"];

/// Applies all edits of this module.
pub(super) fn edit(injection: &Injection, spec: &mut Value) -> Result<(), InjectError> {
    if !spec.is_object() {
        return Err(InjectError::Spec { field: "the spec", expected: "an object" });
    }
    remove_hooks(spec);
    if injection.drop_hami {
        remove_hami(spec);
    }
    if injection.shared
        && let Some(process) = spec.get_mut("process")
    {
        withhold_capabilities(process);
    }
    for (name, value) in &injection.env {
        set_env(spec, name, |_| value.clone())?;
    }
    if let Some(limit) = injection.host_memory_limit {
        limit_memory(spec, limit)?;
    }
    add_gids(spec, &injection.additional_gids)?;
    edit_nodes(injection, spec)?;
    edit_rules(injection, spec)
}

/// Removes CAP_SYS_NICE and CAP_PERFMON from all sets of an OCI `process`: a container's own, or
/// one that is executed in it. To be done where a card is shared.
pub fn withhold_capabilities(process: &mut Value) {
    for set in process.get_mut("capabilities").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        if let Some(names) = set.as_array_mut() {
            names.retain(|name| {
                let name = name.as_str().unwrap_or_default().to_ascii_uppercase();
                !WITHHELD.iter().any(|held| name == *held || Some(name.as_str()) == held.strip_prefix("CAP_"))
            });
        }
    }
}

/// Sets a variable to what `value` makes of the one that is there; of several the last is the one
/// that counts.
pub(super) fn set_env(
    spec: &mut Value,
    name: &str,
    value: impl FnOnce(Option<&str>) -> String,
) -> Result<(), InjectError> {
    let env = array(spec, &["process", "env"], "process.env")?;
    let prefix = format!("{name}=");
    let present = env.iter().rev().find_map(|item| item.as_str()?.strip_prefix(&prefix));
    let item = Value::from(format!("{prefix}{}", value(present)));
    if env.iter().filter(|item| item.as_str().is_some_and(|item| item.starts_with(&prefix))).count() == 1
        && env.contains(&item)
    {
        return Ok(());
    }
    env.retain(|item| item.as_str().is_none_or(|item| !item.starts_with(&prefix)));
    env.push(item);
    Ok(())
}

/// Limits the host's memory of a container that has no limit of its own (0 and -1 are none).
fn limit_memory(spec: &mut Value, limit: Bytes) -> Result<(), InjectError> {
    const FIELD: &str = "linux.resources.memory.limit";
    let own = at(spec, &["linux", "resources", "memory", "limit"], FIELD)?;
    if own.as_i64().is_none_or(|own| own <= 0) {
        *own = limit.0.into();
    }
    Ok(())
}

/// Removes NVIDIA's own hooks, which would do all of this again, from outside and after the checks.
fn remove_hooks(spec: &mut Value) {
    let stages = spec.get_mut("hooks").and_then(Value::as_object_mut);
    for stage in stages.into_iter().flat_map(Map::values_mut) {
        if let Some(hooks) = stage.as_array_mut() {
            hooks.retain(|hook| !hook_is_nvidias(hook));
        }
    }
}

/// `libvgpu.so` and the `/etc/ld.so.preload` that loads it. A preload file of somebody else stays.
fn remove_hami(spec: &mut Value) {
    let Some(mounts) = spec.get_mut("mounts").and_then(Value::as_array_mut) else { return };
    let text = |mount: &Value, field: &str| clean(mount.get(field).and_then(Value::as_str).unwrap_or_default());
    let is_library = |mount: &Value| {
        text(mount, "destination").ends_with("/libvgpu.so") || text(mount, "source").ends_with("/libvgpu.so")
    };
    let has_library = mounts.iter().any(is_library);
    mounts.retain(|mount| {
        let source = text(mount, "source");
        let preloads = text(mount, "destination") == "/etc/ld.so.preload"
            && (has_library || source.split('/').any(|part| part == "vgpu"));
        !is_library(mount) && !preloads
    });
}

fn add_gids(spec: &mut Value, gids: &[u32]) -> Result<(), InjectError> {
    // In a user namespace of the container's own the number would be another group's.
    let own_users = items(spec.pointer("/linux/namespaces")).iter().any(|namespace| namespace["type"] == "user");
    if gids.is_empty() || own_users {
        return Ok(());
    }
    let present = array(spec, &["process", "user", "additionalGids"], "process.user.additionalGids")?;
    for gid in gids {
        if !present.iter().any(|present| integer(present) == Some(u64::from(*gid))) {
            present.push(Value::from(*gid));
        }
    }
    Ok(())
}

/// Returns whether a node or rule of the spec gives way to what was granted.
fn is_replaced(injection: &Injection, major: Option<u64>) -> bool {
    major.is_some_and(|major| injection.nvidia_majors.contains(&major) || (injection.shared && major == DRM_MAJOR))
}

/// `linux.devices`: NVIDIA's nodes are precisely the granted ones.
fn edit_nodes(injection: &Injection, spec: &mut Value) -> Result<(), InjectError> {
    // With the host's /dev, all nodes are there already, and making one again would fail.
    let host_dev = items(spec.get("mounts")).iter().any(|mount| {
        let text = |field: &str| mount.get(field).and_then(Value::as_str).unwrap_or_default();
        clean(text("destination")) == "/dev" && text("type") != "tmpfs"
    });
    let devices = array(spec, &["linux", "devices"], "linux.devices")?;
    devices.retain(|device| {
        let path = clean(device.get("path").and_then(Value::as_str).unwrap_or_default());
        let granted = injection.devices.iter().any(|node| node.path == path);
        let nvidias = path.starts_with("/dev/nvidia") || is_replaced(injection, device.get("major").and_then(integer));
        !granted && !nvidias
    });
    if !host_dev {
        devices.extend(injection.devices.iter().map(node_entry));
    }
    Ok(())
}

fn node_entry(node: &DeviceNode) -> Value {
    json!({
        "path": node.path, "type": "c", "major": node.major, "minor": node.minor,
        "fileMode": node.mode, "uid": node.uid, "gid": node.gid
    })
}

/// `linux.resources.devices`: everything is denied but what rules allow, and of NVIDIA's nodes they
/// allow the granted ones, one by one.
fn edit_rules(injection: &Injection, spec: &mut Value) -> Result<(), InjectError> {
    let rules = array(spec, &["linux", "resources", "devices"], "linux.resources.devices")?;
    let number = |rule: &Value, name: &str| rule.get(name).and_then(integer);
    let allows = |rule: &Value| rule.get("allow").and_then(Value::as_bool) == Some(true);
    rules.retain(|rule| {
        let granted = injection
            .devices
            .iter()
            .any(|node| number(rule, "major") == Some(node.major) && number(rule, "minor") == Some(node.minor));
        let is_character = rule.get("type").and_then(Value::as_str) != Some("b");
        !(allows(rule) && is_character && (granted || is_replaced(injection, number(rule, "major"))))
    });
    let denies_all = |rule: &Value| {
        let kind = rule.get("type").and_then(Value::as_str).unwrap_or("a");
        !allows(rule) && matches!(kind, "a" | "") && number(rule, "major").is_none() && number(rule, "minor").is_none()
    };
    if !rules.iter().any(denies_all) && !rules.iter().any(allows_everything) {
        // A cgroup begins with what its parent may use: everything.
        rules.insert(0, json!({"allow": false, "access": "rwm"}));
    }
    rules.extend(
        injection
            .devices
            .iter()
            .map(|node| json!({"allow": true, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"})),
    );
    Ok(())
}

/// A privileged container's rule.
fn allows_everything(rule: &Value) -> bool {
    rule.get("allow").and_then(Value::as_bool) == Some(true)
        && matches!(rule.get("type").and_then(Value::as_str).unwrap_or("a"), "a" | "")
        && rule.get("major").and_then(integer).is_none()
        && rule.get("minor").and_then(integer).is_none()
}

/// The array at `path`, made if nothing or null is there, its parents likewise.
pub(super) fn array<'a>(
    spec: &'a mut Value,
    path: &[&str],
    field: &'static str,
) -> Result<&'a mut Vec<Value>, InjectError> {
    let value = at(spec, path, field)?;
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().ok_or(InjectError::Spec { field, expected: "an array" })
}

/// The value at `path`, null if nothing is there; its parents are made.
fn at<'a>(spec: &'a mut Value, path: &[&str], field: &'static str) -> Result<&'a mut Value, InjectError> {
    let mut at = spec;
    for name in path {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        let Value::Object(object) = at else {
            return Err(InjectError::Spec { field, expected: "in an object" });
        };
        at = object.entry(*name).or_insert(Value::Null);
    }
    Ok(at)
}
