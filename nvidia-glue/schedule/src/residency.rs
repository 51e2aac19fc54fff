//! Residency of each context on a card's compute engine, added up from its context switches.

use std::collections::BTreeMap;

use crate::{Presence, Switch, priority::Stays as PriorityStays};

/// Processes that have not been on the engine for that long are forgotten.
const KEPT_NS: u64 = 120_000_000_000;
/// Longest absence from the engine of a context with work: no turn of all programs on a card takes
/// longer ([`soft::LONGEST_ROUND_US`](super::soft::LONGEST_ROUND_US)). Who stays away longer has
/// none.
const IDLE_AFTER_NS: u64 = super::soft::LONGEST_ROUND_US * 1_000;
/// Longest time for which the engine is without a context for a switch.
pub(crate) const MOST_SWITCH_NS: u64 = 1_000_000;
/// Longest stay of a context that is displaced as soon as the card can do that.
const SWITCH_NS: u64 = 300_000;

/// The sums of one card, by process. A process is a container's mediator, so that these are the
/// containers' times.
///
/// One context has the engine at a time. What a lost record leaves open is closed by the next one.
#[derive(Debug, Clone, Default)]
pub struct Residency {
    processes: BTreeMap<u32, Stays>,
    /// The context on the engine, and its start.
    on: Option<(u32, u64)>,
    visit: Option<Visit>,
}

/// Stay of a process, until another one comes: whichever of its contexts.
#[derive(Debug, Clone, Copy)]
struct Visit {
    process: u32,
    since_ns: u64,
    /// Instant at which it left last.
    left_ns: u64,
}

impl Visit {
    /// Time beyond a switch's, of a stay until an instant.
    fn lasting_ns(&self, until_ns: u64) -> u64 {
        until_ns.saturating_sub(self.since_ns).saturating_sub(SWITCH_NS)
    }
}

#[derive(Debug, Clone, Default)]
struct Stays {
    used_ns: u64,
    came: u64,
    last_came_ns: u64,
    last_went_ns: u64,
    /// Of the times when it was away, what was longer than that.
    idle_ns: u64,
    /// Number of visits, and of those that are over, what was longer than [`SWITCH_NS`].
    visits: u64,
    lasting_ns: u64,
    /// Time in which another process had left the engine for it, and it was not there yet.
    switching_ns: u64,
    /// By context: when it came last.
    contexts: BTreeMap<u32, u64>,
}

impl Residency {
    /// Adds a switch.
    pub fn add(&mut self, switch: &Switch) {
        let Switch { at_ns, process, context, presence } = *switch;
        self.leave(at_ns);
        if presence == Presence::On {
            self.visit(process, at_ns);
        }
        let stays = self.processes.entry(process).or_default();
        match presence {
            Presence::On => {
                stays.came += 1;
                stays.idle_ns = stays.idle_ns.saturating_add(idle_ns(stays.last_went_ns, at_ns));
                stays.last_came_ns = at_ns;
                stays.contexts.insert(context, at_ns);
                self.on = Some((process, at_ns));
            }
            Presence::Off => stays.last_went_ns = at_ns,
        }
    }

    fn leave(&mut self, at_ns: u64) {
        if let Some((process, since_ns)) = self.on.take()
            && let Some(stays) = self.processes.get_mut(&process)
        {
            stays.used_ns = stays.used_ns.saturating_add(at_ns.saturating_sub(since_ns));
            stays.last_went_ns = at_ns;
            if let Some(visit) = &mut self.visit {
                visit.left_ns = at_ns;
            }
        }
    }

    fn visit(&mut self, process: u32, at_ns: u64) {
        if self.visit.is_some_and(|visit| visit.process == process) {
            return;
        }
        if let Some(before) = self.visit.replace(Visit { process, since_ns: at_ns, left_ns: at_ns })
            && let Some(stays) = self.processes.get_mut(&before.process)
        {
            stays.lasting_ns = stays.lasting_ns.saturating_add(before.lasting_ns(before.left_ns));
            let gap_ns = at_ns.saturating_sub(before.left_ns);
            if gap_ns <= MOST_SWITCH_NS {
                self.processes.entry(process).or_default().switching_ns += gap_ns;
            }
        }
        self.processes.entry(process).or_default().visits += 1;
    }

