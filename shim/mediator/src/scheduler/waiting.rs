//! Time for which the container had work and not the card, and whether it has submitted any of
//! late.

use schedule::{Submitted, Waits};

use super::last_second::LastSecond;

/// Time without a submission after which it is quiet: less than the distance of two looks.
const QUIET_US: u64 = 15_000;

/// Waits of the container on one card.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    waits: Waits,
    /// Instant of the next look.
    pub(super) look_us: u64,
    /// It is known what its channels have submitted, and whether that waits.
    is_known: bool,
    knows_waits: bool,
    puts: u64,
    /// Instant of the last look at which it had submitted something, or something waited.
    active_us: u64,
    is_quiet: bool,
    last_second: LastSecond,
}

impl Waiting {
    /// Looks at what it has submitted; `None`: nobody knows. `is_on`: its channels are to be on the
    /// card, and it has the card. Returns whether it has become quiet, or is so no more.
    pub(super) fn look(
        &mut self,
        now_us: u64,
        submitted: Option<Submitted>,
        (is_open, is_on): (bool, Option<bool>),
    ) -> bool {
        let is_pending = self.note(now_us, submitted);
        self.knows_waits = self.is_known && is_on.is_some();
        self.look_us = self.waits.look(now_us, is_pending && is_on == Some(false));
        if is_pending && !is_open {
            // That lasts until it is put back.
            self.look_us = u64::MAX;
        }
        let is_quiet = self.is_known && now_us.saturating_sub(self.active_us) >= QUIET_US;
        std::mem::replace(&mut self.is_quiet, is_quiet) != is_quiet
    }

    /// Notes that it was put on the card, or taken off it.
    pub(super) fn edge(&mut self, now_us: u64, submitted: Option<Submitted>, is_open: bool) {
        let is_pending = self.note(now_us, submitted);
        self.knows_waits = self.is_known;
        self.look_us = self.waits.edge(now_us, is_pending && !is_open);
    }

    /// Ends a wait: there is nothing any more for which it could wait.
    pub(super) fn rest(&mut self, now_us: u64) {
        self.look_us = self.waits.edge(now_us, false);
        self.is_quiet = true;
    }

    fn note(&mut self, now_us: u64, submitted: Option<Submitted>) -> bool {
        self.is_known = submitted.is_some();
        let Some(Submitted { is_pending, puts }) = submitted else { return false };
        if is_pending || puts != self.puts {
            (self.puts, self.active_us) = (puts, now_us);
        }
        is_pending
    }

    /// Returns whether it is known what it has submitted.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Time for which it waited: in all, and in the last second; `None`: not known.
    pub(super) fn waited_us(&mut self, now_us: u64) -> Option<(u64, u64)> {
        if !self.knows_waits {
            self.last_second.clear();
            return None;
        }
        let waited_us = self.waits.waited_us(now_us);
        Some((waited_us, self.last_second.of(now_us, waited_us)))
    }

    /// Returns the number of waits by their lengths.
    pub(super) fn counts(&self) -> &[u64] {
        if self.knows_waits { self.waits.counts() } else { &[] }
    }

    /// Returns whether it has submitted nothing of late; `None`: not known.
    pub(super) fn is_quiet(&self) -> Option<bool> {
        self.is_known.then_some(self.is_quiet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitted(puts: u64, is_pending: bool) -> Option<Submitted> {
        Some(Submitted { is_pending, puts })
    }

    #[test]
    fn who_submits_nothing_is_quiet() {
        let mut waiting = Waiting::default();
        assert!(!waiting.look(1_000_000, submitted(1, false), (true, Some(true))));
        assert_eq!(waiting.is_quiet(), Some(false));
        assert!(waiting.look(1_019_700, submitted(1, false), (true, Some(true))));
        assert_eq!(waiting.is_quiet(), Some(true));
        assert!(waiting.look(1_040_000, submitted(2, false), (true, Some(true))));
        assert!(
            !waiting.look(1_060_000, submitted(2, true), (true, Some(true))),
            "it waits, for the card or behind its own work"
        );
        assert!(!waiting.look(1_070_000, None, (true, Some(true))));
        assert_eq!((waiting.is_quiet(), waiting.waited_us(1_070_000)), (None, None));
    }

    #[test]
    fn work_that_is_not_fetched_waits_unless_it_is_on_the_card() {
        let mut waiting = Waiting::default();
        waiting.edge(1_000_000, submitted(1, true), false);
        assert_eq!(waiting.waited_us(1_040_000), Some((40_000, 0)));
        waiting.edge(1_050_000, submitted(2, true), true);
        waiting.look(1_060_000, submitted(2, true), (true, Some(true)));
        assert_eq!(waiting.waited_us(1_100_000), Some((50_000, 10_000)));
        assert_eq!(waiting.counts().iter().sum::<u64>(), 1);
        assert_eq!(waiting.waited_us(2_200_000), Some((50_000, 0)));
        waiting.look(2_300_000, submitted(2, true), (true, None));
        assert_eq!(
            (waiting.waited_us(2_300_000), waiting.is_quiet()),
            (None, Some(false)),
            "nobody says who has the card"
        );
    }
}
