//! The kernel module, and whether the libraries beside it are of its version.

use std::{collections::BTreeSet, fs};

use abi::{Abi, DriverRelease, UnknownDriver};
use base::Roots;
use cards::{driver_files, kernel_module};
use runtime_config::config::{self, Config};

use super::Check;

const MODULE: &str = "driver module";
const PAGEABLE: &str = "pageable memory";
const COHERENT: &str = "coherent memory";
const LIBRARIES: &str = "driver libraries";

/// Returns whether the module is loaded, and which.
pub(super) fn module(roots: &Roots) -> Option<Check> {
    Some(match kernel_module::loaded(roots) {
        Some(module) => {
            let kind = match module.open {
                Some(true) => " (open kernel module)",
                Some(false) => " (proprietary kernel module)",
                None => "",
            };
            Check::ok(MODULE, format!("{} is loaded{kind}", module.version))
        }
        None => Check::failure(
            MODULE,
            "no NVIDIA kernel module is loaded",
            "install the NVIDIA driver and `modprobe nvidia`; without a GPU, set `[driver] kind = \"simulated\"` and \
             describe `[[driver.simulated]]` cards",
        ),
    })
}

/// Returns whether programs' ordinary memory may move to a card (HMM, of the open module): it is
/// evicted for any allocation, but it is in nobody's account. `None`: it may not.
pub(super) fn pageable_memory(roots: &Roots) -> Option<Check> {
    let is_off = fs::read_to_string(roots.sys.join("module/nvidia_uvm/parameters/uvm_disable_hmm")).ok()?;
    (is_off.trim() == "N" && kernel_module::loaded(roots)?.open == Some(true)).then(|| {
        Check::warning(
            PAGEABLE,
            "ordinary memory of programs may move to a card (HMM), beside what their container was granted; it makes way for \
             any allocation",
            "put `options nvidia-uvm uvm_disable_hmm=1` into a file of /etc/modprobe.d and load the module again",
        )
    })
}

/// Returns whether cards' memory is memory of the host as well, a NUMA node of it, as the driver
/// arranges on Grace machines. `None`: it is not, or no card is there. The file is there for such
/// cards only (kernel-open/nvidia/nv-procfs.c, nv-pci.c).
pub(super) fn coherent_memory(roots: &Roots) -> Option<Check> {
    let entries = fs::read_dir(roots.proc.join("driver/nvidia/gpus")).ok()?.filter_map(Result::ok);
    let cards: BTreeSet<String> = entries
        .filter(|card| card.path().join("numa_status").exists())
        .filter_map(|card| card.file_name().into_string().ok())
        .collect();
    (!cards.is_empty()).then(|| {
        let cards = cards.into_iter().collect::<Vec<_>>().join(", ");
        Check::warning(
            COHERENT,
            format!("the memory of {cards} is a NUMA node of the host: programs get it by ordinary allocations too, beside their quota"),
            "put `options nvidia NVreg_CoherentGPUMemoryMode=driver` (before driver 580: `NVreg_EnableUserNUMAManagement=0`) into a \
             file of /etc/modprobe.d and load the module again",
        )
    })
}

/// Returns whether the user space has the module's version: every other one is refused by the
/// module.
pub(super) fn user_space(roots: &Roots, config: &Config) -> Option<Check> {
    let version = kernel_module::loaded(roots)?.version;
    let installed = installed_versions(config);
    if installed.contains(&version) {
        return Some(Check::ok(LIBRARIES, format!("{version}, as the kernel module")));
    }
    let root = config.driver.root.display();
    if installed.is_empty() {
        return Some(Check::failure(
            LIBRARIES,
            format!("no libcuda.so.{version} below {root}"),
            "install the driver's user space of this version, or set `[driver] root` to where it is",
        ));
    }
    let others = installed.into_iter().collect::<Vec<_>>().join(", ");
    Some(Check::failure(
        LIBRARIES,
        format!("the kernel module is {version}, the libraries below {root} are {others}"),
        "the driver was updated while its module was loaded: end all GPU programs and reload the module \
         (`modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia`), or restart the machine",
    ))
}

/// Returns whether the calls of this driver are known, which containers that share a card need.
pub(super) fn calls(config: &Config, driver_version: &str) -> Option<Check> {
    const CALLS: &str = "driver calls";
    const REMEDY: &str = "use a driver in that range, or a newer egpu";
    let release: DriverRelease = driver_version.parse().ok()?;
    let unknown = match Abi::of(release) {
        Ok(_) => {
            let (oldest, newest) = (Abi::KNOWN.start(), Abi::KNOWN.end());
            return Some(Check::ok(CALLS, format!("{release} is known, as all from {oldest} to {newest} are")));
        }
        Err(UnknownDriver { release, oldest, newest }) => format!("{release} is not from {oldest} to {newest}"),
    };
    Some(match config.unknown_driver {
        config::UnknownDriver::Refuse => Check::failure(
            CALLS,
            format!("{unknown}: containers that share a card are refused"),
            format!("{REMEDY}, or set `unknown_driver = \"pass\"` to have it taken for the nearest known one"),
        ),
        config::UnknownDriver::Pass => {
            Check::warning(CALLS, format!("{unknown}, and is taken for the nearest known one"), REMEDY)
        }
    })
}

/// Versions at the end of the names of libcuda and libnvidia-ml in the driver's library
/// directories.
fn installed_versions(config: &Config) -> BTreeSet<String> {
    let dirs = driver_files::library_dirs(&config.driver.root);
    let names = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let version = name.strip_prefix("libcuda.so.").or_else(|| name.strip_prefix("libnvidia-ml.so."))?;
        kernel_module::is_version(version).then(|| version.to_owned())
    });
    names.collect()
}
