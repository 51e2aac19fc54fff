//! What a container can cause as often as it likes is told so often and no more.

use std::time::{Duration, Instant};

/// So many in each period are told one by one.
const TOLD: u32 = 5;
const PERIOD: Duration = Duration::from_secs(1);

/// At most [`TOLD`] in a [`PERIOD`].
#[derive(Debug)]
pub(super) struct Limited {
    since: Instant,
    told: u32,
    untold: u64,
}

impl Limited {
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, told: 0, untold: 0 }
    }

    /// `None`: not this one. Else how many were left out before it.
    pub(super) fn take(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= PERIOD {
            (self.since, self.told) = (now, 0);
        }
        if self.told == TOLD {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_in_parts() {
        let start = Instant::now();
        let mut limited = Limited::new(start);
        let told = (0..100).filter(|_| limited.take(start).is_some()).count();
        assert_eq!(told, 5);
        assert_eq!(limited.take(start + PERIOD), Some(95));
        assert_eq!(limited.take(start + PERIOD), Some(0));
    }
}
