//! `egpu set`: changes the limits of a running container.

use base::amounts::human;
use ledger::{CardGrant, Change, ComputeEnforcement, ContainerName, Limits, Record, decision_log::DecisionLog};
use runtime_config::{
    Bytes, Percent, Weight,
    request::{CardPolicy, ComputeShare, MemoryLimit, PerCard, PodContainer, Priority},
};
use schedule::policy::rules;
use serde::Serialize;

use super::{
    container_name,
    error::CliError,
    exit::Exit,
    in_force::InForce,
    node::Node,
    output::{Output, printable},
    schedules::Schedules,
    usage, value_parsers,
};

/// Arguments of `egpu set`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A list has a value for each card that the container shares, in its own order. What does not fit beside the \
                  other containers is refused, and nothing changes. A container that uses more memory than its new limit \
                  keeps it, and gets no more. A change lasts until the container ends: one that is started again, as \
                  Kubernetes and Docker restart containers in place, has what its request says.",
    group = clap::ArgGroup::new("what").required(true).multiple(true).args(["memory", "compute", "weight", "priority"])
)]
pub(super) struct SetArguments {
    /// The container: its id or enough of its beginning, NAMESPACE/ID, POD, NAMESPACE/POD or
    /// NAMESPACE/POD/CONTAINER
    id: String,
    /// containerd's namespace or the pod's, where several have a container of that name
    #[arg(long, short)]
    namespace: Option<String>,
    /// Memory of each card: 6GiB, 40%, or a list
    #[arg(long, value_name = "LIMIT", allow_hyphen_values = true, value_parser = value_parsers::memory)]
    memory: Option<PerCard<MemoryLimit>>,
    /// Cap on its part of each card's time: 30%, none, or a list
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = value_parsers::compute, conflicts_with = "weight")]
    compute: Option<PerCard<ComputeShare>>,
    /// Its weight among the containers of each card: 1 to 1000, or a list
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = value_parsers::weight)]
    weight: Option<PerCard<ComputeShare>>,
    #[arg(long, value_name = "PRIORITY", value_parser = value_parsers::priority, help = priority_help())]
    priority: Option<Priority>,
    /// Wait until the change is in force
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    output: Output,
}

fn priority_help() -> String {
    let policies = CardPolicy::listed("and", |policy| rules(policy).promises_time());
    format!(
        "Priority: high, or low (runs only in time that others do not use). Has no effect where a container has a part of the \
         card's time to itself: a percent, or a share of the policies {policies}"
    )
}

pub(super) fn run(arguments: &SetArguments) -> Result<Exit, CliError> {
    let node = Node::read()?;
    let before = container_name::find(&node.records, &arguments.id, arguments.namespace.as_deref())?;
    let (changed, remarks) = apply(&node, before, &change(arguments, before), arguments.wait)?;
    for remark in remarks {
        crate::output::say(&format!("egpu: {remark}"));
    }
    crate::output::show(arguments.output, &changed, || changed.text())
}

/// Makes the change, and returns remarks about it.
pub(super) fn apply(
    node: &Node,
    before: &Record,
    change: &Change,
    wait: bool,
) -> Result<(LimitChange, Vec<String>), CliError> {
    let log = DecisionLog::new(&node.config.log_file, &node.config.state_dir);
    let limits = Limits::from(&node.config);
    let after = node
        .ledger()?
        .set(&node.inventory, &limits, &before.container, change, &log)
        .map_err(|error| CliError::Set(Box::new(error)))?;
    let in_force = InForce::read(&node.config.state_dir, wait);
    let mut remarks = Vec::new();
    let used = usage::mediated(&node.config.state_dir, &after).ok().flatten().unwrap_or_default();
    for card in &after.cards {
        let used = used.cards.iter().find(|reported| reported.uuid == card.uuid);
        let is_less = before.cards.iter().any(|earlier| earlier.uuid == card.uuid && earlier.memory > card.memory);
        if let Some(used) = used.filter(|reported| is_less && reported.used > card.memory) {
            remarks.push(format!(
                "the container uses {} of card {}, more than its new limit: it keeps that, and gets no more",
                human(used.used),
                card.index
            ));
        }
    }
    let (schedules, _) = Schedules::read(&node.config.state_dir, std::slice::from_ref(&after));
    Ok((LimitChange::new(before, &after, &schedules, in_force), remarks))
}

