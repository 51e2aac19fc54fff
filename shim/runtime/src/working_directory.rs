//! The process's working directory, made where it is missing.

use std::{
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::Path,
};

use pathrs::Root;

use super::mounts;

/// Makes `cwd` in the container's root, whose mounts are there, as runc does and libcontainer does
/// not.
pub(crate) fn ensure(root: &Root, cwd: &Path) -> io::Result<()> {
    if let Ok(found) = root.resolve(cwd) {
        let is_directory = std::fs::File::from(OwnedFd::from(found)).metadata()?.is_dir();
        return if is_directory { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) };
    }
    let place = mounts::resolve(root, cwd)?;
    root.mkdir_all(place, &std::fs::Permissions::from_mode(0o755)).map(drop).map_err(mounts::plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_inside_the_root_only() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
        let inside = Root::open(root.path()).unwrap();
        ensure(&inside, Path::new("/a/b")).unwrap();
        assert!(root.path().join("a/b").is_dir());
        ensure(&inside, Path::new("/a/b")).unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        for path in ["/file", "/file/x"] {
            let refused = ensure(&inside, Path::new(path)).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::NotADirectory, "{path}: {refused}");
        }
        // The link is absolute, so it leads to what is made inside the root.
        ensure(&inside, Path::new("/link/x")).unwrap();
        assert!(!outside.path().join("x").exists());
        assert!(root.path().join(outside.path().strip_prefix("/").unwrap()).join("x").is_dir());
    }
}
