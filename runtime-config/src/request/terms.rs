//! The terms that one language states of a share, and their join with another's: each limit is the
//! tighter of the two.

use std::path::PathBuf;

use super::{
    CardPolicy, ComputeShare, Isolation, MemoryLimit, OverMemory, PerCard, Placement, Priority, RequestError,
    error::AsWritten,
};
use crate::units::Bytes;

/// The limits and wishes of one language.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// The statement that asked for a share first, for messages.
    pub(crate) said: AsWritten,
    /// Each entry: every limit that holds on that card.
    pub(crate) memory: PerCard<Vec<MemoryLimit>>,
    /// The statement of the memory, for messages.
    pub(crate) memory_said: Option<AsWritten>,
    pub(crate) compute: PerCard<ComputeShare>,
    pub(crate) compute_said: Option<AsWritten>,
    pub(crate) isolation: Option<Isolation>,
    /// The policy that was named.
    pub(crate) policy: Option<(CardPolicy, AsWritten)>,
    /// The policy that weights need where none is named.
    pub(crate) policy_of_weights: Option<CardPolicy>,
    pub(crate) pinned_memory: Option<Bytes>,
    pub(crate) over_memory: OverMemory,
    pub(crate) oom_script: Option<(PathBuf, AsWritten)>,
    pub(crate) priority: Priority,
    pub(crate) live_update: bool,
    pub(crate) placement: Placement,
    pub(crate) group: Option<String>,
    pub(crate) warnings: Vec<String>,
}

impl Terms {
    /// Terms without limits or wishes.
    pub(crate) fn new(said: impl Into<AsWritten>) -> Self {
        Self {
            said: said.into(),
            memory: PerCard::same(Vec::new()),
            memory_said: None,
            compute: PerCard::same(ComputeShare::Unlimited),
            compute_said: None,
            isolation: None,
            policy: None,
            policy_of_weights: None,
            pinned_memory: None,
            over_memory: OverMemory::Deny,
            oom_script: None,
            priority: Priority::High,
            live_update: true,
            placement: Placement::default(),
            group: None,
            warnings: Vec::new(),
        }
    }

    /// Native terms (`self`) beside a foreign language's: neither can widen what the other set.
    pub(crate) fn join(self, foreign: Self) -> Result<Self, RequestError> {
        let memory = join_memory(&self, &foreign)?;
        let compute = join_compute(&self, &foreign)?;
        let policy = match (self.policy, foreign.policy) {
            (Some((own, own_said)), Some((other, other_said))) if own != other => {
                let reason = format!("the one needs the card policy {own}, the other {other}");
                return Err(RequestError::contradiction(own_said, other_said, reason));
            }
            (own, other) => own.or(other),
        };
        let oom_script = match (self.oom_script, foreign.oom_script) {
            (Some((own, own_said)), Some((other, other_said))) if own != other => {
                return Err(RequestError::contradiction(own_said, other_said, "there can be one script only"));
            }
            (own, other) => own.or(other),
        };
        Ok(Self {
            said: foreign.said,
            memory,
            memory_said: foreign.memory_said.or(self.memory_said),
            compute,
            compute_said: foreign.compute_said.or(self.compute_said),
            // A language that speaks without naming an isolation means its limits.
            isolation: Some(tighter_isolation(
                self.isolation.unwrap_or_default(),
                foreign.isolation.unwrap_or_default(),
            )),
            policy,
            policy_of_weights: foreign.policy_of_weights.or(self.policy_of_weights),
            pinned_memory: self.pinned_memory.or(foreign.pinned_memory),
            over_memory: stricter_over_memory(self.over_memory, foreign.over_memory),
            oom_script,
            priority: lower_priority(self.priority, foreign.priority),
            live_update: self.live_update && foreign.live_update,
            placement: self.placement,
            group: self.group,
            warnings: [self.warnings, foreign.warnings].concat(),
        })
    }
}

fn join_memory(own: &Terms, foreign: &Terms) -> Result<PerCard<Vec<MemoryLimit>>, RequestError> {
    own.memory.combine(&foreign.memory, |left, right| [left.as_slice(), right].concat()).ok_or_else(|| {
        let (own_said, foreign_said) = (own.memory_said.as_ref(), foreign.memory_said.as_ref());
        different_lengths(own_said.unwrap_or(&own.said), foreign_said.unwrap_or(&foreign.said))
    })
}

fn join_compute(own: &Terms, foreign: &Terms) -> Result<PerCard<ComputeShare>, RequestError> {
    let own_said = own.compute_said.as_ref().unwrap_or(&own.said);
    let foreign_said = foreign.compute_said.as_ref().unwrap_or(&foreign.said);
    let joined = own
        .compute
        .combine(&foreign.compute, |left, right| left.tighter(*right))
        .ok_or_else(|| different_lengths(own_said, foreign_said))?;
    if joined.values().any(Option::is_none) {
        let reason = "a percentage and a weight cannot be compared; set one of them";
        return Err(RequestError::contradiction(own_said.clone(), foreign_said.clone(), reason));
    }
    Ok(joined.map(|share| share.unwrap_or(ComputeShare::Unlimited)))
}

fn different_lengths(first: &AsWritten, second: &AsWritten) -> RequestError {
    RequestError::contradiction(first.clone(), second.clone(), "they are for different numbers of cards")
}

/// Tighter of two isolations: full is tighter than memory only, and that than none.
pub(crate) fn tighter_isolation(one: Isolation, other: Isolation) -> Isolation {
    match (one, other) {
        (Isolation::Full, _) | (_, Isolation::Full) => Isolation::Full,
        (Isolation::Memory, _) | (_, Isolation::Memory) => Isolation::Memory,
        (Isolation::None, Isolation::None) => Isolation::None,
    }
}

pub(crate) fn stricter_over_memory(one: OverMemory, other: OverMemory) -> OverMemory {
    if one == OverMemory::Kill { one } else { other }
}

pub(crate) fn lower_priority(one: Priority, other: Priority) -> Priority {
    if one == Priority::Low { one } else { other }
}
