//! Instant from which a change is in force: mediators move to a new timetable at the instant that
//! it names.

use std::{path::Path, thread, time::Duration};

use ledger::Ledger;
use schedule::now_us;
use serde::Serialize;

/// Instant from which the last change of the timetables is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct InForce {
    /// Microseconds of CLOCK_MONOTONIC; null where it is not known.
    pub(super) from_us: Option<u64>,
    /// Time until then; 0: in force.
    pub(super) in_us: u64,
}

impl InForce {
    /// Reads it, and waits for it if `wait`. Errors are printed: the change itself is made.
    pub(super) fn read(state_dir: &Path, wait: bool) -> Self {
        let table = Ledger::timetable(state_dir);
        if let Err(error) = &table {
            crate::output::say(&format!("egpu: {}", base::error_chain(error)));
        }
        let now_us = now_us();
        // Without a shared card, everything is in force.
        let from_us = table.ok().map(|table| table.epochs.last().map_or(now_us, |last| last.from_us));
        let in_force = Self::at(from_us, now_us);
        if wait { in_force.wait() } else { in_force }
    }

    fn at(from_us: Option<u64>, now_us: u64) -> Self {
        Self { from_us, in_us: from_us.map_or(0, |from| from.saturating_sub(now_us)) }
    }

    /// Waits until it is in force.
    fn wait(self) -> Self {
        thread::sleep(Duration::from_micros(self.in_us));
        Self { in_us: 0, ..self }
    }
}

impl std::fmt::Display for InForce {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self { from_us: None, .. } => formatter.write_str("the instant from which it is in force is not known"),
            Self { in_us: 0, .. } => formatter.write_str("in force"),
            Self { in_us, .. } => write!(formatter, "in force in {} ms", in_us.div_ceil(1000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_from_its_instant_on() {
        assert_eq!(InForce::at(Some(5_000), 3_500).to_string(), "in force in 2 ms");
        assert_eq!(InForce::at(Some(5_000), 5_000).to_string(), "in force");
        assert_eq!(InForce::at(None, 5_000).to_string(), "the instant from which it is in force is not known");
        assert_eq!(InForce::at(Some(5_000), 3_500).wait(), InForce { from_us: Some(5_000), in_us: 0 });
    }
}
