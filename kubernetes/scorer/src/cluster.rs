//! All that is known of the cluster's cards, and of the pods that are on their way to them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use kubernetes_api::names::{DRIVER, capacity::MEMORY};

use crate::{
    placement::{Candidate, FULL, Preference},
    request::{Amounts, Claim, ClaimKey, PodRequest, amounts},
};

/// Time for which an answer counts as what the scheduler does, until the pod is seen to be bound.
pub(crate) const EXPECTED: Duration = Duration::from_secs(30);
/// Most such answers; the oldest gives way.
const MOST_EXPECTED: usize = 10_000;

/// Cards of one node by name, with their capacities.
type Cards = BTreeMap<String, Amounts>;

/// Nodes, claims and pods.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    slices: HashMap<String, Slice>,
    /// By node, of the newest slices.
    cards: HashMap<String, Cards>,
    /// Device classes whose devices are egpu's cards.
    classes: HashSet<String>,
    claims: HashMap<ClaimKey, Claim>,
    held: HashMap<String, HashMap<String, Held>>,
    /// Nodes of bound pods with cards, by owner and by the pod's uid.
    replicas: HashMap<String, HashMap<String, String>>,
    /// By the pod's uid.
    expected: HashMap<String, Expected>,
}

/// A slice of a node's cards.
#[derive(Debug)]
struct Slice {
    node: String,
    generation: i64,
    cards: Cards,
}

/// The claims' part of a card.
#[derive(Debug, Default)]
struct Held {
    amounts: Amounts,
    /// Claims that have it to themselves.
    dedicated: u64,
}

/// A pod whose first node is probably the scheduler's choice, too. It is needed since claims and
/// pods are seen only after they were written: the next pods are asked for before.
#[derive(Debug)]
struct Expected {
    node: String,
    owner: Option<String>,
    claims: Vec<ClaimKey>,
    asked: Vec<(u64, Amounts)>,
    since: Instant,
}

/// Part of a card that amounts are, of [`FULL`]: of the capacity that is scarcest.
fn part(capacities: &Amounts, amounts: &Amounts) -> u64 {
    let parts = amounts.iter().filter_map(|(name, amount)| {
        let all = u128::from(*capacities.get(name).filter(|all| **all > 0)?);
        u64::try_from(u128::from(*amount) * u128::from(FULL) / all).ok()
    });
    parts.max().unwrap_or(0).min(FULL)
}

// --- What is seen ---

impl Cluster {
    pub(crate) fn slice(&mut self, slice: &ResourceSlice) {
        let spec = &slice.spec;
        let devices = spec.devices.iter().flatten().map(|device| {
            let capacities = device.capacity.iter().flatten();
            let values: BTreeMap<_, _> = capacities.map(|(name, one)| (name.clone(), one.value.clone())).collect();
            (device.name.clone(), amounts(&values))
        });
        let node = spec.pool.name.clone();
        let read = Slice { node: node.clone(), generation: spec.pool.generation, cards: devices.collect() };
        self.slices.insert(slice.metadata.name.clone().unwrap_or_default(), read);
        self.gather(&node);
    }

    pub(crate) fn slice_gone(&mut self, name: &str) {
        if let Some(slice) = self.slices.remove(name) {
            self.gather(&slice.node);
        }
    }

    pub(crate) fn all_slices(&mut self, slices: &[ResourceSlice]) {
        self.slices.clear();
        self.cards.clear();
        slices.iter().for_each(|slice| self.slice(slice));
    }

    /// Puts the newest slices of a node together.
    fn gather(&mut self, node: &str) {
        let slices = || self.slices.values().filter(|slice| slice.node == node);
        let newest = slices().map(|slice| slice.generation).max();
        let cards: Cards =
            slices().filter(|slice| Some(slice.generation) == newest).flat_map(|slice| slice.cards.clone()).collect();
        if cards.is_empty() {
            self.cards.remove(node);
        } else {
            self.cards.insert(node.to_owned(), cards);
        }
    }

