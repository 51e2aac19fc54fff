//! A release of the open kernel modules, unpacked in a folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use abi::DriverRelease;

/// Headers that programs share with the driver, below [`Release::folder`].
pub(crate) const SDK: &str = "src/common/sdk/nvidia/inc";
/// List of classes.
pub(crate) const RESOURCE_LIST: &str = "src/nvidia/src/kernel/rmapi/resource_list.h";
/// Pointers that the driver follows in parameters of controls.
pub(crate) const EMBEDDED_COPY: &str = "src/nvidia/src/kernel/rmapi/embedded_param_copy.c";
/// Controls that the driver converts to newer ones.
pub(crate) const DEPRECATED: &str = "src/nvidia/interface/deprecated/rmapi_deprecated_control.c";
/// Flags of the controls that the driver exports.
pub(crate) const CONTROL_FLAGS: &str = "src/nvidia/inc/kernel/rmapi/control.h";
/// Commands that the UVM driver takes.
pub(crate) const UVM_COMMANDS: &str = "kernel-open/nvidia-uvm/uvm.c";
/// Generated sources, with the controls that each class exports.
pub(crate) const GENERATED: &str = "src/nvidia/generated";

/// Headers outside of [`SDK`].
pub(crate) const DRIVER_HEADERS: [&str; 7] = [
    "src/nvidia/arch/nvalloc/unix/include/nv_escape.h",
    "src/nvidia/arch/nvalloc/unix/include/nv-unix-nvos-params-wrappers.h",
    "kernel-open/common/inc/nv-ioctl-numbers.h",
    "kernel-open/common/inc/nv-ioctl.h",
    "kernel-open/common/inc/nv-ioctl-numa.h",
    "kernel-open/nvidia-uvm/uvm_ioctl.h",
    "kernel-open/nvidia-uvm/uvm_linux_ioctl.h",
];

/// Sources without which a comparison would be about nothing.
pub(crate) const REQUIRED: [&str; 4] = [RESOURCE_LIST, EMBEDDED_COPY, CONTROL_FLAGS, UVM_COMMANDS];

/// An unpacked release.
#[derive(Debug)]
pub(crate) struct Release {
    /// Folder of its `version.mk`.
    pub(crate) folder: PathBuf,
    /// Its version as NVIDIA writes it: `580.142`.
    pub(crate) name: String,
    /// The same in numbers.
    pub(crate) version: DriverRelease,
}

/// A folder that is no release.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    #[error("{path}: {source}; give the folder of an unpacked release of open-gpu-kernel-modules")]
    Read { path: PathBuf, source: io::Error },
    #[error("{0} has no line `NVIDIA_VERSION = 580.142`; give the folder of an unpacked release")]
    NoVersion(PathBuf),
    #[error("{0} is missing; give the whole source of the release, not a part of it")]
    Missing(PathBuf),
}

impl Release {
    /// Opens the release in `folder`.
    pub(crate) fn open(folder: &Path) -> Result<Self, ReleaseError> {
        let folder = &folder.canonicalize().map_err(|source| ReleaseError::Read { path: folder.to_owned(), source })?;
        let path = folder.join("version.mk");
        let text = read(&path)?;
        let name = text.lines().find_map(|line| line.strip_prefix("NVIDIA_VERSION = ")).unwrap_or_default().trim();
        let version = name.parse().map_err(|_| ReleaseError::NoVersion(path))?;
        for source in REQUIRED.iter().chain(&DRIVER_HEADERS).chain(&[SDK, GENERATED]) {
            let path = folder.join(source);
            if !path.exists() {
                return Err(ReleaseError::Missing(path));
            }
        }
        Ok(Self { folder: folder.to_owned(), name: name.to_owned(), version })
    }

    /// Text of a source.
    pub(crate) fn source(&self, path: &str) -> Result<String, ReleaseError> {
        read(&self.folder.join(path))
    }

    /// Text of a source that some releases do not have.
    pub(crate) fn source_if_any(&self, path: &str) -> Result<String, ReleaseError> {
        if self.folder.join(path).exists() { self.source(path) } else { Ok(String::new()) }
    }

    /// Paths of all headers of a folder and those below it, in order.
    pub(crate) fn headers_below(&self, folder: &str) -> Result<Vec<PathBuf>, ReleaseError> {
        let mut headers = files_below(&self.folder.join(folder))?;
        headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
        headers.sort();
        Ok(headers)
    }

    /// Paths of the generated sources that list controls.
    pub(crate) fn export_tables(&self) -> Result<Vec<PathBuf>, ReleaseError> {
        let mut files = files_below(&self.folder.join(GENERATED))?;
        files.retain(|path| path.to_string_lossy().ends_with("_nvoc.c"));
        files.sort();
        Ok(files)
    }
}

/// Text of a file; what is no UTF-8 in a comment does not matter.
pub(crate) fn read(path: &Path) -> Result<String, ReleaseError> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(source) => Err(ReleaseError::Read { path: path.to_owned(), source }),
    }
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, ReleaseError> {
    let failed = |source| ReleaseError::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
