//! Directories in which an image keeps libraries.

use std::path::{Path, PathBuf};

use cards::driver_files::Abi;

use super::rootfs::Rootfs;

/// The library directories of one image. libnvidia-container's rule (src/nvc_container.c): a
/// Debian-like image by its /etc/debian_version, all others as Red Hat's. Both are directories that
/// such an image's loader searches by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Multiarch directories.
    debian: bool,
    /// 32-bit libraries; `None` where the image has no place for them.
    libraries_32: Option<PathBuf>,
}

impl Layout {
    pub(super) fn of(rootfs: &Rootfs) -> Self {
        let debian = rootfs.exists(Path::new("/etc/debian_version"));
        let libraries_32 = if debian {
            Some(PathBuf::from("/usr/lib/i386-linux-gnu"))
        } else if rootfs.exists(Path::new("/usr/lib32")) {
            Some(PathBuf::from("/usr/lib32"))
        } else {
            let narrow = rootfs.identity(Path::new("/usr/lib"));
            let wide = rootfs.identity(Path::new("/usr/lib64"));
            (narrow.is_some() && narrow != wide).then(|| PathBuf::from("/usr/lib"))
        };
        Self { debian, libraries_32 }
    }

    /// Directory for libraries of `abi`.
    pub(super) fn libraries(&self, abi: Abi) -> Option<PathBuf> {
        match abi {
            Abi::I386 => self.libraries_32.clone(),
            Abi::X86_64 if self.debian => Some(PathBuf::from("/usr/lib/x86_64-linux-gnu")),
            Abi::Aarch64 if self.debian => Some(PathBuf::from("/usr/lib/aarch64-linux-gnu")),
            Abi::X86_64 | Abi::Aarch64 => Some(PathBuf::from("/usr/lib64")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn check(name: &str, make: impl FnOnce(&Path), wide: &str, narrow: Option<&str>) {
        let root = tempfile::tempdir().unwrap();
        make(root.path());
        let layout = Layout::of(&Rootfs::open(root.path()).unwrap());
        assert_eq!(layout.libraries(Abi::X86_64).as_deref(), Some(Path::new(wide)), "{name}");
        assert_eq!(layout.libraries(Abi::I386).as_deref(), narrow.map(Path::new), "{name}");
    }

    #[test]
    fn images() {
        let dir = |root: &Path, path: &str| fs::create_dir_all(root.join(path)).unwrap();
        let debian = |root: &Path| {
            dir(root, "etc");
            fs::write(root.join("etc/debian_version"), "12").unwrap();
        };
        check("debian", debian, "/usr/lib/x86_64-linux-gnu", Some("/usr/lib/i386-linux-gnu"));
        check("red hat", |root| dir(root, "usr/lib"), "/usr/lib64", Some("/usr/lib"));
        let arch = |root: &Path| {
            dir(root, "usr/lib");
            symlink("lib", root.join("usr/lib64")).unwrap();
        };
        check("arch", arch, "/usr/lib64", None);
        check("arch multilib", |root| dir(root, "usr/lib32"), "/usr/lib64", Some("/usr/lib32"));
        check("empty", |_| {}, "/usr/lib64", None);
        check("a link to the host's /etc", |root| symlink("/etc", root.join("etc")).unwrap(), "/usr/lib64", None);
    }
}
