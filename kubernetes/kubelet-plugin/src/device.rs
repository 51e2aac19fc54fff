//! A card as a device of a ResourceSlice.

use std::{collections::BTreeMap, fs, path::Path};

use base::{Bytes, Percent};
use cards::{Card, Inventory, Source};
use k8s_openapi::{
    api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity},
    apimachinery::pkg::api::resource::Quantity as Written,
};
use kubernetes_api::{
    Quantity,
    names::{attribute, capacity, device_name},
};
use ledger::{Limits, claims::CardOffer};
use runtime_config::config::HardCapsUnavailable;

use crate::taints::{self, Drained};

/// Least memory of a grant: limits are whole KiB. A claim of less takes that much.
const LEAST_MEMORY: u64 = Bytes::KIB;
/// Longest string of an attribute.
const LONGEST_STRING: usize = 64;
/// Architectures by the compute capability with which each begins, the newest first.
const ARCHITECTURES: [((u32, u32), &str); 9] = [
    ((10, 0), "Blackwell"),
    ((9, 0), "Hopper"),
    ((8, 9), "Ada Lovelace"),
    ((8, 0), "Ampere"),
    ((7, 5), "Turing"),
    ((7, 0), "Volta"),
    ((6, 0), "Pascal"),
    ((5, 0), "Maxwell"),
    ((3, 0), "Kepler"),
];

/// Reason for which a card is not offered to claims.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotOffered {
    /// Its MIG devices are no devices of this driver.
    #[error("it is in MIG mode")]
    Mig,
    /// Containers outside claims have all of it.
    #[error("containers outside claims have {0}")]
    Taken(&'static str),
}

/// Everything about a node that its devices say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceFacts<'a> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) limits: &'a Limits,
    pub(crate) drained: &'a Drained,
    /// Directory of PCI devices, `/sys/bus/pci/devices`.
    pub(crate) pci_devices: &'a Path,
}

