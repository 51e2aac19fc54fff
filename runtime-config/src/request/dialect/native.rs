//! egpu's own language: `egpu.io/*` annotations and `EGPU_*` variables of the same names. An
//! annotation takes the place of its variable.

use kubernetes_api::names::NODE_PLACEMENT_ANNOTATION;
use schedule::policy::rules;

use super::super::{
    CardPolicy, CardRequest, ComputeShare, Isolation, MemoryLimit, OverMemory, PerCard, Placement, Priority,
    RequestError,
    error::{AsWritten, Shown},
    selector::DeviceList,
    statements::{self, Statement, Statements},
    terms::{Terms, lower_priority, stricter_over_memory, tighter_isolation},
};
use super::Names;
use crate::{
    config::nearest,
    units::{Bytes, Percent, Weight},
};

const ANNOTATION_PREFIX: &str = "egpu.io/";
const VARIABLE_PREFIX: &str = "EGPU_";
pub(super) const NAMES: Names = Names {
    variables: &[VARIABLE_PREFIX],
    is_annotation: |name, _| name.starts_with(ANNOTATION_PREFIX) && name != NODE_PLACEMENT_ANNOTATION,
};
/// Variables of the `egpu` command, not of a request.
const NOT_A_REQUEST: &[&str] = &["EGPU_CONFIG"];
const PLACEMENTS: &[(&str, Placement)] = &[("binpack", Placement::Binpack), ("spread", Placement::Spread)];
/// Most cards of a request, more than any node has.
const MAX_CARDS: u64 = 1024;
const MAX_GROUP_LENGTH: usize = 253;

/// Every key: the annotation's name after the prefix.
const KEYS: &[&str] = &[
    CARDS,
    DEVICES,
    MEMORY,
    COMPUTE,
    WEIGHT,
    "policy",
    "placement",
    ISOLATION,
    "pinned-memory",
    "oom",
    "oom-script",
    "priority",
    "group",
];
const CARDS: &str = "cards";
const DEVICES: &str = "devices";
const MEMORY: &str = "memory";
const COMPUTE: &str = "compute";
const WEIGHT: &str = "weight";
const ISOLATION: &str = "isolation";

/// A request in this language.
#[derive(Debug)]
pub(in crate::request) struct Native {
    pub(in crate::request) terms: Terms,
    /// The cards, where they were named or counted.
    pub(in crate::request) cards: Option<(NativeCards, AsWritten)>,
    /// Limits, or sharing, were asked for: the cards are not to be whole.
    pub(in crate::request) asks_share: bool,
    /// The statement that asks for cards, rather than only describing the share.
    pub(in crate::request) asks: Option<Asking>,
}

/// Cards as this language names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::request) enum NativeCards {
    /// A number, or a list.
    These(CardRequest),
    /// `EGPU_DEVICES=void`: no request.
    Void,
}

/// The source of a request for cards.
#[derive(Debug, Clone)]
pub(in crate::request) struct Asking {
    /// An annotation, rather than a variable.
    pub(in crate::request) by_annotation: bool,
}

struct NativeStatements<'s, 'a> {
    env: &'s Statements<'a>,
    annotations: &'s Statements<'a>,
}

impl<'a> NativeStatements<'_, 'a> {
    /// Returns the statements under a key, in annotations or else in variables.
    fn said(&self, key: &str) -> Vec<Statement<'a>> {
        let annotations: Vec<Statement<'_>> = self.annotations.all(&format!("{ANNOTATION_PREFIX}{key}")).collect();
        if annotations.is_empty() { self.env.all(&variable(key)).collect() } else { annotations }
    }

    fn is_annotation(&self, key: &str) -> bool {
        self.said(key).iter().any(|statement| statement.name.starts_with(ANNOTATION_PREFIX))
    }

    fn any(&self, key: &str) -> Option<Statement<'a>> {
        self.said(key).into_iter().next()
    }

    fn one(&self, key: &str) -> Result<Option<Statement<'a>>, RequestError> {
        statements::one(self.said(key).into_iter())
    }

    fn joined<T>(
        &self,
        key: &str,
        read: impl Fn(Statement<'a>) -> Result<T, RequestError>,
        tighter: impl Fn(T, T) -> T,
    ) -> Result<Option<T>, RequestError> {
        statements::joined(self.said(key).into_iter(), read, tighter)
    }
}

