//! The mounts of the spec.
//!
//! libcontainer 0.7.0 gives a mount no propagation of its own and no mapping of ids, a file system
//! no flags, and reaches a bind mount's source as the container's root only. A mount can lie on
//! another, so their order holds only if one makes them all: libcontainer gets `/dev`, in which it
//! makes the devices, and procfs, which shows the pid namespace of whoever mounts it, so that init
//! must; and nothing else.
//!
//! ```text
//! worker, host's namespaces ── MountPlan::plan: what is asked for, refused before anything is made
//! joined init's mounts, host's user ── Sources::open: bind sources, their ids mapped
//! joined init's namespaces ── MountPlan::attach, in the spec's order
//! init waits for its start ── MountPlan::seal: a read-only /dev, which must be writable until then
//! ```

mod attach;
mod destination;
mod options;
mod seal;
mod source;
pub(super) mod tree;

use std::path::{Path, PathBuf};

use oci_spec::runtime::{LinuxIdMapping, LinuxNamespaceType, Mount, Process, Spec};
use serde_json::Value;

use self::options::Options;
pub(crate) use self::{
    attach::{AttachError, plain},
    destination::resolve,
    options::Propagation,
    source::{SourceError, Sources, user_namespace_of},
};
use super::namespaces;
use crate::cgroup::Cgroup;

/// The directory of devices.
const DEV: &str = "/dev";

/// A mount that cannot be made as it is asked for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PlanError {
    /// A bind mount with a file system's options.
    #[error("the mount at {} is a bind mount, which cannot have the option {option:?}", destination.display())]
    BindData { destination: PathBuf, option: String },
    /// An id-mapped file system.
    #[error("the mount at {} is no bind mount, and only those can be id-mapped", destination.display())]
    NotBound { destination: PathBuf },
    /// Half a mapping, or none at all.
    #[error(
        "the id-mapped mount at {} needs both uidMappings and gidMappings, or neither in a container with a user namespace",
        destination.display()
    )]
    NoMapping { destination: PathBuf },
    /// libcontainer would make links where it leads on the host.
    #[error("/dev in the root file system is no directory: make it one, or leave it out of the image")]
    Dev,
    /// A bind mount without a source.
    #[error("the mount at {} has no source", destination.display())]
    NoSource { destination: PathBuf },
}

/// The ids of a bind mount's files.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ids {
    /// The mapping of the container's user namespace.
    OfContainer,
    /// Uids and gids of the mount's own.
    Own(Vec<LinuxIdMapping>, Vec<LinuxIdMapping>),
}

/// The kind of a mount, with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MountKind {
    Bind { source: PathBuf, ids: Option<Ids> },
    FileSystem { kind: String, source: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PlannedMount {
    destination: PathBuf,
    kind: MountKind,
    options: Options,
}

impl PlannedMount {
    fn is_bind(&self) -> bool {
        matches!(self.kind, MountKind::Bind { .. })
    }

    fn is_dev(&self) -> bool {
        self.destination == Path::new(DEV)
    }

    /// Returns its source, with all that may be wrong with it.
    fn described(&self) -> String {
        match &self.kind {
            MountKind::Bind { source, .. } => source.display().to_string(),
            MountKind::FileSystem { kind, source } if self.options.data.is_empty() => format!("{source} ({kind})"),
            MountKind::FileSystem { kind, source } => format!("{source} ({kind}: {})", self.options.data.join(",")),
        }
    }
}

/// All mounts of a container but those that libcontainer makes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountPlan {
    planned: Vec<PlannedMount>,
    /// `linux.rootfsPropagation`.
    root: Option<Propagation>,
    /// Mounts that libcontainer makes, before all others.
    made: Vec<PlannedMount>,
    /// The file system that libcontainer mounts at `/dev` is only to keep its devices out of the
    /// one that belongs there.
    dev_is_dummy: bool,
    /// `linux.readonlyPaths`, but those in procfs, which libcontainer may write settings to first.
    /// It would keep programs in the others from being executed.
    read_only_paths: Vec<String>,
    /// init makes `/dev/console`.
    has_console: bool,
    /// The directory that stands for a v2 hierarchy that cannot be mounted.
    cgroup: PathBuf,
}

