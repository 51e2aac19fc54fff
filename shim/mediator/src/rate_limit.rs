//! Rate limit of what a container can cause as often as it likes: reports, and OOM scripts.

use std::time::{Duration, Instant};

/// The most in a period.
pub const MAX_PER_PERIOD: u32 = 5;
const PERIOD: Duration = Duration::from_secs(1);

/// A limit of [`MAX_PER_PERIOD`] reports in a [`PERIOD`].
#[derive(Debug)]
pub struct RateLimit {
    since: Instant,
    passed: u32,
    suppressed: u64,
}

impl RateLimit {
    pub const fn new(now: Instant) -> Self {
        Self { since: now, passed: 0, suppressed: 0 }
    }

    /// Admits a report, and returns the number that were suppressed before it; `None`: it is
    /// suppressed.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= PERIOD {
            (self.since, self.passed) = (now, 0);
        }
        if self.passed == MAX_PER_PERIOD {
            self.suppressed += 1;
            return None;
        }
        self.passed += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_reported_in_parts() {
        let start = Instant::now();
        let mut limited = RateLimit::new(start);
        let passed = (0..100).filter(|_| limited.take(start).is_some()).count();
        assert_eq!(passed, 5);
        assert_eq!(limited.take(start + PERIOD), Some(95));
        assert_eq!(limited.take(start + PERIOD), Some(0));
    }
}
