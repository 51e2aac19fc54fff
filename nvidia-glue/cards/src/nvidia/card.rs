//! One card, field by field.

use std::fs;

use base::{Bytes, PciBusId, Roots};
use nvml_wrapper::{
    Device, enum_wrappers::device::Brand, enums::device::SampleValue, error::NvmlError, structs::device::FieldId,
    sys_exports::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
};

use crate::{Card, Health, MigDevice, kernel_module::GpuInformation, sys};

/// Answers of one card.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) card: Card,
    /// The driver says that it needs no recovery. False also where the driver has no opinion
    /// (before 555).
    pub(super) sound: bool,
}

/// Collects the first reason why a card cannot be used, so that one bad answer does not hide the
/// rest.
#[derive(Debug, Default)]
struct Probe {
    unusable: Option<String>,
}

impl Probe {
    /// A field without which the card cannot be granted.
    fn required<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        answer.map_err(|error| self.fail(format!("NVML does not tell its {what}: {error}"))).ok()
    }

    /// A field that a card may lack. An answer that means that the card is broken still counts.
    fn optional<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::IrqIssue | NvmlError::Timeout)) => {
                self.fail(format!("NVML, asked for its {what}: {error}"));
                None
            }
            Err(_) => None,
        }
    }

    fn fail(&mut self, reason: String) {
        self.unusable.get_or_insert(reason);
    }

    fn health(self) -> Health {
        self.unusable.map_or(Health::Ok, |reason| Health::Unusable { reason })
    }
}

/// A card of which nothing is known but its index.
pub(super) fn unknown(index: u32) -> Card {
    Card {
        index,
        uuid: format!("GPU-unknown-{index}"),
        model: "NVIDIA GPU".to_owned(),
        brand: "Unknown".to_owned(),
        compute_capability: (0, 0),
        memory: Bytes(0),
        // No node has this number.
        minor: u32::MAX,
        pci: PciBusId { domain: 0, bus: 0, device: 0, function: 0 },
        numa_node: None,
        links: Vec::new(),
        mig_enabled: false,
        mig_devices: Vec::new(),
        hard_caps: false,
        simulated: None,
        health: Health::Ok,
    }
}

/// Asks for everything but links.
pub(super) fn read(roots: &Roots, device: &Device<'_>, index: u32, information: &[GpuInformation]) -> Reading {
    let mut probe = Probe::default();
    let mut card = unknown(index);
    if let Some(address) = probe.required("PCI address", device.pci_info()).and_then(|info| address(&info)) {
        card.pci = address;
    }
    let known = information.iter().find(|gpu| gpu.pci == card.pci);
    // What the kernel module reports stands in for what NVML does not.
    let uuid = device.uuid().or_else(|error| known.and_then(|gpu| gpu.uuid.clone()).ok_or(error));
    let minor = device.minor_number().or_else(|error| known.and_then(|gpu| gpu.minor).ok_or(error));
    let name = device.name().ok().or_else(|| known.and_then(|gpu| gpu.model.clone()));
    card.uuid = probe.required("UUID", uuid).unwrap_or(card.uuid);
    card.minor = probe.required("device node", minor).unwrap_or(card.minor);
    card.model = name.unwrap_or(card.model);
    card.brand = probe.optional("brand", device.brand()).map_or(card.brand, |brand| brand_name(&brand).to_owned());
    let capability = probe.optional("compute capability", device.cuda_compute_capability());
    card.compute_capability = capability.map_or((0, 0), |capability| {
        (u32::try_from(capability.major).unwrap_or(0), u32::try_from(capability.minor).unwrap_or(0))
    });
    card.numa_node = numa_node(roots, card.pci);
    // Without GSP firmware the driver refuses to take channels off; drivers that do not know the
    // question have none.
    card.hard_caps = probe.optional("GSP firmware", device.gsp_firmware_mode()).is_some_and(|mode| mode.enabled);
    card.mig_enabled = probe.optional("MIG mode", device.mig_mode()).is_some_and(|mode| mode.current == 1);
    if card.mig_enabled {
        card.mig_devices = mig_devices(device, &mut probe);
        // The parent of MIG devices is not granted, so it may be silent about its memory.
        card.memory = memory(device).unwrap_or_default();
    } else {
        card.memory = probe.required("memory", memory(device)).unwrap_or_default();
    }
    let action = recovery_action(device, &mut probe);
    if let Some(wanted) = action.and_then(recovery_name) {
        probe.fail(format!("the driver asks for recovery: {wanted}"));
    }
    card.health = probe.health();
    Reading { sound: action == Some(0) && card.health == Health::Ok, card }
}

/// Total memory, with the part that the driver reserves. Drivers before 510 have only the older
/// call.
fn memory(device: &Device<'_>) -> Result<Bytes, NvmlError> {
    match device.memory_info() {
        Ok(memory) => Ok(Bytes(memory.total)),
        Err(NvmlError::FailedToLoadSymbol(_)) => sys::memory_total(device).map(Bytes),
        Err(error) => Err(error),
    }
}

/// NVML gives no function; cards that compute are function 0.
pub(super) fn address(info: &nvml_wrapper::struct_wrappers::device::PciInfo) -> Option<PciBusId> {
    let (bus, device) = (u8::try_from(info.bus).ok()?, u8::try_from(info.device).ok()?);
    Some(PciBusId { domain: info.domain, bus, device, function: 0 })
}

