//! Use of a card's time by a container, against its grant of it.

use std::collections::VecDeque;

/// A millionth is the unit of shares.
const MILLION: u64 = 1_000_000;
/// Time for which it is remembered: the driver's own samples go back 14 s.
const KEPT_US: u64 = 16_000_000;
/// Shortest distance of two samples: what comes earlier replaces the last one.
const APART_US: u64 = 45_000;
/// Over which time a utilization is taken.
pub const UTILIZATION_US: u64 = 1_000_000;

/// Use of a card by a container until an instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// `CLOCK_MONOTONIC`, microseconds.
    pub at_us: u64,
    /// The card's time that it has used in all, microseconds. `None`: it cannot be separated from
    /// what others used.
    pub used_us: Option<u64>,
    /// Its grant, in millionths of the card's time.
    pub share_ppm: u32,
    /// It has no channels there, and uses nothing until more is measured.
    pub rests: bool,
}

#[derive(Debug, Default)]
pub struct Meter {
    last: Option<Measured>,
    /// Instants, and what was used until then: it never goes back, and no faster than time.
    sums: VecDeque<(u64, u64)>,
}

impl Meter {
    /// Adds what is known now. Instants that go back are passed over.
    pub fn add(&mut self, measured: Measured) {
        let last = self.last.replace(measured);
        let Some(used_us) = measured.used_us else { return self.sums.clear() };
        let Some((at_us, sum_us)) = self.sums.back().copied() else {
            return self.sums.push_back((measured.at_us, 0));
        };
        if measured.at_us <= at_us {
            return;
        }
        let before_us = last.and_then(|last| last.used_us).unwrap_or(used_us);
        // Whoever counts may have begun anew.
        let more_us = used_us.checked_sub(before_us).unwrap_or(used_us).min(measured.at_us - at_us);
        let previous_us =
            self.sums.len().checked_sub(2).and_then(|place| self.sums.get(place)).map(|(at_us, _)| *at_us);
        if previous_us.is_some_and(|previous_us| at_us - previous_us < APART_US) {
            self.sums.pop_back();
        }
        self.sums.push_back((measured.at_us, sum_us + more_us));
        while self.sums.get(1).is_some_and(|(at_us, _)| at_us + KEPT_US < measured.at_us) {
            self.sums.pop_front();
        }
    }

    /// Share of the card's time that was used between two instants, in millionths; until the last
    /// measurement, if that is earlier. `None`: not known.
    pub fn used_ppm(&self, from_us: u64, until_us: u64) -> Option<u32> {
        let (first_us, last_us) = (self.sums.front()?.0, self.sums.back()?.0);
        let rests = self.last.is_some_and(|last| last.rests);
        let early_us = if rests { 0 } else { until_us.saturating_sub(last_us) };
        let (from_us, until_us) = (from_us.saturating_sub(early_us).max(first_us), until_us - early_us);
        let passed_us = until_us.checked_sub(from_us).filter(|passed_us| *passed_us > 0)?;
        let used_us = self.sum_us(until_us).saturating_sub(self.sum_us(from_us));
        u32::try_from(used_us.saturating_mul(MILLION) / passed_us).ok()
    }

    /// Granted share, as entered last; before the first entry, the whole card.
    pub fn share_ppm(&self) -> u32 {
        self.last.map_or(1_000_000, |last| last.share_ppm)
    }

    /// Time that was used until an instant; interpolated between two that are known.
    fn sum_us(&self, at_us: u64) -> u64 {
        let after = self.sums.partition_point(|(known_us, _)| *known_us <= at_us);
        let before = after.checked_sub(1).and_then(|place| self.sums.get(place));
        match (before, self.sums.get(after)) {
            (Some((from_us, from)), Some((until_us, until))) => {
                let (part, whole) = (u128::from(at_us - from_us), u128::from(until_us - from_us).max(1));
                from + u64::try_from(u128::from(until - from) * part / whole).unwrap_or(0)
            }
            (Some((_, sum)), None) | (None, Some((_, sum))) => *sum,
            (None, None) => 0,
        }
    }
}

