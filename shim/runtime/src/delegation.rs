//! The owner of a container's cgroup, where the container may write to it.

use std::path::Path;

use oci_spec::runtime::{LinuxNamespaceType, Spec};

use super::{id_maps::IdMaps, namespaces};

/// The host's number of the user that gets the cgroup: the process's, where the container has a
/// cgroup namespace of its own and cgroups that are not mounted read-only. As runc, which hands
/// over the scopes of systemd only.
pub(crate) fn owner(spec: &Spec, maps: Option<&IdMaps>) -> Option<u32> {
    let has_own = namespaces::of(spec, LinuxNamespaceType::Cgroup)?.path().is_none();
    let is_writable = spec.mounts().iter().flatten().any(|mount| {
        let is_read_only = mount.options().iter().flatten().any(|option| option == "ro");
        mount.source().as_deref() == Some(Path::new("cgroup"))
            && mount.destination() == Path::new("/sys/fs/cgroup")
            && !is_read_only
    });
    let user = spec.process().as_ref()?.user().uid();
    let owner = maps.map_or(Some(user), |maps| maps.host_user(user));
    owner.filter(|_| has_own && is_writable)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn who_may_write_to_its_cgroups_owns_them() {
        let owner_of = |namespaces: Value, options: Value| {
            let spec: Spec = serde_json::from_value(json!({
                "ociVersion": "1.1.0",
                "process": { "args": ["x"], "cwd": "/", "user": { "uid": 7, "gid": 0 } },
                "mounts": [{ "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": options }],
                "linux": {
                    "namespaces": namespaces,
                    "uidMappings": [{ "containerID": 0, "hostID": 100_000, "size": 65536 }],
                },
            }))
            .unwrap();
            owner(&spec, IdMaps::of(&spec).unwrap().as_ref())
        };
        let both = json!([{ "type": "user" }, { "type": "cgroup" }]);
        assert_eq!(owner_of(both.clone(), json!(["rw"])), Some(100_007));
        assert_eq!(owner_of(both, json!(["nosuid", "ro"])), None);
        assert_eq!(owner_of(json!([{ "type": "user" }]), json!(["rw"])), None);
        assert_eq!(owner_of(json!([{ "type": "cgroup", "path": "/proc/1/ns/cgroup" }]), json!([])), None);
        assert_eq!(owner_of(json!([{ "type": "cgroup" }]), json!([])), Some(7));
    }
}
