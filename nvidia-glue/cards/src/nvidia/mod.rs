//! The cards that NVIDIA's driver has, as NVML reports them.
//!
//! Nothing that NVML says about one card keeps the others from being listed: what it does not
//! support is left at a neutral value, and a card that cannot be used is listed with the reason.

mod card;
#[cfg(test)]
mod fake_tests;
mod library;
mod links;
mod processes;
mod sensors;

use std::path::Path;

use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};

pub use library::DriverError;
pub use processes::{CardMemory, ProcessMemory};
pub use sensors::{SensorReading, Sensors};

use super::{
    Card, Health, Inventory, Roots, Source,
    kernel_module::{self, GpuInformation},
};

/// Answers of NVML about the node.
#[derive(Debug)]
pub(super) struct Survey {
    /// Driver, CUDA and cards.
    pub(super) inventory: Inventory,
    /// UUIDs of the cards of which the driver says that they need no recovery: what the kernel's
    /// log said of them before is over.
    pub(super) sound: Vec<String>,
}

/// Asks NVML for everything. `None`: no driver.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub(super) fn survey(roots: &Roots, driver_root: &Path) -> Result<Option<Survey>, DriverError> {
    let Some(nvml) = library::start(roots, driver_root)? else { return Ok(None) };
    let count = nvml.device_count().map_err(DriverError::Count)?;
    let information = kernel_module::gpus(roots);
    let mut readings = Vec::new();
    let mut silent = Vec::new();
    for index in 0..count {
        match nvml.device_by_index(index) {
            Ok(device) => readings.push(card::read(roots, &device, index, &information)),
            Err(error) => silent.push((index, error.to_string())),
        }
    }
    let sound = readings.iter().filter(|reading| reading.sound).map(|reading| reading.card.uuid.clone()).collect();
    let answered: Vec<Card> = readings.into_iter().map(|reading| reading.card).collect();
    let mut cards = with_silent(answered, silent, &information);
    links::connect(&nvml, &mut cards);
    let inventory = Inventory {
        source: Source::Nvidia,
        driver_version: driver_version(&nvml, roots),
        cuda_version: cuda_version(&nvml),
        cards,
    };
    Ok(Some(Survey { inventory, sound }))
}

/// Memory that processes of this machine have on its cards. `None`: no driver.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub(super) fn processes(roots: &Roots, driver_root: &Path) -> Result<Option<Vec<ProcessMemory>>, DriverError> {
    let Some(nvml) = library::start(roots, driver_root)? else { return Ok(None) };
    let count = nvml.device_count().map_err(DriverError::Count)?;
    let devices = (0..count).filter_map(|index| nvml.device_by_index(index).ok());
    Ok(Some(devices.flat_map(|device| processes::of(&device)).collect()))
}

/// Returns whether the cards stay initialised while nobody uses them, by UUID; only those that
/// report it. `None`: no driver.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub(crate) fn persistence(roots: &Roots, driver_root: &Path) -> Result<Option<Vec<(String, bool)>>, DriverError> {
    let Some(nvml) = library::start(roots, driver_root)? else { return Ok(None) };
    let count = nvml.device_count().map_err(DriverError::Count)?;
    let devices = (0..count).filter_map(|index| nvml.device_by_index(index).ok());
    let modes = devices.filter_map(|device| Some((device.uuid().ok()?, device.is_in_persistent_mode().ok()?)));
    Ok(Some(modes.collect()))
}

fn driver_version(nvml: &Nvml, roots: &Roots) -> String {
    let module = || kernel_module::loaded(roots).map(|module| module.version);
    nvml.sys_driver_version().ok().or_else(module).unwrap_or_default()
}

/// Version of CUDA that the driver supports. Empty where libcuda is missing: then no requirement on
/// CUDA holds.
fn cuda_version(nvml: &Nvml) -> String {
    nvml.sys_cuda_driver_version().map_or_else(
        |_| String::new(),
        |version| format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version)),
    )
}

/// Adds the cards that NVML counts or the kernel module lists, but that do not answer. NVML's order
/// is that of the PCI addresses, and so is `information`'s: the n-th silent index is the n-th
/// address that nobody has claimed.
fn with_silent(mut cards: Vec<Card>, silent: Vec<(u32, String)>, information: &[GpuInformation]) -> Vec<Card> {
    let claimed: Vec<_> = cards.iter().map(|card| card.pci).collect();
    let mut unclaimed = information.iter().filter(|gpu| !gpu.excluded && !claimed.contains(&gpu.pci));
    for (index, answer) in silent {
        cards.push(unusable(index, unclaimed.next(), format!("NVML cannot open it: {answer}")));
    }
    cards.sort_by_key(|card| card.index);
    for gpu in unclaimed {
        let index = u32::try_from(cards.len()).unwrap_or(u32::MAX);
        cards.push(unusable(index, Some(gpu), "the driver has it, but NVML does not list it".to_owned()));
    }
    cards
}

fn unusable(index: u32, information: Option<&GpuInformation>, reason: String) -> Card {
    let mut card = card::unknown(index);
    if let Some(gpu) = information {
        card.pci = gpu.pci;
        card.minor = gpu.minor.unwrap_or(card.minor);
        card.model = gpu.model.clone().unwrap_or(card.model);
        card.uuid = gpu.uuid.clone().unwrap_or_else(|| format!("GPU-unknown-at-{}", gpu.pci));
    }
    card.health = Health::Unusable { reason };
    card
}

#[cfg(test)]
mod tests {
    use base::PciBusId;

    use super::*;
    use crate::simulated::tests::inventory_of;

    fn gpu(bus: u8, minor: u32, excluded: bool) -> GpuInformation {
        let pci = PciBusId { domain: 0, bus, device: 0, function: 0 };
        let uuid = (minor != 9).then(|| format!("GPU-{minor:08}"));
        GpuInformation { pci, model: Some("NVIDIA H200".into()), uuid, minor: Some(minor), excluded, firmware: None }
    }

    #[test]
    fn silent_cards_are_listed_with_what_the_kernel_module_knows() {
        // Cards 0 and 2 answer; 1 is counted but silent; a fourth is not even counted; a fifth is
        // excluded.
        let mut answered = inventory_of(3).cards;
        answered.remove(1);
        let information = [gpu(1, 0, false), gpu(2, 5, false), gpu(3, 2, false), gpu(4, 9, false), gpu(5, 4, true)];
        let cards = with_silent(answered, vec![(1, "device fell off the bus".into())], &information);
        let summary: Vec<_> = cards.iter().map(|card| (card.index, card.minor, card.health == Health::Ok)).collect();
        assert_eq!(summary, [(0, 0, true), (1, 5, false), (2, 2, true), (3, 9, false)]);
        assert_eq!(cards[1].uuid, "GPU-00000005");
        assert_eq!(cards[3].uuid, "GPU-unknown-at-0000:04:00.0");
        assert_eq!(cards[1].health, Health::Unusable { reason: "NVML cannot open it: device fell off the bus".into() });
    }

    #[test]
    fn a_silent_card_that_nobody_knows_is_still_listed() {
        let cards = with_silent(Vec::new(), vec![(0, "unknown error".into())], &[]);
        assert_eq!((cards.len(), cards[0].uuid.as_str(), cards[0].minor), (1, "GPU-unknown-0", u32::MAX));
    }
}