/// Asks the ledger whether the change would fit, and returns what would change; nothing does.
pub(super) fn preview(node: &Node, before: &Record, change: &Change) -> Result<String, CliError> {
    let limits = Limits::from(&node.config);
    let after = node
        .ledger()?
        .preview_set(&node.inventory, &limits, &before.container, change)
        .map_err(|error| CliError::Set(Box::new(error)))?;
    let in_force = InForce { from_us: None, in_us: 0 };
    let (text, _) = LimitChange::new(before, &after, &Schedules::default(), in_force).changes();
    Ok(text)
}

fn change(arguments: &SetArguments, record: &Record) -> Change {
    let compute = arguments.compute.as_ref().or(arguments.weight.as_ref());
    Change {
        memory: arguments.memory.clone(),
        compute: compute.map(|compute| keep_lifted(compute, record)),
        priority: arguments.priority,
    }
}

/// Keeps a cap that is lifted while the container is alone of that kind: only its number changes.
pub(super) fn keep_lifted(compute: &PerCard<ComputeShare>, record: &Record) -> PerCard<ComputeShare> {
    let is_lifted = |grant: &CardGrant| matches!(grant.compute, ComputeShare::Cap { lifted_when_alone: true, .. });
    let shared: Vec<&CardGrant> = record.cards.iter().filter(|grant| grant.is_shared()).collect();
    // A list of another length is refused by the ledger.
    let Ok(shares) = compute.for_cards(shared.len()) else { return compute.clone() };
    if !shared.iter().any(|grant| is_lifted(grant)) {
        return compute.clone();
    }
    let kept = shares.into_iter().zip(shared).map(|(share, grant)| match *share {
        ComputeShare::Cap { percent, .. } => ComputeShare::Cap { percent, lifted_when_alone: is_lifted(grant) },
        other => other,
    });
    PerCard::exactly(kept.collect())
}

/// Limits of a container before and after, as `--output json` shows them. Keys are fixed.
#[derive(Debug, Serialize)]
pub(super) struct LimitChange {
    id: String,
    namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<PodContainer>,
    #[serde(flatten)]
    in_force: InForce,
    priority: BeforeAfter<Priority>,
    cards: Vec<CardChange>,
    /// The name of the container, for people.
    #[serde(skip)]
    name: String,
}

#[derive(Debug, PartialEq, Serialize)]
struct BeforeAfter<T> {
    before: T,
    after: T,
}

#[derive(Debug, Serialize)]
struct CardChange {
    index: u32,
    uuid: String,
    memory_limit_bytes: BeforeAfter<Bytes>,
    compute_percent: BeforeAfter<Option<u8>>,
    weight: BeforeAfter<Option<u16>>,
    /// Granted part of the card's time, once in force; null where nothing divides it.
    granted_percent: Option<f64>,
    /// It has a part of the card's time to itself, whatever its priority.
    #[serde(skip)]
    is_promised: bool,
}

/// Returns whether others never run in the time of the grant: the rest of a `fixed` card belongs to
/// all containers without a cap.
fn is_promised(grant: &CardGrant) -> bool {
    grant.compute_by == ComputeEnforcement::Windows && !rules(grant.policy).shares_the_rest(grant.compute)
}

