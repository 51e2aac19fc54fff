//! A container's cgroup: where it is, what it used, its limits, and ending what runs in it.
//!
//! libcgroups writes a new container's limits; everything else is done here. Its own manager would
//! replace the device program on every update and so take the granted GPUs away, and it cannot tell
//! a container's cgroup from the one that a host process shares with it.
//!
//! A container has one directory on cgroup v2 and one per hierarchy on v1. A hybrid host counts as
//! v1: its unified hierarchy carries no controllers. It is one of the hierarchies all the same, as
//! are named ones: in a hierarchy where a container had no directory of its own, it could freeze or
//! kill whoever is where it was made, which is the shim's place. Only directories whose path ends
//! in the container's own cgroups path are ever taken, so nothing here can kill or remove what
//! belongs to somebody else.

mod annotations;
mod error;
mod files;
mod freeze;
mod join;
mod kill;
mod locate;
mod metrics;
mod mounts;
mod oom;
mod processes;
mod remove;
mod scope;
#[cfg(test)]
mod testing;
mod update;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use self::{
    annotations::{AnnotationError, Property, properties as annotated_properties},
    join::takes_no_process,
    scope::{Scope, ScopeError},
};
pub use self::{
    error::{CgroupError, LocateError},
    locate::{CgroupsPath, Host},
    oom::{OomEvent, OomWatch},
    scope::SystemdError,
    update::UpdateError,
};

/// A container's cgroup directories. Serializable: it is kept in the bundle, so that `delete` finds
/// them after the shim and the container's processes are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// The controllers' directories.
    #[serde(flatten)]
    layout: Layout,
}

/// The version of cgroups that holds the container, with its directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "version")]
enum Layout {
    /// One directory per hierarchy, in the order of `/proc/PID/cgroup`.
    #[serde(rename = "1")]
    V1 {
        /// Never empty.
        hierarchies: Vec<Hierarchy>,
        /// The scope, when systemd made the cgroup: its limits have to be changed there too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        systemd_unit: Option<String>,
    },
    /// One directory.
    #[serde(rename = "2")]
    V2 {
        /// Absolute.
        directory: PathBuf,
        /// The systemd unit, as on v1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        systemd_unit: Option<String>,
    },
}

/// A container's directory of one hierarchy, of v1 or of a hybrid host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hierarchy {
    /// The controllers mounted there (`cpu`, `cpuacct`), or one named hierarchy (`name=systemd`).
    /// None: the unified hierarchy of a hybrid host.
    controllers: Vec<String>,
    /// Absolute.
    directory: PathBuf,
}

impl Cgroup {
    /// Every directory, absolute: one on v2, one per hierarchy on v1.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let (v1, v2) = match &self.layout {
            Layout::V1 { hierarchies, .. } => (hierarchies.as_slice(), None),
            Layout::V2 { directory, .. } => (&[][..], Some(directory.as_path())),
        };
        v1.iter().map(|hierarchy| hierarchy.directory.as_path()).chain(v2)
    }

    /// Returns, for each hierarchy of v1, the name of its mount point and the container's directory
    /// in it; nothing on v2. `path` is the one that the cgroup was [intended](Cgroup::intended) by.
    pub(crate) fn v1_mounts(&self, path: &CgroupsPath) -> impl Iterator<Item = (&str, &Path)> {
        let hierarchies = match &self.layout {
            Layout::V1 { hierarchies, .. } => hierarchies.as_slice(),
            Layout::V2 { .. } => &[],
        };
        let depth = path.below_root().components().count();
        hierarchies.iter().filter(|hierarchy| !hierarchy.is_unified()).filter_map(move |hierarchy| {
            let mount_point = hierarchy.directory.ancestors().nth(depth)?;
            Some((mount_point.file_name()?.to_str()?, hierarchy.directory.as_path()))
        })
    }

    /// The scope that holds the container, when systemd makes its cgroup.
    pub fn systemd_unit(&self) -> Option<&str> {
        match &self.layout {
            Layout::V1 { systemd_unit, .. } | Layout::V2 { systemd_unit, .. } => systemd_unit.as_deref(),
        }
    }

    /// True where each controller has a hierarchy of its own.
    pub(crate) fn is_v1(&self) -> bool {
        matches!(self.layout, Layout::V1 { .. })
    }

    /// True when nothing of the cgroup is left on the file system.
    pub fn is_gone(&self) -> bool {
        !self.directories().any(Path::exists)
    }

    /// The directory of v2, a hybrid host's included.
    fn unified(&self) -> Option<&Path> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                hierarchies.iter().find(|hierarchy| hierarchy.is_unified()).map(|unified| unified.directory.as_path())
            }
            Layout::V2 { directory, .. } => Some(directory),
        }
    }

    /// The directory of a v1 controller, if the container has one there.
    fn v1_controller(&self, name: &str) -> Option<&Path> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => hierarchies
                .iter()
                .find(|hierarchy| hierarchy.controllers.iter().any(|controller| controller == name))
                .map(|hierarchy| hierarchy.directory.as_path()),
            Layout::V2 { .. } => None,
        }
    }
}

impl Hierarchy {
    fn is_unified(&self) -> bool {
        self.controllers.is_empty()
    }
}
