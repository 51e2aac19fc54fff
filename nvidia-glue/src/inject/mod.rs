//! Injection of a grant into a container: device nodes, driver files, and the edits of the OCI spec
//! that carry them.
//!
//! Two phases. [`Injection::plan`] runs when the grant has been made and reads the host; it changes
//! nothing. [`Injection::complete`] runs when the container's root file system is mounted: where
//! files go depends on the image. No program is run at either time, least of all with anything that
//! an image controls.
//!
//! Decisions where NVIDIA's two injectors differ: requests, capabilities and library paths as
//! libnvidia-container has them, edits of the spec as CDI has them.
//! - A host path is never found through a container path: nothing of an image is the source of a
//!   mount.
//! - CUDA's forward compatibility libraries (`/usr/local/cuda/compat`) are not made active. They
//!   replace the driver's own user space with another version's, whose calls the limits of a
//!   running container would have to understand as well.
//! - The MPS directory is not mounted: its server has all cards open and works outside of the
//!   container.
//! - `/dev/dri/by-path` links are not made.

mod apply;
mod devices;
mod exec_edits;
mod host;
mod host_dir;
mod layout;
mod loader;
mod mounts;
mod plan;
mod proc_driver;
mod rootfs;
mod spec_edit;
mod uvm;

use std::{
    io,
    path::{Path, PathBuf},
};

use base::Bytes;
pub use base::grant_files::{GrantFilesError, HELD_FILE, HeldMark, directory, says_held, status_file, usage_file};
use cards::driver_files::Abi;
pub use exec_edits::ExecEdits;
pub use host::DeviceNode;
pub use plan::{PlanInput, Settings};
use runtime_config::request::DriverCapabilities;
use serde::{Deserialize, Serialize};
pub use spec_edit::withhold_capabilities;
pub use uvm::{LoadUvmError, ensure_uvm_loaded};

/// Everything that one grant puts into its container. Travels to the process that mounts the root
/// file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injection {
    /// Directory of this container's own on the host, for what is mounted from there. Made by
    /// [`Injection::complete`], removed by the ledger.
    pub(crate) host_dir: PathBuf,
    /// Nodes that are made, with cgroup rules for precisely these.
    pub(crate) devices: Vec<DeviceNode>,
    /// Majors of NVIDIA's drivers: nodes and rules of these that the spec has already are replaced.
    pub(crate) nvidia_majors: Vec<u64>,
    /// Files that go to one place in every image.
    pub(crate) files: Vec<FileMount>,
    /// Shared libraries, whose place is the image's to say.
    pub(crate) libraries: Vec<LibraryMount>,
    /// Content of `/proc/driver/nvidia`; `None` where the host has none.
    pub(crate) proc_driver: Option<Vec<ProcFile>>,
    /// Groups that own a node which others may not use.
    pub(crate) additional_gids: Vec<u32>,
    /// Variables that are set.
    pub(crate) env: Vec<(String, String)>,
    /// The card is shared: capabilities that would let the container get around its share are taken
    /// off.
    pub(crate) shared: bool,
    /// Limit of the host's memory for a container that has none; `None`: it stays without.
    pub(crate) host_memory_limit: Option<Bytes>,
    /// HAMi's own enforcement is taken out of the spec.
    pub(crate) drop_hami: bool,
    /// Parts that were left out, and why, for the log.
    pub warnings: Vec<String>,
}

/// A bind mount with a fixed place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileMount {
    pub(crate) host: PathBuf,
    pub(crate) container: PathBuf,
    pub(crate) kind: FileKind,
}

/// Kind of a mounted file, which says how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FileKind {
    /// Programs, firmware, configuration.
    ReadOnly,
    /// Sockets: connecting needs write permission.
    Socket,
    /// A file that stands for a device node; programs open it for writing.
    SimulatedNode,
}

/// One shared library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LibraryMount {
    pub(crate) host: PathBuf,
    /// Below the library directory.
    pub(crate) path: PathBuf,
    pub(crate) abi: Abi,
    /// Links beside it, name and target.
    pub(crate) links: Vec<(String, String)>,
}

/// One file below `/proc/driver/nvidia`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcFile {
    /// Relative path; never with `..`.
    pub(crate) path: PathBuf,
    pub(crate) content: String,
}

/// A grant that cannot be put into its container.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The kernel's own files cannot be read.
    #[error("cannot read {}", path.display())]
    Host {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A kernel module is missing.
    #[error(
        "the kernel module {module} is not loaded (no `{module}` in /proc/devices), which {needed_for} needs; run `{remedy}` on the host"
    )]
    ModuleNotLoaded {
        /// `nvidia-uvm`.
        module: &'static str,
        /// Purpose of the file.
        needed_for: &'static str,
        /// A command.
        remedy: &'static str,
    },
    /// Something that was asked for by name is not there.
    #[error("{what} is not there: {remedy}")]
    Missing {
        /// `MIG capability gpu0/gi1/access`.
        what: String,
        remedy: &'static str,
    },
    /// A granted card is not among the node's cards.
    #[error("the granted card {uuid} is not among the node's cards; it may have fallen off the bus")]
    UnknownCard { uuid: String },
    /// The simulated nodes could not be made.
    #[error("cannot prepare simulated cards")]
    SimulatedNodes(#[source] cards::SimulatedNodesError),
    /// The grant's files have no place on the host.
    #[error(transparent)]
    GrantFiles(#[from] base::grant_files::GrantFilesError),
    /// The spec lacks what every OCI spec has.
    #[error("the OCI spec is not usable: `{field}` is not {expected}")]
    Spec {
        /// Path in the spec.
        field: &'static str,
        /// `an object`.
        expected: &'static str,
    },
    /// The root file system cannot be opened.
    #[error("cannot open the container's root file system {}", path.display())]
    Rootfs {
        /// Mount point.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file for the container cannot be written on the host.
    #[error("cannot write {}", path.display())]
    HostDir {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The driver's libraries have no place in the container.
    #[error(
        "the driver's libraries cannot be put into the container: {reason}; give it a writable root file system, or a \
         tmpfs at /run or /dev"
    )]
    LibrariesUnreachable {
        /// The first failure.
        reason: String,
    },
}

impl Injection {
    /// Works out what a grant puts into its container. Looks at the host and changes nothing there,
    /// but for simulated cards, whose files it makes.
    ///
    /// # Errors
    /// When a device that was granted or asked for is not there, or its kernel module is not
    /// loaded.
    pub fn plan(input: &PlanInput<'_>) -> Result<Self, InjectError> {
        plan::plan(input)
    }

    /// Puts it into the container: edits `spec`, and writes links and the library cache below
    /// `rootfs`, the host path at which the container's root file system is mounted. Doing it twice
    /// is the same as doing it once.
    ///
    /// What cannot be done and is not vital (a read-only directory of the image, say) is left out;
    /// the result says what, for the log.
    ///
    /// # Errors
    /// When the spec is not one, or the driver's libraries would be out of the container's reach.
    pub fn complete(&self, rootfs: &Path, spec: &mut serde_json::Value) -> Result<Vec<String>, InjectError> {
        apply::complete(self, rootfs, spec)
    }

    /// The driver capabilities that need `/dev/nvidia-uvm`.
    const COMPUTES: DriverCapabilities = DriverCapabilities::COMPUTE.union(DriverCapabilities::VIDEO);
    /// The driver capabilities that draw.
    const DRAWS: DriverCapabilities = DriverCapabilities::GRAPHICS.union(DriverCapabilities::DISPLAY);
}

#[cfg(test)]
mod real_card_tests;
#[cfg(test)]
mod tests;
