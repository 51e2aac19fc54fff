//! The cluster's cards, and what claims hold of them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, Device, DeviceAttribute, DeviceCapacity, DeviceRequestAllocationResult, DeviceTaint,
    ResourceClaim, ResourceSlice,
};
use kubernetes_api::names::DRIVER;
use serde::Deserialize;

use crate::{
    allocation::{self, Amounts, Capacity, Steps},
    quantity::amount,
    request,
};

/// One card, as its node publishes it.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    /// Its pool, which has the name of its node.
    pub(crate) node: String,
    pub(crate) name: String,
    pub(crate) attributes: BTreeMap<String, DeviceAttribute>,
    pub(crate) published: BTreeMap<String, DeviceCapacity>,
    pub(crate) capacities: BTreeMap<String, Capacity>,
    pub(crate) taints: Vec<DeviceTaint>,
    pub(crate) is_shared: bool,
    /// A claim has all of it, from a time when it was not shared.
    pub(crate) is_dedicated: bool,
    /// Amounts that claims hold.
    pub(crate) held: Amounts,
    pub(crate) grants: Vec<Grant>,
}

/// A request's share of a card.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) namespace: String,
    pub(crate) claim: String,
    pub(crate) request: String,
    /// Names of the pods that use it.
    pub(crate) pods: Vec<String>,
    /// Amounts of the card that it holds.
    pub(crate) taken: Amounts,
    /// Those that the request names; the others are defaults.
    pub(crate) asked: Amounts,
}

/// All cards in the order of publication, node by node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inventory {
    pub(crate) cards: Vec<Card>,
    /// Nodes that have not published all of their slices yet; the scheduler leaves them out.
    pub(crate) incomplete: BTreeSet<String>,
}

/// An administrator's taint of cards, read of whichever version is served.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TaintRule {
    pub(crate) spec: TaintRuleSpec,
}

/// The taint, and the cards that it is for.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaintRuleSpec {
    #[serde(default)]
    pub(crate) device_selector: Option<TaintSelector>,
    pub(crate) taint: DeviceTaint,
}

/// Cards by name; what is left out fits all.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TaintSelector {
    pub(crate) driver: Option<String>,
    pub(crate) pool: Option<String>,
    pub(crate) device: Option<String>,
}

impl TaintSelector {
    fn fits(&self, card: &Card) -> bool {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        is(&self.driver, DRIVER) && is(&self.pool, &card.node) && is(&self.device, &card.name)
    }
}

impl Inventory {
    /// Puts together what nodes publish, what claims hold, and what administrators taint.
    pub(crate) fn new(slices: &[ResourceSlice], claims: &[ResourceClaim], rules: &[TaintRule]) -> Self {
        let mut inventory = Self::published(slices);
        for claim in claims {
            inventory.add_claim(claim);
        }
        for card in &mut inventory.cards {
            let for_it = |rule: &&TaintRule| rule.spec.device_selector.as_ref().is_some_and(|cards| cards.fits(card));
            let taints: Vec<_> = rules.iter().filter(for_it).map(|rule| rule.spec.taint.clone()).collect();
            card.taints.extend(taints);
            let name = |taint: &DeviceTaint| (taint.key.clone(), taint.value.clone(), taint.effect.clone());
            let mut seen = BTreeSet::new();
            card.taints.retain(|taint| seen.insert(name(taint)));
        }
        inventory
    }

    /// The newest generation of each node's slices, in the scheduler's order.
    fn published(slices: &[ResourceSlice]) -> Self {
        let mut pools: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in slices.iter().filter(|slice| slice.spec.driver == DRIVER) {
            pools.entry(&slice.spec.pool.name).or_default().push(slice);
        }
        let mut inventory = Self::default();
        for (node, mut slices) in pools {
            let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
            slices.retain(|slice| Some(slice.spec.pool.generation) == newest);
            slices.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
            let expected = slices.first().map_or(0, |slice| slice.spec.pool.resource_slice_count);
            if i64::try_from(slices.len()) != Ok(expected) {
                inventory.incomplete.insert(node.to_owned());
            }
            let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
            inventory.cards.extend(devices.map(|device| Card::new(node, device)));
        }
        inventory
    }