/// Reads this language. `None`: it was not spoken.
pub(in crate::request) fn parse(
    env: &Statements<'_>,
    annotations: &Statements<'_>,
) -> Result<Option<Native>, RequestError> {
    let source = NativeStatements { env, annotations };
    for statement in annotations.all(NODE_PLACEMENT_ANNOTATION) {
        statement.word(PLACEMENTS)?;
    }
    let first = KEYS.iter().find_map(|key| source.any(key));
    refuse_unknown(&source, first.is_some())?;
    let Some(first) = first else { return Ok(None) };
    let asking = [MEMORY, COMPUTE, WEIGHT, CARDS, DEVICES].iter().find_map(|key| source.any(key));
    let mut terms = Terms::new(asking.unwrap_or(first));
    terms.memory_said = source.any(MEMORY).map(Into::into);
    if let Some(memory) = lists(
        &source,
        MEMORY,
        "an amount such as 6GiB (or MiB, KiB, B), a percentage up to 100% such as 40%, or one for each card: 3GiB,4GiB",
        |item| item.parse().ok().map(|limit: MemoryLimit| vec![limit]),
        |one, other| Some([one.as_slice(), other].concat()),
    )? {
        terms.memory = memory;
    }
    read_compute(&source, &mut terms)?;
    let isolation = [("full", Isolation::Full), ("memory", Isolation::Memory), ("none", Isolation::None)];
    terms.isolation = source.joined(ISOLATION, |statement| statement.word(&isolation), tighter_isolation)?;
    if terms.isolation == Some(Isolation::Memory)
        && let (Some(isolation), Some(compute)) = (source.any(ISOLATION), &terms.compute_said)
    {
        let reason = "isolation `memory` leaves compute without limits";
        return Err(RequestError::contradiction(isolation, compute.clone(), reason));
    }
    read_wishes(&source, &mut terms)?;
    let cards = cards(&source)?;
    let asks_share = [MEMORY, COMPUTE, WEIGHT, "policy", ISOLATION].iter().any(|key| source.any(key).is_some());
    // Who names the cards asks for them; without that, who sets limits.
    let named: Vec<&str> = [CARDS, DEVICES].into_iter().filter(|key| source.any(key).is_some()).collect();
    let asking_keys = if named.is_empty() { vec![MEMORY, COMPUTE, WEIGHT] } else { named };
    let by_annotation = asking_keys.iter().any(|key| source.is_annotation(key));
    let asks = asking.map(|_| Asking { by_annotation });
    Ok(Some(Native { terms, cards, asks_share, asks }))
}

/// Statement that asks for isolation `none`; the caller checks that the configuration allows it.
pub(in crate::request) fn isolation_none<'a>(
    env: &Statements<'a>,
    annotations: &Statements<'a>,
) -> Option<Statement<'a>> {
    let said = NativeStatements { env, annotations }.said(ISOLATION);
    said.into_iter().find(|statement| statement.value.trim() == "none")
}

fn variable(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.replace('-', "_").to_ascii_uppercase())
}

/// Names that look like this language's and are not: a mistyped limit must not go unnoticed. Where
/// nothing else of this language was said, a variable that is not even similar may be somebody
/// else's.
fn refuse_unknown(source: &NativeStatements<'_, '_>, spoken: bool) -> Result<(), RequestError> {
    for (name, key) in source.annotations.with_prefix(ANNOTATION_PREFIX) {
        if !KEYS.contains(&key) && name != NODE_PLACEMENT_ANNOTATION {
            let suggestion = nearest(key, KEYS.iter().copied()).map(|near| format!("{ANNOTATION_PREFIX}{near}"));
            return Err(RequestError::UnknownName { name: Shown::new(name), suggestion });
        }
    }
    let variables: Vec<_> = KEYS.iter().map(|key| variable(key)).collect();
    for (name, _) in source.env.with_prefix(VARIABLE_PREFIX) {
        if variables.iter().any(|known| known == name) || NOT_A_REQUEST.contains(&name) {
            continue;
        }
        let suggestion = name.strip_prefix(VARIABLE_PREFIX).and_then(|rest| {
            let known = variables.iter().filter_map(|known| known.strip_prefix(VARIABLE_PREFIX));
            nearest(rest, known).map(|near| format!("{VARIABLE_PREFIX}{near}"))
        });
        if spoken || suggestion.is_some() {
            return Err(RequestError::UnknownName { name: Shown::new(name), suggestion });
        }
    }
    Ok(())
}

/// A value for every card, or a list with one for each.
fn lists<T: Clone>(
    source: &NativeStatements<'_, '_>,
    key: &str,
    accepted: &str,
    read: impl Fn(&str) -> Option<T>,
    tighter: impl Fn(&T, &T) -> Option<T>,
) -> Result<Option<PerCard<T>>, RequestError> {
    let mut result: Option<PerCard<T>> = None;
    for statement in source.said(key) {
        let mut items = statement.list(&read, accepted)?;
        let list = match (items.pop(), items.is_empty()) {
            (Some(only), true) => PerCard::same(only),
            (Some(last), false) => {
                items.push(last);
                PerCard::exactly(items)
            }
            (None, _) => return Err(RequestError::invalid(statement, accepted)),
        };
        result = Some(match result {
            None => list,
            Some(before) => {
                let joined = before.combine(&list, &tighter).filter(|joined| joined.values().all(Option::is_some));
                let values = source.said(key).iter().map(|statement| Shown::new(statement.value)).collect();
                let Some(joined) = joined else {
                    return Err(RequestError::Ambiguous { name: statement.name.to_owned(), values });
                };
                // Every value is there, as was just seen.
                let Some(first) = joined.values().find_map(Option::clone) else { return Ok(None) };
                joined.map(|value| value.clone().unwrap_or_else(|| first.clone()))
            }
        });
    }
    Ok(result)
}

