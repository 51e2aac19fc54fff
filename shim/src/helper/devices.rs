//! Device nodes of a container with a user namespace.
//!
//! Nobody can make one there, so libcontainer binds the host's node of the same path, whatever its
//! numbers are. That is right for the few that every host has. Any other need not be there (who
//! uses cards only through containers has no `/dev/nvidia0`): it is made with the spec's numbers,
//! by the host's root, on a file system that nobody sees, and mounted in its place.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, LinuxNamespaceType, Spec};
use pathrs::error::ErrorKind;
use pathrs::{InodeType, Root};

use super::mounts::{is_bind, tree};
use super::namespaces;
use super::private_mounts;

/// Devices that every container has, and the one that is a link.
const USUAL: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx"];

/// A device that the container cannot have.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} the device {}", path.display())]
pub(crate) struct DeviceError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Nodes to be put into a container, each a mount that is attached nowhere.
#[derive(Debug, Default)]
pub(crate) struct Devices(Vec<(PathBuf, OwnedFd)>);

impl Devices {
    /// Removes from the spec the devices that libcontainer would bind, if the container has a user
    /// namespace. `place` is any directory.
    pub(crate) fn take(spec: &mut Spec, place: &Path) -> Result<Self, DeviceError> {
        if namespaces::of(spec, LinuxNamespaceType::User).is_none() {
            return Ok(Self::default());
        }
        let devices = spec.linux().as_ref().and_then(|linux| linux.devices().clone()).unwrap_or_default();
        let (usual, others): (Vec<LinuxDevice>, Vec<LinuxDevice>) =
            devices.into_iter().partition(|device| USUAL.iter().any(|usual| device.path() == Path::new(usual)));
        if let Some(linux) = spec.linux_mut() {
            linux.set_devices(Some(usual));
        }
        // As runc: where the host's own `/dev` is bound, it has them.
        let mut mounts = spec.mounts().iter().flatten();
        let is_bound = mounts.any(|mount| mount.destination() == Path::new("/dev") && is_bind(mount));
        if is_bound || others.is_empty() { Ok(Self::default()) } else { make(&others, place).map(Self) }
    }

    /// Mounts them in the namespaces of the container, which the calling process has joined.
    pub(crate) fn attach(&self, root: &Root) -> Result<(), DeviceError> {
        for (path, node) in &self.0 {
            let failed = |source| DeviceError { action: "mount", path: path.clone(), source };
            attach(root, path, node).map_err(failed)?;
        }
        Ok(())
    }
}

fn attach(root: &Root, path: &Path, node: &OwnedFd) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        root.mkdir_all(directory, &Permissions::from_mode(0o755)).map_err(io::Error::other)?;
    }
    match root.create(path, &InodeType::File(Permissions::from_mode(0o644))) {
        Err(error) if error.kind() != ErrorKind::OsError(Some(libc::EEXIST)) => return Err(io::Error::other(error)),
        _ => {}
    }
    // As runc: not where a link of the image points to.
    let target = root.resolve_nofollow(path).map_err(io::Error::other)?;
    tree::attach(node, target)
}

/// Creates the nodes where nobody sees them.
fn make(devices: &[LinuxDevice], place: &Path) -> Result<Vec<(PathBuf, OwnedFd)>, DeviceError> {
    let failed = |path: &Path, source| DeviceError { action: "make", path: path.to_owned(), source };
    let made = private_mounts::with(|| {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        let mounted = mount(Some("egpu"), place, Some("tmpfs"), flags, Some("mode=755"));
        mounted.map_err(|errno| failed(place, errno.into()))?;
        let node = |(index, device): (usize, &LinuxDevice)| {
            let node = make_node(device, &place.join(index.to_string()));
            node.map(|node| (device.path().clone(), node)).map_err(|source| failed(device.path(), source))
        };
        devices.iter().enumerate().map(node).collect()
    });
    made.unwrap_or_else(|source| Err(failed(place, source)))
}

/// Its owner is the host's, as that of a node of the host's is.
fn make_node(device: &LinuxDevice, path: &Path) -> io::Result<OwnedFd> {
    let kind = match device.typ() {
        LinuxDeviceType::B => SFlag::S_IFBLK,
        LinuxDeviceType::P => SFlag::S_IFIFO,
        LinuxDeviceType::C | LinuxDeviceType::U | LinuxDeviceType::A => SFlag::S_IFCHR,
    };
    let number = |number: i64| u64::try_from(number).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    mknod(path, kind, Mode::empty(), makedev(number(device.major())?, number(device.minor())?))?;
    std::os::unix::fs::chown(path, device.uid(), device.gid())?;
    // The umask is the worker's.
    fs::set_permissions(path, Permissions::from_mode(device.file_mode().unwrap_or(0o666) & 0o777))?;
    tree::open(path, false)
}