    fn add_claim(&mut self, claim: &ResourceClaim) {
        let status = claim.status.as_ref();
        let allocated = status.and_then(|status| status.allocation.as_ref()).and_then(|one| one.devices.as_ref());
        for result in allocated.and_then(|devices| devices.results.as_ref()).into_iter().flatten() {
            if result.driver == DRIVER && !result.admin_access.unwrap_or(false) {
                let card = self.cards.iter_mut().find(|card| card.node == result.pool && card.name == result.device);
                if let Some(card) = card {
                    card.add_grant(claim, result);
                }
            }
        }
    }

    /// Returns the names of the nodes that publish cards.
    pub(crate) fn nodes(&self) -> BTreeSet<&str> {
        self.cards.iter().map(|card| card.node.as_str()).collect()
    }
}

impl Card {
    fn new(node: &str, device: &Device) -> Self {
        let published = device.capacity.clone().unwrap_or_default();
        Self {
            node: node.to_owned(),
            name: device.name.clone(),
            attributes: device.attributes.clone().unwrap_or_default(),
            capacities: published.iter().map(|(name, one)| (name.clone(), capacity(one))).collect(),
            published,
            taints: device.taints.clone().unwrap_or_default(),
            is_shared: device.allow_multiple_allocations.unwrap_or(false),
            is_dedicated: false,
            held: Amounts::new(),
            grants: Vec::new(),
        }
    }

    fn add_grant(&mut self, claim: &ResourceClaim, result: &DeviceRequestAllocationResult) {
        let taken: Amounts =
            result.consumed_capacity.iter().flatten().map(|(name, one)| (name.clone(), amount(one))).collect();
        allocation::add(&mut self.held, &taken);
        self.is_dedicated |= result.share_id.is_none();
        let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
        let pods = reserved.into_iter().flatten().filter(|user| user.resource == "pods");
        self.grants.push(Grant {
            namespace: claim.metadata.namespace.clone().unwrap_or_default(),
            claim: claim.metadata.name.clone().unwrap_or_default(),
            request: result.request.clone(),
            pods: pods.map(|user| user.name.clone()).collect(),
            taken,
            asked: claim
                .spec
                .devices
                .as_ref()
                .map(|devices| request::asked_by(devices, &result.request))
                .unwrap_or_default(),
        });
    }

    /// Returns an attribute by its name with a domain, or without for one of egpu's.
    pub(crate) fn attribute(&self, name: &str) -> Option<&DeviceAttribute> {
        let own = || name.split_once('/').filter(|(domain, _)| *domain == DRIVER).map(|(_, own)| own);
        self.attributes.get(name).or_else(|| self.attributes.get(own()?))
    }

    /// Returns an attribute that is a text; empty: it has none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.attribute(name).and_then(|attribute| attribute.string.as_deref()).unwrap_or_default()
    }

    /// Returns how much of a capacity there is, is held, and is left; `None`: it has none such.
    pub(crate) fn amounts(&self, name: &str) -> Option<Balance> {
        let capacity = self.capacities.get(name)?;
        let held = self.held.get(name).copied().unwrap_or(0);
        let free = if self.is_dedicated { 0 } else { allocation::free(capacity, &self.held, name) };
        Some(Balance { total: capacity.value, held, free })
    }
}

/// One capacity of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Balance {
    /// All that the node offers to claims.
    pub(crate) total: u64,
    pub(crate) held: u64,
    pub(crate) free: u64,
}

fn capacity(published: &DeviceCapacity) -> Capacity {
    let policy = published.request_policy.as_ref();
    Capacity {
        value: amount(&published.value),
        default: policy.and_then(|policy| policy.default.as_ref()).map(amount),
        steps: policy.map_or(Steps::Any, steps),
    }
}

