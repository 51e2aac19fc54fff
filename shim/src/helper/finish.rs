//! The rest of a container's root file system, which libcontainer 0.7.0 leaves undone. It is done once the mounts are there, by a process
//! in the container's namespaces, while the container's root is not yet `/`.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libcontainer::process::args::ContainerArgs;
use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::{Mount, Spec};
use pathrs::error::{Error, ErrorKind};
use pathrs::flags::OpenFlags;
use pathrs::{InodeType, Root};

use super::hook_namespaces::run_in_namespaces;

/// A symbolic link of the container's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) path: PathBuf,
    pub(crate) target: PathBuf,
}

/// The work that is left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// Controllers that share a hierarchy of cgroup v1.
    links: Vec<Link>,
    /// Directories of devices, which libcontainer lets everybody write.
    directories: Vec<PathBuf>,
}

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FinishError {
    /// The root file system.
    #[error("cannot open the root file system {}", root.display())]
    Root {
        root: PathBuf,
        #[source]
        source: Error,
    },
    /// A link.
    #[error("cannot link {} to {} in the container", link.path.display(), link.target.display())]
    Link {
        link: Link,
        #[source]
        source: Error,
    },
    /// A directory.
    #[error("cannot set the mode of {} in the container", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Unfinished {
    /// With the directories that are made for `spec`'s devices in a `/dev` of the container's own. What lies in other mounts may be the
    /// host's, or the image's.
    pub(crate) fn new(links: Vec<Link>, spec: &Spec) -> Self {
        let device_root = Path::new("/dev");
        let mounts = spec.mounts().as_deref().unwrap_or_default();
        let at_root = mounts.iter().rfind(|mount| device_root.starts_with(mount.destination()));
        let is_own = at_root.is_some_and(|mount| mount.typ().as_deref() == Some("tmpfs"));
        let below: Vec<&PathBuf> =
            mounts.iter().map(Mount::destination).filter(|place| *place != device_root).collect();
        let devices = spec.linux().as_ref().and_then(|linux| linux.devices().as_deref()).filter(|_| is_own);
        let mut directories: Vec<PathBuf> = devices
            .unwrap_or_default()
            .iter()
            .flat_map(|device| device.path().ancestors().skip(1))
            .filter(|directory| directory.starts_with(device_root) && *directory != device_root)
            .filter(|directory| !below.iter().any(|place| directory.starts_with(place)))
            .map(Path::to_owned)
            .collect();
        directories.sort_unstable();
        directories.dedup();
        Self { links, directories }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty() && self.directories.is_empty()
    }

    /// Does it for `init`, which waits. The error is its text.
    pub(crate) fn finish(&self, init: Pid, args: &ContainerArgs) -> Result<(), String> {
        if self.is_empty() { Ok(()) } else { run_in_namespaces(init, |_| self.apply(&args.rootfs)) }
    }

    fn apply(&self, root: &Path) -> Result<(), FinishError> {
        let inside = Root::open(root).map_err(|source| FinishError::Root { root: root.to_owned(), source })?;
        for link in &self.links {
            match inside.create(&link.path, &InodeType::Symlink(link.target.clone())) {
                Err(source) if source.kind() != ErrorKind::OsError(Some(libc::EEXIST)) => {
                    return Err(FinishError::Link { link: link.clone(), source });
                }
                _ => {}
            }
        }
        for path in &self.directories {
            let opened = inside.open_subpath(path, OpenFlags::O_DIRECTORY | OpenFlags::O_CLOEXEC);
            let set = opened
                .map_err(io::Error::other)
                .and_then(|directory| directory.set_permissions(std::fs::Permissions::from_mode(0o755)));
            set.map_err(|source| FinishError::Directory { path: path.clone(), source })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    #[test]
    fn links_stay_in_the_root_and_leave_what_is_there() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("inside/cpu")).unwrap();
        symlink("/inside", root.path().join("cgroup")).unwrap();
        let link = |path: &str| Link { path: path.into(), target: "cpu,cpuacct".into() };
        let unfinished = |links| Unfinished { links, directories: Vec::new() };
        unfinished(vec![link("/cgroup/cpu"), link("/cgroup/cpuacct")]).apply(root.path()).unwrap();
        assert!(root.path().join("inside/cpu").is_dir());
        assert_eq!(std::fs::read_link(root.path().join("inside/cpuacct")).unwrap(), Path::new("cpu,cpuacct"));
        let refused = unfinished(vec![link("/missing/cpu")]).apply(root.path()).unwrap_err().to_string();
        assert_eq!(refused, "cannot link /missing/cpu to cpu,cpuacct in the container");
    }

    #[test]
    fn directories_of_devices_are_the_owners_alone() {
        let spec = |mounts| -> Spec {
            let device = |path| json!({ "path": path, "type": "c", "major": 1, "minor": 3 });
            let devices = ["/dev/null", "/dev/a/b/one", "/dev/a/two", "/dev/shm/in/three"].map(device);
            serde_json::from_value(json!({ "ociVersion": "1.1.0", "mounts": mounts, "linux": { "devices": devices } }))
                .unwrap()
        };
        let mounted = spec(json!([{ "destination": "/dev", "type": "tmpfs" }, { "destination": "/dev/shm" }]));
        let unfinished = Unfinished::new(Vec::new(), &mounted);
        assert_eq!(unfinished.directories, [Path::new("/dev/a"), Path::new("/dev/a/b")]);
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("dev/a/b")).unwrap();
        let b = root.path().join("dev/a/b");
        std::fs::set_permissions(&b, std::fs::Permissions::from_mode(0o777)).unwrap();
        unfinished.apply(root.path()).unwrap();
        assert_eq!(b.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        // The image's and the host's stay as they are.
        for mounts in
            [json!([]), json!([{ "destination": "/dev", "type": "tmpfs" }, { "destination": "/dev", "type": "bind" }])]
        {
            assert!(Unfinished::new(Vec::new(), &spec(mounts)).is_empty());
        }
    }
}
