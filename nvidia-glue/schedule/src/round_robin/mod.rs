//! Turns of containers without a cap, where those waste less than time slices.
//!
//! Time slices have no cost where one container works, and give each break of one to the others.
//! But programs that wait for each of their short operations displace each other at each of them,
//! and long kernels are interrupted each two milliseconds: the log of switches shows both
//! ([`contention`]). Then those that work take turns, each of which is so long that its edges cost
//! little. In between all of them are on the card for a moment, which shows whether that still pays
//! ([`chooser`]).
//!
//! One mediator chooses for all of a card, and the others follow what its status says.

pub mod chooser;
pub mod contention;

use serde::{Deserialize, Serialize};

use crate::{Pass, Window};

/// Time in each cycle in which all are on the card, by time slices.
pub(crate) const PROBE_US: u64 = 40_000;
/// About the length of a cycle.
pub(crate) const CYCLE_US: u64 = 2_000_000;
/// The shortest turn, the longest one, and the most members: what [`chooser`] may choose.
pub(crate) const LEAST_QUANTUM_US: u64 = 5_000;
pub(crate) const MOST_QUANTUM_US: u64 = 400_000;
const MOST_MEMBERS: usize = 80;

/// Turns on a card, from one instant on: in each cycle a time of slices for all, and then rounds in
/// which each member has its turn. A container that is no member always may run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRobin {
    /// `CLOCK_MONOTONIC`, microseconds.
    pub from_us: u64,
    /// In the order of their turns; none: all run by time slices.
    pub members: Vec<RoundRobinMember>,
}

/// One that takes turns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRobinMember {
    /// Its grant.
    pub grant_id: String,
    /// Length of its turn.
    pub quantum_us: u64,
}

impl RoundRobin {
    /// Returns whether anybody takes turns.
    pub fn has_turns(&self) -> bool {
        !self.members.is_empty()
    }

    /// Returns whether it is one that a mediator may choose at an instant: that of another mediator
    /// is not believed blindly.
    pub fn is_valid(&self, now_us: u64) -> bool {
        let quanta = LEAST_QUANTUM_US..=MOST_QUANTUM_US;
        let is_valid = |(place, member): (usize, &RoundRobinMember)| {
            let before = self.members.get(..place).unwrap_or_default();
            quanta.contains(&member.quantum_us) && before.iter().all(|other| other.grant_id != member.grant_id)
        };
        self.from_us <= now_us.saturating_add(CYCLE_US)
            && self.members.len() <= MOST_MEMBERS
            && self.members.iter().enumerate().all(is_valid)
    }

    /// Length of a round.
    pub fn round_us(&self) -> u64 {
        self.members.iter().map(|member| member.quantum_us).sum::<u64>().max(1)
    }

    fn rounds(&self) -> u64 {
        (CYCLE_US.saturating_sub(PROBE_US) / self.round_us()).max(1)
    }

    /// Length of a cycle. Cycles begin at whole multiples of it.
    pub fn cycle_us(&self) -> u64 {
        PROBE_US + self.rounds() * self.round_us()
    }

    /// Windows of each member within a cycle.
    pub(crate) fn passes(&self) -> Vec<(&str, Pass)> {
        let mut first_us = PROBE_US;
        let pass = |member: &RoundRobinMember, first_us: u64| {
            let turns = (0..self.rounds()).map(|round| first_us + round * self.round_us());
            let turns = turns.map(|start_us| Window { start_us, end_us: start_us + member.quantum_us });
            Pass::Windows(std::iter::once(Window { start_us: 0, end_us: PROBE_US }).chain(turns).collect())
        };
        let mut passes = Vec::with_capacity(self.members.len());
        for member in &self.members {
            passes.push((member.grant_id.as_str(), pass(member, first_us)));
            first_us += member.quantum_us;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timeline;

    fn plan(quanta_us: &[u64]) -> RoundRobin {
        let member = |(number, quantum_us): (usize, &u64)| RoundRobinMember {
            grant_id: number.to_string(),
            quantum_us: *quantum_us,
        };
        RoundRobin { from_us: 10_000_000, members: quanta_us.iter().enumerate().map(member).collect() }
    }

    #[test]
    fn one_at_a_time_but_in_the_probe_and_each_for_its_quantum() {
        for quanta_us in [&[10_000, 10_000][..], &[10_000, 30_000, 10_000], &[50_000; 9]] {
            let plan = plan(quanta_us);
            let before = Timeline::always();
            let of = |number: usize| Timeline::of_turns(&plan, &number.to_string(), &before, 0);
            let timelines: Vec<Timeline> = (0..quanta_us.len()).map(of).collect();
            let runs = |timeline: &Timeline, at_us| timeline.span(at_us).is_some_and(|span| span.start_us <= at_us);
            assert!(timelines.iter().all(|timeline| runs(timeline, 9_999_999)), "until it holds");
            let start_us = 10_000_000 / plan.cycle_us() * plan.cycle_us() + plan.cycle_us();
            let mut had_us = vec![0; quanta_us.len()];
            for at_us in (start_us..start_us + plan.cycle_us()).step_by(1_000) {
                let on: Vec<usize> = (0..timelines.len()).filter(|number| runs(&timelines[*number], at_us)).collect();
                if at_us < start_us + PROBE_US {
                    assert_eq!(on.len(), timelines.len(), "all are there in a probe");
                } else {
                    assert_eq!(on.len(), 1, "at {at_us}");
                    had_us[on[0]] += 1_000;
                }
            }
            let rounds = had_us[0] / quanta_us[0];
            assert!(had_us.iter().zip(quanta_us).all(|(had_us, quantum_us)| *had_us == rounds * quantum_us));
        }
    }

    #[test]
    fn nothing_is_free_where_another_begins_and_who_is_no_member_always_runs() {
        let plan = plan(&[10_000, 20_000, 10_000]);
        let second = Timeline::of_turns(&plan, "1", &Timeline::always(), 0);
        let start_us = plan.cycle_us() * 10;
        let (probe, turn) = (second.span(start_us).unwrap(), second.span(start_us + PROBE_US).unwrap());
        assert_eq!((probe.length_us(), probe.free_after_us), (PROBE_US, 0), "the first one's turn comes next");
        assert_eq!((turn.start_us - start_us, turn.length_us(), turn.free_after_us), (PROBE_US + 10_000, 20_000, 0));
        assert!(turn.takes_over());
        assert!(Timeline::of_turns(&plan, "guest", &Timeline::always(), 0).is_unlimited(start_us));
        let none = RoundRobin { from_us: start_us, members: Vec::new() };
        assert!(Timeline::of_turns(&none, "1", &second, start_us).is_unlimited(start_us));
    }
}