impl LimitChange {
    fn new(before: &Record, after: &Record, schedules: &Schedules, in_force: InForce) -> Self {
        let turn = schedules.last_turn(after);
        let cap = |grant: &CardGrant| grant.compute.cap().map(Percent::get);
        let weight = |grant: &CardGrant| grant.compute.weight().map(Weight::get);
        let card = |(before, after): (&CardGrant, &CardGrant)| CardChange {
            index: after.index,
            uuid: after.uuid.clone(),
            memory_limit_bytes: BeforeAfter { before: before.memory, after: after.memory },
            compute_percent: BeforeAfter { before: cap(before), after: cap(after) },
            weight: BeforeAfter { before: weight(before), after: weight(after) },
            granted_percent: turn
                .and_then(|turn| turn.card(&after.uuid))
                .map(|card| super::schedules::percent(card.share_ppm)),
            is_promised: is_promised(after),
        };
        Self {
            id: after.container.id.clone(),
            namespace: after.container.namespace.clone(),
            pod: after.request.pod.clone(),
            in_force,
            priority: BeforeAfter { before: before.priority(), after: after.priority() },
            cards: before.cards.iter().zip(&after.cards).map(card).collect(),
            name: printable(&ContainerName::from(after).to_string()),
        }
    }

    pub(super) fn text(&self) -> String {
        let (changes, is_changed) = self.changes();
        let mut text = format!("{}\n{changes}", self.name);
        if is_changed {
            text.push_str(&format!("{}\n", self.in_force));
        }
        if is_changed && self.pod.is_some() {
            text.push_str("a restart of the container undoes this; to keep it, change the request of the pod\n");
        }
        text
    }

    /// Returns a line for each change, and whether there is one.
    fn changes(&self) -> (String, bool) {
        let mut text = String::new();
        let mut is_changed = false;
        for card in &self.cards {
            let mut parts = Vec::new();
            let memory = &card.memory_limit_bytes;
            if memory.before != memory.after {
                parts.push(format!("memory {} -> {}", human(memory.before), human(memory.after)));
            }
            let share = |percent: Option<u8>, weight: Option<u16>| match (percent, weight) {
                (Some(percent), _) => format!("{percent}%"),
                (None, Some(weight)) => format!("weight {weight}"),
                (None, None) => "no limit".to_owned(),
            };
            let before = share(card.compute_percent.before, card.weight.before);
            let after = share(card.compute_percent.after, card.weight.after);
            if before != after {
                let granted = card.granted_percent.map(|_| super::schedules::shown(card.granted_percent));
                let granted = granted.map(|share| format!(" ({share} of its time)")).unwrap_or_default();
                parts.push(format!("compute {before} -> {after}{granted}"));
            }
            if !parts.is_empty() {
                is_changed = true;
                text.push_str(&format!("card {}: {}\n", card.index, parts.join(", ")));
            }
        }
        let BeforeAfter { before, after } = &self.priority;
        if before != after {
            is_changed = true;
            text.push_str(&format!("priority {before:?} -> {after:?}\n").to_lowercase());
        }
        if is_changed && *after == Priority::Low {
            for card in self.cards.iter().filter(|card| card.is_promised) {
                let index = card.index;
                text.push_str(&format!(
                    "card {index}: the low priority has no effect: its part of the time is its own\n"
                ));
            }
        }
        if !is_changed {
            text.push_str("nothing has changed: these are its limits already\n");
        }
        (text, is_changed)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::test_support;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: SetArguments,
    }

