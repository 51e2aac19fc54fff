//! The container's bundle: what the Task service needs of its spec, and the note that the shim
//! leaves in it for the `delete` command, which knows nothing but the bundle's directory.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use runtime::cgroup::{Cgroup, CgroupsPath, LocateError};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

pub use crate::gpu::WithoutGpu;
use crate::{gpu::NotedGrant, process_instance::ProcessInstance};

const NOTE: &str = "egpu.json";
/// The note of a container that its shim has deleted.
const DELETED_NOTE: &str = "egpu-deleted.json";
const SOCKET_NOTE: &str = "address";
const SPEC: &str = "config.json";

/// Labels that name the group of containers which share a shim, the stronger one first, as in
/// containerd's own shim.
const GROUP_LABELS: [&str; 2] = ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"];

/// containerd's CRI plugin sets annotations with this prefix, and nobody in the pod can.
const CRI_ANNOTATIONS: &str = "io.kubernetes.cri.";

/// A file of the bundle that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} is malformed", path.display())]
    Malformed {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// The facts that `delete` needs to clean up, written before anything that would have to be cleaned
/// up. Any version's `delete` must understand any other's: a note only ever gains fields, and
/// readers do without them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The container's id.
    pub id: String,
    /// containerd's namespace.
    pub namespace: String,
    /// containerd's gRPC address.
    pub containerd: String,
    #[serde(default)]
    pub bundle: PathBuf,
    /// The shim that creates the container.
    #[serde(default)]
    pub shim: Option<ProcessInstance>,
    /// The directory in which libcontainer keeps the container's state.
    pub runtime_root: PathBuf,
    /// `linux.cgroupsPath` of the spec.
    pub cgroups_path: Option<PathBuf>,
    /// Cgroups through systemd.
    pub systemd_cgroup: bool,
    /// The cgroup, once the container is created.
    pub cgroup: Option<Cgroup>,
    /// Pid of init, once the container is created; for the answer to containerd only.
    pub init_pid: Option<i32>,
    /// The reason why it has no GPU although it seemed to ask for one; for `egpu inspect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_gpu: Option<WithoutGpu>,
    /// The ledger that has its grant.
    #[serde(default)]
    pub grant: NotedGrant,
    /// Version of egpu that runs it, for people; `None`: one that did not say.
    #[serde(default)]
    pub egpu_version: Option<String>,
}

impl Note {
    /// Returns the path of the container's cgroup, which need not exist.
    pub fn cgroups_path(&self) -> Result<CgroupsPath, LocateError> {
        CgroupsPath::new(self.cgroups_path.as_deref(), &self.id, self.systemd_cgroup)
    }

    /// Its shim is gone for certain, so that somebody else has to clean up after it.
    pub fn is_abandoned(&self) -> bool {
        self.shim.as_ref().is_some_and(ProcessInstance::is_gone)
    }

    /// Replaces the note in the bundle as a whole.
    pub fn write(&self) -> Result<(), BundleError> {
        let path = self.bundle.join(NOTE);
        let text = serde_json::to_vec(self).map_err(|source| BundleError::Malformed { path: path.clone(), source })?;
        write_whole(&path, &text)
    }

    /// The note of an earlier shim; `None` when it left none, so that nothing had been begun.
    pub fn read(bundle: &Path) -> Result<Option<Self>, BundleError> {
        Self::read_file(bundle.join(NOTE))
    }

    /// Marks the container as deleted: nothing of it is left, so that `delete` has nothing to look
    /// for. The note is there under another name.
    pub fn mark_deleted(bundle: &Path) -> Result<(), BundleError> {
        let path = bundle.join(DELETED_NOTE);
        fs::rename(bundle.join(NOTE), &path).map_err(|source| BundleError::Write { path, source })
    }

    /// The note of a container that its shim has deleted; `None`: it did not, or not to the end.
    pub fn read_deleted(bundle: &Path) -> Result<Option<Self>, BundleError> {
        if bundle.join(NOTE).exists() {
            // Of a later container in the same bundle.
            return Ok(None);
        }
        Self::read_file(bundle.join(DELETED_NOTE))
    }

