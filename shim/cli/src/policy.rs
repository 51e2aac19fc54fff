//! `egpu policy`: shows or changes the sharing of a card.

use cards::{Card, CardOrMig};
use ledger::{CardSetting, CardState, Ledger, Limits, Record, decision_log::DecisionLog};
use nvidia_glue::inject;
use runtime_config::{
    config::Period,
    request::{CardPolicy, DeviceSelector},
};
use schedule::{StatusFile, policy::rules};
use serde::Serialize;

use super::{
    error::CliError,
    exit::Exit,
    in_force::InForce,
    listing::{Listing, ListingOptions},
    node::Node,
    output,
    table::{Cell, CellState, Column},
    value_parsers,
};

/// Arguments of `egpu policy`.
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub(super) struct PolicyArguments {
    /// The card: its index, its UUID or enough of its beginning (GPU-...), or its PCI address
    /// [default: list all]
    #[arg(value_name = "CARD")]
    card: Option<DeviceSelector>,
    #[arg(
        value_name = "POLICY",
        value_parser = value_parsers::policy_parser(),
        help = format!("Policy of sharing: {}", CardPolicy::listed("or", |_| true)),
    )]
    policy: Option<CardPolicy>,
    /// Period of the turns, 20ms to 500ms, longer where a turn would be shorter than 5ms; auto: as
    /// short as costs little with the shares of the card
    #[arg(long, value_name = "TIME", value_parser = value_parsers::period, requires = "card")]
    period: Option<Period>,
    /// Wait until the change is in force
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    listing: ListingOptions,
}

fn help() -> String {
    let mut help = "Policies:\n".to_owned();
    for policy in CardPolicy::ALL {
        help += &format!("  {:<12}{}\n", policy.name(), rules(*policy).meaning);
    }
    help + "\nA policy under which one of the card's containers could not have what it was granted is refused. What is set \
            holds for the containers that the card has and for those to come, until the machine restarts."
}

pub(super) fn run(arguments: &PolicyArguments) -> Result<Exit, CliError> {
    let node = Node::read()?;
    let card = arguments.card.as_ref().map(|selector| find(&node, selector)).transpose()?;
    let setting = CardSetting { policy: arguments.policy, period: arguments.period };
    let (Some(card), true) = (card, setting != CardSetting::default()) else {
        return list(arguments);
    };
    let changed = apply(&node, card, setting, arguments.wait)?;
    output::print(&arguments.listing.view.text(&changed, |_| changed.text())?)?;
    Ok(Exit::Success)
}

/// Shows the policies of all cards, or of the one that is named.
fn list(arguments: &PolicyArguments) -> Result<Exit, CliError> {
    arguments.listing.view.print(|screen| {
        let node = Node::read()?;
        let card = arguments.card.as_ref().map(|selector| find(&node, selector)).transpose()?;
        let states = node.cards.iter().filter(|state| card.is_none_or(|card| card.uuid == state.uuid));
        let cards = states.map(|state| CardPolicyListing::new(&node, state)).collect();
        listing(cards).text(&arguments.listing, screen)
    })?;
    Ok(Exit::Success)
}

/// Sets what is said of the card.
pub(super) fn apply(node: &Node, card: &Card, setting: CardSetting, wait: bool) -> Result<PolicyChange, CliError> {
    let ledger = node.ledger()?;
    if setting.policy.is_some_and(|policy| rules(policy).skips_absent) {
        tell_present(node, &ledger, card)?;
    }
    let log = DecisionLog::new(&node.config.log_file, &node.config.state_dir);
    let before = CardPolicyListing::of(node, card);
    ledger
        .set_policy(&node.inventory, &Limits::from(&node.config), &card.uuid, setting, &log)
        .map_err(|error| CliError::Policy(Box::new(error)))?;
    let in_force = InForce::read(&node.config.state_dir, wait);
    let after = CardPolicyListing::of(&Node::read()?, card);
    Ok(PolicyChange { in_force, before, after, asked: setting.period })
}

/// Asks the ledger whether the card could have the policy; nothing changes.
pub(super) fn preview(node: &Node, card: &Card, setting: CardSetting) -> Result<(), CliError> {
    node.ledger()?
        .preview_policy(&node.inventory, &Limits::from(&node.config), &card.uuid, setting)
        .map_err(|error| CliError::Policy(Box::new(error)))
}

fn find<'a>(node: &'a Node, selector: &DeviceSelector) -> Result<&'a Card, CliError> {
    match node.inventory.resolve(selector).map_err(CliError::NoSuchCard)? {
        CardOrMig::Card(card) => Ok(card),
        CardOrMig::Mig { card, .. } => Err(CliError::MigPolicy { index: card.index }),
    }
}

/// Records which containers have a process that uses the card: under this policy those without one
/// do not run.
///
/// Their shims report that only while the policy is in force; so that none is stopped at first, it
/// is recorded now.
fn tell_present(node: &Node, ledger: &Ledger, card: &Card) -> Result<(), CliError> {
    let on_card = |record: &&Record| record.cards.iter().any(|grant| grant.uuid == card.uuid && grant.is_shared());
    for record in node.records.iter().filter(on_card) {
        let Ok(path) = inject::status_file(&node.config.state_dir, record.schedule_id()) else { continue };
        // A container without a status has no process yet.
        let present = StatusFile::read(&path).is_ok_and(|status| status.has_processes);
        ledger.set_present(&record.container, present).map_err(node.ledger_failed())?;
    }
    Ok(())
}

/// Policy of a card, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct CardPolicyListing {
    index: u32,
    uuid: String,
    policy: &'static str,
    /// True if its containers have settled the policy.
    policy_in_use: bool,
    /// Period of the turns as laid out now; or as the next container's would be.
    period_us: u64,
    /// True if it can take containers off, and so enforce hard caps.
    hard_caps: bool,
    containers: usize,
}

