//! Puts a planned injection into a container whose root file system is mounted.

use std::path::{Path, PathBuf};

use cards::driver_files::Abi;
use serde_json::Value;

use super::{
    FileKind, InjectError, Injection, LibraryMount, host_dir,
    layout::Layout,
    loader::{self, Name},
    mounts::Mounts,
    rootfs::{MountPoint, Rootfs},
    spec_edit,
};

/// Libraries without which a GPU container is none. If these have no place in the image, all go
/// elsewhere.
const VITAL: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

pub(super) fn complete(injection: &Injection, path: &Path, spec: &mut Value) -> Result<Vec<String>, InjectError> {
    let rootfs = Rootfs::open(path).map_err(|source| InjectError::Rootfs { path: path.to_owned(), source })?;
    let mut warnings = Vec::new();
    spec_edit::edit(injection, spec)?;
    remove_leftover_nodes(injection, &rootfs, spec, &mut warnings);
    let mut mounts = Mounts::new(injection, &rootfs, spec);
    place_libraries(injection, &rootfs, &mut mounts, spec, &mut warnings)?;
    for file in &injection.files {
        match mounts.prepare(&file.container, mount_point(&file.host)) {
            Ok(()) => mounts.add(&file.host, &file.container, file.kind),
            Err(reason) => warnings.push(format!("{} is left out: {reason}", file.container.display())),
        }
    }
    if let Some(files) = &injection.proc_driver
        && mounts.has_proc()
    {
        let copy = host_dir::write_proc(&injection.host_dir, files)?;
        mounts.add(&copy, Path::new("/proc/driver/nvidia"), FileKind::ReadOnly);
    }
    mounts.finish(spec, &mut warnings)?;
    Ok(warnings)
}

fn mount_point(host: &Path) -> MountPoint {
    if host.is_dir() { MountPoint::Directory } else { MountPoint::File }
}

/// Removes what an image has in place of device nodes, where nothing is mounted at /dev: it would
/// keep the runtime from making them.
fn remove_leftover_nodes(injection: &Injection, rootfs: &Rootfs, spec: &Value, warnings: &mut Vec<String>) {
    let has_dev = crate::spec::items(spec.get("mounts")).iter().any(|mount| {
        crate::spec::clean(mount.get("destination").and_then(Value::as_str).unwrap_or_default()) == "/dev"
    });
    if has_dev {
        return;
    }
    for node in &injection.devices {
        if let Err(error) = rootfs.remove_file(Path::new(&node.path)) {
            warnings.push(format!("what the image has at {} stays: {error}", node.path));
        }
    }
}

/// Places each machine's libraries in the image's directory for them, or, where that cannot be, all
/// in one of our own.
fn place_libraries(
    injection: &Injection,
    rootfs: &Rootfs,
    mounts: &mut Mounts<'_>,
    spec: &mut Value,
    warnings: &mut Vec<String>,
) -> Result<(), InjectError> {
    let layout = Layout::of(rootfs);
    let mut names = Vec::new();
    for abi in [Abi::X86_64, Abi::Aarch64, Abi::I386] {
        let libraries: Vec<&LibraryMount> = injection.libraries.iter().filter(|library| library.abi == abi).collect();
        if libraries.is_empty() {
            continue;
        }
        let Some(dir) = layout.libraries(abi) else {
            warnings.push("32-bit libraries are left out: the image has no directory for them".to_owned());
            continue;
        };
        match place_in_image(&libraries, &dir, rootfs, mounts, warnings) {
            Ok(found) => names.extend(found),
            Err(reason) => {
                let elsewhere = place_elsewhere(injection, &libraries, abi, mounts, &reason)?;
                prepend_library_path(spec, &elsewhere)?;
                warnings.push(format!("the driver's libraries are in {}: {reason}", elsewhere.display()));
            }
        }
    }
    loader::update_loaders(rootfs, mounts, &names, warnings);
    Ok(())
}

