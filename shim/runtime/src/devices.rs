//! Device nodes that libcontainer does not make.
//!
//! Outside of `/dev` it refuses them. In a user namespace nobody can make one, so it binds the
//! host's node of the same path, whatever its numbers are. That is right for the few that every
//! host has. Any other need not be there (who uses cards only through containers has no
//! `/dev/nvidia0`): it is made with the spec's numbers, by the host's root, on a file system that
//! nobody sees, and mounted in its place.

use std::{
    fs::{self, Permissions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    mount::{MsFlags, mount},
    sys::stat::{Mode, SFlag, makedev, mknod},
};
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, LinuxNamespaceType, Spec};
use pathrs::{InodeType, Root, error::ErrorKind};

use super::{
    mounts::{is_bind, plain, tree},
    namespaces, private_mounts,
};

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

/// Nodes to be put into a container.
#[derive(Debug)]
pub(crate) enum Devices {
    /// Made in their places, outside of `/dev`.
    Nodes(Vec<LinuxDevice>),
    /// Each a mount that is attached nowhere, for a user namespace.
    Mounts(Vec<(PathBuf, OwnedFd)>),
}

impl Devices {
    /// Removes them from the spec: those outside of `/dev`, and those that libcontainer would bind,
    /// if the container has a user namespace. `place` is any directory.
    pub(crate) fn take(spec: &mut Spec, place: &Path) -> Result<Self, DeviceError> {
        let in_user_namespace = namespaces::of(spec, LinuxNamespaceType::User).is_some();
        let is_libcontainers = |device: &LinuxDevice| match in_user_namespace {
            true => USUAL.iter().any(|usual| device.path() == Path::new(usual)),
            false => device.path().starts_with("/dev"),
        };
        let devices = spec.linux().as_ref().and_then(|linux| linux.devices().clone()).unwrap_or_default();
        let (left, mut taken): (Vec<LinuxDevice>, Vec<LinuxDevice>) = devices.into_iter().partition(is_libcontainers);
        if let Some(linux) = spec.linux_mut()
            && !taken.is_empty()
        {
            linux.set_devices(Some(left));
        }
        // As runc: where the host's own `/dev` is bound, it has them.
        let mut mounts = spec.mounts().iter().flatten();
        if mounts.any(|mount| mount.destination() == Path::new("/dev") && is_bind(mount)) {
            taken.clear();
        }
        match in_user_namespace && !taken.is_empty() {
            true => make(&taken, place).map(Self::Mounts),
            false => Ok(Self::Nodes(taken)),
        }
    }

    /// Puts them below the container's root, in the namespaces of the container, which the calling
    /// process has joined.
    pub(crate) fn attach(&self, root: &Root) -> Result<(), DeviceError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| DeviceError { action, path, source }
        };
        match self {
            Self::Nodes(devices) => {
                devices.iter().try_for_each(|device| make_in_place(root, device).map_err(failed("make", device.path())))
            }
            Self::Mounts(mounts) => {
                mounts.iter().try_for_each(|(path, node)| attach(root, path, node).map_err(failed("mount", path)))
            }
        }
    }
}

fn attach(root: &Root, path: &Path, node: &OwnedFd) -> io::Result<()> {
    create(root, path, &InodeType::File(Permissions::from_mode(0o644)))?;
    // As runc: not where a link of the image points to.
    let target = root.resolve_nofollow(path).map_err(plain)?;
    tree::attach(node, target)
}

/// Leaves what is there already, as runc.
fn make_in_place(root: &Root, device: &LinuxDevice) -> io::Result<()> {
    let mode = || Permissions::from_mode(device.file_mode().unwrap_or(0o666) & 0o777);
    let kind = match device.typ() {
        LinuxDeviceType::B => InodeType::BlockDevice(mode(), number(device)?),
        LinuxDeviceType::P => InodeType::Fifo(mode()),
        LinuxDeviceType::C | LinuxDeviceType::U | LinuxDeviceType::A => {
            InodeType::CharacterDevice(mode(), number(device)?)
        }
    };
    if !create(root, device.path(), &kind)? {
        return Ok(());
    }
    let node = OwnedFd::from(root.resolve_nofollow(device.path()).map_err(plain)?);
    let path = format!("/proc/self/fd/{}", node.as_raw_fd());
    std::os::unix::fs::chown(&path, device.uid(), device.gid())?;
    // The umask is the worker's.
    fs::set_permissions(&path, mode())
}

/// Makes it with the directories that it is in; false where something is there.
fn create(root: &Root, path: &Path, kind: &InodeType) -> io::Result<bool> {
    if let Some(directory) = path.parent() {
        root.mkdir_all(directory, &Permissions::from_mode(0o755)).map_err(plain)?;
    }
    match root.create(path, kind) {
        Err(error) if error.kind() == ErrorKind::OsError(Some(libc::EEXIST)) => Ok(false),
        Err(error) => Err(plain(error)),
        Ok(()) => Ok(true),
    }
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
    mknod(path, kind, Mode::empty(), number(device)?)?;
    std::os::unix::fs::chown(path, device.uid(), device.gid())?;
    // The umask is the worker's.
    fs::set_permissions(path, Permissions::from_mode(device.file_mode().unwrap_or(0o666) & 0o777))?;
    tree::open(path, false)
}

fn number(device: &LinuxDevice) -> io::Result<u64> {
    let part = |part: i64| u64::try_from(part).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    Ok(makedev(part(device.major())?, part(device.minor())?))
}
