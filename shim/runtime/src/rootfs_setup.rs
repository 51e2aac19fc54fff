//! The rest of a container's root file system, which libcontainer 0.7.0 leaves undone. It is done
//! once the mounts are there, by a process in the container's namespaces, while the container's
//! root is not yet `/`.

use std::{
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::{Mount, Spec};
use pathrs::{InodeType, Root, error::ErrorKind, flags::OpenFlags, procfs::ProcfsHandle};

use super::{
    devices::{DeviceError, Devices},
    hook_namespaces::run_prepared,
    masked_paths,
    mounts::{self, AttachError, MountPlan, PlanError, Propagation, SourceError, Sources},
    working_directory,
};
use crate::cgroup::Cgroup;

/// A symbolic link of the container's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) path: PathBuf,
    pub(crate) target: PathBuf,
}

/// The work that is left.
#[derive(Debug)]
pub(crate) struct RootfsSetup {
    root: PathBuf,
    mounts: MountPlan,
    /// Controllers that share a hierarchy of cgroup v1.
    links: Vec<Link>,
    /// Directories of devices, which libcontainer lets everybody write.
    directories: Vec<PathBuf>,
    working_directory: PathBuf,
    devices: Devices,
    /// Paths that libcontainer hides.
    masked: Vec<PathBuf>,
}

/// Work on the root file system that could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootfsSetupError {
    /// The root file system.
    #[error("cannot open the root file system {}", root.display())]
    Root {
        root: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The source of a mount.
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A mount.
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("cannot link {} to {} in the container", link.path.display(), link.target.display())]
    Link {
        link: Link,
        #[source]
        source: io::Error,
    },
    #[error("cannot set the mode of {} in the container", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The process's working directory.
    #[error("cannot make the working directory {} in the container", path.display())]
    WorkingDirectory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl RootfsSetup {
    /// Takes out of `spec` the mounts that libcontainer must not make. `links` are of its cgroups;
    /// `propagation`, and more: see [`MountPlan::plan`].
    pub(crate) fn take(
        spec: &mut Spec,
        links: Vec<Link>,
        devices: Devices,
        propagation: Option<Propagation>,
        bundle: &Path,
        cgroup: &Cgroup,
    ) -> Result<Self, PlanError> {
        let directories = directories_of_devices(spec);
        let mounts = MountPlan::plan(spec, propagation, bundle, cgroup)?;
        Ok(Self {
            root: spec.root().as_ref().map(|root| root.path().clone()).unwrap_or_default(),
            links,
            directories,
            working_directory: spec.process().as_ref().map(|process| process.cwd().clone()).unwrap_or_default(),
            devices,
            masked: masked_paths(spec),
            mounts,
        })
    }

    /// Sets up the root file system for `init`, which waits. The error is its text.
    pub(crate) fn finish(&self, init: Pid) -> Result<(), String> {
        // A process that does it inherits the private /proc of its lookups: whoever closes that
        // last waits for all processors, and nobody waits for this process. Never before init is
        // made, which must not have one of the host's.
        let _ = ProcfsHandle::new();
        let prepare = || {
            let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_CLOEXEC;
            let root = nix::fcntl::open(&self.root, flags, nix::sys::stat::Mode::empty());
            let root =
                root.map_err(|errno| RootfsSetupError::Root { root: self.root.clone(), source: errno.into() })?;
            Ok((root, Sources::open(&self.mounts, init)?))
        };
        run_prepared(init, prepare, |(root, sources)| self.apply(root, sources))
    }

    /// Seals the mounts, which would have been in the way before, and checks that what must not be
    /// seen is hidden: `init` waits for its start.
    pub(crate) fn seal(&self, init: Pid) -> Result<(), String> {
        masked_paths::verify(Path::new(&format!("/proc/{init}/root")), &self.masked)?;
        self.mounts.seal(init)
    }

    fn apply(&self, root: OwnedFd, sources: Sources) -> Result<(), RootfsSetupError> {
        let inside = Root::from_fd(root);
        // Before anything of others is mounted there.
        set_modes(&inside, &self.directories)?;
        let attached = self.mounts.attach(&inside, sources)?;
        make_links(&inside, &self.links)?;
        self.devices.attach(&inside)?;
        working_directory::ensure(&inside, &self.working_directory)
            .map_err(|source| RootfsSetupError::WorkingDirectory { path: self.working_directory.clone(), source })?;
        Ok(attached.complete()?)
    }
}

fn masked_paths(spec: &Spec) -> Vec<PathBuf> {
    let paths = spec.linux().as_ref().and_then(|linux| linux.masked_paths().as_deref()).unwrap_or_default();
    paths.iter().map(PathBuf::from).collect()
}

/// The directories that are made for devices in a `/dev` of the container's own. What lies in other
/// mounts may be the host's, or the image's.
fn directories_of_devices(spec: &Spec) -> Vec<PathBuf> {
    let device_root = Path::new("/dev");
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    let at_root = mounts.iter().rfind(|mount| device_root.starts_with(mount.destination()));
    let is_own = at_root.is_some_and(|mount| mount.typ().as_deref() == Some("tmpfs"));
    let below: Vec<&PathBuf> = mounts.iter().map(Mount::destination).filter(|place| *place != device_root).collect();
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
    directories
}

fn make_links(inside: &Root, links: &[Link]) -> Result<(), RootfsSetupError> {
    for link in links {
        match inside.create(&link.path, &InodeType::Symlink(link.target.clone())) {
            Err(error) if error.kind() != ErrorKind::OsError(Some(libc::EEXIST)) => {
                return Err(RootfsSetupError::Link { link: link.clone(), source: mounts::plain(error) });
            }
            _ => {}
        }
    }
    Ok(())
}

fn set_modes(inside: &Root, directories: &[PathBuf]) -> Result<(), RootfsSetupError> {
    for path in directories {
        let opened = inside.open_subpath(path, OpenFlags::O_DIRECTORY | OpenFlags::O_CLOEXEC);
        let set = opened
            .map_err(mounts::plain)
            .and_then(|directory| directory.set_permissions(std::fs::Permissions::from_mode(0o755)));
        set.map_err(|source| RootfsSetupError::Directory { path: path.clone(), source })?;
    }
    Ok(())
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
        let inside = Root::open(root.path()).unwrap();
        make_links(&inside, &[link("/cgroup/cpu"), link("/cgroup/cpuacct")]).unwrap();
        assert!(root.path().join("inside/cpu").is_dir());
        assert_eq!(std::fs::read_link(root.path().join("inside/cpuacct")).unwrap(), Path::new("cpu,cpuacct"));
        let refused = make_links(&inside, &[link("/missing/cpu")]).unwrap_err().to_string();
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
        let directories = directories_of_devices(&mounted);
        assert_eq!(directories, [Path::new("/dev/a"), Path::new("/dev/a/b")]);
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("dev/a/b")).unwrap();
        let b = root.path().join("dev/a/b");
        std::fs::set_permissions(&b, std::fs::Permissions::from_mode(0o777)).unwrap();
        set_modes(&Root::open(root.path()).unwrap(), &directories).unwrap();
        assert_eq!(b.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        // The image's and the host's stay as they are.
        for mounts in
            [json!([]), json!([{ "destination": "/dev", "type": "tmpfs" }, { "destination": "/dev", "type": "bind" }])]
        {
            assert!(directories_of_devices(&spec(mounts)).is_empty());
        }
    }
}
