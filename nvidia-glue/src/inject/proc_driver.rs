//! The container's `/proc/driver/nvidia`: the driver's parameters and the granted cards only.
//!
//! The directory is a copy. In the copied parameters `ModifyDeviceFiles` is 0: with 1, the driver's
//! user space makes and chmods the nodes of **all** cards when it runs as root.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use base::Roots;
use runtime_config::request::NvidiaExtras;

use super::{ProcFile, plan::Granted};

/// Files of procfs that are larger than this are not the driver's.
const LARGEST: u64 = 64 << 10;

/// Reads the files to show in a container. `None` without an NVIDIA driver's directory.
pub(super) fn snapshot(roots: &Roots, cards: &[Granted<'_>], extras: &NvidiaExtras) -> Option<Vec<ProcFile>> {
    let source = roots.proc.join("driver/nvidia");
    if !source.is_dir() {
        return None;
    }
    let mut files = Vec::new();
    for name in ["params", "version", "registry"] {
        copy(&source, Path::new(name), &mut files);
    }
    for file in &mut files {
        if file.path == Path::new("params") {
            file.content = without_device_file_changes(&file.content);
        }
    }
    for granted in cards {
        copy_card(&source, granted, &mut files);
        if let Some((gpu_instance, compute_instance)) = granted.mig {
            let instance = format!("capabilities/gpu{}/mig/gi{gpu_instance}", granted.card.minor);
            copy(&source, Path::new(&format!("{instance}/access")), &mut files);
            copy(&source, Path::new(&format!("{instance}/ci{compute_instance}/access")), &mut files);
        }
    }
    for (wanted, name) in [(extras.mig_config, "config"), (extras.mig_monitor, "monitor")] {
        if wanted {
            copy(&source, Path::new(&format!("capabilities/mig/{name}")), &mut files);
        }
    }
    Some(files)
}

/// Copies the files of a card's directory, which is named by its address with a domain of eight
/// digits, in older drivers of four.
fn copy_card(source: &Path, granted: &Granted<'_>, files: &mut Vec<ProcFile>) {
    let pci = granted.card.pci;
    let short = pci.to_string();
    let long = format!("{:08x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.device, pci.function);
    let Some(dir) = [long, short].iter().map(|id| Path::new("gpus").join(id)).find(|dir| source.join(dir).is_dir())
    else {
        return;
    };
    for name in ["information", "registry", "power", "numa_status"] {
        copy(source, &dir.join(name), files);
    }
}

/// Copies one file if it is there.
fn copy(source: &Path, path: &Path, files: &mut Vec<ProcFile>) {
    let mut content = Vec::new();
    let read = fs::File::open(source.join(path)).and_then(|file| file.take(LARGEST).read_to_end(&mut content));
    if read.is_ok() && !files.iter().any(|present| present.path == path) {
        let content = String::from_utf8_lossy(&content).into_owned();
        files.push(ProcFile { path: PathBuf::from(path), content });
    }
}

/// The parameters with `ModifyDeviceFiles: 0`.
fn without_device_file_changes(params: &str) -> String {
    const NAME: &str = "ModifyDeviceFiles:";
    let mut found = false;
    let mut lines: Vec<String> = params
        .lines()
        .map(|line| {
            if line.starts_with(NAME) {
                found = true;
                format!("{NAME} 0")
            } else {
                line.to_owned()
            }
        })
        .collect();
    if !found {
        lines.push(format!("{NAME} 0"));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_files_are_not_to_be_changed() {
        for (given, expected) in [
            ("A: 1\nModifyDeviceFiles: 1\nB: 2\n", "A: 1\nModifyDeviceFiles: 0\nB: 2\n"),
            ("ModifyDeviceFiles: 0\n", "ModifyDeviceFiles: 0\n"),
            ("A: 1\n", "A: 1\nModifyDeviceFiles: 0\n"),
        ] {
            assert_eq!(without_device_file_changes(given), expected);
        }
    }
}
