//! Loads the module of unified memory, which nothing but the first CUDA program of a boot asks for.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

use base::Roots;

use super::host::Host;

/// The host's programs that load it, with their arguments; the first also makes the device nodes.
const LOADERS: [(&str, &[&str]); 4] = [
    ("usr/bin/nvidia-modprobe", &["-u", "-c", "0"]),
    ("usr/local/nvidia/bin/nvidia-modprobe", &["-u", "-c", "0"]),
    ("sbin/modprobe", &["nvidia-uvm"]),
    ("usr/sbin/modprobe", &["nvidia-uvm"]),
];

/// The module of unified memory is not there and could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadUvmError {
    /// The kernel's list of drivers cannot be read.
    #[error(transparent)]
    Host(#[from] super::InjectError),
    /// None of the programs that could is installed.
    #[error("nvidia-uvm is not loaded, and there is neither nvidia-modprobe nor modprobe below {root}")]
    NoLoader {
        /// Root that was searched.
        root: String,
    },
    /// The program could not be run.
    #[error("nvidia-uvm is not loaded, and {program} cannot be run")]
    Run {
        /// Its path.
        program: String,
        #[source]
        source: io::Error,
    },
    /// The program ran and the module is still not there.
    #[error("nvidia-uvm is not loaded; {program} ended with {status} and said: {output}")]
    Failed {
        /// Its path.
        program: String,
        /// Exit status.
        status: std::process::ExitStatus,
        /// Text that it wrote to its standard error.
        output: String,
    },
}

/// Loads `nvidia-uvm` if NVIDIA's driver is loaded and that is not; `driver_root` is where the
/// driver's programs are. Runs a program of the host and waits for it, so it must not be called
/// where somebody else waits for all children.
///
/// # Errors
/// When the module is not there afterwards.
pub fn ensure_uvm_loaded(roots: &Roots, driver_root: &Path) -> Result<(), LoadUvmError> {
    let is_loaded = |name| Ok::<_, LoadUvmError>(Host::read(roots)?.major(&[name]).is_some());
    if !is_loaded("nvidia")? && !is_loaded("nvidia-frontend")? || is_loaded("nvidia-uvm")? {
        return Ok(());
    }
    let loader = LOADERS.iter().map(|(path, args)| (driver_root.join(path), args)).find(|(path, _)| path.is_file());
    let Some((path, args)) = loader else {
        return Err(LoadUvmError::NoLoader { root: driver_root.display().to_string() });
    };
    let program = path.display().to_string();
    let run = Command::new(&path).args(*args).env_clear().stdin(Stdio::null()).output();
    let output = run.map_err(|source| LoadUvmError::Run { program: program.clone(), source })?;
    if is_loaded("nvidia-uvm")? {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LoadUvmError::Failed { program, status: output.status, output: said })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use testing::{NoForks, put};

    use super::*;

    fn host(devices: &str, loader: Option<&str>) -> (tempfile::TempDir, Result<(), LoadUvmError>) {
        let root = tempfile::tempdir().unwrap();
        let no_forks = NoForks::hold();
        put(root.path(), "/proc/devices", format!("Character devices:\n{devices}\n"));
        if let Some(script) = loader {
            put(root.path(), "/usr/bin/nvidia-modprobe", format!("#!/bin/sh\n{script}\n"));
            let path = root.path().join("usr/bin/nvidia-modprobe");
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        drop(no_forks);
        let result = testing::fork(|| ensure_uvm_loaded(&Roots::under(root.path()), root.path()));
        (root, result)
    }

    #[test]
    fn nothing_is_run_where_nothing_is_needed() {
        let tell = Some("echo ran > $(dirname $0)/ran");
        for devices in ["1 mem\n", "195 nvidia\n500 nvidia-uvm\n"] {
            let (root, result) = host(devices, tell);
            result.unwrap();
            assert!(!root.path().join("usr/bin/ran").exists());
        }
    }

    #[test]
    fn the_loader_is_run_and_believed_only_if_the_module_is_there() {
        let load = "[ \"$*\" = '-u -c 0' ] && echo '500 nvidia-uvm' >> ${0%/usr/bin/*}/proc/devices";
        let (_root, result) = host("195 nvidia-frontend", Some(load));
        result.unwrap();
        let (_root, result) = host("195 nvidia", Some("echo no such module >&2; exit 1"));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("no such module"), "{error}");
        let (_root, result) = host("195 nvidia", None);
        assert!(matches!(result, Err(LoadUvmError::NoLoader { .. })));
    }
}
