//! The answer, from all facts.

use std::cmp::Ordering;

use k8s_openapi::api::core::v1::{Event, Pod};
use kubernetes_api::names::{DRIVER, attribute, taint};
use serde::Serialize;

use super::{Facts, PodClaim};
use crate::{
    allocation::{Amounts, Shortage},
    cards,
    inventory::Card,
    node_match, output,
    placement::{Lack, Placed, Search, lacks, search},
    quantity::amount,
    request::{Alternative, Count, Request, Wish},
    selector::{Outcome, Selectors},
};

/// The answer, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) phase: String,
    pub(crate) state: State,
    /// The scheduler's own words.
    pub(crate) scheduler: Option<String>,
    /// Faults that keep the pod from being scheduled at all.
    pub(crate) faults: Vec<String>,
    pub(crate) granted: Vec<Granted>,
    pub(crate) requests: Vec<RequestReport>,
    /// Nodes that have all of it now.
    pub(crate) fits: Vec<Fit>,
    /// Nodes with a card for each request, but not for all of them together.
    pub(crate) not_together: Vec<String>,
    /// Warnings of the pod's, the last one first.
    pub(crate) events: Vec<EventReport>,
}

/// The pod's place on the way to its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// It names no claim for egpu's cards.
    NoClaim,
    Waiting,
    /// All of its claims have their cards.
    Allocated,
}

/// A card that a claim has.
#[derive(Debug, Serialize)]
pub(crate) struct Granted {
    pub(crate) claim: String,
    pub(crate) request: String,
    pub(crate) node: String,
    pub(crate) card: String,
    pub(crate) amounts: Amounts,
}

/// A request that waits, or one of its alternatives.
#[derive(Debug, Serialize)]
pub(crate) struct RequestReport {
    pub(crate) claim: String,
    pub(crate) request: String,
    pub(crate) class: String,
    /// Number of cards; null: all.
    pub(crate) count: Option<usize>,
    pub(crate) asked: Amounts,
    /// The best card first.
    pub(crate) cards: Vec<CardReport>,
}

/// A card, and all that is in its way for a request.
#[derive(Debug, Serialize)]
pub(crate) struct CardReport {
    pub(crate) node: String,
    pub(crate) card: String,
    pub(crate) model: String,
    pub(crate) free: Amounts,
    /// All that is in the way, in words.
    pub(crate) lacks: Vec<String>,
    #[serde(skip)]
    rank: Rank,
}

/// The distance of a card from what is asked: the kind of the worst obstacle, then how much is
/// missing, relative to what is needed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rank(u8, f64);

/// Cards on a node that a pod could have now.
#[derive(Debug, Serialize)]
pub(crate) struct Fit {
    pub(crate) node: String,
    /// `REQUEST=CARD`
    pub(crate) cards: Vec<String>,
}

/// A warning.
#[derive(Debug, Serialize)]
pub(crate) struct EventReport {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) count: i32,
}

