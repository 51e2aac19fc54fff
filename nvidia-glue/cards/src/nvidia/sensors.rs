//! Sensors of the cards, asked again and again.

use std::path::Path;

use base::{Bytes, Roots};
use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor},
    error::NvmlError,
};

use super::{CardMemory, DriverError, GpuInformation, ProcessMemory, library, processes};

/// NVML, kept open: starting it anew for each question would cost tens of milliseconds.
#[derive(Debug)]
pub struct Sensors {
    nvml: Nvml,
}

/// Sensors of one card; `None`: the card has no such sensor, or does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SensorReading {
    /// `GPU-...`.
    pub card: String,
    /// Degrees Celsius.
    pub temperature_celsius: Option<u32>,
    /// Milliwatts.
    pub power_mw: Option<u32>,
    /// The most that it may take, in milliwatts.
    pub power_limit_mw: Option<u32>,
    /// Memory errors since the driver was loaded that ECC could not correct.
    pub uncorrected_ecc_errors: Option<u64>,
}

impl Sensors {
    /// Starts NVML. `None`: no driver.
    ///
    /// # Errors
    /// When there is a driver but it cannot be asked.
    pub(crate) fn open(roots: &Roots, driver_root: &Path) -> Result<Option<Self>, DriverError> {
        Ok(library::start(roots, driver_root)?.map(|nvml| Self { nvml }))
    }

    /// Reads the sensors of all cards that answer. May hang on a broken card.
    pub fn read(&self) -> Vec<SensorReading> {
        self.devices().filter_map(|device| reading(&device)).collect()
    }

    /// Memory of the cards by process, as [`processes`](crate::processes()) has it.
    pub fn processes(&self) -> Vec<ProcessMemory> {
        self.devices().flat_map(|device| processes::of(&device)).collect()
    }

    /// Memory of the cards that answer, in all and by process; of those `asked` for also where
    /// nothing of theirs is in use because they are gone. `listed` by the kernel module.
    pub(crate) fn memory(&self, asked: &[&str], listed: &[GpuInformation]) -> Vec<CardMemory> {
        let of = |device: Device<'_>| {
            let (card, used) = (device.uuid().ok()?, Bytes(device.memory_info().ok()?.used));
            Some(CardMemory { card, used, processes: processes::of(&device) })
        };
        let mut found: Vec<CardMemory> = self.devices().filter_map(of).collect();
        for card in asked {
            if found.iter().all(|memory| memory.card != *card) && self.is_gone(card, listed) {
                found.push(CardMemory { card: (*card).to_owned(), used: Bytes(0), processes: Vec::new() });
            }
        }
        found
    }

    /// Returns whether the driver says that a card is lost, or has it no more. False where it
    /// cannot tell.
    ///
    /// It forgets that a card is lost when the card is reset or found anew, and lets nobody take a
    /// card away that somebody has open (kernel-open/nvidia/nv-pci.c, `nv_pci_remove`).
    fn is_gone(&self, card: &str, listed: &[GpuInformation]) -> bool {
        match listed.iter().find(|gpu| gpu.uuid.as_deref() == Some(card)) {
            // By its address: by UUID, another card's loss would be the answer, too.
            Some(gpu) => {
                let device = self.nvml.device_by_pci_bus_id(gpu.pci.to_string());
                matches!(device.and_then(|device| device.memory_info()), Err(NvmlError::GpuLost))
            }
            // Only if all others have told who they are.
            None => !listed.is_empty() && listed.iter().all(|gpu| gpu.excluded || gpu.uuid.is_some()),
        }
    }

    fn devices(&self) -> impl Iterator<Item = Device<'_>> {
        (0..self.nvml.device_count().unwrap_or(0)).filter_map(|index| self.nvml.device_by_index(index).ok())
    }
}

fn reading(device: &Device<'_>) -> Option<SensorReading> {
    Some(SensorReading {
        card: device.uuid().ok()?,
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        power_mw: device.power_usage().ok(),
        power_limit_mw: device.enforced_power_limit().ok(),
        uncorrected_ecc_errors: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
    })
}