    fn read_file(path: PathBuf) -> Result<Option<Self>, BundleError> {
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|source| BundleError::Malformed { path, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(BundleError::Read { path, source }),
        }
    }
}

/// Writes beside and renames, so that a reader sees the old or the new whole.
fn write_whole(path: &Path, text: &[u8]) -> Result<(), BundleError> {
    let temporary = path.with_extension("new");
    let write = || {
        fs::write(&temporary, text)?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| BundleError::Write { path: path.to_owned(), source })
}

/// Writes the address at which the shim of this container listens: containerd reads it after a
/// restart.
pub fn write_socket_address(bundle: &Path, address: &str) -> Result<(), BundleError> {
    write_whole(&bundle.join(SOCKET_NOTE), address.as_bytes())
}

/// Reads the address that [`write_socket_address`] wrote.
pub fn read_socket_address(bundle: &Path) -> Option<String> {
    fs::read_to_string(bundle.join(SOCKET_NOTE)).ok().map(|address| address.trim().to_owned())
}

/// Returns the directory of libcontainer's state of one containerd's and namespace's containers,
/// below `base` (or the runtime option `Root`). The address is hashed: it may be any path, and two
/// containerds may use the same namespace.
pub fn runtime_root(base: &Path, containerd: &str, namespace: &str) -> PathBuf {
    let digest = Sha256::digest(containerd.as_bytes());
    let name: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    base.join(name).join(namespace)
}

/// The OCI spec of a bundle, read once for all who look at it.
#[derive(Debug)]
pub struct Spec {
    /// The file's content, for the worker that creates the container.
    pub text: Box<RawValue>,
    /// The file parsed: the request for GPUs is read from it.
    pub document: Arc<Value>,
    /// The part that the Task service looks at.
    pub view: SpecView,
}

impl Spec {
    /// Reads `config.json`.
    pub fn read(bundle: &Path) -> Result<Self, BundleError> {
        let (path, text) = read_spec(bundle)?;
        let parse = || {
            let text = RawValue::from_string(text)?;
            let document: Value = serde_json::from_str(text.get())?;
            let view = SpecView::deserialize(&document)?;
            Ok(Self { text, document: Arc::new(document), view })
        };
        parse().map_err(|source| BundleError::Malformed { path, source })
    }
}

/// Returns the path and the content of the bundle's `config.json`.
fn read_spec(bundle: &Path) -> Result<(PathBuf, String), BundleError> {
    let path = bundle.join(SPEC);
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(BundleError::Read { path, source }),
    }
}

/// The part of the OCI spec that the Task service looks at. The spec itself is never written from
/// this.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct SpecView {
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: HashMap<String, String>,
    /// The first process.
    pub process: Option<ProcessView>,
    /// The Linux section.
    pub linux: Option<LinuxView>,
}

/// The process of a [`SpecView`]; also the part of an exec's process that is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessView {
    /// Size that the terminal starts with.
    pub console_size: Option<ConsoleSize>,
}

/// A terminal's size, in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConsoleSize {
    /// Rows.
    pub height: u16,
    /// Columns.
    pub width: u16,
}

/// The Linux section of a [`SpecView`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinuxView {
    pub cgroups_path: Option<PathBuf>,
    #[serde(default, deserialize_with = "or_default")]
    pub namespaces: Vec<NamespaceView>,
}

/// A namespace of a [`SpecView`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct NamespaceView {
    /// `pid`, `network`, ...
    #[serde(rename = "type")]
    pub kind: String,
    /// An existing one to join.
    #[serde(default, deserialize_with = "or_default")]
    pub path: PathBuf,
}

