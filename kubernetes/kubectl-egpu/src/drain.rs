//! `kubectl egpu drain` and `undrain`: no new pods on a card, or on a node's cards.
//!
//! Where the API server has DeviceTaintRules, one of them; else an annotation of the Node, which
//! the plugin there turns into a taint. Pods that are there stay, unless they are to be evicted.

use std::{collections::BTreeSet, fmt, str::FromStr};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use kubernetes_api::names::{DRAIN_ANNOTATION, DRIVER, taint};
use serde::Serialize;
use serde_json::json;

use crate::{
    cluster::{Cluster, TaintRules, failed, optional},
    exit::CommandError,
    inventory::{Card, Inventory},
};

/// The writer, as the API server notes it.
const MANAGER: &str = "kubectl-egpu";
/// All cards, in the annotation.
const ALL: &str = "*";

/// Cards to drain: `NODE`, or `NODE/CARD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    node: String,
    card: Option<String>,
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (node, card) = text.split_once('/').map_or((text, None), |(node, card)| (node, Some(card)));
        if node.is_empty() || card.is_some_and(|card| card.is_empty() || card.contains('/')) {
            return Err("NODE or NODE/CARD, as `kubectl egpu cards` lists them");
        }
        Ok(Self { node: node.to_owned(), card: card.map(str::to_owned) })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.card {
            Some(card) => write!(formatter, "{}/{card}", self.node),
            None => write!(formatter, "{}", self.node),
        }
    }
}

/// The outcome, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    node: String,
    /// Null: all of the node's.
    card: Option<String>,
    drained: bool,
    /// `DeviceTaintRule` or `annotation`.
    by: &'static str,
    /// `NAMESPACE/POD` that are still on the cards.
    pods: Vec<String>,
    evicted: Vec<String>,
}

impl Target {
    fn covers(&self, card: &Card) -> bool {
        self.node == card.node && self.card.as_ref().is_none_or(|name| *name == card.name)
    }

    /// Refuses a name that nothing has.
    fn check(&self, inventory: &Inventory) -> Result<(), CommandError> {
        let nodes = inventory.nodes();
        if !nodes.contains(self.node.as_str()) {
            let known = nodes.into_iter().map(str::to_owned).collect();
            return Err(CommandError::NoNode { name: self.node.clone(), known });
        }
        let of_node: Vec<_> = inventory.cards.iter().filter(|card| card.node == self.node).collect();
        match &self.card {
            Some(card) if !of_node.iter().any(|one| one.name == *card) => Err(CommandError::NoCard {
                node: self.node.clone(),
                card: card.clone(),
                known: of_node.iter().map(|card| card.name.clone()).collect(),
            }),
            _ => Ok(()),
        }
    }

    /// Name of its rule. A dot is no part of a card's name: node `a.b` and card `b` of node `a`
    /// differ.
    fn rule(&self) -> String {
        let card = self.card.as_ref().map(|card| format!(".card.{card}")).unwrap_or_default();
        format!("egpu-drain.{}{card}", self.node)
    }

    fn pods(&self, inventory: &Inventory) -> BTreeSet<(String, String)> {
        let grants = inventory.cards.iter().filter(|card| self.covers(card)).flat_map(|card| &card.grants);
        grants.flat_map(|grant| grant.pods.iter().map(|pod| (grant.namespace.clone(), pod.clone()))).collect()
    }
}

fn names(pods: &BTreeSet<(String, String)>) -> Vec<String> {
    pods.iter().map(|(namespace, pod)| format!("{namespace}/{pod}")).collect()
}

