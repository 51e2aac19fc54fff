//! The last inventory, kept so that a create need not wait for NVML, which takes from tens of
//! milliseconds to seconds.
//!
//! An inventory stays good as long as everything is as it was that can be seen without NVML and
//! that changes with the cards: the boot, the loaded driver and when it was loaded, its cards in
//! `/proc`, its MIG devices in `/proc`, its device numbers, and the configuration. Health comes
//! from the kernel's log at every read, and while a card is out of use NVML is queried again after
//! [`RECHECK_MS`], so that a card that was reset comes back.

use std::{collections::BTreeMap, fs, io, os::unix::fs::OpenOptionsExt, path::Path};

use base::{file_lock::FileLock, make_directory};
use runtime_config::config::Config;
use serde::{Deserialize, Serialize};

use super::{Health, Inventory, Roots, health, kernel_module, state_file};

const CACHE_FILE: &str = "inventory.json";
const LOCK_FILE: &str = "inventory.lock";
/// Version of the file's format.
const FORMAT: u32 = 2;
/// Time for which an inventory with an unusable card is used.
const RECHECK_MS: u64 = 60_000;

/// Values that must be the same for an inventory to be good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    boot_id: String,
    /// Of the loaded kernel module; empty: none.
    driver_version: String,
    /// Lines of `/proc/devices`. Not nvidia-uvm's: it comes with the first use of CUDA and changes
    /// no card.
    device_numbers: Vec<String>,
    /// Names in `/proc/driver/nvidia/gpus`.
    gpus: Vec<String>,
    /// Directories of GPU and compute instances in `/proc/driver/nvidia/capabilities`: the driver
    /// has one for each that exists (unlike `/proc/driver/nvidia-caps/mig-minors`, which lists all
    /// that could).
    mig: Vec<String>,
    /// `[driver]` of the configuration.
    settings: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    format: u32,
    key: Key,
    /// Milliseconds of CLOCK_BOOTTIME.
    stored_at_ms: u64,
    inventory: Inventory,
    notes: Notes,
}

/// Parts of an inventory beside the cards themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Notes {
    /// By UUID: up to this record, what the kernel's log says of the card is settled.
    pub(super) forgiven: BTreeMap<String, u64>,
    /// Record of the kernel's log in which the driver that was asked was loaded.
    pub(super) driver_loaded: Option<u64>,
}

/// The state of the node now. `None` without a boot id, for then nothing distinguishes one boot
/// from another.
pub(super) fn key(roots: &Roots, config: &Config) -> Option<Key> {
    Some(Key {
        boot_id: kernel_module::boot_id(roots).filter(|id| !id.is_empty())?,
        driver_version: kernel_module::loaded(roots).map(|module| module.version).unwrap_or_default(),
        device_numbers: device_numbers(roots),
        gpus: names(&roots.proc.join("driver/nvidia/gpus")),
        mig: mig_instances(roots),
        settings: format!("{:?}", config.driver),
    })
}

fn device_numbers(roots: &Roots) -> Vec<String> {
    let text = fs::read_to_string(roots.proc.join("devices")).unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| line.contains("nvidia") && !line.contains("nvidia-uvm"));
    lines.map(str::to_owned).collect()
}

/// `gpu0/mig/gi7/ci0` and the like.
fn mig_instances(roots: &Roots) -> Vec<String> {
    let root = roots.proc.join("driver/nvidia/capabilities");
    let mut found = Vec::new();
    for gpu in names(&root).into_iter().filter(|name| name.starts_with("gpu")) {
        let mig = root.join(&gpu).join("mig");
        if !mig.is_dir() {
            continue;
        }
        found.push(format!("{gpu}/mig"));
        for instance in names(&mig).into_iter().filter(|name| name.starts_with("gi")) {
            found.push(format!("{gpu}/mig/{instance}"));
            let parts = names(&mig.join(&instance)).into_iter().filter(|name| name.starts_with("ci"));
            found.extend(parts.map(|part| format!("{gpu}/mig/{instance}/{part}")));
        }
    }
    found
}

/// Names in a directory, sorted; none if there is no such directory.
fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    names
}

/// The stored inventory with the health that the cards have now, if it is still good and was stored
/// at `since_ms` or later.
pub(super) fn load(roots: &Roots, config: &Config, since_ms: u64) -> Option<Inventory> {
    let file: File =
        state_file::read(&config.state_dir.join(CACHE_FILE)).filter(|file: &File| file.stored_at_ms >= since_ms)?;
    if file.format != FORMAT || Some(&file.key) != key(roots, config).as_ref() || !is_in_order(&file.inventory) {
        return None;
    }
    let mut inventory = file.inventory;
    let faults = health::read_faults_if_possible(roots, &config.state_dir, inventory.source);
    if faults.driver_loaded != file.notes.driver_loaded {
        return None;
    }
    faults.apply(&mut inventory, &file.notes.forgiven);
    let age = health::boottime_ms().saturating_sub(file.stored_at_ms);
    let unusable = inventory.cards.iter().any(|card| card.health != Health::Ok);
    (!unusable || age < RECHECK_MS).then_some(inventory)
}

/// Held by whoever asks NVML, so that a node's first containers do not all ask it at once. Ends
/// with the value.
///
/// # Errors
/// When the state directory cannot be written.
pub(super) fn lock(config: &Config) -> io::Result<FileLock> {
    make_directory(&config.state_dir, 0o711, 0o711)?;
    let path = config.state_dir.join(LOCK_FILE);
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    FileLock::wait(file)
}

/// Returns whether the cards are in the order that [`Inventory`] promises.
fn is_in_order(inventory: &Inventory) -> bool {
    (0..).zip(&inventory.cards).all(|(index, card)| card.index == index)
}

/// Keeps an inventory that was taken while the node's state was `key`.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn store(config: &Config, key: Key, inventory: Inventory, notes: Notes) -> io::Result<()> {
    let file = File { format: FORMAT, key, stored_at_ms: health::boottime_ms(), inventory, notes };
    state_file::replace(&config.state_dir.join(CACHE_FILE), &file)
}
