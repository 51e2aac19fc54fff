//! Changes of limits and policies from the screen, by the ways of `egpu set` and `egpu policy`.

use std::borrow::Cow;

use base::error_chain;
use cards::Card;
use ledger::{CardSetting, Change, ContainerKey, Record};
use runtime_config::request::{CardPolicy, PerCard};

use crate::{
    error::CliError,
    node::{self, Node},
    policy, set, value_parsers,
};

/// A thing that can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Memory,
    Compute,
    Weight,
    Priority,
    Policy,
}

/// Subject of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Container(ContainerKey),
    /// A card, by its UUID.
    Card(String),
}

/// A change that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) target: Target,
    /// Name of the target, for people.
    pub(super) name: String,
    pub(super) field: Field,
    /// The value, as it was typed.
    pub(super) value: String,
}

/// The ledger's answer, for people; as `Err`: a refusal.
pub(super) type Answer = Result<String, String>;

impl Field {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Weight => "weight",
            Self::Priority => "priority",
            Self::Policy => "policy",
        }
    }

    /// Values that are accepted.
    pub(super) fn hint(self) -> Cow<'static, str> {
        let hint = match self {
            Self::Memory => "6GiB, 40%, or one for each card: 3GiB,4GiB",
            Self::Compute => "30%, none, or one for each card: 30%,50%",
            Self::Weight => "1 to 1000, or one for each card: 1,2",
            Self::Priority => "high or low",
            Self::Policy => return CardPolicy::listed("or", |_| true).into(),
        };
        hint.into()
    }
}

/// Asks the ledger what it would do; nothing changes.
pub(super) fn preview(request: &Request) -> Answer {
    run(request, |node, request| match request {
        Parsed::Set(record, change) => set::preview(node, record, &change),
        Parsed::Policy(card, setting) => {
            let name = setting.policy.map_or("", |policy| policy.name());
            policy::preview(node, card, setting).map(|()| format!("card {}: policy {name}\n", card.index))
        }
    })
}

/// Makes the change.
pub(super) fn apply(request: &Request) -> Answer {
    run(request, |node, request| match request {
        Parsed::Set(record, change) => {
            let (changed, remarks) = set::apply(node, record, &change, false)?;
            Ok(remarks.into_iter().fold(changed.text(), |text, remark| format!("{text}{remark}\n")))
        }
        Parsed::Policy(card, setting) => Ok(policy::apply(node, card, setting, false)?.text()),
    })
}

/// A change, as the ledger takes it.
enum Parsed<'a> {
    Set(&'a Record, Change),
    Policy(&'a Card, CardSetting),
}

fn run(request: &Request, act: impl FnOnce(&Node, Parsed<'_>) -> Result<String, CliError>) -> Answer {
    let failed = |error: CliError| error_chain(&error);
    let (config, inventory) = node::configuration_and_cards().map_err(failed)?;
    let (node, _) = Node::of(config, inventory).map_err(failed)?;
    let parsed = parse(request, &node)?;
    act(&node, parsed).map_err(failed)
}

fn parse<'a>(request: &Request, node: &'a Node) -> Result<Parsed<'a>, String> {
    let value = request.value.trim();
    match &request.target {
        Target::Card(uuid) => {
            let card = node.inventory.by_uuid(uuid).ok_or("the card is gone")?;
            let policy = CardPolicy::named(value);
            let policy = policy.ok_or_else(|| format!("one of {} is accepted", CardPolicy::names()))?;
            Ok(Parsed::Policy(card, CardSetting { policy: Some(policy), period: None }))
        }
        Target::Container(key) => {
            let record = node.records.iter().find(|record| record.container == *key);
            let record = record.ok_or("the container is gone")?;
            let mut change = Change::default();
            let kept = |share: PerCard<_>| Some(set::keep_lifted(&share, record));
            match request.field {
                Field::Memory => change.memory = Some(value_parsers::memory(value)?),
                Field::Compute => change.compute = kept(value_parsers::compute(value)?),
                Field::Weight => change.compute = kept(value_parsers::weight(value)?),
                Field::Priority => change.priority = Some(value_parsers::priority(value)?),
                Field::Policy => return Err("a policy belongs to a card".to_owned()),
            }
            Ok(Parsed::Set(record, change))
        }
    }
}
