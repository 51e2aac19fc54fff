//! Means by which the container's loader finds the driver's libraries: glibc by its cache, musl by
//! its path file.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use cards::driver_files::{
    Abi,
    ld_cache::{self, ABI_MASK, Entry, Hwcap},
};

use super::{mounts::Mounts, rootfs::Rootfs};

/// A name under which the loader is to find a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    pub(super) abi: Abi,
}

const CACHE: &str = "/etc/ld.so.cache";
/// Read last, so that the order of the image's own directories stays.
const CONF: &str = "/etc/ld.so.conf.d/zz-egpu.conf";

/// Directories that every ldconfig looks through, whatever its configuration.
const DEFAULT_DIRS: [&str; 6] = [
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    // Debian's, which has them in a file of its own as well.
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Updates the caches of the image's loaders. The libraries are in directories that loaders search
/// by themselves, so what cannot be done is a warning: it matters only where the image has another
/// driver's libraries in its cache.
pub(super) fn update_loaders(rootfs: &Rootfs, mounts: &Mounts<'_>, names: &[Name], warnings: &mut Vec<String>) {
    if names.is_empty() {
        return;
    }
    if let Some(volume) = mounts.hides(Path::new(CACHE)) {
        warnings.push(format!("{CACHE} is left as it is: {} is mounted over it", volume.display()));
        return;
    }
    let musl: Vec<Abi> = [Abi::X86_64, Abi::Aarch64, Abi::I386]
        .into_iter()
        .filter(|abi| rootfs.exists(Path::new(&format!("/lib/ld-musl-{}.so.1", musl_name(*abi)))))
        .collect();
    for abi in &musl {
        let dirs = names.iter().filter(|name| name.abi == *abi).map(|name| name.dir.as_path());
        warn(warnings, "musl's library path", add_musl_dirs(rootfs, *abi, dirs.collect()));
    }
    if musl.is_empty() || rootfs.exists(Path::new(CACHE)) {
        warn(warnings, CACHE, update_cache(rootfs, names));
        warn(warnings, CONF, configure(rootfs, names));
    }
}

fn warn(warnings: &mut Vec<String>, what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        warnings.push(format!("{what} is left as it is: {error}"));
    }
}