    /// Forgets who has not been on the engine for long. Sums of the others are kept.
    pub fn forget(&mut self, now_ns: u64) {
        let is_kept = |last_ns: u64| now_ns.saturating_sub(last_ns) < KEPT_NS;
        let on = self.on.map(|(process, _)| process);
        self.processes.retain(|process, stays| {
            stays.contexts.retain(|_, came_ns| is_kept(*came_ns));
            on == Some(*process) || is_kept(stays.last_came_ns.max(stays.last_went_ns))
        });
    }

    /// Time on the engine until now, in microseconds.
    pub fn used_us(&self, process: u32, now_ns: u64) -> u64 {
        let used_ns = self.processes.get(&process).map_or(0, |stays| stays.used_ns);
        let current_ns = match self.on {
            Some((on, since_ns)) if on == process => now_ns.saturating_sub(since_ns),
            _ => 0,
        };
        used_ns.saturating_add(current_ns) / 1_000
    }

    /// Microseconds in all until now for which it had no work: the part of its absences beyond the
    /// wait for its turn. Counts from its first stay.
    pub fn idle_us(&self, process: u32, now_ns: u64) -> u64 {
        let Some(stays) = self.processes.get(&process) else { return 0 };
        let current_ns = if self.is_on(process) { 0 } else { idle_ns(stays.last_went_ns, now_ns) };
        stays.idle_ns.saturating_add(current_ns) / 1_000
    }

    /// Instant at which it came onto the engine last (`CLOCK_MONOTONIC`, nanoseconds); `None`:
    /// never, as far as is known.
    pub fn last_came_ns(&self, process: u32) -> Option<u64> {
        self.processes.get(&process).filter(|stays| stays.came > 0).map(|stays| stays.last_came_ns)
    }

    /// Instant at which it left the engine last; `None`: never, as far as is known.
    pub fn last_went_ns(&self, process: u32) -> Option<u64> {
        self.processes.get(&process).map(|stays| stays.last_went_ns).filter(|at_ns| *at_ns > 0)
    }

    /// Its visits to the engine until now, the one under way included, of the time for which its
    /// channels were to be there.
    pub fn stays(&self, process: u32, now_ns: u64, open_us: u64) -> PriorityStays {
        let Some(stays) = self.processes.get(&process) else {
            return PriorityStays { open_us, ..PriorityStays::default() };
        };
        let visit = self.visit.filter(|visit| visit.process == process);
        let until_ns = |visit: &Visit| if self.is_on(process) { now_ns } else { visit.left_ns };
        let current_ns = visit.map_or(0, |visit| visit.lasting_ns(until_ns(&visit)));
        let lasting_us = stays.lasting_ns.saturating_add(current_ns) / 1_000;
        PriorityStays { came: stays.visits, lasting_us, open_us }
    }

    /// Time that the engine lost in switches to it from other processes, microseconds.
    pub fn switching_us(&self, process: u32) -> u64 {
        self.processes.get(&process).map_or(0, |stays| stays.switching_ns / 1_000)
    }

    /// Instant until which it was on the engine last, now included (`CLOCK_MONOTONIC`,
    /// nanoseconds); `None`: never, as far as is known.
    pub fn last_seen_ns(&self, process: u32, now_ns: u64) -> Option<u64> {
        if self.is_on(process) { Some(now_ns) } else { self.last_went_ns(process) }
    }

    /// Returns whether it has the engine now.
    pub fn is_on(&self, process: u32) -> bool {
        self.on.is_some_and(|(on, _)| on == process)
    }

    /// Number of its contexts that have come onto the engine since an instant.
    pub fn contexts(&self, process: u32, since_ns: u64) -> usize {
        let contexts = self.processes.get(&process).map(|stays| &stays.contexts);
        contexts.map_or(0, |contexts| contexts.values().filter(|came_ns| **came_ns >= since_ns).count())
    }

