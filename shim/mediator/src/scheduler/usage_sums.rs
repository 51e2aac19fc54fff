//! Sums of a container's time on a card.

use std::collections::VecDeque;

use schedule::work::Worked;

/// Distances between samples for the last second, and for the last minute.
const FINE_US: u64 = 90_000;
const COARSE_US: u64 = 1_900_000;
const SECOND_US: u64 = 1_000_000;
/// Age beyond which use is unknown: the driver is asked each second, and its samples are up to 290
/// ms old.
const STALE_US: u64 = 3_000_000;

/// Sums of the time that the channels were on the card and off it, while there were any.
#[derive(Debug, Default)]
pub(super) struct UsageSums {
    pub(super) open_us: u64,
    pub(super) throttled_us: u64,
    /// Card time that it used, as far as it is known: see [`UsageSums::count`].
    pub(super) used_us: u64,
    /// Time of the windows since the last count that others had.
    others_us: u64,
    /// Time that was counted of each source.
    counted: Counted,
    /// Share that was achieved, and the instant of that.
    achieved: [Option<u32>; 2],
    achieved_us: Option<u64>,
    since_us: Option<u64>,
    is_open: bool,
    fine: VecDeque<(u64, u64)>,
    coarse: VecDeque<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Counted {
    open_us: u64,
    log_us: u64,
    worked_us: u64,
}

/// Source of the card time that a container used since it was counted last.
///
/// Without windows it is [`UsageSums::add_work`] alone: a container that is not taken off stays on
/// the card without work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageSource {
    /// A window of its own in which something ran: its time on the card.
    Window,
    /// A window that others have, too: the log of the card.
    Log,
    /// No work, or use that is counted otherwise.
    Nothing,
}

impl UsageSums {
    /// Counts the use since the last call. `log_us`: the sum of the log of the card, where there is
    /// one.
    pub(super) fn count(&mut self, source: UsageSource, log_us: Option<u64>) {
        let counted = Counted { open_us: self.open_us, log_us: log_us.unwrap_or_default(), ..self.counted };
        let before = std::mem::replace(&mut self.counted, counted);
        let others_us = std::mem::take(&mut self.others_us);
        let used_us = match source {
            UsageSource::Window => self.open_us.saturating_sub(before.open_us.saturating_add(others_us)),
            UsageSource::Log => self.counted.log_us.saturating_sub(before.log_us),
            UsageSource::Nothing => 0,
        };
        self.used_us = self.used_us.saturating_add(used_us);
    }

    /// Notes for how long others had the card in the window that ends.
    pub(super) fn others_had(&mut self, us: u64) {
        self.others_us = self.others_us.saturating_add(us);
    }

    /// Adds work of the card, which is known with a delay, and takes a sample of each.
    pub(super) fn add_work(&mut self, known: &[Worked]) {
        for Worked { until_us, worked_us } in known {
            let more_us = worked_us.saturating_sub(self.counted.worked_us);
            self.counted.worked_us = *worked_us;
            self.used_us = self.used_us.saturating_add(more_us);
            if self.achieved_us.is_some_and(|achieved_us| until_us.saturating_sub(achieved_us) >= STALE_US) {
                self.clear_samples();
            }
            // The first has been sampled before.
            if self.achieved_us.is_none_or(|achieved_us| achieved_us < *until_us) {
                self.sample(*until_us);
            }
        }
    }

    /// Notes that there are no channels from now on (`None`), or whether they are on the card.
    pub(super) fn set_open(&mut self, now_us: u64, is_open: Option<bool>) {
        self.add_elapsed(now_us);
        if is_open.is_none() {
            self.clear_samples();
        }
        self.since_us = is_open.map(|_| now_us);
        self.is_open = is_open.unwrap_or(false);
    }

    /// Brings the sums up to now.
    pub(super) fn add_elapsed(&mut self, now_us: u64) {
        let Some(since_us) = self.since_us else { return };
        let passed = now_us.saturating_sub(since_us);
        *(if self.is_open { &mut self.open_us } else { &mut self.throttled_us }) += passed;
        self.since_us = Some(now_us.max(since_us));
    }

    /// Takes a sample: all use until `at_us` is counted. To be called at the same place of each
    /// period.
    pub(super) fn sample(&mut self, at_us: u64) {
        let now = (at_us, self.used_us);
        let second = achieved(&mut self.fine, now, FINE_US, SECOND_US);
        self.achieved = [second, achieved(&mut self.coarse, now, COARSE_US, 60 * SECOND_US)];
        self.achieved_us = Some(at_us);
    }

    /// Returns the share achieved in the last second and the last minute that are known, in
    /// millionths of the card's time; of a shorter time, while there is no more.
    ///
    /// `None`: nothing is known of late.
    pub(super) fn achieved_ppm(&mut self, now_us: u64) -> [Option<u32>; 2] {
        if !self.is_known(now_us) {
            self.clear_samples();
        }
        self.achieved
    }

    /// Returns whether its use is known, but for the last moments.
    pub(super) fn is_known(&self, now_us: u64) -> bool {
        self.achieved_us.is_some_and(|achieved_us| now_us.saturating_sub(achieved_us) < STALE_US)
    }

    /// Drops the samples, as they say nothing of what follows.
    pub(super) fn clear_samples(&mut self) {
        self.fine.clear();
        self.coarse.clear();
        (self.achieved, self.achieved_us) = ([None; 2], None);
    }
}