    fn parse(line: &str) -> Result<SetArguments, clap::Error> {
        let words = std::iter::once("set").chain(line.split(' ').filter(|word| !word.is_empty()));
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn something_must_be_asked_for_and_only_one_kind_of_share() {
        for line in ["a --memory 6GiB", "a --compute none --memory 40%", "a --weight 2 --wait", "a --priority low"] {
            assert!(parse(line).is_ok(), "{line}");
        }
        for line in ["", "a", "a --wait", "a --compute 30% --weight 2", "a --memory lots", "a --priority 1"] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_cap_that_is_lifted_when_alone_stays_one() {
        let mut record = test_support::node().records.remove(0);
        let cap = |percent, lifted_when_alone| ComputeShare::Cap {
            percent: Percent::new(percent).unwrap(),
            lifted_when_alone,
        };
        let arguments = parse("a --compute 30%").unwrap();
        assert_eq!(change(&arguments, &record).compute, Some(PerCard::same(cap(30, false))));
        record.cards[0].compute = cap(10, true);
        assert_eq!(change(&arguments, &record).compute, Some(PerCard::exactly(vec![cap(30, true)])));
        let list = parse("a --compute 30%,40%").unwrap();
        let same = PerCard::exactly(vec![cap(30, false), cap(40, false)]);
        assert_eq!(change(&list, &record).compute, Some(same), "the ledger says what is wrong with it");
    }

    #[test]
    fn a_priority_without_effect_is_warned_about() {
        let node = test_support::node();
        let before = &node.records[0];
        let mut after = before.clone();
        after.priority = Some(Priority::Low);
        let text = |policy, compute, by| {
            let mut after = after.clone();
            (after.cards[0].policy, after.cards[0].compute, after.cards[0].compute_by) = (policy, compute, by);
            LimitChange::new(before, &after, &node.schedules, InForce { from_us: None, in_us: 0 }).text()
        };
        let cap = before.cards[0].compute;
        let (windows, slices) = (ComputeEnforcement::Windows, ComputeEnforcement::Slices);
        let reported = "card 0: the low priority has no effect: its part of the time is its own\n";
        assert!(text(CardPolicy::Fixed, cap, windows).contains(reported));
        assert!(text(CardPolicy::Fair, ComputeShare::Unlimited, windows).contains(reported));
        assert!(
            !text(CardPolicy::Fixed, ComputeShare::Unlimited, windows).contains(reported),
            "what is left is shared"
        );
        assert!(!text(CardPolicy::Soft, ComputeShare::Unlimited, slices).contains(reported));
    }

    #[test]
    fn a_pods_container_is_named_by_it_and_loses_the_change_when_it_restarts() {
        let node = test_support::node();
        let mut after = node.records[0].clone();
        after.request.pod = Some(test_support::pod());
        after.priority = Some(Priority::Low);
        let in_force = InForce { from_us: Some(1), in_us: 0 };
        let changed = LimitChange::new(&node.records[0], &after, &node.schedules, in_force);
        let text = changed.text();
        assert!(text.starts_with("team/train-0/main [default/training]\npriority high -> low\n"), "{text}");
        assert!(
            text.ends_with(
                "in force\na restart of the container undoes this; to keep it, change the request of the pod\n"
            ),
            "{text}"
        );
        let pod = serde_json::json!({"namespace": "team", "pod": "train-0", "container": "main"});
        assert_eq!(serde_json::to_value(&changed).unwrap()["pod"], pod);
        let same = LimitChange::new(&after, &after, &node.schedules, in_force);
        assert!(!same.text().contains("restart"), "nothing has changed");
    }

    #[test]
    fn what_changed_is_shown_and_from_when_on() {
        let node = test_support::node();
        let before = &node.records[0];
        let in_force = InForce { from_us: Some(test_support::NOW_US + 150_000), in_us: 150_000 };
        let mut after = before.clone();
        let same = LimitChange::new(before, &after, &node.schedules, in_force);
        assert_eq!(same.text(), "default/training\nnothing has changed: these are its limits already\n");
        after.cards[0].memory = Bytes(6 * Bytes::GIB);
        after.cards[0].compute = ComputeShare::Weight(Weight::new(2).unwrap());
        after.priority = Some(Priority::Low);
        let changed = LimitChange::new(before, &after, &node.schedules, in_force);
        assert_eq!(
            changed.text(),
            "default/training\ncard 0: memory 3.2 GiB -> 6 GiB, compute 10% -> weight 2 (10.0% of its time)\n\
             priority high -> low\ncard 0: the low priority has no effect: its part of the time is its own\nin force in 150 ms\n"
        );
        let value = serde_json::to_value(&changed).unwrap();
        assert_eq!(value.get("pod"), None);
        let card = &value["cards"][0];
        assert_eq!(value["in_us"], 150_000);
        assert_eq!(card["memory_limit_bytes"]["after"], 6 * Bytes::GIB);
        assert_eq!((&card["compute_percent"]["before"], &card["compute_percent"]["after"]), (&10.into(), &().into()));
        assert_eq!((&card["weight"]["before"], &card["weight"]["after"]), (&().into(), &2.into()));
    }
}