impl MountPlan {
    /// Takes them out of the spec, in which those stay that are libcontainer's. `root` is what the
    /// spec said before it was replaced by the one that libcontainer needs.
    pub(crate) fn plan(
        spec: &mut Spec,
        root: Option<Propagation>,
        bundle: &Path,
        cgroup: &Cgroup,
    ) -> Result<Self, PlanError> {
        let dev = spec.root().as_ref().map(|root| root.path().join("dev"));
        if dev.and_then(|dev| dev.symlink_metadata().ok()).is_some_and(|found| !found.is_dir()) {
            return Err(PlanError::Dev);
        }
        let has_users = namespaces::of(spec, LinuxNamespaceType::User).is_some();
        let has_cgroups = namespaces::of(spec, LinuxNamespaceType::Cgroup).is_some();
        let own = cgroup.directories().next().filter(|_| has_cgroups);
        let cgroup = own.unwrap_or(Path::new("/sys/fs/cgroup")).to_owned();
        let mounts = spec.mounts().clone().unwrap_or_default();
        let at_dev = mounts.iter().rposition(|mount| mount.destination() == Path::new(DEV));
        let is_made = |index, mount: &Mount| match mount.typ().as_deref() {
            Some("tmpfs") => Some(index) == at_dev,
            kind => kind == Some("proc"),
        };
        let (mut made, mut planned, mut of_libcontainer) = (Vec::new(), Vec::new(), Vec::new());
        for (index, mount) in mounts.into_iter().enumerate() {
            let plan = plan(&mount, bundle, has_users)?;
            match is_made(index, &mount) && !plan.is_bind() {
                true => {
                    made.push(plan);
                    of_libcontainer.push(mount);
                }
                false => planned.push(plan),
            }
        }
        let dev_is_dummy = at_dev.is_some() && !made.iter().any(PlannedMount::is_dev);
        of_libcontainer.extend(dev_is_dummy.then(dummy_dev));
        spec.set_mounts(Some(of_libcontainer));
        let has_console = spec.process().as_ref().and_then(Process::terminal).unwrap_or_default();
        let read_only_paths = take_read_only_paths(spec, &made);
        Ok(Self { planned, root, made, dev_is_dummy, read_only_paths, has_console, cgroup })
    }
}

/// `linux.rootfsPropagation`, as the spec has it.
pub(crate) fn root_propagation(spec: &Value) -> Option<Propagation> {
    spec.pointer("/linux/rootfsPropagation").and_then(Value::as_str).and_then(Propagation::named)
}

fn take_read_only_paths(spec: &mut Spec, made: &[PlannedMount]) -> Vec<String> {
    let Some(mut linux) = spec.linux().clone() else { return Vec::new() };
    let is_in_proc =
        |path: &String| made.iter().any(|plan| !plan.is_dev() && Path::new(path).starts_with(&plan.destination));
    let paths = linux.readonly_paths().clone().unwrap_or_default();
    let (of_libcontainer, own) = paths.into_iter().partition(is_in_proc);
    linux.set_readonly_paths(Some(of_libcontainer));
    spec.set_linux(Some(linux));
    own
}

/// Cleans the mounts' destinations, as runc does, for all who compare them.
pub(crate) fn clean_destinations(spec: &mut Spec) {
    let Some(mut mounts) = spec.mounts().clone() else { return };
    for mount in &mut mounts {
        let destination = self::destination::clean(mount.destination());
        mount.set_destination(destination);
    }
    spec.set_mounts(Some(mounts));
}

/// The source of a bind mount at `/dev`, the host's own often, would get the container's devices.
fn dummy_dev() -> Mount {
    let mut mount = Mount::default();
    mount.set_destination(DEV.into()).set_typ(Some("tmpfs".into())).set_source(Some("tmpfs".into()));
    mount
}

fn plan(mount: &Mount, bundle: &Path, has_users: bool) -> Result<PlannedMount, PlanError> {
    let destination = mount.destination().clone();
    let options = Options::parse(mount.options().as_deref().unwrap_or_default());
    let is_bind = is_bind(mount);
    let ids = match (mappings(mount.uid_mappings()), mappings(mount.gid_mappings())) {
        (None, None) if options.id_mapped.is_none() => None,
        (None, None) if has_users => Some(Ids::OfContainer),
        (Some(uids), Some(gids)) => Some(Ids::Own(uids, gids)),
        _ => return Err(PlanError::NoMapping { destination }),
    };
    let source = mount.source().as_deref();
    let kind = match (is_bind, ids, source) {
        (true, ids, Some(source)) => MountKind::Bind { source: bundle.join(source), ids },
        (true, _, None) => return Err(PlanError::NoSource { destination }),
        (false, Some(_), _) => return Err(PlanError::NotBound { destination }),
        (false, None, source) => MountKind::FileSystem {
            kind: mount.typ().clone().unwrap_or_default(),
            source: source.unwrap_or(Path::new("")).display().to_string(),
        },
    };
    match options.data.first().filter(|_| is_bind) {
        Some(option) => Err(PlanError::BindData { destination, option: option.clone() }),
        None => Ok(PlannedMount { destination, kind, options }),
    }
}