/// Drains, and evicts pods if that is wanted.
pub(crate) async fn drain(cluster: &Cluster, target: &Target, evict: bool) -> Result<Outcome, CommandError> {
    let inventory = cluster.inventory().await?;
    target.check(&inventory)?;
    let by = match cluster.taint_rules().await? {
        Some(rules) => {
            add_rule(&rules, target).await?;
            "DeviceTaintRule"
        }
        None => {
            annotate(cluster, target, true).await?;
            "annotation"
        }
    };
    let pods = target.pods(&inventory);
    let mut outcome = Outcome {
        node: target.node.clone(),
        card: target.card.clone(),
        drained: true,
        by,
        pods: names(&pods),
        evicted: Vec::new(),
    };
    if evict {
        outcome.evicted = evict_all(cluster, &pods).await?;
        outcome.pods.clear();
    }
    Ok(outcome)
}

/// Takes back what [`drain`] did: of a node all, its cards' too.
pub(crate) async fn undrain(cluster: &Cluster, target: &Target) -> Result<Outcome, CommandError> {
    let (mut by, mut is_known) = ("annotation", false);
    if let Some(rules) = cluster.taint_rules().await? {
        by = "DeviceTaintRule";
        is_known = remove_rules(&rules, target).await?;
    }
    // Also where there are rules: the API server may have been renewed since.
    is_known |= annotate(cluster, target, false).await?;
    if !is_known {
        target.check(&cluster.inventory().await?)?;
    }
    let (node, card) = (target.node.clone(), target.card.clone());
    Ok(Outcome { node, card, drained: false, by, pods: Vec::new(), evicted: Vec::new() })
}

async fn add_rule(rules: &TaintRules, target: &Target) -> Result<(), CommandError> {
    let mut selector = json!({"driver": DRIVER, "pool": target.node});
    if let (Some(card), Some(fields)) = (&target.card, selector.as_object_mut()) {
        fields.insert("device".to_owned(), json!(card));
    }
    let rule = json!({
        "apiVersion": rules.api_version,
        "kind": "DeviceTaintRule",
        "metadata": {"name": target.rule()},
        "spec": {"deviceSelector": selector, "taint": {"key": taint::DRAIN, "effect": "NoSchedule"}}
    });
    let apply = PatchParams::apply(MANAGER).force();
    let doing = format!("write device taint rule {}", target.rule());
    rules.api.patch(&target.rule(), &apply, &Patch::Apply(&rule)).await.map_err(failed(doing))?;
    Ok(())
}

/// Returns whether there was one.
async fn remove_rules(rules: &TaintRules, target: &Target) -> Result<bool, CommandError> {
    let all = rules.api.list(&ListParams::default()).await.map_err(failed("list device taint rules"))?;
    let existing: BTreeSet<String> = all.items.into_iter().filter_map(|rule| rule.metadata.name).collect();
    let whole = Target { node: target.node.clone(), card: None }.rule();
    if target.card.is_some() && existing.contains(&whole) {
        return Err(CommandError::WholeNode { node: target.node.clone() });
    }
    let of_cards = format!("{}.card.", target.rule());
    let mut found = false;
    for name in existing.iter().filter(|name| **name == target.rule() || name.starts_with(&of_cards)) {
        let deleted = optional(rules.api.delete(name, &DeleteParams::default()).await);
        deleted.map_err(failed(format!("delete device taint rule {name}")))?;
        found = true;
    }
    Ok(found)
}

/// Returns the annotation with the target or without it; `None`: nothing is left.
fn annotation(now: &str, target: &Target, drained: bool) -> Result<Option<String>, CommandError> {
    let mut cards: BTreeSet<&str> = now.split(',').map(str::trim).filter(|card| !card.is_empty()).collect();
    match (&target.card, drained) {
        (None, true) => {
            cards.insert(ALL);
        }
        (Some(card), true) => {
            cards.insert(card);
        }
        (None, false) => cards.clear(),
        (Some(_), false) if cards.contains(ALL) => return Err(CommandError::WholeNode { node: target.node.clone() }),
        (Some(card), false) => {
            cards.remove(card.as_str());
        }
    }
    let cards: Vec<_> = cards.into_iter().collect();
    Ok((!cards.is_empty()).then(|| cards.join(",")))
}

