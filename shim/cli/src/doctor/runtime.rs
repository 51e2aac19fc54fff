//! Check that containerd will find the runtime.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use egpu_shim::info::BINARY;

use super::Check;

const RUNTIME: &str = "runtime";

/// Checks the PATH. containerd looks for the binary in its own PATH, which is usually this one or
/// the system's.
pub(super) fn check() -> Check {
    let path = env::var_os("PATH").unwrap_or_default();
    let sibling = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(BINARY)));
    assess(&path, sibling.as_deref())
}

/// Returns the path of the runtime, or the one to install it at.
pub(super) fn installed() -> PathBuf {
    found(&env::var_os("PATH").unwrap_or_default()).unwrap_or_else(|| Path::new("/usr/local/bin").join(BINARY))
}

fn found(path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path).map(|directory| directory.join(BINARY)).find(|file| is_program(file))
}

fn assess(path: &OsStr, sibling: Option<&Path>) -> Check {
    if let Some(found) = found(path) {
        return match sibling {
            Some(own) if is_program(own) && !same_program(own, &found) => Check::warning(
                RUNTIME,
                format!("containerd will run {}, but this egpu belongs to {}", found.display(), own.display()),
                "remove one of the two installations",
            ),
            _ => Check::ok(RUNTIME, found.display().to_string()),
        };
    }
    let remedy =
        format!("install {BINARY} into a directory of containerd's PATH, such as /usr/local/bin (`make install`)");
    match sibling.filter(|own| is_program(own)) {
        Some(own) => Check::failure(RUNTIME, format!("{} is not in the PATH", own.display()), remedy),
        None => Check::failure(RUNTIME, format!("there is no {BINARY} in the PATH"), remedy),
    }
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Returns whether both are one file, or copies: `egpu install` from elsewhere makes them.
fn same_program(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| -> Option<PathBuf> { path.canonicalize().ok() };
    let is_copy = || fs::read(one).ok().zip(fs::read(other).ok()).is_some_and(|(one, other)| one == other);
    (real(one).is_some() && real(one) == real(other)) || is_copy()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn the_binary_must_be_in_the_path_and_executable() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = env::join_paths([first.path(), second.path()]).unwrap();
        assert_eq!(assess(&path, None).level, Level::Failure);
        let binary = second.path().join(BINARY);
        fs::write(&binary, "").unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(assess(&path, None).level, Level::Failure);
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(assess(&path, None).level, Level::Ok);
        assert_eq!(assess(&path, Some(&binary)).level, Level::Ok);
        assert_eq!(assess(OsStr::new("/nowhere"), Some(&binary)).level, Level::Failure);
        let other = first.path().join("elsewhere");
        fs::copy(&binary, &other).unwrap();
        assert_eq!(assess(&path, Some(&other)).level, Level::Ok);
        fs::write(&other, "of another version").unwrap();
        assert_eq!(assess(&path, Some(&other)).level, Level::Warning);
    }
}
