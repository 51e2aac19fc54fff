//! ResourceSlices of a node's pool: made, compared, and checked after they were written.

use std::cmp::Reverse;

use k8s_openapi::{
    api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec},
    apimachinery::pkg::{
        api::resource::Quantity as Written,
        apis::meta::v1::{ObjectMeta, OwnerReference},
    },
};
use kubernetes_api::{
    Quantity,
    names::{DRIVER, attribute},
};
use runtime_config::config::ClaimPlacement;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Most devices of a slice, if one of them has taints.
const MOST_DEVICES: usize = 64;
/// Longest name of an object.
const LONGEST_NAME: usize = 253;

/// A device and how much of its memory is granted, which decides its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placed {
    pub(crate) device: Device,
    pub(crate) granted: u64,
    pub(crate) memory: u64,
    pub(crate) index: u32,
}

/// Brings devices into the order in which claims get them: the scheduler takes the first that
/// fits.
pub(crate) fn ordered(mut devices: Vec<Placed>, placement: ClaimPlacement) -> Vec<Device> {
    // Exact: fractions over a common denominator.
    let parts = |placed: &Placed| u128::from(placed.granted) * (1 << 32) / u128::from(placed.memory.max(1));
    devices.sort_by_key(|placed| placed.index);
    match placement {
        ClaimPlacement::Binpack => devices.sort_by_key(|placed| Reverse(parts(placed))),
        ClaimPlacement::Spread => devices.sort_by_key(parts),
    }
    devices.into_iter().map(|placed| placed.device).collect()
}

/// Pool of a node: the slices that are to be there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pool {
    /// Name of the node, and of the pool.
    pub(crate) node: String,
    /// Uid of the Node object.
    pub(crate) node_uid: String,
    /// In order.
    pub(crate) devices: Vec<Device>,
}

impl Pool {
    /// Its slices, as of `generation`. A pool without devices has one slice: it says so.
    pub(crate) fn slices(&self, generation: i64) -> Vec<ResourceSlice> {
        let mut parts: Vec<&[Device]> = self.devices.chunks(MOST_DEVICES).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let count = i64::try_from(parts.len()).unwrap_or(i64::MAX);
        let slice = |(number, devices): (usize, &&[Device])| ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name(&self.node, number)),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: self.node.clone(),
                    uid: self.node_uid.clone(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: DRIVER.to_owned(),
                node_name: Some(self.node.clone()),
                pool: ResourcePool { name: self.node.clone(), generation, resource_slice_count: count },
                devices: Some(devices.to_vec()),
                ..ResourceSliceSpec::default()
            },
        };
        parts.iter().enumerate().map(slice).collect()
    }

    /// Returns whether the slices that are there say what they should.
    pub(crate) fn is_published(&self, slices: &[&ResourceSlice]) -> bool {
        let generation = slices.first().map_or(0, |slice| slice.spec.pool.generation);
        let wanted = self.slices(generation);
        wanted.len() == slices.len()
            && wanted.iter().all(|wanted| {
                let named = slices.iter().find(|slice| slice.metadata.name == wanted.metadata.name);
                named.is_some_and(|slice| {
                    let owners = slice.metadata.owner_references.iter().flatten();
                    canonical(&slice.spec) == canonical(&wanted.spec)
                        && owners.into_iter().any(|owner| owner.uid == self.node_uid)
                })
            })
    }
}

/// Name of a slice. The order of names is that of the slices.
fn name(node: &str, number: usize) -> String {
    let tail = format!("-{DRIVER}-{number:02}");
    if node.len() + tail.len() <= LONGEST_NAME {
        return format!("{node}{tail}");
    }
    let hash = Sha256::digest(node.as_bytes());
    let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let head: String = node.chars().take(LONGEST_NAME - tail.len() - hash.len() - 1).collect();
    format!("{}-{hash}{tail}", head.trim_end_matches(['-', '.']))
}

