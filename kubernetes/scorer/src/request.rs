//! A pod as the scorer sees it: its owner, its wish, its claims.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{core::v1::Pod, resource::v1::ResourceClaim},
    apimachinery::pkg::api::resource::Quantity as Written,
};
use kubernetes_api::{
    Quantity,
    names::{DRIVER, EXTENDED_RESOURCE, NODE_PLACEMENT_ANNOTATION},
};

use crate::placement::Placement;

/// Amounts by the names of capacities.
pub(crate) type Amounts = BTreeMap<String, u64>;

/// Namespace and name of a claim.
pub(crate) type ClaimKey = (String, String);

/// A pod's statements about cards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodRequest {
    pub(crate) uid: String,
    /// Uid of its controller: a ReplicaSet, a StatefulSet, a Job.
    pub(crate) owner: Option<String>,
    /// The annotation, if it has a value that is known.
    pub(crate) placement: Option<Placement>,
    pub(crate) claims: Vec<ClaimKey>,
    /// Whole cards that it asks for without a claim.
    pub(crate) whole_cards: u64,
}

impl PodRequest {
    pub(crate) fn read(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let annotation = meta.annotations.as_ref().and_then(|all| all.get(NODE_PLACEMENT_ANNOTATION));
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            owner: owner.map(|owner| owner.uid.clone()),
            placement: annotation.and_then(|text| Placement::read(text)),
            claims: claims(pod),
            whole_cards: whole_cards(pod),
        }
    }
}

/// The claims that a pod names, and those that were made for it from templates.
fn claims(pod: &Pod) -> Vec<ClaimKey> {
    let named = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let made = || pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let name = named.filter_map(|claim| {
        let of_template = || made().find(|made| made.name == claim.name)?.resource_claim_name.clone();
        claim.resource_claim_name.clone().or_else(of_template)
    });
    name.map(|name| (namespace.clone(), name)).collect()
}

fn whole_cards(pod: &Pod) -> u64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|one| one.resources.as_ref()?.limits.as_ref()?.get(EXTENDED_RESOURCE));
    limits.map(amount).fold(0, u64::saturating_add)
}

/// A claim: what it asks for, and what it was allocated of egpu's cards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) asked: Vec<Asked>,
    pub(crate) shares: Vec<Share>,
    /// It was allocated, here or elsewhere.
    pub(crate) is_allocated: bool,
}

/// A request of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) class: String,
    pub(crate) cards: u64,
    pub(crate) amounts: Amounts,
}

/// A part of a card that a claim holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    /// The pool, which has the node's name.
    pub(crate) node: String,
    pub(crate) card: String,
    /// None: all of the card.
    pub(crate) amounts: Option<Amounts>,
}

impl Claim {
    pub(crate) fn read(claim: &ResourceClaim) -> Self {
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
        let results = devices.and_then(|devices| devices.results.as_ref()).into_iter().flatten();
        let of_cards = results.filter(|result| result.driver == DRIVER && !result.admin_access.unwrap_or(false));
        let shares = of_cards.map(|result| Share {
            node: result.pool.clone(),
            card: result.device.clone(),
            amounts: result.consumed_capacity.as_ref().map(amounts),
        });
        Self { asked: asked(claim), shares: shares.collect(), is_allocated: allocation.is_some() }
    }
}

/// The requests of a claim; of one with choices, its first choice.
fn asked(claim: &ResourceClaim) -> Vec<Asked> {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let read = |class: &str, count: Option<i64>, capacity: Option<&BTreeMap<String, Written>>| Asked {
        class: class.to_owned(),
        cards: count.and_then(|count| u64::try_from(count).ok()).unwrap_or(1),
        amounts: capacity.map(amounts).unwrap_or_default(),
    };
    let asked =
        requests.filter_map(|request| match (&request.exactly, request.first_available.iter().flatten().next()) {
            (Some(one), _) => {
                let capacity = one.capacity.as_ref().and_then(|capacity| capacity.requests.as_ref());
                Some(read(&one.device_class_name, one.count, capacity))
            }
            (None, Some(one)) => {
                let capacity = one.capacity.as_ref().and_then(|capacity| capacity.requests.as_ref());
                Some(read(&one.device_class_name, one.count, capacity))
            }
            (None, None) => None,
        });
    asked.collect()
}

pub(crate) fn amounts(written: &BTreeMap<String, Written>) -> Amounts {
    written.iter().map(|(name, written)| (name.clone(), amount(written))).collect()
}

/// A quantity that the API server has checked.
pub(crate) fn amount(written: &Written) -> u64 {
    Quantity::rounded_up(&written.0).map_or(0, |quantity| quantity.0)
}
