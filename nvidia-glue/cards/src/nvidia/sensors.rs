//! Sensors of the cards, asked again and again.

use std::path::Path;

use base::{Bytes, Roots};
use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor},
};

use super::{CardMemory, DriverError, ProcessMemory, library, processes};

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

    /// Memory of the cards that answer, in all and by process.
    pub fn memory(&self) -> Vec<CardMemory> {
        let of = |device: Device<'_>| {
            let (card, used) = (device.uuid().ok()?, Bytes(device.memory_info().ok()?.used));
            Some(CardMemory { card, used, processes: processes::of(&device) })
        };
        self.devices().filter_map(of).collect()
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
