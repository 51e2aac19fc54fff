//! Places in a container's root, by the paths that specs and links have for them.

use std::{
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
};

use base::find_in_root;
use pathrs::Root;
use rustix::fs::{OFlags, readlinkat};

/// Number of links that the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// The path without `.`, `..` and a slash at its end, from `/`: lexically, as runc cleans
/// destinations.
pub(super) fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => cleaned.push(name),
            Component::ParentDir => _ = cleaned.pop(),
            _ => {}
        }
    }
    cleaned
}

/// The path that `path` leads to in `root`, without links, also where the last of them leads to
/// what is not there.
pub(crate) fn resolve(root: &Root, path: &Path) -> io::Result<PathBuf> {
    let mut target = PathBuf::from("/");
    let mut rest = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            target.pop();
            continue;
        }
        target.push(part);
        let Some(link) = link(root, &target) else { continue };
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        if link.is_absolute() {
            target = PathBuf::from("/");
        } else {
            target.pop();
        }
        rest.extend(parts(&link));
    }
    Ok(target)
}

/// Reads a link; `None`: there is none.
fn link(root: &Root, path: &Path) -> Option<PathBuf> {
    let found = find_in_root(root, path, OFlags::NOFOLLOW).ok()?;
    let target = readlinkat(found, "", Vec::new()).ok()?;
    Some(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// Last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(|part| named(*part)).map(|part| part.as_os_str().to_owned()).rev().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_are_cleaned_lexically() {
        for (path, cleaned) in [("/a/b/", "/a/b"), ("/missing/../data", "/data"), ("x/./y", "/x/y"), ("/../..", "/")] {
            assert_eq!(clean(Path::new(path)), Path::new(cleaned), "{path}");
        }
    }

    #[test]
    fn links_are_followed_in_the_root_alone_also_to_what_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("etc")).unwrap();
        let link = |to: &str, at: &str| symlink(to, directory.path().join(at)).unwrap();
        link("../run/systemd/resolve/stub.conf", "etc/resolv.conf");
        link("/run", "var-run");
        link("../../../../outside", "etc/out");
        link("loop", "loop");
        let root = Root::open(directory.path()).unwrap();
        for (path, expected) in [
            ("/etc/resolv.conf", "/run/systemd/resolve/stub.conf"),
            ("/var-run/secrets/x", "/run/secrets/x"),
            ("/etc/out", "/outside"),
            ("/etc/none/../file", "/etc/file"),
        ] {
            assert_eq!(resolve(&root, Path::new(path)).unwrap(), Path::new(expected), "{path}");
        }
        assert_eq!(resolve(&root, Path::new("/loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }
}
