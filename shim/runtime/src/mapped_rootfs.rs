//! Root file systems whose files' owners are mapped.
//!
//! For a container with a user namespace, containerd either copies the image with other owners, or
//! has its snapshotter ask for a mapping by options that no kernel knows (`uidmap=0:100000:65536`,
//! `gidmap=`): of the lower directories of an overlay, of any other mount as a whole.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use oci_spec::runtime::{LinuxIdMapping, LinuxIdMappingBuilder};
use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, move_mount},
};

use super::{
    mounts::{tree, user_namespace_of},
    private_mounts,
    protocol::RootfsMount,
};

/// Owners as a mount's options map them, and the options for the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    users: Vec<LinuxIdMapping>,
    groups: Vec<LinuxIdMapping>,
    pub(crate) options: Vec<String>,
}

impl Mapped {
    /// `None`: there is nothing to map, as for containerd where one of the two is missing.
    pub(crate) fn of(mount: &RootfsMount) -> io::Result<Option<Self>> {
        let option = |name: &str| mount.options.iter().find_map(|option| option.strip_prefix(name));
        let (Some(users), Some(groups)) = (option("uidmap="), option("gidmap=")) else { return Ok(None) };
        let is_map = |option: &&String| option.starts_with("uidmap=") || option.starts_with("gidmap=");
        let options = mount.options.iter().filter(|option| !is_map(option)).cloned().collect();
        Ok(Some(Self { users: parse(users)?, groups: parse(groups)?, options }))
    }

    /// Mounts it on `target` by `make`, which mounts it as it is.
    pub(crate) fn mount(&self, kind: &str, target: &Path, make: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let namespace = user_namespace_of(&self.users, &self.groups)?;
        let tree = private_mounts::with(|| {
            let is_overlay = kind == "overlay";
            for directory in self.lower_directories().filter(|_| is_overlay) {
                let mapped = mapped(Path::new(directory), &namespace)?;
                attach(&mapped, Path::new(directory))?;
            }
            make()?;
            if is_overlay { tree::open(target, false) } else { mapped(target, &namespace) }
        })?;
        attach(&tree?, target)
    }

    fn lower_directories(&self) -> impl Iterator<Item = &str> {
        self.options.iter().filter_map(|option| option.strip_prefix("lowerdir=")).flat_map(|list| list.split(':'))
    }
}

fn mapped(path: &Path, namespace: impl AsFd) -> io::Result<OwnedFd> {
    let tree = tree::open(path, false)?;
    sys::map_mount_ids(tree.as_fd(), false, namespace)?;
    Ok(tree)
}

fn attach(tree: &OwnedFd, path: &Path) -> io::Result<()> {
    Ok(move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// `inside:host:length`, and more after commas.
fn parse(map: &str) -> io::Result<Vec<LinuxIdMapping>> {
    let one = |text: &str| {
        let numbers: Vec<u32> = text.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [inside, host, length] = numbers[..] else { return None };
        LinuxIdMappingBuilder::default().container_id(inside).host_id(host).size(length).build().ok()
    };
    let wrong =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("{map:?} is no id mapping such as 0:100000:65536"));
    map.split(',').map(one).collect::<Option<_>>().ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_taken_out_of_the_options() {
        let mount = |options: &[&str]| RootfsMount {
            kind: "overlay".to_owned(),
            source: "overlay".to_owned(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
        };
        let given = mount(&["index=off", "uidmap=0:100000:10,10:7:1", "gidmap=0:5:1", "lowerdir=/a:/b"]);
        let mapped = Mapped::of(&given).unwrap().unwrap();
        assert_eq!(mapped.options, ["index=off", "lowerdir=/a:/b"]);
        assert_eq!(mapped.lower_directories().collect::<Vec<_>>(), ["/a", "/b"]);
        assert_eq!(mapped.users.len(), 2);
        assert_eq!((mapped.users[1].container_id(), mapped.users[1].host_id(), mapped.groups[0].size()), (10, 7, 1));
        assert_eq!(Mapped::of(&mount(&["uidmap=0:1:2"])).unwrap(), None);
        for wrong in ["uidmap=", "uidmap=0:1", "uidmap=0:-1:2", "uidmap=a:1:2"] {
            assert!(Mapped::of(&mount(&[wrong, "gidmap=0:1:2"])).is_err(), "{wrong}");
        }
    }
}
