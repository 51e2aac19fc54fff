//! The order of nodes for one pod, and the scores that say it.
//!
//! Pure. Which nodes have room is not decided here: all candidates have.

use std::cmp::Reverse;

use clap::ValueEnum;

/// Score of the node that comes first: the highest that Kubernetes takes of an extender.
pub(crate) const FIRST: usize = 10;
/// Highest score of the others. The distance lets first place count for more than what the
/// scheduler's own plugins say about processors, images and the spread of pods.
const SECOND: usize = 5;
/// Load of a card, or a node, that claims hold all of.
pub(crate) const FULL: u64 = 1_000_000;

/// The use of nodes with cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// The fullest nodes first, which leaves others empty
    Binpack,
    /// The emptiest nodes first
    Spread,
}

impl Placement {
    /// Reads the value of the annotation.
    pub(crate) fn read(text: &str) -> Option<Self> {
        Self::from_str(text, false).ok()
    }
}

/// The order that is wanted for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Preference {
    pub(crate) placement: Placement,
    /// Nodes without a replica of the pod's owner come first.
    pub(crate) keeps_apart: bool,
}

impl Preference {
    /// The preference of a pod. One that says `binpack` itself has its replicas packed together;
    /// where that is only the default, they are kept apart: who has not asked for packing should
    /// not lose all replicas with one node.
    pub(crate) fn new(asked: Option<Placement>, default: Placement) -> Self {
        Self { placement: asked.unwrap_or(default), keeps_apart: asked != Some(Placement::Binpack) }
    }
}

/// A node that has room for the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate<'a> {
    pub(crate) node: &'a str,
    /// Part of its cards that is held, of [`FULL`].
    pub(crate) load: u64,
    /// Replicas of the pod's owner there.
    pub(crate) replicas: usize,
}

/// Place in the order: replicas first, then load. The smallest is the best.
type Place = (usize, u64, Reverse<u64>);

impl Preference {
    fn place(self, candidate: &Candidate<'_>) -> Place {
        let replicas = if self.keeps_apart { candidate.replicas } else { 0 };
        match self.placement {
            // Once there is one on every node, they are packed.
            Placement::Binpack => (replicas.min(1), 0, Reverse(candidate.load)),
            Placement::Spread => (replicas, candidate.load, Reverse(0)),
        }
    }

    /// Returns the score of each candidate. One alone comes first, so that pods which follow each
    /// other quickly go to one node, and not to all that look equal.
    pub(crate) fn scores(self, candidates: &[Candidate<'_>]) -> Vec<usize> {
        let mut sorted: Vec<_> = candidates.iter().map(|one| self.place(one)).collect();
        sorted.sort_unstable();
        let best = self.best(candidates);
        let score = |candidate: &Candidate<'_>| {
            let place = self.place(candidate);
            let before = sorted.partition_point(|other| *other < place);
            if Some(candidate) == best { FIRST } else { SECOND - SECOND * before / sorted.len() }
        };
        candidates.iter().map(score).collect()
    }

    /// Returns the candidate that comes first; among equal ones, by name.
    pub(crate) fn best<'c, 'n>(self, candidates: &'c [Candidate<'n>]) -> Option<&'c Candidate<'n>> {
        candidates.iter().min_by_key(|candidate| (self.place(candidate), candidate.node))
    }
}
