//! `kubectl egpu cards`: the cluster's cards, and what claims hold of them.

use kubernetes_api::names::{attribute, capacity};
use serde::Serialize;

use crate::{
    inventory::{Balance, Card, Inventory},
    output::{amount, table},
};

/// One card, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Serialize)]
pub(crate) struct Listing {
    node: String,
    card: String,
    uuid: String,
    model: String,
    policy: String,
    memory_bytes: Option<Balance>,
    compute_percent: Option<Balance>,
    containers: Option<Balance>,
    /// `key=value:effect`
    taints: Vec<String>,
    /// `NAMESPACE/POD`; a claim that no pod uses yet: `NAMESPACE/CLAIM (claim)`.
    users: Vec<String>,
}

/// Lists the cards, of one node where it is named.
pub(crate) fn list(inventory: &Inventory, node: Option<&str>) -> Vec<Listing> {
    let wanted = |card: &&Card| node.is_none_or(|node| node == card.node);
    inventory.cards.iter().filter(wanted).map(listing).collect()
}

fn listing(card: &Card) -> Listing {
    Listing {
        node: card.node.clone(),
        card: card.name.clone(),
        uuid: card.text(attribute::UUID).to_owned(),
        model: card.text(attribute::PRODUCT_NAME).to_owned(),
        policy: card.text(attribute::POLICY).to_owned(),
        memory_bytes: card.amounts(capacity::MEMORY),
        compute_percent: card.amounts(capacity::COMPUTE),
        containers: card.amounts(capacity::CONTAINERS),
        taints: card.taints.iter().map(taint).collect(),
        users: users(card),
    }
}

/// Formats a taint as `key=value:effect`.
pub(crate) fn taint(taint: &k8s_openapi::api::resource::v1::DeviceTaint) -> String {
    let value = taint.value.as_deref().filter(|value| !value.is_empty());
    let value = value.map(|value| format!("={value}")).unwrap_or_default();
    format!("{}{value}:{}", taint.key, taint.effect)
}

fn users(card: &Card) -> Vec<String> {
    let mut users = Vec::new();
    for grant in &card.grants {
        users.extend(grant.pods.iter().map(|pod| format!("{}/{pod}", grant.namespace)));
        if grant.pods.is_empty() {
            users.push(format!("{}/{} (claim)", grant.namespace, grant.claim));
        }
    }
    users.sort();
    users.dedup();
    users
}

/// The table: held / offered of each, what is left, who.
pub(crate) fn text(listings: &[Listing]) -> String {
    let titles = ["NODE", "CARD", "MODEL", "MEMORY", "COMPUTE", "PLACES", "FREE", "POLICY", "TAINTS", "PODS"];
    let part = |name: &str, balance: Option<Balance>| {
        balance.map_or_else(|| "-".to_owned(), |one| format!("{}/{}", amount(name, one.held), amount(name, one.total)))
    };
    let free = |name: &str, balance: Option<Balance>| balance.map(|one| amount(name, one.free));
    let row = |one: &Listing| {
        let left = [free(capacity::MEMORY, one.memory_bytes), free(capacity::COMPUTE, one.compute_percent)];
        vec![
            one.node.clone(),
            one.card.clone(),
            one.model.clone(),
            part(capacity::MEMORY, one.memory_bytes),
            part(capacity::COMPUTE, one.compute_percent),
            part(capacity::CONTAINERS, one.containers),
            left.into_iter().flatten().collect::<Vec<_>>().join(" "),
            one.policy.clone(),
            or_dash(&one.taints),
            or_dash(&one.users),
        ]
    };
    table(&titles, &listings.iter().map(row).collect::<Vec<_>>())
}

fn or_dash(words: &[String]) -> String {
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}