    pub(crate) fn class(&mut self, class: &DeviceClass) {
        let selectors = class.spec.selectors.iter().flatten().filter_map(|selector| selector.cel.as_ref());
        let name = class.metadata.name.clone().unwrap_or_default();
        if selectors.into_iter().any(|cel| cel.expression.contains(DRIVER)) {
            self.classes.insert(name);
        } else {
            self.classes.remove(&name);
        }
    }

    pub(crate) fn class_gone(&mut self, name: &str) {
        self.classes.remove(name);
    }

    pub(crate) fn all_classes(&mut self, classes: &[DeviceClass]) {
        self.classes.clear();
        classes.iter().for_each(|class| self.class(class));
    }

    pub(crate) fn claim(&mut self, claim: &ResourceClaim) {
        let read = Claim::read(claim);
        let key = key_of(claim);
        if self.claims.get(&key) == Some(&read) {
            return;
        }
        self.claim_gone(&key);
        self.hold(&read, u64::saturating_add);
        self.claims.insert(key, read);
    }

    pub(crate) fn claim_gone(&mut self, key: &ClaimKey) {
        if let Some(claim) = self.claims.remove(key) {
            self.hold(&claim, u64::saturating_sub);
        }
    }

    pub(crate) fn all_claims(&mut self, claims: &[ResourceClaim]) {
        self.claims.clear();
        self.held.clear();
        claims.iter().for_each(|claim| self.claim(claim));
    }

    /// Adds what a claim holds, or takes it away.
    fn hold(&mut self, claim: &Claim, change: fn(u64, u64) -> u64) {
        for share in &claim.shares {
            let cards = self.held.entry(share.node.clone()).or_default();
            let held = cards.entry(share.card.clone()).or_default();
            match &share.amounts {
                None => held.dedicated = change(held.dedicated, 1),
                Some(amounts) => amounts.iter().for_each(|(name, amount)| {
                    let held = held.amounts.entry(name.clone()).or_default();
                    *held = change(*held, *amount);
                }),
            }
        }
    }

    /// A pod that is bound to a node, and has not ended.
    pub(crate) fn pod(&mut self, pod: &Pod) {
        let request = PodRequest::read(pod);
        self.expected.remove(&request.uid);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let has_claims = request.whole_cards > 0 || !request.claims.is_empty();
        if let (Some(owner), Some(node), true) = (request.owner, node, has_claims) {
            self.replicas.entry(owner).or_default().insert(request.uid, node);
        }
    }

    pub(crate) fn pod_gone(&mut self, pod: &Pod) {
        let request = PodRequest::read(pod);
        let Some(owner) = request.owner else { return };
        if let Some(pods) = self.replicas.get_mut(&owner) {
            pods.remove(&request.uid);
            if pods.is_empty() {
                self.replicas.remove(&owner);
            }
        }
    }

    pub(crate) fn all_pods(&mut self, pods: &[Pod]) {
        self.replicas.clear();
        pods.iter().for_each(|pod| self.pod(pod));
    }
}

pub(crate) fn key_of(claim: &ResourceClaim) -> ClaimKey {
    (claim.metadata.namespace.clone().unwrap_or_default(), claim.metadata.name.clone().unwrap_or_default())
}

// --- What is asked ---

impl Cluster {
    /// Returns whether a pod asks for egpu's cards. A claim that has not been seen yet may.
    pub(crate) fn wants_cards(&self, pod: &PodRequest) -> bool {
        let is_ours = |claim: &Claim| claim.asked.iter().any(|asked| self.classes.contains(&asked.class));
        pod.whole_cards > 0 || pod.claims.iter().any(|key| self.claims.get(key).is_none_or(is_ours))
    }