/// -1 in sysfs: the platform has no NUMA nodes, or does not report them.
fn numa_node(roots: &Roots, card: PciBusId) -> Option<u32> {
    let path = roots.sys.join(format!("bus/pci/devices/{card}/numa_node"));
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Name of a brand as NVIDIA's container tools spell it for `NVIDIA_REQUIRE_*`, where case does not
/// count.
fn brand_name(brand: &Brand) -> &'static str {
    match brand {
        Brand::Quadro => "Quadro",
        Brand::Tesla => "Tesla",
        Brand::NVS => "NVS",
        Brand::GRID => "Grid",
        Brand::GeForce => "GeForce",
        Brand::Titan => "Titan",
        Brand::VApps => "NvidiaVApps",
        Brand::VPC => "NvidiaVPC",
        Brand::VCS => "NvidiaVCS",
        Brand::VWS => "NvidiaVWS",
        Brand::CloudGaming | Brand::VGaming => "NvidiaCloudGaming",
        Brand::QuadroRTX => "QuadroRTX",
        Brand::NvidiaRTX => "NvidiaRTX",
        Brand::Nvidia => "Nvidia",
        Brand::GeForceRTX => "GeForceRTX",
        Brand::TitanRTX => "TitanRTX",
        Brand::Unknown => "Unknown",
    }
}

/// The devices in their slots; slots may be empty anywhere.
fn mig_devices(device: &Device<'_>, probe: &mut Probe) -> Vec<MigDevice> {
    let slots = probe.optional("MIG devices", device.mig_device_count()).unwrap_or(0);
    (0..slots).filter_map(|index| mig_device(&device.mig_device_by_index(index).ok()?, index)).collect()
}

/// Reads a MIG device; `None`: it does not report everything that a grant of it needs.
fn mig_device(device: &Device<'_>, index: u32) -> Option<MigDevice> {
    let (gpu_instance, compute_instance) = sys::mig_instance_ids(device).ok()?;
    let memory = memory(device).ok()?;
    Some(MigDevice { index, uuid: device.uuid().ok()?, gpu_instance, compute_instance, memory })
}

/// Recovery action that the driver recommends for the card: 0 is none. `None`: the driver does not
/// report it.
fn recovery_action(device: &Device<'_>, probe: &mut Probe) -> Option<u64> {
    let fields = device.field_values_for(&[FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)]);
    let sample = probe.optional("recovery action", fields)?.into_iter().next()?.ok()?;
    match sample.value.ok()? {
        SampleValue::U32(action) => Some(u64::from(action)),
        SampleValue::U64(action) => Some(action),
        SampleValue::I64(action) => u64::try_from(action).ok(),
        SampleValue::F64(_) => None,
    }
}

/// NVML's `nvmlDeviceGpuRecoveryAction_t`. A number that we do not know is something to be done all
/// the same.
fn recovery_name(action: u64) -> Option<String> {
    match action {
        0 => None,
        1 => Some("reset the card".to_owned()),
        2 => Some("restart the machine".to_owned()),
        3 => Some("end all programs that use NVLink".to_owned()),
        4 => Some("let its programs end, then reset the card".to_owned()),
        other => Some(format!("action {other}")),
    }
}

#[cfg(test)]
mod tests {
    use testing::FakeNode;

    use super::*;

    #[test]
    fn numa_nodes_come_from_sysfs() {
        let node = FakeNode::new();
        let card = |bus| PciBusId { domain: 0, bus, device: 0, function: 0 };
        node.sys("bus/pci/devices/0000:65:00.0/numa_node", "1\n");
        node.sys("bus/pci/devices/0000:66:00.0/numa_node", "-1\n");
        assert_eq!(numa_node(&node.roots, card(0x65)), Some(1));
        assert_eq!(numa_node(&node.roots, card(0x66)), None);
        assert_eq!(numa_node(&node.roots, card(0x67)), None);
    }

    #[test]
    fn a_missing_field_is_no_fault_unless_the_card_is_broken_or_cannot_do_without() {
        let mut probe = Probe::default();
        assert_eq!(probe.optional::<u32>("brand", Err(NvmlError::NotSupported)), None);
        assert_eq!(probe.optional::<u32>("brand", Err(NvmlError::UnexpectedVariant(99))), None);
        assert_eq!(probe.unusable, None);
        assert_eq!(probe.required::<u32>("memory", Err(NvmlError::NotSupported)), None);
        probe.optional::<u32>("brand", Err(NvmlError::GpuLost));
        let Health::Unusable { reason } = probe.health() else { panic!("usable") };
        assert!(reason.starts_with("NVML does not tell its memory"), "the first reason counts: {reason}");
        let mut probe = Probe::default();
        probe.optional::<u32>("brand", Err(NvmlError::GpuLost));
        assert_ne!(probe.health(), Health::Ok);
    }

    #[test]
    fn every_recovery_action_but_none_keeps_a_card_back() {
        assert_eq!(recovery_name(0), None);
        assert!((1..7).all(|action| recovery_name(action).is_some()));
    }
}
