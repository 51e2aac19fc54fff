//! `kubectl egpu top`: who holds most of the cards.

use std::cmp::Reverse;

use kubernetes_api::names::capacity;
use serde::Serialize;

use crate::{
    inventory::{Card, Grant, Inventory},
    output::{amount, table},
};

/// A request's share of a card, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Serialize)]
pub(crate) struct Listing {
    node: String,
    card: String,
    namespace: String,
    claim: String,
    request: String,
    pods: Vec<String>,
    memory_bytes: u64,
    /// The cap; null: none, it shares what is left.
    compute_percent: Option<u64>,
}

/// Lists the shares, the largest of each card first.
pub(crate) fn list(inventory: &Inventory, node: Option<&str>) -> Vec<Listing> {
    let wanted = inventory.cards.iter().filter(|card| node.is_none_or(|node| node == card.node));
    let of_card = |card: &Card| {
        let mut shares: Vec<_> = card.grants.iter().map(|grant| listing(card, grant)).collect();
        shares.sort_by_key(|share| Reverse(share.memory_bytes));
        shares
    };
    wanted.flat_map(of_card).collect()
}

fn listing(card: &Card, grant: &Grant) -> Listing {
    let taken = |name: &str| grant.taken.get(name).copied().unwrap_or(0);
    Listing {
        node: card.node.clone(),
        card: card.name.clone(),
        namespace: grant.namespace.clone(),
        claim: grant.claim.clone(),
        request: grant.request.clone(),
        pods: grant.pods.clone(),
        memory_bytes: taken(capacity::MEMORY),
        compute_percent: grant.asked.contains_key(capacity::COMPUTE).then(|| taken(capacity::COMPUTE)),
    }
}

/// The place where real use is seen.
pub(crate) const REMARK: &str = "\
these are grants; what is used and achieved is seen on the node: `egpu top`, or its metrics (docs/monitoring.md)";

/// The table.
pub(crate) fn text(listings: &[Listing]) -> String {
    let titles = ["NODE", "CARD", "NAMESPACE", "POD", "CLAIM", "REQUEST", "MEMORY", "COMPUTE"];
    let row = |one: &Listing| {
        vec![
            one.node.clone(),
            one.card.clone(),
            one.namespace.clone(),
            if one.pods.is_empty() { "-".to_owned() } else { one.pods.join(",") },
            one.claim.clone(),
            one.request.clone(),
            amount(capacity::MEMORY, one.memory_bytes),
            one.compute_percent.map_or_else(|| "no cap".to_owned(), |cap| amount(capacity::COMPUTE, cap)),
        ]
    };
    table(&titles, &listings.iter().map(row).collect::<Vec<_>>())
}
