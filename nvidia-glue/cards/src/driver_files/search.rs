//! Places where distributions and driver installers put the driver's files.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::FileTypeExt},
    path::{Path, PathBuf},
};

use runtime_config::request::DriverCapabilities;

use super::{
    HostFile, Library,
    elf::{self},
    ld_cache, lists,
};

/// Library directories in the order in which they are looked through.
const LIBRARY_DIRS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib/i386-linux-gnu",
    "/usr/lib/i386-linux-gnu/nvidia/current",
    "/usr/lib32",
    // Where driver installers of clouds and appliance systems put them.
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/var/lib/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/opt/nvidia/lib64",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
];

/// Directories of the ones above that hold some of the libraries.
const LIBRARY_SUBDIRS: &[&str] = &["", "vdpau", "tls"];

const BINARY_DIRS: &[&str] = &[
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/nvidia/bin",
    "/var/lib/nvidia/bin",
    "/home/kubernetes/bin/nvidia/bin",
    "/opt/nvidia/bin",
    "/opt/bin",
    "/run/current-system/sw/bin",
];

const CONFIG_DIRS: &[&str] =
    &["/etc", "/usr/local/share", "/usr/share", "/usr/local/nvidia/etc", "/usr/local/nvidia/share"];

/// `path`, which is absolute, below `root`.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The directories below `root` that the driver's libraries may be in, each once and without links.
pub fn library_dirs(root: &Path) -> Vec<PathBuf> {
    let standard = LIBRARY_DIRS.iter().map(|dir| below(root, dir));
    let mut dirs: Vec<PathBuf> = Vec::new();
    for dir in standard.chain(cached_dirs(root)) {
        // /lib may be /usr/lib.
        dirs.extend(fs::canonicalize(&dir).ok().filter(|real| !dirs.contains(real)));
    }
    dirs
}

/// All libraries of the driver, the first of each name and machine.
pub(super) fn libraries(root: &Path, version: &str) -> Vec<Library> {
    let mut seen = BTreeSet::new();
    let mut found: Vec<Library> = Vec::new();
    for real in library_dirs(root) {
        for subdir in LIBRARY_SUBDIRS {
            for library in libraries_in(&real, subdir, version) {
                if seen.insert((library.path.clone(), library.abi.flags())) {
                    found.push(library);
                }
            }
        }
    }
    found.sort_by(|one, other| (one.abi.flags(), &one.path).cmp(&(other.abi.flags(), &other.path)).reverse());
    found.reverse();
    found
}

fn libraries_in(dir: &Path, subdir: &str, version: &str) -> Vec<Library> {
    let Ok(entries) = fs::read_dir(dir.join(subdir)) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let capabilities = lists::library(&file, version)?;
            let host = fs::canonicalize(entry.path()).ok()?;
            // What `docker build` under an NVIDIA runtime leaves behind is empty.
            if fs::metadata(&host).ok()?.len() == 0 {
                return None;
            }
            let elf::ElfIdentity { abi, soname } = elf::inspect(&host)?;
            let stem = file.split_once(".so.")?.0;
            let has_development_link = dir.join(subdir).join(format!("{stem}.so")).exists();
            Some(Library { host, path: Path::new(subdir).join(file), abi, soname, has_development_link, capabilities })
        })
        .collect()
}

/// Directories in which the host's `ld.so.cache` knows libcuda or libnvidia-ml.
fn cached_dirs(root: &Path) -> Vec<PathBuf> {
    let path = below(root, "/etc/ld.so.cache");
    let read = || -> Result<Vec<u8>, io::Error> {
        if fs::metadata(&path)?.len() > ld_cache::LARGEST as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fs::read(&path)
    };
    let Ok(file) = read() else { return Vec::new() };
    let entries = match ld_cache::parse(&file) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the host's library cache is not used");
            return Vec::new();
        }
    };
    let mut dirs = Vec::new();
    for entry in entries {
        if entry.name.starts_with(b"libcuda.so") || entry.name.starts_with(b"libnvidia-ml.so") {
            let path = Path::new(std::ffi::OsStr::from_bytes(&entry.path));
            let dir = path.parent().and_then(Path::to_str).map(|dir| below(root, dir));
            dirs.extend(dir.filter(|dir| !dirs.contains(dir)));
        }
    }
    dirs
}

/// The first of each name. Scripts are passed over: a wrapper is made for the host, and what it
/// calls is not in the container.
pub(super) fn binaries(root: &Path) -> Vec<HostFile> {
    lists::BINARIES
        .iter()
        .filter_map(|(name, capabilities)| {
            let mut found = BINARY_DIRS.iter().filter_map(|dir| regular_file(&below(root, dir).join(name)));
            let host = found.find(|path| elf::inspect(path).is_some())?;
            Some(HostFile { host, container: Path::new("/usr/bin").join(name), capabilities: *capabilities })
        })
        .collect()
}

/// `gsp*.bin` in the first of the kernel's firmware directories that has any for this version.
pub(super) fn firmware(root: &Path, version: &str) -> Vec<HostFile> {
    let first_line = |path: &str| fs::read_to_string(below(root, path)).unwrap_or_default().trim().to_owned();
    let release = first_line("/proc/sys/kernel/osrelease");
    let mut dirs = vec![first_line("/sys/module/firmware_class/parameters/path")];
    if !release.is_empty() {
        dirs.push(format!("/lib/firmware/updates/{release}"));
    }
    dirs.push("/lib/firmware/updates".to_owned());
    if !release.is_empty() {
        dirs.push(format!("/lib/firmware/{release}"));
    }
    dirs.push("/lib/firmware".to_owned());
    for dir in dirs.iter().filter(|dir| dir.starts_with('/')) {
        let dir = below(root, dir).join("nvidia").join(version);
        let mut found: Vec<HostFile> = fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let wanted = name.starts_with("gsp") && name.ends_with(".bin");
                let host = wanted.then(|| regular_file(&entry.path())).flatten()?;
                let container = Path::new("/lib/firmware/nvidia").join(version).join(name);
                Some(HostFile { host, container, capabilities: DriverCapabilities::empty() })
            })
            .collect();
        if !found.is_empty() {
            found.sort_by(|one, other| one.container.cmp(&other.container));
            return found;
        }
    }
    Vec::new()
}

/// The first of each name in [`CONFIG_DIRS`].
pub(super) fn configs(root: &Path) -> Vec<HostFile> {
    lists::CONFIG_FILES
        .iter()
        .filter_map(|(name, to, capabilities)| {
            let host = CONFIG_DIRS.iter().find_map(|dir| regular_file(&below(root, dir).join(name)))?;
            Some(HostFile { host, container: Path::new(to).join(name), capabilities: *capabilities })
        })
        .collect()
}

/// Sockets that exist.
pub(super) fn sockets(root: &Path) -> Vec<HostFile> {
    lists::SOCKETS
        .iter()
        .filter_map(|(name, capabilities)| {
            ["/run", "/var/run"].iter().find_map(|dir| {
                let host = fs::canonicalize(below(root, dir).join(name)).ok()?;
                let is_socket = fs::metadata(&host).ok()?.file_type().is_socket();
                let container = Path::new("/run").join(name);
                is_socket.then_some(HostFile { host, container, capabilities: *capabilities })
            })
        })
        .collect()
}

/// The file itself if `path` is one, or a link to one, and not empty.
fn regular_file(path: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(path).ok()?;
    let metadata = fs::metadata(&real).ok()?;
    (metadata.is_file() && metadata.len() > 0).then_some(real)
}