/// Returns whether the annotation has changed.
async fn annotate(cluster: &Cluster, target: &Target, drained: bool) -> Result<bool, CommandError> {
    let nodes = Api::<Node>::all(cluster.client.clone());
    let doing = format!("annotate node {}", target.node);
    let node = match nodes.get(&target.node).await {
        Err(kube::Error::Api(status)) if status.code == 404 && !drained => return Ok(false),
        answer => answer.map_err(failed(doing.clone()))?,
    };
    let now = node.metadata.annotations.as_ref().and_then(|all| all.get(DRAIN_ANNOTATION));
    let next = annotation(now.map_or("", String::as_str), target, drained)?;
    if next.as_ref() == now {
        return Ok(false);
    }
    // With the version that was read: what another has written meanwhile is not undone.
    let metadata = json!({"resourceVersion": node.metadata.resource_version, "annotations": {DRAIN_ANNOTATION: next}});
    let patch = Patch::Merge(json!({"metadata": metadata}));
    nodes.patch(&target.node, &PatchParams::default(), &patch).await.map_err(failed(doing))?;
    Ok(true)
}

/// Evicts pods as `kubectl drain` does: disruption budgets count.
async fn evict_all(cluster: &Cluster, pods: &BTreeSet<(String, String)>) -> Result<Vec<String>, CommandError> {
    let (mut evicted, mut kept) = (Vec::new(), Vec::new());
    for (namespace, pod) in pods {
        let of_namespace = Api::<Pod>::namespaced(cluster.client.clone(), namespace);
        match optional(of_namespace.evict(pod, &EvictParams::default()).await) {
            Ok(_) => evicted.push(format!("{namespace}/{pod}")),
            Err(kube::Error::Api(status)) if status.code == 429 => {
                kept.push(format!("{namespace}/{pod}: {}", status.message));
            }
            Err(error) => return Err(failed(format!("evict pod {namespace}/{pod}"))(error)),
        }
    }
    if kept.is_empty() { Ok(evicted) } else { Err(CommandError::NotEvicted(kept)) }
}

/// Formats the outcome.
pub(crate) fn text(outcome: &Outcome) -> String {
    let cards = match &outcome.card {
        Some(card) => format!("card {card} of node {}", outcome.node),
        None => format!("all cards of node {}", outcome.node),
    };
    if !outcome.drained {
        return format!("{cards}: open to pods again\n");
    }
    let mut text = format!("{cards}: no new pods\n");
    for pod in &outcome.evicted {
        text.push_str(&format!("evicted {pod}\n"));
    }
    if !outcome.pods.is_empty() {
        text.push_str(&format!("still there: {} (--evict ends them)\n", outcome.pods.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn a_target_is_a_node_or_a_card_of_one() {
        assert_eq!(target("n1"), Target { node: "n1".to_owned(), card: None });
        assert_eq!(target("n1/gpu-0").to_string(), "n1/gpu-0");
        for wrong in ["", "/", "n1/", "/gpu-0", "n1/gpu-0/x"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
        assert_ne!(target("a/b").rule(), target("a.b").rule());
    }

    #[test]
    fn the_annotation_lists_cards() {
        let next = |now: &str, name: &str, drained| annotation(now, &target(name), drained).unwrap();
        assert_eq!(next("", "n1/gpu-1", true).as_deref(), Some("gpu-1"));
        assert_eq!(next("gpu-1", "n1/gpu-0", true).as_deref(), Some("gpu-0,gpu-1"));
        assert_eq!(next(" gpu-0, gpu-1,", "n1/gpu-0", false).as_deref(), Some("gpu-1"));
        assert_eq!(next("gpu-1", "n1/gpu-1", false), None);
        assert_eq!(next("gpu-1", "n1", true).as_deref(), Some("*,gpu-1"));
        assert_eq!(next("*,gpu-1", "n1", false), None);
        assert!(matches!(annotation("*", &target("n1/gpu-0"), false), Err(CommandError::WholeNode { .. })));
    }
}