/// Used part of the granted share, in millionths, at most all of it: the rest was others' idle
/// time.
pub fn of_share(used_ppm: u32, share_ppm: u32) -> u32 {
    let part = u64::from(used_ppm).saturating_mul(MILLION).checked_div(share_ppm.into()).unwrap_or(0);
    u32::try_from(part.min(MILLION)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meter_of(measured: &[(u64, u64)]) -> Meter {
        let mut meter = Meter::default();
        for (at_us, used_us) in measured {
            meter.add(Measured { at_us: *at_us, used_us: Some(*used_us), share_ppm: 250_000, rests: false });
        }
        meter
    }

    /// A quarter of each period of 100 ms, measured when it ends.
    fn quarter(periods: u64) -> Meter {
        meter_of(&(0..=periods).map(|period| (1_000_000 + period * 100_000, period * 25_000)).collect::<Vec<_>>())
    }

    #[test]
    fn used_is_a_part_of_what_was_granted() {
        for (used_ppm, share_ppm, expected) in [
            (250_000, 250_000, 1_000_000),
            (125_000, 250_000, 500_000),
            (0, 250_000, 0),
            (300_000, 250_000, 1_000_000),
            (300_000, 1_000_000, 300_000),
            (300_000, 0, 0),
            (u32::MAX, 1, 1_000_000),
        ] {
            assert_eq!(of_share(used_ppm, share_ppm), expected, "{used_ppm} of {share_ppm}");
        }
    }

    #[test]
    fn a_second_is_the_last_one_that_is_known() {
        let meter = quarter(40);
        assert_eq!(meter.used_ppm(4_000_000, 5_000_000), Some(250_000));
        assert_eq!(meter.used_ppm(4_060_000, 5_060_000), Some(250_000), "told last at 5 s");
        assert_eq!(meter.used_ppm(2_033_000, 2_233_000), Some(250_000), "some time ago");
        assert_eq!(meter.used_ppm(0, 5_000_000), Some(250_000), "it was not known before 1 s");
        assert_eq!(meter.share_ppm(), 250_000);
        assert_eq!((Meter::default().used_ppm(0, 1), Meter::default().share_ppm()), (None, 1_000_000));
    }

    #[test]
    fn who_rests_uses_nothing() {
        let mut meter = quarter(10);
        meter.add(Measured { at_us: 2_000_001, used_us: Some(250_000), share_ppm: 250_000, rests: true });
        assert_eq!(meter.used_ppm(2_000_001, 3_000_001), Some(0));
        assert_eq!(meter.used_ppm(1_500_001, 2_500_001), Some(125_000));
    }

    #[test]
    fn what_nobody_can_tell_is_not_known() {
        let mut meter = quarter(10);
        meter.add(Measured { at_us: 2_100_000, used_us: None, share_ppm: 500_000, rests: false });
        assert_eq!((meter.used_ppm(1_000_000, 2_100_000), meter.share_ppm()), (None, 500_000));
    }

    proptest! {
        /// Whatever is measured, and however often: no more than all the time, and not too much is
        /// kept.
        #[test]
        fn nothing_is_more_than_all(
            measurements in proptest::collection::vec((0_u64..300_000, 0_u64..1_000_000, any::<bool>()), 0..300),
            from: u64,
            over: u32,
        ) {
            let (mut meter, mut at_us) = (Meter::default(), 0);
            for (after_us, used_us, rests) in measurements {
                at_us += after_us;
                meter.add(Measured { at_us, used_us: Some(used_us), share_ppm: 1, rests });
            }
            for until_us in [from.saturating_add(over.into()), at_us, at_us + u64::from(over)] {
                let used = meter.used_ppm(until_us.saturating_sub(over.into()), until_us);
                prop_assert!(used.is_none_or(|ppm| ppm <= 1_000_000), "{used:?}");
            }
            prop_assert!(meter.sums.len() as u64 <= 2 * KEPT_US / APART_US + 4);
        }
    }
}