/// Works out the answer.
pub(crate) fn report(facts: &Facts) -> Report {
    let selectors = Selectors::default();
    let ours = |request: &Request| request.alternatives.iter().any(|one| is_ours(one, facts, &selectors));
    let (mut faults, mut granted, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_asked = false;
    for claim in &facts.claims {
        faults.extend(claim_faults(claim, facts));
        let mut wish = claim.wish.clone();
        if let Some(wish) = &mut wish {
            wish.requests.retain(&ours);
        }
        is_asked |= wish.as_ref().is_none_or(|wish| !wish.requests.is_empty());
        match (wish, is_allocated(claim)) {
            (_, true) => granted.extend(grants(claim)),
            (Some(wish), false) if !wish.requests.is_empty() => waiting.push(wish),
            _ => {}
        }
    }
    let state = match (is_asked, waiting.is_empty() && faults.is_empty()) {
        (false, _) => State::NoClaim,
        (true, true) => State::Allocated,
        (true, false) => State::Waiting,
    };
    if state == State::Waiting && facts.inventory.cards.is_empty() {
        faults.push(
            "no node publishes cards: is egpu-kubelet-plugin running? `kubectl get pods -n egpu -o wide`".to_owned(),
        );
    }
    let (fits, not_together) = nodes_that_fit(facts, &waiting, &granted, &selectors);
    let alternatives = waiting.iter().flat_map(|wish| {
        let alternatives = wish.requests.iter().flat_map(|request| &request.alternatives);
        alternatives.map(|one| request_report(wish, one, facts, &granted, &selectors))
    });
    Report {
        namespace: facts.pod.metadata.namespace.clone().unwrap_or_default(),
        pod: facts.pod.metadata.name.clone().unwrap_or_default(),
        phase: facts.pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
        state,
        scheduler: scheduler_says(&facts.pod),
        faults,
        requests: alternatives.collect(),
        granted,
        fits,
        not_together,
        events: warnings(&facts.events),
    }
}

/// Returns whether a request is for egpu's cards, as far as its class says.
fn is_ours(wanted: &Alternative, facts: &Facts, selectors: &Selectors) -> bool {
    let of_class = wanted.selectors.get(..wanted.of_class).unwrap_or_default();
    let chosen = |card: &Card| of_class.iter().all(|one| selectors.evaluate(one, card) != Outcome::NotChosen);
    match facts.inventory.cards.as_slice() {
        [] => !wanted.has_class || of_class.iter().any(|one| one.contains(DRIVER)),
        cards => cards.iter().any(chosen),
    }
}

fn claim_faults(claim: &PodClaim, facts: &Facts) -> Vec<String> {
    let mut faults: Vec<_> = claim.missing.iter().cloned().collect();
    let alternatives = claim.wish.iter().flat_map(|wish| &wish.requests).flat_map(|request| &request.alternatives);
    for missing in alternatives.filter(|one| !one.has_class && !is_allocated(claim)) {
        faults.push(format!("there is no device class {}, which request {} names", missing.class, missing.name));
    }
    let own = facts.pod.metadata.uid.as_deref().unwrap_or_default();
    let status = claim.object.as_ref().and_then(|object| object.status.as_ref());
    let users = status.and_then(|status| status.reserved_for.as_ref()).into_iter().flatten();
    let others: Vec<_> = users.filter(|user| user.uid != own).map(|user| user.name.as_str()).collect();
    if !others.is_empty() {
        let others = others.join(", ");
        faults.push(format!(
            "claim {} is used by pod {others} already, and egpu gives a claim to one pod: use a template, which makes a claim for each",
            claim.name
        ));
    }
    faults
}

fn allocation(claim: &PodClaim) -> Option<&k8s_openapi::api::resource::v1::AllocationResult> {
    claim.object.as_ref()?.status.as_ref()?.allocation.as_ref()
}

fn is_allocated(claim: &PodClaim) -> bool {
    allocation(claim).is_some()
}

fn grants(claim: &PodClaim) -> Vec<Granted> {
    let devices = allocation(claim).and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_ref()).into_iter().flatten();
    let ours = results.filter(|result| result.driver == DRIVER);
    let granted = ours.map(|result| Granted {
        claim: claim.name.clone(),
        request: result.request.clone(),
        node: result.pool.clone(),
        card: result.device.clone(),
        amounts: result.consumed_capacity.iter().flatten().map(|(name, one)| (name.clone(), amount(one))).collect(),
    });
    granted.collect()
}

/// Obstacles of a node, cards apart.
fn node_obstacles(facts: &Facts, granted: &[Granted], name: &str) -> Vec<String> {
    let node = facts.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name));
    let mut found = match node {
        Some(node) => node_match::obstacles(&facts.pod, node),
        None => vec![format!("there is no node {name}")],
    };
    if facts.inventory.incomplete.contains(name) {
        found.push("the node has not published all of its cards yet".to_owned());
    }
    if let Some(elsewhere) = granted.iter().find(|grant| grant.node != name) {
        found.push(format!("claim {} has its cards on node {}", elsewhere.claim, elsewhere.node));
    }
    found
}

fn nodes_that_fit(
    facts: &Facts,
    waiting: &[Wish],
    granted: &[Granted],
    selectors: &Selectors,
) -> (Vec<Fit>, Vec<String>) {
    let (mut fits, mut not_together) = (Vec::new(), Vec::new());
    if waiting.is_empty() {
        return (fits, not_together);
    }
    for node in facts.inventory.nodes() {
        if !node_obstacles(facts, granted, node).is_empty() {
            continue;
        }
        let cards: Vec<&Card> = facts.inventory.cards.iter().filter(|card| card.node == node).collect();
        let has_card = |request: &Request| {
            let has = |one: &Alternative| cards.iter().any(|card| lacks(one, card, selectors).is_empty());
            request.alternatives.iter().any(has)
        };
        match search(waiting, &cards, selectors) {
            Search::Found(placed) => fits.push(Fit { node: node.to_owned(), cards: placed.iter().map(pair).collect() }),
            _ if waiting.iter().all(|wish| wish.requests.iter().all(has_card)) => not_together.push(node.to_owned()),
            _ => {}
        }
    }
    (fits, not_together)
}