fn read_compute(source: &NativeStatements<'_, '_>, terms: &mut Terms) -> Result<(), RequestError> {
    let cap = |item: &str| {
        item.parse::<Percent>().ok().map(|percent| ComputeShare::Cap { percent, lifted_when_alone: false })
    };
    let caps =
        lists(source, COMPUTE, "1% to 100%, or one for each card: 30%,50%", cap, |one, other| one.tighter(*other))?;
    let weight = |statement: Statement<'_>| {
        let weight = statement.integer(1, 1000)?;
        let weight = u16::try_from(weight).ok().and_then(Weight::new);
        weight.ok_or_else(|| RequestError::invalid(statement, "a whole number from 1 to 1000"))
    };
    let weight = source.joined(WEIGHT, weight, Ord::min)?;
    if let (Some(compute), Some(weight)) = (source.any(COMPUTE), source.any(WEIGHT)) {
        let reason = "a percentage is a hard cap, a weight a share of what others leave; set one of them";
        return Err(RequestError::contradiction(compute, weight, reason));
    }
    if let Some(caps) = caps {
        terms.compute = caps;
        terms.compute_said = source.any(COMPUTE).map(Into::into);
    } else if let Some(weight) = weight {
        terms.compute = PerCard::same(ComputeShare::Weight(weight));
        terms.compute_said = source.any(WEIGHT).map(Into::into);
        terms.policy_of_weights = Some(CardPolicy::Soft);
    }
    Ok(())
}

fn read_wishes(source: &NativeStatements<'_, '_>, terms: &mut Terms) -> Result<(), RequestError> {
    if let Some(statement) = source.one("policy")? {
        let policy = CardPolicy::named(statement.value.trim())
            .ok_or_else(|| RequestError::invalid(statement, format!("one of {}", CardPolicy::names())))?;
        terms.policy = Some((policy, statement.into()));
    }
    if let Some(statement) = source.one("placement")? {
        terms.placement = statement.word(PLACEMENTS)?;
    }
    let priorities = [("high", Priority::High), ("low", Priority::Low)];
    let priority = source.joined("priority", |statement| statement.word(&priorities), lower_priority)?;
    terms.priority = priority.unwrap_or_default();
    let is_promised = terms.policy.as_ref().is_some_and(|(policy, _)| rules(*policy).promises_time());
    if terms.priority == Priority::Low && (is_promised || source.any(COMPUTE).is_some()) {
        let warning = "a low priority has no effect where a container has a part of the card's time to itself: it keeps that, and gets no more";
        terms.warnings.push(warning.to_owned());
    }
    let amount = |statement: Statement<'_>| {
        let amount =
            statement.value.trim().parse::<Bytes>().ok().map(Bytes::floor_to_kib).filter(|amount| amount.0 > 0);
        amount.ok_or_else(|| RequestError::invalid(statement, "an amount such as 8GiB (or MiB, KiB, B)"))
    };
    terms.pinned_memory = source.joined("pinned-memory", amount, Ord::min)?;
    let oom = [("deny", OverMemory::Deny), ("kill", OverMemory::Kill)];
    let over_memory = source.joined("oom", |statement| statement.word(&oom), stricter_over_memory)?;
    terms.over_memory = over_memory.unwrap_or_default();
    if let Some(script) = source.one("oom-script")? {
        terms.oom_script = Some((script.absolute_path()?.into(), script.into()));
    }
    if let Some(group) = source.one("group")? {
        let value = group.value.trim();
        if value.is_empty() || value.len() > MAX_GROUP_LENGTH || value.chars().any(char::is_control) {
            let accepted = format!("a name of 1 to {MAX_GROUP_LENGTH} printable characters");
            return Err(RequestError::invalid(group, accepted));
        }
        terms.group = Some(value.to_owned());
    }
    Ok(())
}

fn cards(source: &NativeStatements<'_, '_>) -> Result<Option<(NativeCards, AsWritten)>, RequestError> {
    let devices = source.one(DEVICES)?;
    if let (Some(devices), Some(cards)) = (devices, source.any(CARDS)) {
        let reason = "the one says which cards, the other how many; set one of them";
        return Err(RequestError::contradiction(devices, cards, reason));
    }
    if let Some(devices) = devices {
        let list = devices.value.parse().map_err(|error: super::super::selector::ParseSelectorError| {
            RequestError::invalid(devices, format!("a list of cards, all, none or void; {error}"))
        })?;
        let cards = match list {
            DeviceList::Void => NativeCards::Void,
            DeviceList::None => NativeCards::These(CardRequest::None),
            DeviceList::All => NativeCards::These(CardRequest::All),
            DeviceList::Devices(devices) => NativeCards::These(CardRequest::Devices(devices)),
        };
        return Ok(Some((cards, devices.into())));
    }
    let count = source.joined(CARDS, |statement| statement.integer(1, MAX_CARDS), Ord::min)?;
    let count = count.and_then(|count| u32::try_from(count).ok());
    Ok(count.zip(source.any(CARDS)).map(|(count, said)| (NativeCards::These(CardRequest::Count(count)), said.into())))
}
