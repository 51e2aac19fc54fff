//! Mounts of the spec: what the user's cover, where ours can go.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    FileKind, InjectError, Injection,
    rootfs::{MountPoint, Rootfs},
    spec_edit::array,
};
use crate::spec::{clean, items};

/// Options of each kind. `rprivate` keeps them from spreading to the host where the root's
/// propagation is shared.
fn options(kind: FileKind) -> &'static [&'static str] {
    match kind {
        FileKind::ReadOnly => &["ro", "nosuid", "nodev", "rbind", "rprivate"],
        FileKind::Socket => &["nosuid", "nodev", "noexec", "rbind", "rprivate"],
        FileKind::SimulatedNode => &["nosuid", "noexec", "rbind", "rprivate"],
    }
}

/// Mount of the spec that is not ours.
#[derive(Debug)]
struct Volume {
    destination: PathBuf,
    read_only: bool,
    tmpfs: bool,
    procfs: bool,
}

/// Collects our mounts and sees to it that the runtime will be able to make them: one that fails
/// ends the create.
#[derive(Debug)]
pub(super) struct Mounts<'a> {
    rootfs: &'a Rootfs,
    volumes: Vec<Volume>,
    planned: Vec<Value>,
    /// Entries of the spec for the same files.
    replaced: Vec<Value>,
}

impl<'a> Mounts<'a> {
    /// Removes mounts of the same files that an earlier application, or CDI, has added to the spec.
    pub(super) fn new(injection: &Injection, rootfs: &'a Rootfs, spec: &mut Value) -> Self {
        let mut replaced = Vec::new();
        if let Some(mounts) = spec.get_mut("mounts").and_then(Value::as_array_mut) {
            let (ours, others) = std::mem::take(mounts).into_iter().partition(|mount| is_ours(injection, mount));
            (replaced, *mounts) = (ours, others);
        }
        replaced.retain(|mount| !source(mount).is_some_and(|source| source.starts_with(&injection.host_dir)));
        let text = |mount: &Value, name: &str| mount.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let volumes = items(spec.get("mounts"))
            .iter()
            .map(|mount| Volume {
                // Where the image's links lead, as for ours.
                destination: rootfs.real_path(Path::new(&clean(&text(mount, "destination")))),
                read_only: items(mount.get("options")).iter().any(|option| option == "ro"),
                tmpfs: text(mount, "type") == "tmpfs",
                procfs: text(mount, "type") == "proc" || text(mount, "source") == "/proc",
            })
            .filter(|volume| volume.destination != Path::new("/"))
            .collect();
        Self { rootfs, volumes, planned: Vec::new(), replaced }
    }

    /// Returns whether the container has its own /proc, on which something can be mounted.
    pub(super) fn has_proc(&self) -> bool {
        self.volumes.iter().any(|volume| volume.destination == Path::new("/proc") && volume.procfs)
    }

    /// A file system in memory that the runtime mounts before ours, to put things in that the image
    /// has no place for.
    pub(super) fn scratch(&self) -> Option<&Path> {
        ["/run", "/dev"].into_iter().map(Path::new).find(|path| {
            self.volumes.iter().any(|volume| volume.destination == *path && volume.tmpfs && !volume.read_only)
        })
    }

    /// The user's mount that `path` is in, by which it is hidden from what is written into the
    /// image.
    pub(super) fn hides(&self, path: &Path) -> Option<&Path> {
        self.covering(&self.rootfs.real_path(path)).map(|volume| volume.destination.as_path())
    }

    fn covering(&self, real: &Path) -> Option<&Volume> {
        let covering = self.volumes.iter().filter(|volume| real.starts_with(&volume.destination));
        covering.max_by_key(|volume| volume.destination.components().count())
    }

    /// Returns whether the runtime could mount something at `path`; makes the place for it in the
    /// image. The error says why not.
    pub(super) fn prepare(&self, path: &Path, kind: MountPoint) -> Result<(), String> {
        let real = self.rootfs.real_path(path);
        match self.covering(&real) {
            Some(volume) if volume.destination == real => {
                Err(format!("the container mounts something of its own at {}", real.display()))
            }
            Some(volume) if volume.read_only => {
                Err(format!("{} is mounted read-only at {}", path.display(), volume.destination.display()))
            }
            // The runtime makes it there, once that is mounted.
            Some(_) => Ok(()),
            None => self
                .rootfs
                .mount_point(path, kind)
                .map_err(|error| format!("cannot make {} in the image: {error}", path.display())),
        }
    }

    /// Plans a mount at a place that was prepared.
    pub(super) fn add(&mut self, host: &Path, container: &Path, kind: FileKind) {
        self.planned.push(json!({
            "destination": container.display().to_string(),
            "type": "bind",
            "source": host.display().to_string(),
            "options": options(kind)
        }));
    }

    /// Appends what was planned to the spec: behind the user's mounts, parents before children.
    /// Warns of files of the driver that the spec wanted elsewhere than they are now.
    pub(super) fn finish(mut self, spec: &mut Value, warnings: &mut Vec<String>) -> Result<(), InjectError> {
        let destination = |mount: &Value| clean(mount["destination"].as_str().unwrap_or_default());
        for mount in &self.replaced {
            let wanted = destination(mount);
            if !self.planned.iter().any(|ours| {
                self.rootfs.real_path(Path::new(&wanted)) == self.rootfs.real_path(Path::new(&destination(ours)))
            }) {
                let file = source(mount).unwrap_or(Path::new("")).display();
                warnings
                    .push(format!("{file} is not mounted at {wanted}: the driver's files have places of their own"));
            }
        }
        let depth = |mount: &Value| mount["destination"].as_str().unwrap_or_default().matches('/').count();
        self.planned.sort_by_key(depth);
        array(spec, &["mounts"], "mounts")?.append(&mut self.planned);
        Ok(())
    }
}

fn source(mount: &Value) -> Option<&Path> {
    mount.get("source").and_then(Value::as_str).map(Path::new)
}

/// Returns whether a mount of the spec has one of our files as its source. Only names that could be
/// are looked at on the host: a user's source may be on a file server that does not answer.
fn is_ours(injection: &Injection, mount: &Value) -> bool {
    let Some(source) = source(mount) else { return false };
    if !source.is_absolute() {
        return false;
    }
    if source.starts_with(&injection.host_dir) {
        return true;
    }
    let libraries = injection.libraries.iter().map(|library| &library.host);
    let mut hosts = injection.files.iter().map(|file| &file.host).chain(libraries);
    hosts.any(|host| {
        host == source
            || (host.file_name() == source.file_name() && std::fs::canonicalize(source).is_ok_and(|real| real == *host))
    })
}