    /// The processes that are known.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.processes.keys().copied()
    }
}

fn idle_ns(went_ns: u64, until_ns: u64) -> u64 {
    if went_ns == 0 { 0 } else { until_ns.saturating_sub(went_ns).saturating_sub(IDLE_AFTER_NS) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn switch(at_us: u64, process: u32, presence: Presence) -> Switch {
        Switch { at_ns: at_us * 1_000, process, context: process * 10, presence }
    }

    fn residency(switches: &[(u64, u32, Presence)]) -> Residency {
        let mut residency = Residency::default();
        for (at_us, process, presence) in switches {
            residency.add(&switch(*at_us, *process, *presence));
        }
        residency
    }

    use Presence::{Off, On};

    #[test]
    fn turns_are_added_up() {
        let two = residency(&[(100, 1, On), (2_100, 1, Off), (2_184, 2, On), (4_184, 2, Off), (4_268, 1, On)]);
        assert_eq!(two.used_us(1, 5_268_000), 3_000);
        assert_eq!(two.used_us(2, 5_268_000), 2_000);
        assert_eq!(two.used_us(3, 5_268_000), 0);
        assert!(two.is_on(1) && !two.is_on(2));
        assert_eq!(two.last_came_ns(2), Some(2_184_000));
        assert_eq!(two.last_went_ns(2), Some(4_184_000));
        assert_eq!([1, 2].map(|process| two.switching_us(process)), [84, 84]);
        assert_eq!(two.last_came_ns(3), None);
    }

    #[test]
    fn a_lost_record_spoils_no_more_than_its_turn() {
        let lost_off = residency(&[(0, 1, On), (2_000, 2, On), (4_000, 2, Off), (4_100, 1, On), (5_100, 1, Off)]);
        assert_eq!(lost_off.used_us(1, 9_000_000), 3_000);
        let lost_on = residency(&[(2_000, 1, Off), (2_100, 2, On), (4_100, 2, Off)]);
        assert_eq!(lost_on.used_us(1, 9_000_000), 0);
        assert_eq!(lost_on.used_us(2, 9_000_000), 2_000);
    }

    #[test]
    fn contexts_of_one_process_are_distinguished() {
        let mut many = Residency::default();
        for context in 0..10 {
            many.add(&Switch { at_ns: u64::from(context) * 1_000, process: 1, context, presence: On });
        }
        assert_eq!(many.contexts(1, 0), 10);
        assert_eq!(many.contexts(1, 5_000), 5);
    }

    #[test]
    fn who_stays_away_for_long_has_no_work() {
        let mut two = residency(&[(0, 1, On), (1_000, 1, Off), (1_000, 2, On)]);
        assert_eq!(two.idle_us(1, 51_000_000), 0, "it may be waiting for its turn");
        assert_eq!(two.idle_us(1, 81_000_000), 30_000);
        two.add(&switch(101_000, 1, On));
        assert_eq!([1, 2, 3].map(|process| two.idle_us(process, 500_000_000)), [50_000, 349_000, 0]);
    }

    #[test]
    fn the_forgotten() {
        let mut both = residency(&[(0, 1, On), (1_000, 1, Off), (1_100, 2, On)]);
        both.forget(KEPT_NS * 2);
        assert_eq!(both.processes().collect::<Vec<_>>(), [2], "who is on the engine is not forgotten");
    }

    proptest! {
        /// Whatever is lost: nobody has more than there was, and all together neither.
        #[test]
        fn time_is_given_out_once(records in proptest::collection::vec((1_u64..5_000, 0_u32..4, any::<bool>(), any::<bool>()), 0..200)) {
            let mut residency = Residency::default();
            let mut at_us = 0;
            for (after_us, process, is_on, is_lost) in records {
                at_us += after_us;
                if !is_lost {
                    residency.add(&switch(at_us, process, if is_on { On } else { Off }));
                }
            }
            let sum: u64 = (0..4).map(|process| residency.used_us(process, at_us * 1_000)).sum();
            prop_assert!(sum <= at_us);
        }
    }
}
