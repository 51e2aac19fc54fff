//! Time for which a container had work and not the card, from looks at what it has submitted.
//!
//! Looks are far apart, as each costs a wake-up, and become frequent while it waits. A wait that is
//! shorter than the distance of looks is met by few of them: one that is met stands for as many as
//! are not. So the sum is right on the whole, and the lengths of short ones are estimates.

/// Upper bounds of the lengths that are counted apart, in microseconds.
pub const WAIT_BOUNDS_US: [u64; 9] = [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 500_000];

/// Distance of looks while it does not wait. No multiple of it is a usual period.
const LOOK_US: u64 = 19_700;
/// The first one of those while it waits; each is as long as the wait has been seen to be.
const LEAST_LOOK_US: u64 = 250;

#[derive(Debug, Clone, Default)]
pub struct Waits {
    waited_us: u64,
    counts: [u64; WAIT_BOUNDS_US.len() + 1],
    looked_us: u64,
    /// Instant at which it was found waiting, and the time since the look before.
    found: Option<(u64, u64)>,
}

impl Waits {
    /// Notes whether it waits. Returns the instant of the next look.
    pub fn look(&mut self, now_us: u64, is_waiting: bool) -> u64 {
        let since_us = now_us.saturating_sub(self.looked_us).min(LOOK_US);
        self.looked_us = now_us;
        match (self.found, is_waiting) {
            (None, true) => self.found = Some((now_us, since_us)),
            (Some(found), false) => {
                self.found = None;
                // Both its ends are between looks.
                self.end(now_us.saturating_sub(since_us / 2), found);
            }
            _ => (),
        }
        now_us + self.found.map_or(LOOK_US, |(at_us, _)| (now_us - at_us).clamp(LEAST_LOOK_US, LOOK_US))
    }

    /// Notes that it waits from now on, or does not, at the instant at which that begins; a wait
    /// lasts until the next one. Returns the instant of the next look.
    pub fn edge(&mut self, now_us: u64, is_waiting: bool) -> u64 {
        self.looked_us = now_us;
        if let Some(found) = self.found.take() {
            self.end(now_us, found);
        }
        self.found = is_waiting.then_some((now_us, 0));
        if is_waiting { u64::MAX } else { now_us + LOOK_US }
    }

    fn end(&mut self, now_us: u64, (at_us, since_us): (u64, u64)) {
        let seen_us = now_us.saturating_sub(at_us);
        let length_us = if seen_us >= since_us / 2 { seen_us + since_us / 2 } else { 2 * seen_us };
        let all_us = since_us.max(length_us);
        self.waited_us = self.waited_us.saturating_add(all_us);
        let number = (all_us / length_us.max(LEAST_LOOK_US)).max(1);
        let bucket = WAIT_BOUNDS_US.partition_point(|bound_us| *bound_us < length_us);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += number;
        }
    }

    /// Time for which it waited, in all, until now.
    pub fn waited_us(&self, now_us: u64) -> u64 {
        self.waited_us + self.found.map_or(0, |(at_us, _)| now_us.saturating_sub(at_us))
    }

    /// Number of waits that were no longer than each of [`WAIT_BOUNDS_US`] and longer than the one
    /// before, and of those that were longer than all.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Looks at waits of a length, with breaks of any length in between.
    fn looked_at(length_us: u64, every_us: u64, until_us: u64) -> (Waits, u64) {
        let (mut waits, mut next_us) = (Waits::default(), LOOK_US);
        let (mut from_us, mut random, mut waited_us) = (0, 1_u64, 0);
        while next_us < until_us {
            while from_us + length_us <= next_us {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                from_us += length_us + (random >> 33) % (2 * (every_us - length_us));
                waited_us += length_us;
            }
            next_us = waits.look(next_us, from_us <= next_us);
        }
        (waits, waited_us)
    }

    #[test]
    fn the_sum_is_right_for_short_waits_and_long_ones() {
        for (length_us, every_us) in [(300, 5_500), (1_000, 5_500), (5_000, 20_000), (60_000, 100_000)] {
            let (waits, due_us) = looked_at(length_us, every_us, 600_000_000);
            let waited_us = waits.waited_us(600_000_000);
            assert!(waited_us.abs_diff(due_us) < due_us / 8, "{length_us} of {every_us}: {waited_us}, {due_us}");
        }
    }

    #[test]
    fn edges_are_exact() {
        let mut waits = Waits::default();
        for start_us in (0..10).map(|n| n * 100_000) {
            waits.edge(start_us + 30_000, true);
            waits.look(start_us + 50_000, true);
            waits.edge(start_us + 90_000, false);
        }
        assert_eq!(waits.waited_us(1_000_000), 600_000);
        assert_eq!(waits.counts(), [0, 0, 0, 0, 0, 0, 0, 10, 0, 0]);
        waits.edge(1_000_000, true);
        assert_eq!(waits.waited_us(1_250_000), 850_000);
    }

    proptest! {
        #[test]
        fn looks_go_on(looks in proptest::collection::vec(any::<bool>(), 1..300)) {
            let (mut waits, mut now_us, mut before) = (Waits::default(), 0, 0);
            for is_waiting in looks {
                let next_us = waits.look(now_us, is_waiting);
                prop_assert!(next_us >= now_us + LEAST_LOOK_US && next_us <= now_us + LOOK_US);
                prop_assert!(waits.counts().iter().sum::<u64>() >= before);
                before = waits.counts().iter().sum::<u64>();
                now_us = next_us;
            }
        }
    }
}
