//! The process's working directory, made where the image lacks it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use oci_spec::runtime::Mount;
use pathrs::Root;
use rustix::fs::{AtFlags, Gid, Uid, chownat};

/// Makes `cwd` in the root file system, resolved inside of it, unless it is there or lies below one of the container's own
/// mounts, which do not exist yet: what is missing there stays missing, and init says so. What is made belongs to `owner`, a user
/// and a group of the host.
pub(crate) fn ensure(root: &Path, cwd: &Path, mounts: &[Mount], (uid, gid): (u32, u32)) -> io::Result<()> {
    if mounts.iter().any(|mount| mount.destination() != Path::new("/") && cwd.starts_with(mount.destination())) {
        return Ok(());
    }
    let root = Root::open(root).map_err(io::Error::other)?;
    let missing: Vec<&Path> = cwd.ancestors().take_while(|directory| root.resolve(directory).is_err()).collect();
    for directory in missing.into_iter().rev() {
        let mode = std::fs::Permissions::from_mode(0o755);
        let made = root.mkdir_all(directory, &mode).map_err(io::Error::other)?;
        chownat(&made, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_inside_the_root_only() {
        use std::os::unix::fs::MetadataExt;

        // Nobody but root can give files away.
        let is_root = nix::unistd::geteuid().is_root();
        let owner =
            if is_root { (100_000, 100_001) } else { (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw()) };
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
        ensure(root.path(), Path::new("/a/b"), &[], owner).unwrap();
        for made in ["a", "a/b"] {
            let made = root.path().join(made).metadata().unwrap();
            assert_eq!((made.is_dir(), made.uid(), made.gid()), (true, owner.0, owner.1));
        }
        ensure(root.path(), Path::new("/a/b"), &[], owner).unwrap();
        // The link is absolute, so inside the root it points nowhere.
        let _ = ensure(root.path(), Path::new("/link/x"), &[], owner);
        assert!(!outside.path().join("x").exists());
        let mount: Mount = serde_json::from_value(serde_json::json!({"destination": "/data"})).unwrap();
        ensure(root.path(), Path::new("/data/x"), &[mount], owner).unwrap();
        assert!(!root.path().join("data").exists());
    }
}
