//! The user space of the NVIDIA driver on this host: what a container needs of it, and where it is.
//!
//! User space and kernel module must be of one version, so everything is looked for by the exact
//! version of the module. What is missing is a warning: no driver package ships everything, and a
//! program that needs a missing library says so.

mod cache;
mod elf;
pub mod ld_cache;
mod lists;
mod search;

use std::path::{Path, PathBuf};

use runtime_config::request::DriverCapabilities;
use serde::{Deserialize, Serialize};

pub use cache::find_cached;
pub use ld_cache::Abi;
pub use search::library_dirs;

/// Everything that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFiles {
    /// The driver's version, `580.159.04`.
    pub version: String,
    /// Shared libraries.
    pub libraries: Vec<Library>,
    /// Programs.
    pub binaries: Vec<HostFile>,
    /// Firmware of the GPU's own processor, `gsp_*.bin`.
    pub firmware: Vec<HostFile>,
    /// Configuration files of GLVND, Vulkan, EGL, OpenCL, X.
    pub configs: Vec<HostFile>,
    /// Sockets of NVIDIA's daemons.
    pub sockets: Vec<HostFile>,
    /// For the log: what could not be found.
    pub warnings: Vec<String>,
}

/// One shared library of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// The file on the host, no link.
    pub host: PathBuf,
    /// Its path below the container's library directory: `libcuda.so.580.159.04`,
    /// `vdpau/libvdpau_nvidia.so.580.159.04`.
    pub path: PathBuf,
    /// Machine and word size.
    pub abi: Abi,
    /// Name that programs ask for: `libcuda.so.1`.
    pub soname: Option<String>,
    /// `libnvidia-ml.so` is beside it on the host.
    pub has_development_link: bool,
    /// It is wanted with any of these.
    pub capabilities: DriverCapabilities,
}

/// One file of the driver that is no library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFile {
    /// On the host.
    pub host: PathBuf,
    pub container: PathBuf,
    /// It is wanted with any of these; empty: always.
    pub capabilities: DriverCapabilities,
}

/// Looks through the host below `root` (`/`, or where a driver container has put its tree,
/// `/run/nvidia/driver`) for the files of driver `version`.
pub fn find(root: &Path, version: &str) -> DriverFiles {
    let mut files = DriverFiles { version: version.to_owned(), ..DriverFiles::default() };
    files.libraries = search::libraries(root, version);
    for needed in ["libcuda", "libnvidia-ml"] {
        let name = format!("{needed}.so.{version}");
        if !files.libraries.iter().any(|library| library.path == Path::new(&name)) {
            files.warnings.push(format!(
                "no {name} below {}: install the driver's user space of the version that the kernel module has",
                root.display()
            ));
        }
    }
    files.binaries = search::binaries(root);
    if !files.binaries.iter().any(|binary| binary.container == Path::new("/usr/bin/nvidia-smi")) {
        files.warnings.push(format!("no nvidia-smi below {}", root.display()));
    }
    files.firmware = search::firmware(root, version);
    files.configs = search::configs(root);
    files.sockets = search::sockets(root);
    files
}

#[cfg(test)]
pub(crate) mod tests;