impl CardPolicyListing {
    fn new(node: &Node, state: &CardState) -> Self {
        let hard_caps = node.inventory.by_uuid(&state.uuid).is_some_and(|card| card.hard_caps);
        Self {
            index: state.index,
            uuid: state.uuid.clone(),
            policy: node.policy(state).name(),
            policy_in_use: state.policy.is_some(),
            period_us: node.period_us(state),
            hard_caps,
            containers: state.containers.len(),
        }
    }

    fn of(node: &Node, card: &Card) -> Option<Self> {
        node.cards.iter().find(|state| state.uuid == card.uuid).map(|state| Self::new(node, state))
    }
}

const COLUMNS: [Column; 6] = [
    Column::new("CARD"),
    Column::name("UUID"),
    Column::new("POLICY"),
    Column::new("PERIOD"),
    Column::new("CAPS"),
    Column::new("CONTAINERS"),
];

fn listing(cards: Vec<CardPolicyListing>) -> Listing<CardPolicyListing> {
    Listing::new(&COLUMNS, cards, |card| {
        let state = if card.hard_caps { CellState::Plain } else { CellState::Warning };
        let containers = u64::try_from(card.containers).unwrap_or(u64::MAX);
        vec![vec![
            Cell::number(card.index.into(), card.index.to_string()),
            card.uuid.as_str().into(),
            shown(card.policy, card.policy_in_use).into(),
            Cell::number(card.period_us, period(card.period_us)),
            Cell::from(caps(card.hard_caps)).in_state(state),
            Cell::number(containers, containers.to_string()),
        ]]
    })
}

/// Formats a policy, in parentheses while no container has settled it.
pub(super) fn shown(policy: &str, in_use: bool) -> String {
    if in_use { policy.to_owned() } else { format!("({policy})") }
}

pub(super) fn period(us: u64) -> String {
    if us.is_multiple_of(1000) { format!("{}ms", us / 1000) } else { format!("{us}us") }
}

pub(super) fn caps(hard: bool) -> &'static str {
    if hard { "hard" } else { "weights only" }
}

/// Policy of a card before and after, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Serialize)]
pub(super) struct PolicyChange {
    #[serde(flatten)]
    in_force: InForce,
    before: Option<CardPolicyListing>,
    after: Option<CardPolicyListing>,
    /// The period that was asked for.
    #[serde(skip)]
    asked: Option<Period>,
}

impl PolicyChange {
    pub(super) fn text(&self) -> String {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return format!("{}\n", self.in_force) };
        let mut parts = Vec::new();
        if before.policy != after.policy {
            parts.push(format!("policy {} -> {}", before.policy, after.policy));
        }
        if before.period_us != after.period_us {
            parts.push(format!("period {} -> {}", period(before.period_us), period(after.period_us)));
        }
        if let Some(asked @ Period::Us(us)) = self.asked.filter(|_| after.containers > 0)
            && us < after.period_us
        {
            parts.push(format!("{asked} was asked for, but no turn may be shorter than 5ms"));
        }
        let head = format!("card {} ({})", after.index, after.uuid);
        if parts.is_empty() {
            return format!("{head}: policy {}, period {}, as before\n", after.policy, period(after.period_us));
        }
        format!("{head}: {}\n{}\n", parts.join(", "), self.in_force)
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
        arguments: PolicyArguments,
    }

    fn listings() -> Vec<CardPolicyListing> {
        let node = test_support::node();
        node.cards.iter().map(|state| CardPolicyListing::new(&node, state)).collect()
    }

    #[test]
    fn a_policy_and_a_period_need_their_card() {
        let parse = |line: &str| Line::try_parse_from(std::iter::once("policy").chain(line.split_whitespace()));
        for line in ["", "0", "GPU-1234 soft", "0 --period 50ms", "0000:65:00.0 weighted --period 50ms --wait"] {
            assert!(parse(line).is_ok(), "{line:?}");
        }
        for line in ["soft", "0 quick", "--period 50ms", "0 soft --period 1s", "-1 soft"] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn every_card_says_how_it_is_shared() {
        let mut listings = listings();
        listings[1].hard_caps = false;
        let text = test_support::shown(listing(listings.clone()), &[]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].ends_with("  fixed    100ms   hard          1"), "{text}");
        assert!(lines[2].ends_with("  (fixed)  100ms   weights only  1"), "{text}");
        let value = serde_json::to_value(&listings[0]).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["index", "uuid", "policy", "policy_in_use", "period_us", "hard_caps", "containers"]);
    }

    #[test]
    fn what_changed_is_shown_and_from_when_on() {
        let card = listings().remove(0);
        let changed_as_asked = |policy, period_us, asked| {
            let after = CardPolicyListing { policy, period_us, ..card.clone() };
            let in_force = InForce { from_us: Some(1), in_us: 187_300 };
            PolicyChange { in_force, before: Some(card.clone()), after: Some(after), asked }.text()
        };
        let changed = |policy, period_us| changed_as_asked(policy, period_us, None);
        let head = format!("card 0 ({})", card.uuid);
        assert_eq!(
            changed("soft", 62_500),
            format!("{head}: policy fixed -> soft, period 100ms -> 62500us\nin force in 188 ms\n")
        );
        assert_eq!(changed("fixed", 100_000), format!("{head}: policy fixed, period 100ms, as before\n"));
        assert_eq!(
            changed_as_asked("fixed", 50_000, Some(Period::Us(20_000))),
            format!(
                "{head}: period 100ms -> 50ms, 20ms was asked for, but no turn may be shorter than 5ms\nin force in 188 ms\n"
            )
        );
    }
}
