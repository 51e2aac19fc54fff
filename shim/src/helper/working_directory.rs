//! The process's working directory, made where the image lacks it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use oci_spec::runtime::Mount;
use pathrs::Root;

/// Makes `cwd` in the root file system, resolved inside of it, unless it is there or lies below one of the container's own
/// mounts, which do not exist yet: what is missing there stays missing, and init says so.
pub(crate) fn ensure(root: &Path, cwd: &Path, mounts: &[Mount]) -> io::Result<()> {
    if mounts.iter().any(|mount| mount.destination() != Path::new("/") && cwd.starts_with(mount.destination())) {
        return Ok(());
    }
    let root = Root::open(root).map_err(io::Error::other)?;
    if root.resolve(cwd).is_ok() {
        return Ok(());
    }
    root.mkdir_all(cwd, &std::fs::Permissions::from_mode(0o755)).map(drop).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_inside_the_root_only() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
        ensure(root.path(), Path::new("/a/b"), &[]).unwrap();
        assert!(root.path().join("a/b").is_dir());
        ensure(root.path(), Path::new("/a/b"), &[]).unwrap();
        // The link is absolute, so inside the root it points nowhere.
        let _ = ensure(root.path(), Path::new("/link/x"), &[]);
        assert!(!outside.path().join("x").exists());
        let mount: Mount = serde_json::from_value(serde_json::json!({"destination": "/data"})).unwrap();
        ensure(root.path(), Path::new("/data/x"), &[mount]).unwrap();
        assert!(!root.path().join("data").exists());
    }
}