/// Returns the share since the newest sample that is at least `over_us` old, or else the oldest.
fn achieved(samples: &mut VecDeque<(u64, u64)>, now: (u64, u64), apart_us: u64, over_us: u64) -> Option<u32> {
    let age = |sample: &(u64, u64)| now.0.saturating_sub(sample.0);
    // Half a distance less: calls are not that regular.
    let over_us = over_us.saturating_sub(apart_us / 2);
    while samples.get(1).is_some_and(|next| age(next) >= over_us) {
        samples.pop_front();
    }
    let share = samples.front().filter(|oldest| age(oldest) > 0).map(|oldest| {
        let used = now.1.saturating_sub(oldest.1).min(age(oldest));
        u32::try_from(used * 1_000_000 / age(oldest)).unwrap_or(u32::MAX)
    });
    if samples.back().is_none_or(|last| age(last) >= apart_us) {
        samples.push_back(now);
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_channels_is_nobodys() {
        let mut usage_sums = UsageSums::default();
        usage_sums.set_open(100, Some(false));
        usage_sums.set_open(150, Some(true));
        usage_sums.set_open(170, None);
        usage_sums.set_open(500, Some(true));
        usage_sums.add_elapsed(510);
        usage_sums.add_elapsed(520);
        assert_eq!((usage_sums.open_us, usage_sums.throttled_us), (40, 50));
    }

    #[test]
    fn what_was_used_has_one_source_at_a_time() {
        let mut usage_sums = UsageSums::default();
        usage_sums.set_open(0, Some(true));
        usage_sums.set_open(100, Some(false));
        usage_sums.count(UsageSource::Window, Some(70));
        assert_eq!(usage_sums.used_us, 100);
        usage_sums.set_open(200, Some(true));
        usage_sums.set_open(300, Some(false));
        usage_sums.count(UsageSource::Nothing, Some(70));
        assert_eq!(usage_sums.used_us, 100, "nothing ran");
        usage_sums.set_open(400, Some(true));
        usage_sums.add_elapsed(500);
        usage_sums.count(UsageSource::Log, Some(110));
        assert_eq!(usage_sums.used_us, 140, "somebody else was there");
        usage_sums.add_elapsed(600);
        usage_sums.count(UsageSource::Window, Some(110));
        assert_eq!(usage_sums.used_us, 240);
        usage_sums.count(UsageSource::Log, Some(20));
        assert_eq!(usage_sums.used_us, 240, "a log that was begun anew takes nothing back");
    }

    fn worked(until_us: u64, worked_us: u64) -> Worked {
        Worked { until_us, worked_us }
    }

    #[test]
    fn what_was_worked_counts_once_whatever_the_time_on_the_card() {
        let mut usage_sums = UsageSums::default();
        usage_sums.set_open(0, Some(true));
        usage_sums.add_work(&[worked(0, 0)]);
        usage_sums.add_elapsed(SECOND_US);
        usage_sums.count(UsageSource::Nothing, None);
        usage_sums.add_work(&[worked(0, 0), worked(200_000, 50_000), worked(400_000, 50_000)]);
        assert_eq!((usage_sums.open_us, usage_sums.used_us), (SECOND_US, 50_000));
        usage_sums.add_work(&[worked(400_000, 50_000), worked(600_000, 250_000)]);
        assert_eq!(usage_sums.used_us, 250_000);
        assert_eq!(usage_sums.achieved_ppm(SECOND_US)[0], Some(416_666), "until then");
    }

    #[test]
    fn unknown_recent_use_is_not_reported() {
        let mut usage_sums = UsageSums::default();
        usage_sums.set_open(0, Some(true));
        usage_sums.add_work(&[worked(0, 0), worked(SECOND_US, SECOND_US)]);
        assert_eq!(usage_sums.achieved_ppm(SECOND_US + STALE_US - 1), [Some(1_000_000); 2]);
        assert_eq!(usage_sums.achieved_ppm(SECOND_US + STALE_US), [None; 2]);
        assert!(!usage_sums.is_known(SECOND_US + STALE_US));
        let back_us = 10 * SECOND_US;
        usage_sums.add_work(&[worked(SECOND_US, SECOND_US), worked(back_us, SECOND_US)]);
        assert_eq!(usage_sums.achieved_ppm(back_us), [None; 2], "nothing to compare it with");
        usage_sums.add_work(&[worked(back_us, SECOND_US), worked(back_us + 200_000, SECOND_US + 100_000)]);
        assert_eq!(usage_sums.achieved_ppm(back_us + 200_000), [Some(500_000); 2], "not of the time that nobody knows");
    }

    #[test]
    fn what_is_achieved_follows_a_change_within_a_second_or_a_minute() {
        let mut usage_sums = UsageSums::default();
        let mut now = 0;
        let mut run = |periods: u64, open_us: u64| {
            let mut seen = [None; 2];
            for _ in 0..periods {
                usage_sums.set_open(now, Some(true));
                usage_sums.set_open(now + open_us, Some(false));
                usage_sums.count(UsageSource::Window, None);
                usage_sums.sample(now + open_us);
                seen = usage_sums.achieved_ppm(now + open_us);
                now += 100_000;
            }
            seen
        };
        assert_eq!(run(1, 25_000), [None; 2]);
        assert_eq!(run(2, 25_000), [Some(250_000); 2]);
        assert_eq!(run(1_000, 25_000), [Some(250_000); 2]);
        let [second, minute] = run(11, 75_000);
        assert_eq!(second, Some(750_000));
        assert!(minute.is_some_and(|minute| minute > 250_000 && minute < 400_000), "{minute:?}");
        assert_eq!(run(630, 75_000), [Some(750_000); 2]);
        assert!(usage_sums.fine.len() < 20 && usage_sums.coarse.len() < 40);
    }
}
