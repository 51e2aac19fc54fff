//! Part of a sum that came in the last second.

use std::collections::VecDeque;

const SECOND_US: u64 = 1_000_000;

/// Instants of the last second, and the sums then.
#[derive(Debug, Default)]
pub(super) struct LastSecond(VecDeque<(u64, u64)>);

impl LastSecond {
    /// Adds the sum of now, and returns what came in the last second.
    pub(super) fn of(&mut self, now_us: u64, sum_us: u64) -> u64 {
        self.0.push_back((now_us, sum_us));
        while self.0.get(1).is_some_and(|(at_us, _)| now_us.saturating_sub(*at_us) >= SECOND_US) {
            self.0.pop_front();
        }
        let before_us = self.0.front().map_or(sum_us, |(_, before_us)| *before_us);
        sum_us.saturating_sub(before_us).min(SECOND_US)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
