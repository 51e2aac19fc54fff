//! NVIDIA's devices on the host: majors, nodes, MIG capabilities.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
};

use base::Roots;
use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};

use super::InjectError;

/// One device node as it is made in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Path: `/dev/nvidia0`.
    pub path: String,
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl DeviceNode {
    /// Members of the group may use it, others may not.
    pub(super) fn needs_group(&self) -> bool {
        self.gid != 0 && self.mode & 0o006 != 0o006
    }
}

/// Reads device numbers of one host.
#[derive(Debug)]
pub(super) struct Host<'a> {
    roots: &'a Roots,
    /// Character majors by driver, from `/proc/devices`.
    majors: BTreeMap<String, u64>,
}

impl<'a> Host<'a> {
    pub(super) fn read(roots: &'a Roots) -> Result<Self, InjectError> {
        let path = roots.proc.join("devices");
        let text = fs::read_to_string(&path).map_err(|source| InjectError::Host { path, source })?;
        Ok(Self { roots, majors: character_majors(&text) })
    }

    /// The major of the first of `drivers` that the kernel has; newer drivers have changed names.
    pub(super) fn major(&self, drivers: &[&str]) -> Option<u64> {
        drivers.iter().find_map(|driver| self.majors.get(*driver)).copied()
    }

    /// All majors of NVIDIA's drivers.
    pub(super) fn nvidia_majors(&self) -> Vec<u64> {
        let mut majors: Vec<u64> =
            self.majors.iter().filter(|(name, _)| name.starts_with("nvidia")).map(|(_, major)| *major).collect();
        majors.sort_unstable();
        majors.dedup();
        majors
    }

    /// A node whose numbers are known. Owner and mode are the host node's if it has these numbers,
    /// else those that the driver's parameters set for its nodes: a node is made by user space on
    /// demand and may not be there yet.
    pub(super) fn node(&self, path: &str, major: u64, minor: u64) -> DeviceNode {
        match self.existing(path) {
            Ok(node) if (node.major, node.minor) == (major, minor) => node,
            _ => {
                let (uid, gid, mode) = self.default_owner();
                DeviceNode { path: path.to_owned(), major, minor, mode, uid, gid }
            }
        }
    }

    /// A node as the host has it.
    pub(super) fn existing(&self, path: &str) -> io::Result<DeviceNode> {
        let below = path.strip_prefix("/dev/").ok_or(io::ErrorKind::InvalidInput)?;
        let metadata = fs::metadata(self.roots.dev.join(below))?;
        if !metadata.file_type().is_char_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a character device"));
        }
        Ok(DeviceNode {
            path: path.to_owned(),
            major: major(metadata.rdev()),
            minor: minor(metadata.rdev()),
            mode: metadata.mode() & 0o777,
            uid: metadata.uid(),
            gid: metadata.gid(),
        })
    }

    /// The host's nodes in `dir` (below /dev, empty for /dev itself) whose names begin with
    /// `prefix`, in order of name.
    pub(super) fn existing_with_prefix(&self, dir: &str, prefix: &str) -> Vec<DeviceNode> {
        let entries = fs::read_dir(self.roots.dev.join(dir)).into_iter().flatten().flatten();
        let mut nodes: Vec<DeviceNode> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok().filter(|name| name.starts_with(prefix))?;
                let parent = if dir.is_empty() { String::new() } else { format!("{dir}/") };
                self.existing(&format!("/dev/{parent}{name}")).ok()
            })
            .collect();
        nodes.sort_by(|one, other| one.path.cmp(&other.path));
        nodes
    }

    /// Minor number of a MIG capability, `gpu0/gi1/access`, from
    /// `/proc/driver/nvidia-caps/mig-minors`. That file lists all that could ever exist; its
    /// numbering is not promised.
    pub(super) fn mig_capability(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.roots.proc.join("driver/nvidia-caps/mig-minors")).ok()?;
        text.lines().find_map(|line| {
            let (listed, minor) = line.split_once(' ')?;
            (listed == name).then(|| minor.trim().parse().ok())?
        })
    }

    /// `/dev/dri` nodes of a card, from sysfs.
    pub(super) fn dri_nodes(&self, pci: &str) -> Vec<DeviceNode> {
        let dir = self.roots.sys.join("bus/pci/devices").join(pci).join("drm");
        let mut nodes: Vec<DeviceNode> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| self.existing(&format!("/dev/dri/{}", entry.file_name().to_str()?)).ok())
            .collect();
        nodes.sort_by(|one, other| one.path.cmp(&other.path));
        nodes
    }

    /// `DeviceFileUID`, `GID` and `Mode` of the driver's parameters; 0, 0, 0666 unless changed.
    fn default_owner(&self) -> (u32, u32, u32) {
        let text = fs::read_to_string(self.roots.proc.join("driver/nvidia/params")).unwrap_or_default();
        let value = |name: &str| {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u32>().ok())
        };
        let mode = value("DeviceFileMode").filter(|mode| *mode != 0 && *mode <= 0o777).unwrap_or(0o666);
        (value("DeviceFileUID").unwrap_or(0), value("DeviceFileGID").unwrap_or(0), mode)
    }
}

/// The first part of `/proc/devices`.
fn character_majors(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .skip_while(|line| *line != "Character devices:")
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        .filter_map(|line| {
            let (major, name) = line.trim().split_once(' ')?;
            Some((name.trim().to_owned(), major.parse().ok()?))
        })
        .collect()
}