/// Null is absent, as to runc.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl SpecView {
    /// Reads `config.json`.
    pub fn read(bundle: &Path) -> Result<Self, BundleError> {
        let (path, text) = read_spec(bundle)?;
        serde_json::from_str(&text).map_err(|source| BundleError::Malformed { path, source })
    }

    /// The group whose shim this container belongs to.
    pub fn group<'s>(&'s self, id: &'s str) -> &'s str {
        GROUP_LABELS.iter().find_map(|label| self.annotations.get(*label)).map_or(id, String::as_str)
    }

    /// Returns whether it is a pod's, as a kubelet makes them: who reads of it may be none of the
    /// node's.
    pub fn is_in_pod(&self) -> bool {
        self.annotations.keys().any(|name| name.starts_with(CRI_ANNOTATIONS))
    }

    /// `linux.cgroupsPath`.
    pub fn cgroups_path(&self) -> Option<&Path> {
        self.linux.as_ref()?.cgroups_path.as_deref()
    }

    /// Size that init's terminal starts with.
    pub fn console_size(&self) -> Option<ConsoleSize> {
        self.process.as_ref()?.console_size
    }

    /// Returns whether the container has a pid namespace of its own, so that the kernel ends all
    /// its processes with init.
    pub fn has_own_pid_namespace(&self) -> bool {
        let namespaces = self.linux.as_ref().map_or(&[][..], |linux| &linux.namespaces);
        namespaces.iter().any(|namespace| namespace.kind == "pid" && namespace.path.as_os_str().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use testing::{fixture, is_fixture};

    use super::*;

    fn note(bundle: &Path) -> Note {
        Note {
            bundle: bundle.to_owned(),
            shim: None,
            id: "c1".into(),
            namespace: "k8s.io".into(),
            containerd: "/run/c.sock".into(),
            runtime_root: "/run/egpu/runtime/x/k8s.io".into(),
            cgroups_path: Some("/k8s.io/c1".into()),
            systemd_cgroup: false,
            cgroup: None,
            init_pid: None,
            without_gpu: None,
            grant: NotedGrant::Nothing,
            egpu_version: None,
        }
    }

    #[test]
    fn notes_are_read_as_written() {
        let bundle = tempfile::tempdir().unwrap();
        assert_eq!(Note::read(bundle.path()).unwrap(), None);
        let first = note(bundle.path());
        first.write().unwrap();
        assert_eq!(Note::read(bundle.path()).unwrap(), Some(first.clone()));
        let later = Note { init_pid: Some(42), ..first };
        later.write().unwrap();
        assert_eq!(Note::read(bundle.path()).unwrap(), Some(later.clone()));
        assert_eq!(Note::read_deleted(bundle.path()).unwrap(), None);
        Note::mark_deleted(bundle.path()).unwrap();
        assert_eq!(Note::read(bundle.path()).unwrap(), None, "nobody has to clean up");
        assert_eq!(Note::read_deleted(bundle.path()).unwrap(), Some(later.clone()));
        assert!(Note::mark_deleted(bundle.path()).is_err());
        later.write().unwrap();
        assert_eq!(Note::read_deleted(bundle.path()).unwrap(), None, "another one is there");
        fs::write(bundle.path().join(NOTE), "{").unwrap();
        assert!(matches!(Note::read(bundle.path()), Err(BundleError::Malformed { .. })));
    }

    /// Notes say no format: every version's `delete` must understand them all.
    #[test]
    fn notes_of_every_version_are_read() {
        let of_crate = env!("CARGO_MANIFEST_DIR");
        let oldest: Note = serde_json::from_slice(&fixture(of_crate, "note-1.json")).unwrap();
        assert_eq!((oldest.id.as_str(), oldest.init_pid, oldest.egpu_version.as_deref()), ("one", Some(5437), None));
        assert!(oldest.cgroup.is_some() && oldest.shim.is_some() && oldest.grant == NotedGrant::Former);
        let before: Note = serde_json::from_slice(&fixture(of_crate, "note-2.json")).unwrap();
        assert!(before.without_gpu.is_some() && before.grant == NotedGrant::Former);
        let grant = serde_json::from_slice(&fixture(of_crate, "grant-note-1.json")).unwrap();
        let without_gpu = WithoutGpu { pod: None, asked: vec!["A=1".into()], why: "why".into() };
        let full = Note {
            without_gpu: Some(without_gpu),
            grant: NotedGrant::At(grant),
            egpu_version: Some("0.1.0 (0123456789ab)".into()),
            ..oldest.clone()
        };
        let written = serde_json::to_vec(&full).unwrap();
        is_fixture(of_crate, "note-3.json", &written);
        assert_eq!(serde_json::from_slice::<Note>(&written).unwrap(), full);
        let later = [br#"{"new":{},"#, &written[1..]].concat();
        assert_eq!(serde_json::from_slice::<Note>(&later).unwrap(), full, "fields of later versions are no hindrance");
    }

    #[test]
    fn a_bundle_that_is_gone_is_an_error_that_names_it() {
        let error = note(Path::new("/no/such/bundle")).write().unwrap_err();
        assert_eq!(error.to_string(), "cannot write /no/such/bundle/egpu.json");
        assert!(matches!(SpecView::read(Path::new("/no/such/bundle")), Err(BundleError::Read { .. })));
    }

    #[test]
    fn containerds_do_not_share_state() {
        let base = Path::new("/run/egpu/runtime");
        let one = runtime_root(base, "/run/a.sock", "default");
        assert!(one.starts_with(base) && one.ends_with("default"));
        assert_ne!(one, runtime_root(base, "/run/b.sock", "default"));
        assert_ne!(one, runtime_root(base, "/run/a.sock", "k8s.io"));
    }

    #[test]
    fn the_spec_is_seen_through() {
        let spec: SpecView = serde_json::from_str(
            r#"{"ociVersion":"1.2.0","process":{"terminal":true,"consoleSize":{"height":24,"width":80},"args":["sh"]},
                "annotations":{"io.kubernetes.cri.sandbox-id":"pod"},
                "linux":{"cgroupsPath":"/a/b","namespaces":[{"type":"pid"},{"type":"network","path":"/proc/1/ns/net"}]}}"#,
        )
        .unwrap();
        assert_eq!(spec.console_size(), Some(ConsoleSize { height: 24, width: 80 }));
        assert_eq!(spec.cgroups_path(), Some(Path::new("/a/b")));
        assert_eq!(spec.group("c1"), "pod");
        assert!(spec.has_own_pid_namespace() && spec.is_in_pod());

        for nothing in [
            "{}",
            r#"{"annotations":null,"process":null,"linux":null}"#,
            r#"{"process":{"consoleSize":null},"linux":{"cgroupsPath":null,"namespaces":null}}"#,
        ] {
            let empty: SpecView = serde_json::from_str(nothing).unwrap();
            assert_eq!((empty.group("c1"), empty.cgroups_path(), empty.console_size()), ("c1", None, None));
            assert!(!empty.has_own_pid_namespace() && !empty.is_in_pod());
        }
        for new in [r#"{"type":"pid"}"#, r#"{"type":"pid","path":null}"#, r#"{"type":"pid","path":""}"#] {
            let text = format!(r#"{{"process":{{"consoleSize":{{}}}},"linux":{{"namespaces":[{new}]}}}}"#);
            assert!(serde_json::from_str::<SpecView>(&text).unwrap().has_own_pid_namespace(), "{new}");
        }
    }

    #[test]
    fn a_joined_pid_namespace_is_not_the_containers_own() {
        for namespaces in [r#"[]"#, r#"[{"type":"pid","path":"/proc/9/ns/pid"}]"#, r#"[{"type":"mount"}]"#] {
            let spec: SpecView =
                serde_json::from_str(&format!(r#"{{"linux":{{"namespaces":{namespaces}}}}}"#)).unwrap();
            assert!(!spec.has_own_pid_namespace(), "{namespaces}");
        }
    }

    #[test]
    fn the_stronger_group_label_wins() {
        let spec: SpecView = serde_json::from_str(
            r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"pod","io.containerd.runc.v2.group":"mine"}}"#,
        )
        .unwrap();
        assert_eq!(spec.group("c1"), "mine");
    }
}