/// Returns whether it is a bind mount: by its type, or by an option.
pub(crate) fn is_bind(mount: &Mount) -> bool {
    mount.typ().as_deref() == Some("bind") || Options::parse(mount.options().as_deref().unwrap_or_default()).is_bind()
}

fn mappings(given: &Option<Vec<LinuxIdMapping>>) -> Option<Vec<LinuxIdMapping>> {
    given.clone().filter(|mappings| !mappings.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cgroup::{CgroupsPath, Host};

    /// Plans these mounts: the destinations that stay libcontainer's, and the rest.
    fn planned(mounts: &Value) -> Result<(Vec<String>, MountPlan), PlanError> {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(host.path().join("proc/self")).unwrap();
        std::fs::write(
            host.path().join("proc/self/mountinfo"),
            "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        let path = CgroupsPath::new(Some(Path::new("/c1")), "c1", false).unwrap();
        let cgroup = Cgroup::intended(&Host::under(host.path()), &path).unwrap();
        let paths = ["/proc/sys", "/usr"];
        let linux = json!({ "readonlyPaths": paths, "rootfsPropagation": "rslave" });
        let mut spec = json!({ "ociVersion": "1.1.0", "mounts": mounts, "linux": linux });
        let root = root_propagation(&spec);
        assert_eq!(root, Propagation::named("rslave"));
        spec["linux"]["rootfsPropagation"] = json!("slave");
        let mut spec: Spec = serde_json::from_value(spec).unwrap();
        let mounts = MountPlan::plan(&mut spec, root, Path::new("/bundle"), &cgroup)?;
        let of_libcontainer = spec.mounts().iter().flatten().map(|mount| mount.destination().display().to_string());
        let read_only = spec.linux().as_ref().unwrap().readonly_paths().clone().unwrap();
        assert_eq!(read_only.len() + mounts.read_only_paths.len(), paths.len());
        Ok((of_libcontainer.collect(), mounts))
    }

    #[test]
    fn libcontainer_makes_devices_and_procfs_only() {
        let mount = |place: &str, kind: &str| json!({ "destination": place, "type": kind, "source": kind });
        let usual =
            json!([mount("/proc", "proc"), mount("/dev", "tmpfs"), mount("/dev/shm", "tmpfs"), mount("/b", "bind")]);
        let (of_libcontainer, mounts) = planned(&usual).unwrap();
        assert_eq!(of_libcontainer, ["/proc", "/dev"]);
        assert_eq!(mounts.read_only_paths, ["/usr"]);
        assert!(!mounts.dev_is_dummy && mounts.planned.len() == 2);
        let source = Path::new("/bundle/bind").to_owned();
        assert_eq!(mounts.planned[1].kind, MountKind::Bind { source, ids: None });
        // The host's own directory gets no devices: they go where nobody sees them.
        let (of_libcontainer, mounts) = planned(&json!([mount("/dev", "tmpfs"), mount("/dev", "bind")])).unwrap();
        assert_eq!(of_libcontainer, ["/dev"]);
        assert!(mounts.dev_is_dummy && mounts.planned.len() == 2);
        let (of_libcontainer, mounts) = planned(&json!([mount("/proc", "bind")])).unwrap();
        assert!(of_libcontainer.is_empty() && !mounts.dev_is_dummy && mounts.read_only_paths.len() == 2);
    }

    #[test]
    fn what_cannot_be_mounted_is_refused_by_its_place() {
        let map = json!([{ "containerID": 0, "hostID": 1, "size": 1 }]);
        for (mount, wanted) in [
            (json!({ "options": ["rbind", "size=1m"], "source": "/s" }), "cannot have the option \"size=1m\""),
            (json!({ "options": ["rbind"] }), "has no source"),
            (json!({ "options": ["bind", "ridmap"], "source": "/s" }), "needs both"),
            (json!({ "options": ["bind"], "source": "/s", "uidMappings": map }), "needs both"),
            (json!({ "type": "tmpfs", "uidMappings": map, "gidMappings": map }), "only those can be id-mapped"),
        ] {
            let mut mount = mount;
            mount["destination"] = json!("/at/it");
            let refused = planned(&json!([mount])).unwrap_err().to_string();
            assert!(refused.contains("/at/it") && refused.contains(wanted), "{mount}: {refused}");
        }
    }
}
