//! Finding and loading NVML, `libnvidia-ml.so.1`, which comes with the driver.

use std::path::{Path, PathBuf};

use base::Roots;
use nvml_wrapper::{Nvml, error::NvmlError};

use crate::{driver_files, kernel_module};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// NVML is there, or ought to be, and does not work.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Library and kernel module are of different versions, or the like.
    #[error(
        "NVML ({}) does not start; if the driver was updated, unload its kernel modules or restart the machine",
        library.display()
    )]
    Start {
        library: PathBuf,
        /// NVML's answer.
        #[source]
        source: NvmlError,
    },
    /// The kernel module is loaded, and there is no library to ask it with.
    #[error(
        "the NVIDIA driver {version} is loaded, but its {LIBRARY} is neither known to the dynamic loader nor in the \
         usual places below {}; set `[driver] root` to the directory that the driver is installed in", root.display()
    )]
    NoLibrary {
        /// Of the kernel module.
        version: String,
        /// Root below which it was looked for.
        root: PathBuf,
    },
    /// NVML works but does not say how many cards there are.
    #[error("NVML does not tell how many cards there are")]
    Count(#[source] NvmlError),
}

/// Loads NVML and starts it. `None`: this machine has no NVIDIA driver.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub(super) fn start(roots: &Roots, driver_root: &Path) -> Result<Option<Nvml>, DriverError> {
    let module = kernel_module::loaded(roots);
    for library in candidates(driver_root) {
        match Nvml::builder().lib_path(library.as_os_str()).init() {
            Ok(nvml) => return Ok(Some(nvml)),
            // Not there, or not for this machine (32 bit): the next one may do.
            Err(NvmlError::LibloadingError(_)) => {}
            Err(NvmlError::DriverNotLoaded) if module.is_none() => return Ok(None),
            Err(source) => return Err(DriverError::Start { library, source }),
        }
    }
    match module {
        Some(module) => Err(DriverError::NoLibrary { version: module.version, root: driver_root.to_owned() }),
        None => Ok(None),
    }
}

/// Paths of the library to try, in this order. A driver with a root of its own is searched for
/// there first; the bare name lets the dynamic loader search, `/etc/ld.so.cache` included.
fn candidates(driver_root: &Path) -> Vec<PathBuf> {
    let places = driver_files::library_dirs(driver_root).into_iter();
    let mut present: Vec<PathBuf> = places.map(|dir| dir.join(LIBRARY)).filter(|path| path.exists()).collect();
    let own_root = driver_root != Path::new("/");
    present.insert(if own_root { present.len() } else { 0 }, PathBuf::from(LIBRARY));
    present
}

#[cfg(test)]
mod tests {
    use std::fs;

    use testing::FakeNode;

    use super::*;

    #[test]
    fn a_root_of_its_own_comes_before_the_loader() {
        let tree = tempfile::tempdir().unwrap();
        let place = tree.path().canonicalize().unwrap().join("usr/local/nvidia/lib64");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join(LIBRARY), "").unwrap();
        assert_eq!(candidates(tree.path()), [place.join(LIBRARY), PathBuf::from(LIBRARY)]);
        assert_eq!(candidates(Path::new("/"))[0], PathBuf::from(LIBRARY));
    }

    #[test]
    fn no_driver_is_no_error_but_a_module_without_library_is() {
        let (node, root) = (FakeNode::new(), tempfile::tempdir().unwrap());
        if Path::new("/proc/driver/nvidia/version").exists() || loader_has_nvml() {
            testing::skipped("this machine has an NVIDIA driver");
            return;
        }
        assert!(start(&node.roots, root.path()).unwrap().is_none());
        node.proc("driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat\n");
        let error = start(&node.roots, root.path()).unwrap_err().to_string();
        assert!(error.contains("535.104.05 is loaded") && error.contains("[driver] root"), "{error}");
    }

    fn loader_has_nvml() -> bool {
        !matches!(Nvml::init(), Err(NvmlError::LibloadingError(_)))
    }

    #[test]
    fn a_file_that_is_no_library_is_passed_over() {
        let (node, root) = (FakeNode::new(), tempfile::tempdir().unwrap());
        if loader_has_nvml() {
            testing::skipped("this machine has an NVIDIA driver");
            return;
        }
        fs::create_dir_all(root.path().join("usr/lib64")).unwrap();
        fs::write(root.path().join("usr/lib64").join(LIBRARY), "not ELF").unwrap();
        assert!(start(&node.roots, root.path()).unwrap().is_none());
    }
}
