//! Working time of a card for a container.
//!
//! Two things are known, and both are upper bounds: for how long the container had the engine, and
//! how busy the card was with whosever work, sample by sample. A context that nobody displaces
//! stays on the engine when its work is done, and a card is busy with others' work, too. So of each
//! sample's time the smaller one counts. Where containers share a card at the same time, theirs are
//! at most the card's time together, as one context has the engine at a time.
//!
//! For how long the container had the engine nobody knows where the card keeps no log of its
//! switches, and as long as there was none since it was looked: who came before stays. Then each
//! sample is the process's that the driver puts it down to.

use super::meter::Meter;

const MILLION: u64 = 1_000_000;
/// Distance of two samples.
pub const SAMPLE_US: u64 = 200_000;
/// The longest time for which one is believed.
const LONGEST_US: u64 = 3_000_000;

/// Utilization of a card since the sample before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// `CLOCK_MONOTONIC`, microseconds.
    pub at_us: u64,
    /// In millionths.
    pub busy_ppm: u32,
    /// The driver puts it down to the container.
    pub is_own: bool,
}

/// Working time of a card for a container, until an instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Worked {
    /// `CLOCK_MONOTONIC`, microseconds.
    pub until_us: u64,
    /// The sum, microseconds.
    pub worked_us: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Work {
    known: Option<Worked>,
}

impl Work {
    /// Skips the time until now: somebody else has counted it, or nobody can.
    pub fn pass_over(&mut self, now_us: u64) {
        let worked_us = self.known.map_or(0, |known| known.worked_us);
        self.known = Some(Worked { until_us: now_us, worked_us });
    }

    /// Returns whether the container may have worked since what is known. Where it was not on the
    /// engine, it has not, and that is known then.
    pub fn is_open(&mut self, meter: &Meter, now_us: u64) -> bool {
        let Some(known) = &mut self.known else {
            self.pass_over(now_us);
            return false;
        };
        if known.until_us < now_us && meter.used_ppm(known.until_us, now_us) == Some(0) {
            known.until_us = now_us;
        }
        known.until_us < now_us
    }