    /// Scores nodes for a pod, and expects it on the first from now on; nothing, if it asks for
    /// no cards.
    pub(crate) fn score<'a>(
        &mut self,
        pod: PodRequest,
        nodes: &'a [String],
        preference: Preference,
        now: Instant,
    ) -> Vec<(&'a str, usize)> {
        // The scheduler asks again about a pod that it could not bind.
        self.expected.remove(&pod.uid);
        self.expected.retain(|_, one| now.duration_since(one.since) < EXPECTED);
        if !self.wants_cards(&pod) {
            return Vec::new();
        }
        let candidates = self.candidates(&pod, nodes);
        let scores = preference.scores(&candidates);
        let best = preference.best(&candidates).map(|best| best.node.to_owned());
        let scored = candidates.iter().map(|candidate| candidate.node).zip(scores).collect();
        if let Some(node) = best {
            self.expect(pod, node, now);
        }
        scored
    }

    fn expect(&mut self, pod: PodRequest, node: String, since: Instant) {
        if self.expected.len() >= MOST_EXPECTED {
            let oldest = self.expected.iter().min_by_key(|(_, one)| one.since).map(|(uid, _)| uid.clone());
            oldest.map(|uid| self.expected.remove(&uid));
        }
        let claims = pod.claims.iter().filter_map(|key| self.claims.get(key));
        let asked = claims.flat_map(|claim| &claim.asked).filter(|asked| self.classes.contains(&asked.class));
        let mut asked: Vec<_> = asked.map(|asked| (asked.cards, asked.amounts.clone())).collect();
        if pod.whole_cards > 0 {
            asked.push((pod.whole_cards, Amounts::new()));
        }
        let expected = Expected { node, owner: pod.owner, claims: pod.claims, asked, since };
        self.expected.insert(pod.uid, expected);
    }

    fn candidates<'a>(&self, pod: &PodRequest, nodes: &'a [String]) -> Vec<Candidate<'a>> {
        let mut replicas: HashMap<&str, usize> = HashMap::new();
        if let Some(owner) = &pod.owner {
            let bound = self.replicas.get(owner).into_iter().flat_map(HashMap::values);
            let expected = self.expected.values().filter(|one| one.owner.as_ref() == Some(owner));
            for node in bound.chain(expected.map(|one| &one.node)) {
                *replicas.entry(node).or_default() += 1;
            }
        }
        let mut coming: HashMap<&str, Vec<&Expected>> = HashMap::new();
        for one in self.expected.values().filter(|one| !self.is_counted(one)) {
            coming.entry(&one.node).or_default().push(one);
        }
        let candidate = |node: &'a String| Candidate {
            node,
            load: self.load(node, coming.get(node.as_str()).map_or(&[], Vec::as_slice)),
            replicas: replicas.get(node.as_str()).copied().unwrap_or(0),
        };
        nodes.iter().map(candidate).collect()
    }

    /// Returns whether the claims of an expected pod are seen to be allocated: they count by
    /// themselves.
    fn is_counted(&self, pod: &Expected) -> bool {
        pod.claims.iter().any(|key| self.claims.get(key).is_some_and(|claim| claim.is_allocated))
    }

    /// Part of a node's cards that is held, or soon will be.
    fn load(&self, node: &str, coming: &[&Expected]) -> u64 {
        let Some(cards) = self.cards.get(node) else { return 0 };
        let held = self.held.get(node);
        let of_card = |(name, capacities): (&String, &Amounts)| match held.and_then(|held| held.get(name)) {
            None => 0,
            Some(held) if held.dedicated > 0 => FULL,
            Some(held) => part(capacities, &held.amounts),
        };
        let now: u64 = cards.iter().map(of_card).sum();
        // The card is not known yet; those of one node are alike in most cases.
        let first = cards.values().next();
        let of_request = |(count, amounts): &(u64, Amounts)| {
            let part = match first {
                Some(capacities) if amounts.contains_key(MEMORY) => part(capacities, amounts),
                _ => FULL,
            };
            count.saturating_mul(part)
        };
        let soon = coming.iter().flat_map(|pod| &pod.asked).map(of_request).fold(0, u64::saturating_add);
        now.saturating_add(soon) / cards.len().max(1) as u64
    }
}
