//! A claim's part of a record, and the sum of several grants.

use std::borrow::Cow;

use base::{Bytes, CardGrant, ComputeShare, ContainerKey, Percent, ProcessId, Weight};
use serde::{Deserialize, Serialize};

/// Stands for containerd's address in the key of a claim's request.
const KUBERNETES: &str = "kubernetes";

/// A ResourceClaim that is allocated to one pod of its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub uid: String,
    /// Its namespace, and the pod's.
    pub namespace: String,
    pub name: String,
    /// The pod that it is reserved for.
    pub pod: ClaimPod,
}

/// The pod that may use a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimPod {
    pub name: String,
    pub uid: String,
}

/// The part of a record that only a claim's request has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimGrant {
    #[serde(flatten)]
    pub claim: Claim,
    /// The request's name in it.
    pub request: String,
    /// The requests that it is used together with.
    pub gang: Option<Gang>,
    /// The containers that use it.
    pub containers: Vec<ClaimContainer>,
}

/// A container that uses a claim's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimContainer {
    /// containerd's name.
    pub key: ContainerKey,
    /// Its name in the pod.
    pub name: String,
    /// As [`crate::Record::cgroups`].
    pub cgroups: Vec<String>,
    /// Its init, once there is one.
    pub init: Option<ProcessId>,
    /// Its init was asked to end.
    pub leaving: bool,
}

/// Requests with one mediator, and windows at the same instants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// Grant id of the first of them, which names its turns.
    pub leader: String,
    /// Its place in the ledger.
    pub order: u64,
    /// UUIDs of all their cards.
    pub cards: Vec<String>,
}

/// The parts of several grants, a card at a time: what they have of one card is added up.
pub(crate) fn merged<'a>(grants: impl IntoIterator<Item = &'a CardGrant>) -> Vec<Cow<'a, CardGrant>> {
    let mut cards: Vec<Cow<'a, CardGrant>> = Vec::new();
    for grant in grants {
        match cards.iter_mut().find(|card| card.uuid == grant.uuid && card.mig_uuid == grant.mig_uuid) {
            None => cards.push(Cow::Borrowed(grant)),
            Some(card) => add(card.to_mut(), grant),
        }
    }
    cards
}

fn add(sum: &mut CardGrant, grant: &CardGrant) {
    let sum_of = |one: Option<Bytes>, other: Option<Bytes>| match (one, other) {
        (Some(one), Some(other)) => Some(Bytes(one.0.saturating_add(other.0))),
        (one, other) => one.or(other),
    };
    sum.memory = Bytes(sum.memory.0.saturating_add(grant.memory.0));
    sum.pinned_memory = sum_of(sum.pinned_memory, grant.pinned_memory);
    sum.channels = match (sum.channels, grant.channels) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    sum.compute = match (sum.compute, grant.compute) {
        (
            ComputeShare::Cap { percent: one, lifted_when_alone: lifts },
            ComputeShare::Cap { percent: other, lifted_when_alone: also },
        ) => ComputeShare::Cap {
            // The card gives no more than all of it.
            percent: Percent::new(one.get().saturating_add(other.get()).min(100)).unwrap_or(one),
            lifted_when_alone: lifts && also,
        },
        (ComputeShare::Weight(one), ComputeShare::Weight(other)) => {
            ComputeShare::Weight(Weight::new(one.get().saturating_add(other.get())).unwrap_or(one))
        }
        // A cap beside a share of what is left is the cap: no more than was promised for certain.
        (cap @ ComputeShare::Cap { .. }, _) | (_, cap @ ComputeShare::Cap { .. }) => cap,
        (one, _) => one,
    };
    sum.window_loss_us = sum.window_loss_us.max(grant.window_loss_us);
}

/// Returns the key of the record of a claim's request.
pub fn claim_key(namespace: &str, uid: &str, request: &str) -> ContainerKey {
    ContainerKey {
        containerd: KUBERNETES.to_owned(),
        namespace: namespace.to_owned(),
        id: format!("claim-{uid}-{request}"),
    }
}