fn pair(placed: &Placed) -> String {
    format!("{}={}", placed.request, placed.card)
}

fn request_report(
    wish: &Wish,
    wanted: &Alternative,
    facts: &Facts,
    granted: &[Granted],
    selectors: &Selectors,
) -> RequestReport {
    let report = |card: &Card| {
        let obstacles = node_obstacles(facts, granted, &card.node);
        let lacks = lacks(wanted, card, selectors);
        let rank = Rank::of(&lacks, !obstacles.is_empty());
        let free = card.capacities.keys().filter_map(|name| Some((name.clone(), card.amounts(name)?.free)));
        CardReport {
            node: card.node.clone(),
            card: card.name.clone(),
            model: card.text(attribute::PRODUCT_NAME).to_owned(),
            free: free.collect(),
            lacks: lacks.iter().map(|lack| words(lack, card)).chain(obstacles).collect(),
            rank,
        }
    };
    let mut cards: Vec<_> = facts.inventory.cards.iter().map(report).collect();
    cards.sort_by(|one, other| one.rank.partial_cmp(&other.rank).unwrap_or(Ordering::Equal));
    let count = match wanted.count {
        Count::Exactly(count) => Some(count),
        Count::All => None,
    };
    RequestReport {
        claim: wish.claim.clone(),
        request: wanted.name.clone(),
        class: wanted.class.clone(),
        count,
        asked: wanted.asked.clone(),
        cards,
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.0.cmp(&other.0).then(self.1.total_cmp(&other.1)))
    }
}

impl Rank {
    fn of(lacks: &[Lack], is_node_out: bool) -> Self {
        let kind = |lack: &Lack| match lack {
            Lack::Room(Shortage::TooLittle { .. }) => 1,
            Lack::Taint(_) | Lack::Dedicated => 2,
            Lack::Unknown { .. } => 4,
            Lack::NotChosen { .. } | Lack::Room(_) => 5,
        };
        let worst = lacks.iter().map(kind).chain(is_node_out.then_some(3)).max().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "an order for people")]
        let part = |lack: &Lack| match lack {
            Lack::Room(Shortage::TooLittle { needed, free, .. }) => 1.0 - *free as f64 / *needed as f64,
            _ => 0.0,
        };
        Self(worst, lacks.iter().map(part).sum())
    }
}

/// A lack in words.
fn words(lack: &Lack, card: &Card) -> String {
    match lack {
        Lack::Room(Shortage::TooLittle { name, needed, free }) => {
            let of_all = *needed > card.capacities.get(name).map_or(0, |capacity| capacity.value);
            let short = output::amount(name, needed - free);
            let free = output::amount(name, *free);
            let never = if of_all { "; more than it ever has" } else { "" };
            format!("lacks {short} of {name} ({free} free{never})")
        }
        Lack::Room(Shortage::Missing { name }) => format!("it has no capacity {name}"),
        Lack::Room(Shortage::NotAllowed { name, asked }) => {
            format!("{name} {} cannot be asked for", output::amount(name, *asked))
        }
        Lack::Dedicated => "a claim has all of it".to_owned(),
        Lack::Taint(found) if found.key == taint::DRAIN => "it is being drained".to_owned(),
        Lack::Taint(found) => format!("taint {} is not tolerated", cards::taint(found)),
        Lack::NotChosen { expression } => format!("not chosen by {expression}"),
        Lack::Unknown { expression, reason } => format!("selector not evaluated: {expression}: {reason}"),
    }
}

fn scheduler_says(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
    scheduled.message.clone()
}

fn warnings(events: &[Event]) -> Vec<EventReport> {
    let mut warnings: Vec<_> = events.iter().filter(|event| event.type_.as_deref() == Some("Warning")).collect();
    let time = |event: &Event| {
        let micro = event.event_time.as_ref().map(|time| time.0);
        event.last_timestamp.as_ref().map(|time| time.0).or(micro)
    };
    warnings.sort_by_key(|event| std::cmp::Reverse(time(event)));
    let told = warnings.into_iter().map(|event| EventReport {
        reason: event.reason.clone().unwrap_or_default(),
        message: event.message.clone().unwrap_or_default(),
        count: event.count.unwrap_or(1),
    });
    told.collect()
}