impl DeviceFacts<'_> {
    /// The device of a card, of which `offer` may be given to claims.
    ///
    /// # Errors
    /// [`NotOffered`], where claims can get nothing of it.
    pub(crate) fn device(&self, card: &Card, offer: &CardOffer, is_degraded: bool) -> Result<Device, NotOffered> {
        if card.mig_enabled {
            return Err(NotOffered::Mig);
        }
        let taken = [
            (offer.is_whole_outside, "the whole card"),
            (offer.memory.0 < LEAST_MEMORY, "all of its memory"),
            (offer.compute == Some(0), "all of its time"),
            (offer.containers == 0, "all of its places"),
        ];
        if let Some((_, what)) = taken.into_iter().find(|(is_taken, _)| *is_taken) {
            return Err(NotOffered::Taken(what));
        }
        let name = device_name(card.minor);
        let taints = taints::of(card, &name, is_degraded, self.drained);
        Ok(Device {
            allow_multiple_allocations: Some(true),
            attributes: Some(self.attributes(card, offer)),
            capacity: Some(self.capacities(card, offer)),
            taints: (!taints.is_empty()).then_some(taints),
            name,
            ..Device::default()
        })
    }

    fn capacities(&self, card: &Card, offer: &CardOffer) -> BTreeMap<String, DeviceCapacity> {
        // A claim that names no memory wants the whole card, which it cannot have beside others:
        // it takes all that the card has, also where less is offered.
        let whole = self.limits.grantable(card.memory).0;
        let memory = range(LEAST_MEMORY, offer.memory.0, whole.max(offer.memory.0));
        let one = quantity(1);
        let containers = DeviceCapacity {
            value: quantity(offer.containers.into()),
            request_policy: Some(CapacityRequestPolicy {
                default: Some(one.clone()),
                valid_values: Some(vec![one]),
                valid_range: None,
            }),
        };
        let mut capacities =
            BTreeMap::from([(capacity::MEMORY.to_owned(), memory), (capacity::CONTAINERS.to_owned(), containers)]);
        // A card that holds nobody to a cap does not have what a claim with a cap asks for.
        let holds_caps = card.hard_caps || self.limits.hard_caps_unavailable == HardCapsUnavailable::Degrade;
        if let Some(percent) = offer.compute.filter(|_| holds_caps) {
            let percent = u64::from(percent.min(Percent::FULL.get().into()));
            let compute = range(1, percent, capacity::UNNAMED_COMPUTE.into());
            capacities.insert(capacity::COMPUTE.to_owned(), compute);
        }
        capacities
    }

    fn attributes(&self, card: &Card, offer: &CardOffer) -> BTreeMap<String, DeviceAttribute> {
        let (major, minor) = card.compute_capability;
        let is_simulated = self.inventory.source == Source::Simulated;
        let attributes = [
            (attribute::TYPE, Some(string("gpu"))),
            (attribute::UUID, Some(string(&card.uuid))),
            (attribute::PRODUCT_NAME, Some(string(&card.model))),
            (attribute::BRAND, Some(string(&card.brand))),
            (attribute::ARCHITECTURE, architecture(card.compute_capability).map(string)),
            (attribute::COMPUTE_CAPABILITY, version(&format!("{major}.{minor}"))),
            (attribute::DRIVER_VERSION, version(&self.inventory.driver_version)),
            (attribute::CUDA_DRIVER_VERSION, version(&self.inventory.cuda_version)),
            (attribute::INDEX, Some(integer(card.index))),
            (attribute::MINOR, Some(integer(card.minor))),
            (attribute::POLICY, Some(string(offer.policy.name()))),
            (attribute::ISOLATION, Some(string("mediated"))),
            (attribute::SIMULATED, Some(DeviceAttribute { bool: Some(is_simulated), ..Default::default() })),
            (attribute::PCI_BUS_ID, Some(string(&card.pci.to_string()))),
            (attribute::PCIE_ROOT, self.pcie_root(card).as_deref().map(string)),
            (attribute::NUMA_NODE, card.numa_node.map(integer)),
        ];
        let known = attributes.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        known.collect()
    }

    /// PCIe root of a card: `pci0000:64`.
    fn pcie_root(&self, card: &Card) -> Option<String> {
        let path = fs::canonicalize(self.pci_devices.join(card.pci.to_string())).ok()?;
        let mut parts = path.iter().filter_map(|part| part.to_str());
        parts.find(|part| part.starts_with("pci") && part.contains(':')).map(str::to_owned)
    }
}

/// A capacity of which any whole amount from `least` may be taken, `default` where none is named.
fn range(least: u64, value: u64, default: u64) -> DeviceCapacity {
    let range = CapacityRequestPolicyRange {
        min: quantity(least),
        max: None,
        // Fractions are rounded up. A step beyond the value is refused.
        step: (value > 1).then(|| quantity(1)),
    };
    DeviceCapacity {
        value: quantity(value),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(quantity(default)),
            valid_range: Some(range),
            valid_values: None,
        }),
    }
}

fn quantity(value: u64) -> Written {
    Written(Quantity(value).to_string())
}

fn string(text: &str) -> DeviceAttribute {
    let end = (0..=text.len().min(LONGEST_STRING)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    DeviceAttribute { string: text.get(..end).map(str::to_owned), ..Default::default() }
}

fn integer(value: u32) -> DeviceAttribute {
    DeviceAttribute { int: Some(value.into()), ..Default::default() }
}

/// A version as Kubernetes accepts it, three numbers without leading zeros: `580.159.4` for the
/// driver 580.159.04. `None`: it is none.
fn version(text: &str) -> Option<DeviceAttribute> {
    let mut numbers = text.split('.').map(|part| part.parse::<u32>().ok());
    let first = numbers.next()??;
    let second = numbers.next().unwrap_or(Some(0))?;
    let third = numbers.next().unwrap_or(Some(0))?;
    Some(DeviceAttribute { version: Some(format!("{first}.{second}.{third}")), ..Default::default() })
}

fn architecture(capability: (u32, u32)) -> Option<&'static str> {
    ARCHITECTURES.iter().find(|(first, _)| capability >= *first).map(|(_, name)| *name)
}