fn steps(policy: &CapacityRequestPolicy) -> Steps {
    let values = policy.valid_values.as_ref().filter(|values| !values.is_empty());
    match (&policy.valid_range, values) {
        (Some(range), _) => Steps::Range {
            min: amount(&range.min),
            max: range.max.as_ref().map(amount),
            step: range.step.as_ref().map(amount),
        },
        (None, Some(values)) => Steps::Values(values.iter().map(amount).collect()),
        (None, None) => Steps::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{allocated, slice};

    #[test]
    fn the_newest_generation_counts_and_a_part_of_it_is_incomplete() {
        let mut old = slice("n1", &["gpu-0", "gpu-1"]);
        old.spec.pool.generation = 1;
        let mut new = slice("n1", &["gpu-1"]);
        new.spec.pool.generation = 2;
        let mut part = slice("n2", &["gpu-0"]);
        part.spec.pool.resource_slice_count = 2;
        let mut other = slice("n3", &["gpu-0"]);
        other.spec.driver = "gpu.nvidia.com".to_owned();
        let inventory = Inventory::new(&[old, part, new, other], &[], &[]);
        let cards: Vec<_> = inventory.cards.iter().map(|card| (card.node.as_str(), card.name.as_str())).collect();
        assert_eq!(cards, [("n1", "gpu-1"), ("n2", "gpu-0")]);
        assert_eq!(inventory.incomplete, BTreeSet::from(["n2".to_owned()]));
    }

    #[test]
    fn claims_hold_what_was_consumed() {
        let claims = [
            allocated("a", "gpu", "n1", "gpu-0", &[("memory", "20Gi"), ("compute", "25"), ("containers", "1")]),
            allocated("b", "gpu/small", "n1", "gpu-0", &[("memory", "1"), ("compute", "5"), ("containers", "1")]),
            allocated("c", "gpu", "gone", "gpu-0", &[("memory", "1")]),
        ];
        let inventory = Inventory::new(&[slice("n1", &["gpu-0", "gpu-1"])], &claims, &[]);
        let balance = inventory.cards[0].amounts("memory").unwrap();
        assert_eq!(balance, Balance { total: 80 << 30, held: (20 << 30) + 1, free: (60 << 30) - 1 });
        assert_eq!(inventory.cards[0].amounts("compute").unwrap().free, 70);
        assert_eq!(inventory.cards[0].grants.len(), 2);
        assert_eq!(inventory.cards[0].grants[0].pods, ["a"]);
        assert_eq!(inventory.cards[1].held, Amounts::new());
    }

    #[test]
    fn a_share_without_an_id_has_the_card_to_itself() {
        let mut claim = allocated("a", "gpu", "n1", "gpu-0", &[]);
        let results = claim.status.as_mut().unwrap().allocation.as_mut().unwrap().devices.as_mut().unwrap();
        results.results.as_mut().unwrap()[0].share_id = None;
        let inventory = Inventory::new(&[slice("n1", &["gpu-0"])], &[claim], &[]);
        assert!(inventory.cards[0].is_dedicated);
        assert_eq!(inventory.cards[0].amounts("memory").unwrap().free, 0);
    }

    #[test]
    fn rules_taint_the_cards_that_they_name() {
        let rule = |selector: serde_json::Value| {
            let taint = serde_json::json!({"key": "k", "effect": "NoSchedule"});
            let rule = serde_json::json!({"spec": {"deviceSelector": selector, "taint": taint}});
            serde_json::from_value::<TaintRule>(rule).unwrap()
        };
        let tainted = |rule: TaintRule| {
            let inventory = Inventory::new(&[slice("n1", &["gpu-0", "gpu-1"]), slice("n2", &["gpu-0"])], &[], &[rule]);
            inventory.cards.iter().map(|card| card.taints.len()).collect::<Vec<_>>()
        };
        assert_eq!(tainted(rule(serde_json::json!({"driver": DRIVER, "pool": "n1", "device": "gpu-1"}))), [0, 1, 0]);
        assert_eq!(tainted(rule(serde_json::json!({"pool": "n1"}))), [1, 1, 0]);
        assert_eq!(tainted(rule(serde_json::json!({}))), [1, 1, 1]);
        assert_eq!(tainted(rule(serde_json::json!({"driver": "gpu.nvidia.com"}))), [0, 0, 0]);
        assert_eq!(tainted(rule(serde_json::Value::Null)), [0, 0, 0]);
    }
}
