//! The mount of type `cgroup`, on cgroup v1.
//!
//! libcontainer 0.7.0 leaves every hierarchy writable, whatever the spec says
//! (`setup_emulated_subsystem`, `setup_namespaced_subsystem`), and asks for the container's cgroup
//! by a pid that another namespace may have given. So such a mount becomes what runc makes of it, a
//! tmpfs and a bind mount of the container's own directory in each hierarchy. A bind mount gets its
//! flags before it is attached (`mounts`), so the container's cgroups are at no time writable in
//! its namespace.

use std::path::Path;

use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};

use super::{namespaces, rootfs_setup::Link};
use crate::cgroup::{Cgroup, CgroupsPath};

/// Replaces each mount of type `cgroup` by the mounts that it stands for, and says which links are
/// missing after them. On cgroup v2 it changes nothing.
pub(crate) fn expand(spec: &mut Spec, cgroup: &Cgroup, path: &CgroupsPath) -> Vec<Link> {
    let hierarchies: Vec<(&str, &Path)> = cgroup.v1_mounts(path).collect();
    let Some(mounts) = spec.mounts().as_ref().filter(|_| !hierarchies.is_empty()) else { return Vec::new() };
    let namespaced = namespaces::of(spec, LinuxNamespaceType::Cgroup).is_some();
    let mut links = Vec::new();
    let mut expanded = Vec::new();
    for (index, mount) in mounts.iter().enumerate() {
        if mount.typ().as_deref() != Some("cgroup") {
            expanded.push(mount.clone());
            continue;
        }
        expanded.push(tmpfs(mount.destination()));
        let is_hidden = mounts.iter().skip(index + 1).any(|later| mount.destination().starts_with(later.destination()));
        for (name, directory) in &hierarchies {
            expanded.push(hierarchy(mount, name, directory, namespaced));
            links.extend(links_to(name, mount.destination()).filter(|_| !is_hidden));
        }
    }
    spec.set_mounts(Some(expanded));
    links
}

fn tmpfs(destination: &Path) -> Mount {
    let mut mount = Mount::default();
    let options = ["nosuid", "noexec", "nodev", "mode=755"].map(str::to_owned);
    mount.set_destination(destination.to_owned()).set_typ(Some("tmpfs".into())).set_source(Some("tmpfs".into()));
    mount.set_options(Some(options.into()));
    mount
}

/// Returns the mount of one hierarchy, with the spec's options; in a cgroup namespace, runc takes
/// the first three for granted.
fn hierarchy(asked: &Mount, name: &str, directory: &Path, namespaced: bool) -> Mount {
    let granted: &[&str] = if namespaced { &["nosuid", "noexec", "nodev", "rbind"] } else { &["rbind"] };
    let mut options = asked.options().clone().unwrap_or_default();
    options.extend(granted.iter().map(|&option| option.to_owned()));
    let mut mount = Mount::default();
    mount.set_destination(asked.destination().join(name)).set_typ(Some("bind".into()));
    mount.set_source(Some(directory.to_owned())).set_options(Some(options));
    mount
}

fn links_to<'a>(name: &'a str, directory: &'a Path) -> impl Iterator<Item = Link> + 'a {
    name.split(',')
        .filter(move |controller| *controller != name)
        .map(move |controller| Link { path: directory.join(controller), target: name.into() })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cgroup::Host;

    /// The spec after its expansion for cgroup `/k8s.io/c1`, on a host with these mounts.
    fn expanded(mountinfo: &str, namespaces: &Value, options: &Value) -> (Value, Vec<Link>) {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(host.path().join("proc/self")).unwrap();
        std::fs::write(host.path().join("proc/self/mountinfo"), mountinfo).unwrap();
        let path = CgroupsPath::new(Some(Path::new("/k8s.io/c1")), "c1", false).unwrap();
        let cgroup = Cgroup::intended(&Host::under(host.path()), &path).unwrap();
        let mut spec: Spec = serde_json::from_value(json!({
            "ociVersion": "1.1.0",
            "linux": { "namespaces": namespaces },
            "mounts": [
                { "destination": "/sys", "type": "sysfs", "source": "sysfs" },
                { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": options },
                { "destination": "/sys/fs/cgroup/own", "type": "bind", "source": "/own" },
            ],
        }))
        .unwrap();
        let links = expand(&mut spec, &cgroup, &path);
        let text = serde_json::to_string(&spec).unwrap().replace(host.path().to_str().unwrap(), "");
        (serde_json::from_str::<Value>(&text).unwrap()["mounts"].take(), links)
    }

    const COMOUNTED: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu\n\
                             40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn on_v1_the_mount_is_a_tmpfs_and_the_containers_own_directories_with_the_specs_flags() {
        let asked = json!(["nosuid", "noexec", "nodev", "relatime", "ro"]);
        let (mounts, links) = expanded(COMOUNTED, &json!([{ "type": "mount" }]), &asked);
        let bind = ["nosuid", "noexec", "nodev", "relatime", "ro", "rbind"];
        assert_eq!(
            mounts,
            json!([
                { "destination": "/sys", "type": "sysfs", "source": "sysfs" },
                { "destination": "/sys/fs/cgroup", "type": "tmpfs", "source": "tmpfs",
                  "options": ["nosuid", "noexec", "nodev", "mode=755"] },
                { "destination": "/sys/fs/cgroup/cpu,cpuacct", "type": "bind",
                  "source": "/sys/fs/cgroup/cpu,cpuacct/k8s.io/c1", "options": bind },
                { "destination": "/sys/fs/cgroup/systemd", "type": "bind",
                  "source": "/sys/fs/cgroup/systemd/k8s.io/c1", "options": bind },
                { "destination": "/sys/fs/cgroup/own", "type": "bind", "source": "/own" },
            ])
        );
        let link = |name: &str| Link { path: Path::new("/sys/fs/cgroup").join(name), target: "cpu,cpuacct".into() };
        assert_eq!(links, [link("cpu"), link("cpuacct")]);
    }

    #[test]
    fn in_a_cgroup_namespace_nothing_can_be_executed_even_if_the_spec_says_nothing() {
        let namespaces = json!([{ "type": "mount" }, { "type": "cgroup" }]);
        let (mounts, _) = expanded(COMOUNTED, &namespaces, &json!(["rw"]));
        assert_eq!(mounts[2]["options"], json!(["rw", "nosuid", "noexec", "nodev", "rbind"]));
    }

    #[test]
    fn v2_is_left_to_libcontainer() {
        let (mounts, links) = expanded("29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", &json!([]), &json!([]));
        assert_eq!((mounts.as_array().unwrap().len(), &mounts[1]["type"]), (3, &json!("cgroup")));
        assert_eq!(links, []);
    }
}