/// Mounts and links in the image's directory. Returns the names for the loader's cache; the error
/// says why a vital library has no place there.
fn place_in_image(
    libraries: &[&LibraryMount],
    dir: &Path,
    rootfs: &Rootfs,
    mounts: &mut Mounts<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Name>, String> {
    if let Some(volume) = mounts.hides(dir) {
        return Err(format!("{} is mounted over {}", volume.display(), dir.display()));
    }
    let mut names = Vec::new();
    let mut placed = Vec::new();
    for library in libraries {
        match place_library(library, dir, rootfs, mounts) {
            Ok(()) => {
                placed.push((&library.host, dir.join(&library.path)));
                names.extend(names_of(library, dir));
            }
            Err(reason) if is_vital(library) => return Err(reason),
            Err(reason) => warnings.push(format!("{} is left out: {reason}", library.path.display())),
        }
    }
    for (host, container) in placed {
        mounts.add(host, &container, FileKind::ReadOnly);
    }
    Ok(names)
}

fn place_library(library: &LibraryMount, dir: &Path, rootfs: &Rootfs, mounts: &Mounts<'_>) -> Result<(), String> {
    let path = dir.join(&library.path);
    mounts.prepare(&path, MountPoint::File)?;
    for (name, target) in &library.links {
        let link = path.with_file_name(name);
        rootfs
            .link(&link, Path::new(target))
            .map_err(|error| format!("cannot make the link {} in the image: {error}", link.display()))?;
    }
    Ok(())
}

fn is_vital(library: &LibraryMount) -> bool {
    library.path.to_str().is_some_and(|path| VITAL.iter().any(|vital| path.starts_with(vital)))
}

/// Names of a library for the loader's cache: its links, as ldconfig lists them. Libraries in
/// subdirectories are opened by path.
fn names_of(library: &LibraryMount, dir: &Path) -> Vec<Name> {
    if library.path.parent() != Some(Path::new("")) {
        return Vec::new();
    }
    let name = |(name, _): &(String, String)| Name { name: name.clone(), dir: dir.to_owned(), abi: library.abi };
    library.links.iter().map(name).collect()
}

/// A directory of our own on the host, with the links and a place for each library, mounted where
/// the runtime has a file system in memory.
fn place_elsewhere(
    injection: &Injection,
    libraries: &[&LibraryMount],
    abi: Abi,
    mounts: &mut Mounts<'_>,
    reason: &str,
) -> Result<PathBuf, InjectError> {
    let name = if abi == Abi::I386 { "lib32" } else { "lib64" };
    let scratch = mounts.scratch().ok_or_else(|| InjectError::LibrariesUnreachable { reason: reason.to_owned() })?;
    let container = scratch.join("egpu").join(name);
    let host = injection.host_dir.join(name);
    host_dir::make_dir(&host)?;
    mounts.add(&host, &container, FileKind::ReadOnly);
    let rootfs = Rootfs::open(&host).map_err(|source| InjectError::HostDir { path: host.clone(), source })?;
    for library in libraries {
        let inside = Path::new("/").join(&library.path);
        let write = || {
            rootfs.mount_point(&inside, MountPoint::File)?;
            for (name, target) in &library.links {
                rootfs.link(&inside.with_file_name(name), Path::new(target))?;
            }
            Ok(())
        };
        write().map_err(|source| InjectError::HostDir { path: host.join(&library.path), source })?;
        mounts.add(&library.host, &container.join(&library.path), FileKind::ReadOnly);
    }
    Ok(container)
}

/// Adds `dir` to `LD_LIBRARY_PATH`, as the loader does not search it by itself.
fn prepend_library_path(spec: &mut Value, dir: &Path) -> Result<(), InjectError> {
    let dir = dir.display().to_string();
    spec_edit::set_env(spec, "LD_LIBRARY_PATH", |present| match present {
        Some(path) if path.split(':').any(|listed| listed == dir) => path.to_owned(),
        Some(path) if !path.is_empty() => format!("{dir}:{path}"),
        _ => dir,
    })
}
