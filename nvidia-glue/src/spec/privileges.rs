//! Rights of a container that no quota survives.

use std::os::unix::fs::MetadataExt;

use runtime_config::request::Privileges;
use serde_json::{Map, Value};

use super::{NVIDIA_MAJOR, integer, items, strings};

pub(super) fn read(spec: &Value) -> Privileges {
    let named = named_capabilities(spec);
    let holds = |name: &str| named.iter().any(|one| one == name);
    let user_namespace = own_namespace(spec, "user");
    Privileges {
        cap_sys_admin: holds("SYS_ADMIN"),
        cap_sys_module: holds("SYS_MODULE"),
        cap_sys_rawio: holds("SYS_RAWIO"),
        user_namespace: user_namespace.is_some(),
        maps_host_root: user_namespace.is_some_and(|namespace| maps_host_root(spec, namespace)),
        wildcard_device_rule: has_wildcard_device_rule(spec),
        host_pid_namespace: own_namespace(spec, "pid").is_none(),
    }
}

/// The capabilities that any of the five sets names, without the `CAP_` prefixes. The helper drops
/// all others, also where a set is left out, or all of them are: containerd writes `{}` for a
/// container that drops every one.
fn named_capabilities(spec: &Value) -> Vec<String> {
    let bare = |name: String| {
        let name = name.to_ascii_uppercase();
        name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name)
    };
    let sets = spec.pointer("/process/capabilities").and_then(Value::as_object).into_iter().flat_map(Map::values);
    sets.flat_map(|set| strings(Some(set))).map(bare).collect()
}

/// The namespace that the container gets, where that is not this process's own. One that is joined
/// by its path and cannot be looked at counts as the host's.
fn own_namespace<'spec>(spec: &'spec Value, kind: &str) -> Option<&'spec Value> {
    items(spec.pointer("/linux/namespaces")).iter().find(|namespace| {
        let is_own = |path: &str| {
            let joined = inode(path);
            joined.is_some() && joined != inode(&format!("/proc/self/ns/{kind}"))
        };
        namespace.get("type").and_then(Value::as_str) == Some(kind) && path_of(namespace).is_none_or(is_own)
    })
}

fn path_of(namespace: &Value) -> Option<&str> {
    namespace.get("path").and_then(Value::as_str).filter(|path| !path.is_empty())
}

fn inode(path: &str) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Returns whether the host's uid 0 is somebody in this user namespace. Of one that is joined, the
/// spec's mappings are not what counts; the kernel shows its own for a process only, so it is not
/// believed to be without root where it is joined by a path that names none.
fn maps_host_root(spec: &Value, namespace: &Value) -> bool {
    let Some(path) = path_of(namespace) else {
        let mappings = items(spec.pointer("/linux/uidMappings"));
        return mappings.iter().any(|mapping| mapping.get("hostID").and_then(integer) == Some(0));
    };
    let process = path.strip_suffix("/ns/user").filter(|process| process.starts_with("/proc/"));
    let map = process.and_then(|process| std::fs::read_to_string(format!("{process}/uid_map")).ok());
    // `inside outside length`; a process that is gone has none.
    map.is_none_or(|map| map.is_empty() || map.lines().any(|line| line.split_whitespace().nth(1) == Some("0")))
}

/// Returns whether, after all rules in their order, reading or writing is allowed on every
/// character device, or on every card. The `c *:* m` that every container gets lets it make nodes,
/// not use them.
fn has_wildcard_device_rule(spec: &Value) -> bool {
    let mut open = false;
    for rule in items(spec.pointer("/linux/resources/devices")) {
        let allow = rule.get("allow").and_then(Value::as_bool).unwrap_or(false);
        let kind = rule.get("type").and_then(Value::as_str).unwrap_or("a");
        let access = rule.get("access").and_then(Value::as_str).unwrap_or("rwm");
        let wildcard = |name: &str| rule.get(name).and_then(integer).is_none();
        let every_device = wildcard("major") && wildcard("minor");
        if allow {
            let every_card = wildcard("minor") && rule.get("major").and_then(integer) == Some(NVIDIA_MAJOR);
            // A wildcard major with a minor is every card of that minor: no node list says that.
            let some_minor = wildcard("major");
            let characters = matches!(kind, "a" | "c" | "u" | "");
            open |= characters && access.contains(['r', 'w']) && (every_device || every_card || some_minor);
        } else if every_device && matches!(kind, "a" | "") && access.contains('r') && access.contains('w') {
            open = false;
        }
    }
    open
}