/// Adds our libraries to the image's cache, in place of any of the same name and machine.
fn update_cache(rootfs: &Rootfs, names: &[Name]) -> io::Result<()> {
    let path = Path::new(CACHE);
    let file = match rootfs.read(path, ld_cache::LARGEST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    // The loader does not use one that it cannot read either.
    let mut entries = ld_cache::parse(&file).unwrap_or_default();
    entries.retain(|entry| {
        !names
            .iter()
            .any(|ours| entry.name == ours.name.as_bytes() && entry.flags & ABI_MASK == ours.abi.flags() & ABI_MASK)
    });
    for ours in names {
        let path = ours.dir.join(&ours.name);
        entries.push(Entry {
            name: Cow::Borrowed(ours.name.as_bytes()),
            path: Cow::Owned(path.into_os_string().into_encoded_bytes()),
            flags: ours.abi.flags(),
            os_version: 0,
            hwcap: Hwcap::Bits(0),
        });
    }
    let updated = ld_cache::write(entries).map_err(io::Error::other)?;
    if updated == file { Ok(()) } else { rootfs.write(path, &updated) }
}

/// Directories that ldconfig would not look at by itself are written down, for when it is run in
/// the container.
fn configure(rootfs: &Rootfs, names: &[Name]) -> io::Result<()> {
    let dirs: BTreeSet<&str> = names
        .iter()
        .filter_map(|name| name.dir.to_str())
        .filter(|dir| !DEFAULT_DIRS.contains(dir) && *dir != "/usr/lib/i386-linux-gnu")
        .collect();
    if dirs.is_empty() {
        return Ok(());
    }
    let main = Path::new("/etc/ld.so.conf");
    if !rootfs.exists(main) {
        rootfs.write(main, b"include /etc/ld.so.conf.d/*.conf\n")?;
    }
    let content: String = dirs.into_iter().flat_map(|dir| [dir, "\n"]).collect();
    rootfs.write(Path::new(CONF), content.as_bytes())
}

/// Adds directories to `/etc/ld-musl-ARCH.path`. The file takes the place of musl's defaults, so a
/// new one has them too.
fn add_musl_dirs(rootfs: &Rootfs, abi: Abi, dirs: Vec<&Path>) -> io::Result<()> {
    const DEFAULT: &str = "/lib\n/usr/local/lib\n/usr/lib\n";
    const LARGEST: usize = 1 << 16;
    let path = PathBuf::from(format!("/etc/ld-musl-{}.path", musl_name(abi)));
    let present = match rootfs.read(&path, LARGEST) {
        Ok(content) => String::from_utf8(content).map_err(io::Error::other)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => DEFAULT.to_owned(),
        Err(error) => return Err(error),
    };
    let mut updated = present.clone();
    for dir in dirs {
        let listed = updated.split(['\n', ':']).any(|listed| Path::new(listed.trim()) == dir);
        if !listed {
            if !updated.is_empty() && !updated.ends_with('\n') {
                updated.push('\n');
            }
            updated.push_str(&dir.to_string_lossy());
            updated.push('\n');
        }
    }
    if updated == present { Ok(()) } else { rootfs.write(&path, updated.as_bytes()) }
}

/// musl's name of a machine.
fn musl_name(abi: Abi) -> &'static str {
    match abi {
        Abi::X86_64 => "x86_64",
        Abi::Aarch64 => "aarch64",
        Abi::I386 => "i386",
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use serde_json::json;
    use testing::{EM_AARCH64, EM_X86_64, NoForks, fake_library, put};

    use super::*;
    use crate::inject::tests::Case;

    /// glibc's loader of this machine, and where Debian has its libc.
    const NATIVE: (u16, &str, &str) = if cfg!(target_arch = "aarch64") {
        (EM_AARCH64, "/lib/ld-linux-aarch64.so.1", "/lib/aarch64-linux-gnu/libc.so.6")
    } else {
        (EM_X86_64, "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6")
    };

    /// This machine's loader, alone in a root of its own, finds libcuda in a directory that it does
    /// not search by itself.
    #[test]
    fn the_real_loader_finds_libcuda_through_the_cache() {
        let (machine, loader, libc) = NATIVE;
        if !nix::unistd::geteuid().is_root() || ![loader, libc].iter().all(|file| Path::new(file).exists()) {
            testing::skipped("needs root, for chroot, and glibc where Debian has it");
            return;
        }
        let no_forks = NoForks::hold();
        let mut case = Case::new();
        fs::remove_file(case.rootfs().join("etc/debian_version")).unwrap();
        let library = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04";
        put(&case.host(), library, fake_library("libcuda.so.1", machine));
        for file in [loader, libc, "/bin/true"] {
            put(&case.rootfs(), file, fs::read(file).unwrap());
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(case.rootfs().join(file.trim_start_matches('/')), mode).unwrap();
        }
        case.spec["mounts"] = json!([]);
        case.apply();
        // In place of the mount.
        put(&case.rootfs(), "/usr/lib64/libcuda.so.580.159.04", fake_library("libcuda.so.1", machine));
        drop(no_forks);
        let mut command = Command::new("chroot");
        command
            .arg(case.rootfs())
            .args([loader, "--preload", "libcuda.so.1", "/bin/true"])
            .env_clear()
            .env("LD_DEBUG", "libs")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let output = testing::fork(|| command.output().unwrap());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("search cache=/etc/ld.so.cache"), "{said}");
        assert!(said.contains("trying file=/usr/lib64/libcuda.so.1\n"), "{said}");
        assert!(!said.contains("cannot be preloaded"), "{said}");
        assert!(output.status.success(), "{said}");
    }
}
