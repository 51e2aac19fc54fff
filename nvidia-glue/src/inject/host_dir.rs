//! Files on the host that are mounted into one container and are no files of the driver.

use std::{
    fs::{self, Permissions},
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{InjectError, ProcFile};

/// Writes the files of `/proc/driver/nvidia` and returns their directory. What else is beside it is
/// not the container's to list.
pub(super) fn write_proc(host_dir: &Path, files: &[ProcFile]) -> Result<PathBuf, InjectError> {
    let root = host_dir.join("proc-driver-nvidia");
    make_dir(&root)?;
    // Programs list it.
    make_dir(&root.join("gpus"))?;
    for file in files {
        let path = root.join(&file.path);
        for parent in file.path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            make_dir(&root.join(parent))?;
        }
        // Another container of the same grant may read it.
        if fs::read(&path).is_ok_and(|there| there == file.content.as_bytes()) {
            continue;
        }
        fs::write(&path, &file.content)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o444)))
            .map_err(|source| InjectError::HostDir { path, source })?;
    }
    Ok(root)
}

/// Creates a directory that the container's users may look into, whatever the umask. There is none
/// above it if the grant has been given back.
pub(super) fn make_dir(path: &Path) -> Result<(), InjectError> {
    let made = match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(|source| InjectError::HostDir { path: path.to_owned(), source })
}