/// A slice in the one form in which equal ones are equal: the API server rewrites quantities and
/// adds times.
fn canonical(spec: &ResourceSliceSpec) -> ResourceSliceSpec {
    let mut spec = spec.clone();
    for device in spec.devices.iter_mut().flatten() {
        device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
        for capacity in device.capacity.iter_mut().flatten().map(|(_, capacity)| capacity) {
            rewrite(&mut capacity.value);
            if let Some(policy) = &mut capacity.request_policy {
                policy.default.iter_mut().for_each(rewrite);
                policy.valid_values.iter_mut().flatten().for_each(rewrite);
                if let Some(range) = &mut policy.valid_range {
                    rewrite(&mut range.min);
                    range.max.iter_mut().chain(&mut range.step).for_each(rewrite);
                }
            }
        }
    }
    spec
}

fn rewrite(written: &mut Written) {
    if let Ok(quantity) = written.0.parse::<Quantity>() {
        written.0 = quantity.to_string();
    }
}

/// Takes over when a taint was added: it would count as added anew otherwise, and whoever tolerates
/// it for some time would do so again.
pub(crate) fn keep_times(slice: &mut ResourceSlice, before: &ResourceSlice) {
    for device in slice.spec.devices.iter_mut().flatten() {
        let earlier = before.spec.devices.iter().flatten().find(|earlier| earlier.name == device.name);
        let Some(earlier) = earlier else { continue };
        for taint in device.taints.iter_mut().flatten() {
            let is_same = |other: &&k8s_openapi::api::resource::v1::DeviceTaint| {
                (&other.key, &other.value, &other.effect) == (&taint.key, &taint.value, &taint.effect)
            };
            if let Some(same) = earlier.taints.iter().flatten().find(is_same) {
                taint.time_added.clone_from(&same.time_added);
            }
        }
    }
}

/// Fields of `wanted` that `stored` lacks, by path: the API server has dropped them.
pub(crate) fn dropped_fields(wanted: &ResourceSliceSpec, stored: &ResourceSliceSpec) -> Vec<String> {
    let json = |spec| serde_json::to_value(canonical(spec)).unwrap_or_default();
    let mut dropped = Vec::new();
    compare("spec", &json(wanted), &json(stored), &mut dropped);
    dropped
}

fn compare(path: &str, wanted: &Value, stored: &Value, dropped: &mut Vec<String>) {
    match (wanted, stored) {
        (Value::Object(wanted), Value::Object(stored)) => {
            for (key, value) in wanted {
                let path = format!("{path}.{key}");
                match stored.get(key) {
                    Some(other) => compare(&path, value, other, dropped),
                    None => dropped.push(path),
                }
            }
        }
        (Value::Array(wanted), Value::Array(stored)) if wanted.len() == stored.len() => {
            for (number, (value, other)) in wanted.iter().zip(stored).enumerate() {
                compare(&format!("{path}[{number}]"), value, other, dropped);
            }
        }
        (wanted, stored) if wanted == stored => {}
        _ => dropped.push(path.to_owned()),
    }
}

/// Returns whether another driver of this node offers the same card, by UUID or PCI address.
pub(crate) fn other_driver_of<'a>(device: &Device, slices: impl Iterator<Item = &'a ResourceSlice>) -> Option<&'a str> {
    let own = |name: &str| text_attribute(device, name);
    let (uuid, pci) = (own(attribute::UUID), own(attribute::PCI_BUS_ID));
    let mut others = slices.filter(|slice| slice.spec.driver != DRIVER);
    let other = others.find(|slice| {
        slice.spec.devices.iter().flatten().any(|other| {
            let is_same = |name: &str, own: Option<&str>| {
                own.is_some_and(|own| text_attribute(other, name).is_some_and(|other| other.eq_ignore_ascii_case(own)))
            };
            is_same(attribute::UUID, uuid) || is_same(attribute::PCI_BUS_ID, pci)
        })
    });
    other.map(|slice| slice.spec.driver.as_str())
}

/// Value of an attribute, under its name or its driver's.
fn text_attribute<'a>(device: &'a Device, name: &str) -> Option<&'a str> {
    let attributes = device.attributes.as_ref()?;
    let is_named = |known: &str| known == name || known.rsplit_once('/').is_some_and(|(_, short)| short == name);
    attributes.iter().find(|(known, _)| is_named(known)).and_then(|(_, value)| value.string.as_deref())
}
