//! Times for which others had the card within a window of the container's.

use schedule::{Presence, Switch};

/// The longest that another context keeps the card while the container waits for it: CUDA's slice,
/// and a switch. A context without work stays longer where nobody waits.
const SLICE_US: u64 = 2_200;
/// The longest that a change from one of the container's own contexts to another takes.
const SWITCH_US: u64 = 300;
/// Time that each absence costs the container beyond its length: kernels that it interrupts, and
/// cold caches. As much as a window does (docs/driver-facts.md).
///
/// Only where the log shows who was there. The log has no processes of other users; but a container
/// could also take itself off, again and again, and would be given more than its window.
const INTERRUPTION_US: u64 = 120;

/// Time for which others had the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Absence {
    pub(super) from_us: u64,
    pub(super) until_us: u64,
    /// One of those who had it; `None`: it is not in the log.
    pub(super) process: Option<u32>,
}

impl Absence {
    pub(super) fn length_us(&self) -> u64 {
        self.until_us - self.from_us
    }
}

/// Finds the absences of a process from one instant until another, from all switches since its
/// channels came onto the card.
///
/// A program that has no work does not come back, and one that has it later was not absent before:
/// of each absence, so much counts as those who were there could take, and what it costs to begin
/// anew.
pub(super) fn absences(switches: &[Switch], own: u32, (from_us, until_us): (u64, u64)) -> Vec<Absence> {
    let mut found = Vec::new();
    // On a busy host the channels may be on the card only after the window's end.
    if from_us >= until_us {
        return found;
    }
    // The begin of the absence under way, those who came in it, and who that was.
    let mut away: Option<(u64, u64, Option<u32>)> = Some((from_us, 0, None));
    for switch in switches {
        let at_us = (switch.at_ns / 1_000).clamp(from_us, until_us);
        match (&mut away, switch.presence) {
            (None, Presence::Off) if switch.process == own => away = Some((at_us, 0, None)),
            (Some((since_us, visits, process)), Presence::On) if switch.process == own => {
                let allowance_us = if *visits > 0 {
                    visits.saturating_mul(SLICE_US)
                } else if *since_us > from_us && at_us - *since_us > SWITCH_US {
                    SLICE_US
                } else {
                    0
                };
                let away_us = (at_us - *since_us).min(allowance_us);
                if away_us > 0 {
                    let interruption_us = if process.is_some() { INTERRUPTION_US } else { 0 };
                    let until_us = until_us.min(*since_us + away_us + interruption_us);
                    found.push(Absence { from_us: *since_us, until_us, process: *process });
                }
                away = None;
            }
            // One that was there already, too.
            (Some((_, visits, process)), presence)
                if switch.process != own && at_us > from_us && (presence == Presence::On || *visits == 0) =>
            {
                *visits += 1;
                *process = Some(switch.process);
            }
            _ => {}
        }
    }
    // Who was displaced just before it was taken off had no time to come back.
    if let Some((since_us, _, process)) = away
        && since_us > from_us
        && (1..=SLICE_US).contains(&(until_us - since_us))
    {
        found.push(Absence { from_us: since_us, until_us, process });
    }
    found
}

#[cfg(test)]
mod tests {
    use Presence::{Off, On};

    use super::*;

    const OWN: u32 = 100;

    fn found(switches: &[(u64, u32, Presence)]) -> Vec<(u64, u64, Option<u32>)> {
        let switch = |&(at_us, process, presence): &(u64, u32, Presence)| Switch {
            at_ns: at_us * 1_000,
            process,
            context: process,
            presence,
        };
        let switches: Vec<Switch> = switches.iter().map(switch).collect();
        let found = absences(&switches, OWN, (10_000, 35_000));
        found.iter().map(|absence| (absence.from_us, absence.until_us, absence.process)).collect()
    }

    #[test]
    fn a_window_that_was_over_before_it_began_has_none() {
        let switch = Switch { at_ns: 9_438_210_000, process: OWN, context: OWN, presence: On };
        assert_eq!(absences(&[switch], OWN, (9_438_210, 9_438_063)), []);
    }

    #[test]
    fn who_takes_turns_with_it_is_seen() {
        let visits = [
            (9_000, OWN, On),
            (10_500, OWN, Off),
            (10_600, 7, On),
            (12_600, 7, Off),
            (12_700, OWN, On),
            (14_700, OWN, Off),
            (14_800, 8, On),
            (14_900, 8, Off),
            (15_000, OWN, On),
        ];
        assert_eq!(found(&visits), [(10_500, 12_820, Some(7)), (14_700, 15_120, Some(8))]);
        assert!(found(&visits[..1]).is_empty());
    }

    #[test]
    fn who_was_there_before_it_is_seen() {
        assert_eq!(found(&[(8_000, 7, On), (11_900, 7, Off), (12_000, OWN, On)]), [(10_000, 12_120, Some(7))]);
        assert!(found(&[(8_000, 7, On), (9_900, 7, Off), (12_000, OWN, On)]).is_empty(), "it had no work yet");
    }

    #[test]
    fn time_without_work_is_no_absence() {
        let idle = [(10_000, OWN, On), (11_000, OWN, Off), (11_100, 7, On), (30_000, 7, Off), (30_100, OWN, On)];
        assert_eq!(found(&idle), [(11_000, 13_320, Some(7))], "no more than one turn of the other one");
        assert!(found(&idle[..4]).is_empty(), "it did not come back");
    }

    #[test]
    fn who_is_displaced_at_the_end_was_absent() {
        let last = |off_us| found(&[(10_000, OWN, On), (off_us, OWN, Off), (off_us + 50, 7, On)]);
        assert_eq!(last(34_000), [(34_000, 35_000, Some(7))]);
        assert!(last(30_000).is_empty(), "it had no work any more");
        assert!(last(35_000).is_empty(), "it was taken off");
    }

    #[test]
    fn those_that_the_log_does_not_show_are_told_from_own_contexts() {
        let own = [(10_000, OWN, On), (12_000, OWN, Off), (12_084, OWN, On), (14_000, OWN, Off), (15_000, OWN, On)];
        assert_eq!(found(&own), [(14_000, 15_000, None)]);
    }
}
