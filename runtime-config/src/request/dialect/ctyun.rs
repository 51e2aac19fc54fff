//! CTYun eGPU:
//! `EGPU="POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10:PGPU=1,MEM=3276,WEIGHT=10"`.
//!
//! A header, then one group for each card. The vendor does not explain the header; our reading:
//! POLICY 0 hard caps, 1 weights, 2 memory only; ONLINE 1 lets the quota be changed while the
//! container runs; TYPE has no effect.

use super::{Foreign, ForeignCards, Names};
use crate::{
    request::{
        CardPolicy, ComputeShare, DeviceSelector, Dialect, Isolation, MemoryLimit, PerCard, RequestError,
        error::AsWritten,
        statements::{Statement, Statements},
        terms::Terms,
    },
    units::{Bytes, Percent, Weight},
};

const VARIABLE: &str = "EGPU";
pub(super) const NAMES: Names = Names { variables: &[VARIABLE], is_annotation: |_, _| false };
const SHAPE: &str = "like POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10";

/// The variable, where it is set.
pub(super) fn selected_by<'a>(env: &Statements<'a>) -> Option<Statement<'a>> {
    env.any(VARIABLE)
}

/// The meaning of the groups' weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Caps,
    Shares,
    MemoryOnly,
}

pub(super) fn parse(env: &Statements<'_>) -> Result<Foreign, RequestError> {
    let Some(variable) = env.one(VARIABLE)? else {
        return Err(RequestError::invalid(Statement { name: VARIABLE, value: "" }, SHAPE));
    };
    let mut groups = variable.value.trim().split(':');
    let header = fields(variable, groups.next().unwrap_or_default())?;
    let (policy, live_update) = header_of(variable, &header)?;
    let mut parsed: Vec<Group> = Vec::new();
    for text in groups {
        let group = group(variable, &fields(variable, text)?, policy)?;
        if parsed.iter().any(|known| known.card == group.card) {
            return Err(RequestError::invalid(
                variable,
                format!("one group for each card; PGPU={} stands twice", group.card),
            ));
        }
        parsed.push(group);
    }
    if parsed.is_empty() {
        return Err(RequestError::invalid(
            variable,
            format!("{SHAPE}, with a group PGPU=...,MEM=...,WEIGHT=... for each card"),
        ));
    }
    let said = AsWritten::from(variable);
    let mut terms = Terms::new(variable);
    terms.memory = PerCard::exactly(parsed.iter().map(|group| vec![MemoryLimit::bytes(group.memory)]).collect());
    terms.memory_said = Some(said.clone());
    terms.compute = PerCard::exactly(parsed.iter().map(|group| group.compute).collect());
    terms.compute_said = Some(said.clone());
    match policy {
        Policy::Caps => terms.policy = Some((CardPolicy::Fixed, said.clone())),
        Policy::Shares => terms.policy = Some((CardPolicy::Soft, said.clone())),
        Policy::MemoryOnly => terms.isolation = Some(Isolation::Memory),
    }
    terms.live_update = live_update;
    let cards = parsed.iter().map(|group| DeviceSelector::Index(group.card)).collect();
    Ok(Foreign { dialect: Dialect::CtyunEgpu, terms, cards: ForeignCards::Listed(cards, said), by_annotation: false })
}

/// `KEY=VALUE,KEY=VALUE`, each key once.
fn fields<'a>(variable: Statement<'a>, text: &'a str) -> Result<Vec<(&'a str, &'a str)>, RequestError> {
    let mut fields: Vec<(&str, &str)> = Vec::new();
    for field in text.split(',') {
        let Some((key, value)) = field.split_once('=') else {
            return Err(RequestError::invalid(variable, SHAPE));
        };
        let (key, value) = (key.trim(), value.trim());
        if fields.iter().any(|(known, _)| *known == key) {
            return Err(RequestError::invalid(variable, format!("{SHAPE}; each key stands once in its group")));
        }
        fields.push((key, value));
    }
    Ok(fields)
}

/// The policy, and whether the quota may be changed live.
fn header_of(variable: Statement<'_>, fields: &[(&str, &str)]) -> Result<(Policy, bool), RequestError> {
    let mut policy = Policy::Caps;
    let mut online = false;
    for (key, value) in fields {
        match (*key, *value) {
            ("POLICY", "0") => policy = Policy::Caps,
            ("POLICY", "1") => policy = Policy::Shares,
            ("POLICY", "2") => policy = Policy::MemoryOnly,
            ("POLICY", _) => return Err(RequestError::invalid(variable, "written with POLICY=0, 1 or 2")),
            ("ONLINE", "0") => online = false,
            ("ONLINE", "1") => online = true,
            ("ONLINE", _) => return Err(RequestError::invalid(variable, "written with ONLINE=0 or 1")),
            ("TYPE", "DOCKER" | "CONTAINERD" | "K8S") => {}
            ("TYPE", _) => return Err(RequestError::invalid(variable, "written with TYPE=DOCKER, CONTAINERD or K8S")),
            _ => {
                return Err(RequestError::invalid(
                    variable,
                    format!("{SHAPE}: a header of POLICY, ONLINE and TYPE first"),
                ));
            }
        }
    }
    Ok((policy, online))
}

struct Group {
    card: u32,
    memory: Bytes,
    compute: ComputeShare,
}

fn group(variable: Statement<'_>, fields: &[(&str, &str)], policy: Policy) -> Result<Group, RequestError> {
    if let Some((key, _)) = fields.iter().find(|(key, _)| !matches!(*key, "PGPU" | "MEM" | "WEIGHT")) {
        let accepted = format!("{SHAPE}: a group has PGPU, MEM and WEIGHT, not {}", AsWritten::new(key, "").name);
        return Err(RequestError::invalid(variable, accepted));
    }
    let number = |name: &str| fields.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    let digits =
        |value: &str| if value.bytes().all(|byte| byte.is_ascii_digit()) { value.parse::<u64>().ok() } else { None };
    let card = number("PGPU").and_then(digits).and_then(|card| u32::try_from(card).ok());
    let card =
        card.ok_or_else(|| RequestError::invalid(variable, "written with PGPU, a card's index, in each group"))?;
    let memory = number("MEM").and_then(digits).filter(|mib| *mib > 0).and_then(Bytes::from_mib);
    let memory =
        memory.ok_or_else(|| RequestError::invalid(variable, "written with MEM, MiB above 0, in each group"))?;
    let weight = match number("WEIGHT") {
        None if policy == Policy::MemoryOnly => None,
        value => {
            let percent = value.and_then(digits).and_then(|weight| u8::try_from(weight).ok()).and_then(Percent::new);
            Some(
                percent.ok_or_else(|| {
                    RequestError::invalid(variable, "written with WEIGHT from 1 to 100 in each group")
                })?,
            )
        }
    };
    let compute = match (policy, weight) {
        (Policy::Caps, Some(percent)) => ComputeShare::Cap { percent, lifted_when_alone: false },
        (Policy::Shares, Some(weight)) => ComputeShare::Weight(Weight::new(weight.get().into()).unwrap_or(Weight::ONE)),
        (Policy::MemoryOnly, _) | (_, None) => ComputeShare::Unlimited,
    };
    Ok(Group { card, memory, compute })
}
