//! The mounts of the spec.
//!
//! libcontainer 0.7.0 gives a mount no propagation of its own and no mapping of ids, a file system no flags, and reaches a bind
//! mount's source as the container's root only. A mount can lie on another, so their order holds only if one makes them all:
//! libcontainer gets `/dev`, in which it makes the devices, and procfs, which shows the pid namespace of whoever mounts it, so
//! that init must; and nothing else.
//!
//! ```text
//! worker, host's namespaces ── Mounts::plan: what is asked for, refused before anything is made
//! joined init's mounts, host's user ── Sources::open: bind sources, their ids mapped
//! joined init's namespaces ── Mounts::attach, in the spec's order
//! init waits for its start ── seal: what must be writable until then
//! ```

mod attach;
mod options;
mod seal;
mod source;

use std::path::{Path, PathBuf};

use oci_spec::runtime::{LinuxIdMapping, LinuxNamespaceType, Mount, Process, Spec};
use serde_json::Value;

pub(crate) use self::attach::AttachError;
use self::options::Options;
pub(crate) use self::options::Propagation;
pub(crate) use self::seal::Seal;
pub(crate) use self::source::{SourceError, Sources, user_namespace_of};
use crate::cgroup::Cgroup;

/// Where the devices are.
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
    /// Nothing to mount.
    #[error("the mount at {} has no source", destination.display())]
    NoSource { destination: PathBuf },
}

/// The ids of a bind mount's files.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ids {
    /// As the container's user namespace maps them.
    OfContainer,
    /// By uids and gids of the mount's own.
    Own(Vec<LinuxIdMapping>, Vec<LinuxIdMapping>),
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Bind { source: PathBuf, ids: Option<Ids> },
    FileSystem { kind: String, source: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Planned {
    destination: PathBuf,
    kind: Kind,
    options: Options,
}

impl Planned {
    fn is_bind(&self) -> bool {
        matches!(self.kind, Kind::Bind { .. })
    }
}

/// All mounts of a container but those that libcontainer makes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mounts {
    planned: Vec<Planned>,
    /// `linux.rootfsPropagation`.
    root: Option<Propagation>,
    /// What libcontainer mounts, before all others.
    made: Vec<Planned>,
    /// What libcontainer mounts at `/dev` is only to keep its devices out of what belongs there.
    dev_is_dummy: bool,
    /// init makes `/dev/console`.
    has_console: bool,
    /// What stands for a v2 hierarchy that cannot be mounted.
    cgroup: PathBuf,
}

impl Mounts {
    /// Takes them out of the spec, in which those stay that are libcontainer's. `root` is what the spec said before
    /// libcontainer's word was put in its place.
    pub(crate) fn plan(
        spec: &mut Spec,
        root: Option<Propagation>,
        bundle: &Path,
        cgroup: &Cgroup,
    ) -> Result<Self, PlanError> {
        let has = |kind| {
            let namespaces = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_deref());
            namespaces.unwrap_or_default().iter().any(|namespace| namespace.typ() == kind)
        };
        let has_users = has(LinuxNamespaceType::User);
        let own = cgroup.directories().next().filter(|_| has(LinuxNamespaceType::Cgroup));
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
        let dev_is_dummy = at_dev.is_some() && !made.iter().any(|plan| plan.destination == Path::new(DEV));
        of_libcontainer.extend(dev_is_dummy.then(dummy_dev));
        spec.set_mounts(Some(of_libcontainer));
        let has_console = spec.process().as_ref().and_then(Process::terminal).unwrap_or_default();
        Ok(Self { planned, root, made, dev_is_dummy, has_console, cgroup })
    }

    /// What is left to do once init waits for its start.
    pub(crate) fn seal(&self, spec: &Spec) -> Seal {
        let linux = spec.linux().as_ref();
        let paths = |list: Option<&Vec<String>>| list.cloned().unwrap_or_default();
        let masked = paths(linux.and_then(|linux| linux.masked_paths().as_ref()));
        let mut read_only = paths(linux.and_then(|linux| linux.readonly_paths().as_ref()));
        read_only.retain(|path| !masked.contains(path) && !self.is_bare(Path::new(path)));
        let dev = self.made.iter().any(|plan| plan.destination == Path::new(DEV) && plan.options.is_read_only());
        Seal { read_only, dev: dev && self.has_console }
    }

    /// True of a path in a file system that is mounted without setuid programs, devices and programs.
    fn is_bare(&self, path: &Path) -> bool {
        let mount = self.made.iter().chain(&self.planned).rfind(|planned| path.starts_with(&planned.destination));
        mount.is_some_and(|planned| !planned.is_bind() && planned.options.is_bare())
    }
}

/// `linux.rootfsPropagation`, as the spec has it.
pub(crate) fn root_propagation(spec: &Value) -> Option<Propagation> {
    spec.pointer("/linux/rootfsPropagation").and_then(Value::as_str).and_then(Propagation::named)
}

/// The source of a bind mount at `/dev`, the host's own often, would get the container's devices.
fn dummy_dev() -> Mount {
    let mut mount = Mount::default();
    mount.set_destination(DEV.into()).set_typ(Some("tmpfs".into())).set_source(Some("tmpfs".into()));
    mount
}

fn plan(mount: &Mount, bundle: &Path, has_users: bool) -> Result<Planned, PlanError> {
    let destination = mount.destination().clone();
    let options = Options::parse(mount.options().as_deref().unwrap_or_default());
    let is_bind = options.is_bind() || mount.typ().as_deref() == Some("bind");
    let ids = match (mappings(mount.uid_mappings()), mappings(mount.gid_mappings())) {
        (None, None) if options.id_mapped.is_none() => None,
        (None, None) if has_users => Some(Ids::OfContainer),
        (Some(uids), Some(gids)) => Some(Ids::Own(uids, gids)),
        _ => return Err(PlanError::NoMapping { destination }),
    };
    let source = mount.source().as_deref();
    let kind = match (is_bind, ids, source) {
        (true, ids, Some(source)) => Kind::Bind { source: bundle.join(source), ids },
        (true, _, None) => return Err(PlanError::NoSource { destination }),
        (false, Some(_), _) => return Err(PlanError::NotBound { destination }),
        (false, None, source) => Kind::FileSystem {
            kind: mount.typ().clone().unwrap_or_default(),
            source: source.unwrap_or(Path::new("")).display().to_string(),
        },
    };
    match options.data.first().filter(|_| is_bind) {
        Some(option) => Err(PlanError::BindData { destination, option: option.clone() }),
        None => Ok(Planned { destination, kind, options }),
    }
}

fn mappings(given: &Option<Vec<LinuxIdMapping>>) -> Option<Vec<LinuxIdMapping>> {
    given.clone().filter(|mappings| !mappings.is_empty())
}