    /// Adds the work that samples show, which are in order, until now. Returns the sum as of each
    /// sample's end, after the sum before.
    pub fn add(&mut self, meter: &Meter, samples: &[Sample], now_us: u64) -> Vec<Worked> {
        let Some(mut known) = self.known else { return Vec::new() };
        let mut sums = vec![known];
        let mut before_us = None;
        for sample in samples {
            // The card's clock may be ahead of the host's by a little.
            let at_us = sample.at_us.min(now_us);
            let since_us = before_us.replace(at_us).unwrap_or_else(|| match at_us.checked_sub(known.until_us) {
                Some(0..=LONGEST_US) => known.until_us,
                _ => at_us.saturating_sub(SAMPLE_US),
            });
            if at_us <= known.until_us {
                continue;
            }
            let from_us = since_us.max(known.until_us).max(at_us.saturating_sub(LONGEST_US));
            let by_driver_ppm = || if sample.is_own { sample.busy_ppm } else { 0 };
            let used_ppm = meter.used_ppm(from_us, at_us).unwrap_or_else(by_driver_ppm);
            let passed_us = at_us - from_us;
            let worked_us = passed_us.saturating_mul(u64::from(used_ppm.min(sample.busy_ppm))) / MILLION;
            known = Worked { until_us: at_us, worked_us: known.worked_us + worked_us.min(passed_us) };
            sums.push(known);
        }
        self.known = Some(known);
        sums
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::meter::Measured;

    const ALL_PPM: u32 = 1_000_000;

    /// On the engine for so much of each 50 ms from 1 s on.
    fn on(ppm: &[u64]) -> Meter {
        let (mut meter, mut used_us) = (Meter::default(), 0);
        let mut add = |at_us, used_us| {
            meter.add(Measured { at_us, used_us: Some(used_us), share_ppm: ALL_PPM, rests: false });
        };
        add(MILLION, 0);
        for (step, ppm) in (1..).zip(ppm) {
            used_us += 50_000 * ppm / MILLION;
            add(MILLION + step * 50_000, used_us);
        }
        meter
    }

    /// Samples from 1.2 s on, each 200 ms after the last.
    fn samples(busy_ppm: &[u32]) -> Vec<Sample> {
        let sample = |(number, busy_ppm): (u64, &u32)| Sample {
            at_us: MILLION + number * SAMPLE_US,
            busy_ppm: *busy_ppm,
            is_own: false,
        };
        (1..).zip(busy_ppm).map(sample).collect()
    }

    fn begun() -> Work {
        let mut work = Work::default();
        work.pass_over(MILLION);
        work
    }

    fn worked_us(meter: &Meter, samples: &[Sample], now_us: u64) -> u64 {
        begun().add(meter, samples, now_us).last().unwrap().worked_us
    }

    #[test]
    fn who_is_on_the_engine_works_no_more_than_the_card() {
        let whole = on(&[MILLION; 20]);
        assert_eq!(worked_us(&whole, &samples(&[0; 5]), 2 * MILLION), 0, "it only holds memory");
        assert_eq!(worked_us(&whole, &samples(&[ALL_PPM; 5]), 2 * MILLION), MILLION);
        assert_eq!(worked_us(&whole, &samples(&[250_000, 0, 500_000, 0, 0]), 2 * MILLION), 150_000);
    }

    #[test]
    fn who_shares_a_busy_card_has_what_it_was_on_the_engine() {
        let third = on(&[333_333; 20]);
        assert!(worked_us(&third, &samples(&[990_000; 5]), 2 * MILLION).abs_diff(333_333) < 100);
    }

    #[test]
    fn samples_meet_the_time_in_which_they_were_taken() {
        // Works for 200 ms, is displaced, and the card is idle then, again and again: with figures
        // of different times it would be nothing.
        let work: Vec<u64> = (0..20).map(|step| if step / 4 % 2 == 0 { MILLION } else { 0 }).collect();
        assert_eq!(worked_us(&on(&work), &samples(&[ALL_PPM, 0, ALL_PPM, 0, ALL_PPM]), 2 * MILLION), 600_000);
        assert_eq!(worked_us(&on(&work), &samples(&[0, ALL_PPM, 0, ALL_PPM, 0]), 2 * MILLION), 0);
    }

    #[test]
    fn what_is_known_ends_with_the_last_sample_and_goes_on_there() {
        let meter = on(&[MILLION; 20]);
        let mut work = begun();
        let first = work.add(&meter, &samples(&[ALL_PPM; 3]), 1_700_000);
        assert_eq!(first.len(), 4);
        assert_eq!(first[3], Worked { until_us: 1_600_000, worked_us: 600_000 });
        assert!(work.is_open(&meter, 1_800_000));
        let again = work.add(&meter, &samples(&[ALL_PPM, ALL_PPM, ALL_PPM, 500_000]), 1_900_000);
        assert_eq!(again, [first[3], Worked { until_us: 1_800_000, worked_us: 700_000 }], "nothing counts twice");
        assert_eq!(work.add(&meter, &[], 2 * MILLION).len(), 1, "no samples: what was known");
    }

    #[test]
    fn who_is_not_on_the_engine_has_not_worked_whatever_nobody_samples() {
        let mut steps = vec![MILLION; 10];
        steps.extend([0; 10]);
        let meter = on(&steps);
        let mut work = begun();
        assert!(work.is_open(&meter, 1_400_000));
        work.add(&meter, &samples(&[ALL_PPM; 3]), 1_650_000);
        assert!(!work.is_open(&meter, 1_900_000));
        assert_eq!(work.add(&meter, &[], 1_900_000), [Worked { until_us: 1_900_000, worked_us: 500_000 }]);
    }

    #[test]
    fn what_nobody_can_tell_is_whose_the_driver_says() {
        let mut work = begun();
        assert!(work.is_open(&Meter::default(), 2 * MILLION));
        let mut samples = samples(&[ALL_PPM, ALL_PPM, 500_000, ALL_PPM, 0]);
        for own in [1, 2, 4] {
            samples[own].is_own = true;
        }
        let known = work.add(&Meter::default(), &samples, 2 * MILLION);
        assert_eq!(known.last(), Some(&Worked { until_us: 2 * MILLION, worked_us: 300_000 }));
    }

    #[test]
    fn a_container_that_is_measured_from_now_on_has_not_worked_before() {
        let mut late = Meter::default();
        for at_us in [1_500_000, 2 * MILLION] {
            late.add(Measured { at_us, used_us: Some(at_us), share_ppm: 1, rests: false });
        }
        assert_eq!(worked_us(&late, &samples(&[ALL_PPM; 5]), 2 * MILLION), 600_000, "of three samples");
    }

    #[test]
    fn a_sample_says_nothing_of_a_time_long_before_it() {
        let meter = on(&[MILLION; 300]);
        let late = [Sample { at_us: 12 * MILLION, busy_ppm: ALL_PPM, is_own: false }];
        assert_eq!(worked_us(&meter, &late, 12 * MILLION), SAMPLE_US);
        let two = [Sample { at_us: 2 * MILLION, busy_ppm: 0, is_own: false }, late[0]];
        assert_eq!(worked_us(&meter, &two, 12 * MILLION), LONGEST_US);
    }

    proptest! {
        /// Whatever is sampled, and when: nobody has worked more than time has passed, and two who
        /// share the engine not more together.
        #[test]
        fn nothing_is_more_than_all(
            steps in proptest::collection::vec(0..=MILLION, 1..100),
            busy in proptest::collection::vec((0..400_000_u64, 0..=1_000_000_u32), 0..40),
        ) {
            let others: Vec<u64> = steps.iter().map(|own| MILLION - own).collect();
            let now_us = MILLION + 50_000 * steps.len() as u64;
            let mut at_us = MILLION - 100_000;
            let samples: Vec<Sample> = busy
                .into_iter()
                .map(|(after_us, busy_ppm)| {
                    at_us += after_us;
                    Sample { at_us, busy_ppm, is_own: false }
                })
                .collect();
            let (own, other) = (begun().add(&on(&steps), &samples, now_us), begun().add(&on(&others), &samples, now_us));
            prop_assert!(own.is_sorted_by_key(|worked| worked.until_us) && own.is_sorted_by_key(|worked| worked.worked_us));
            let sum = own.last().unwrap().worked_us + other.last().unwrap().worked_us;
            prop_assert!(sum <= now_us - MILLION, "{sum}");
        }
    }
}
