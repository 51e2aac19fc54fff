//! Edges of a card that began late or waited in the driver, and the turns that were lost by that.

use std::collections::VecDeque;

use schedule::MOST_WINDOW_LOSS_US;

/// Delay beyond which an edge counts as late.
const LATE_US: u64 = 1_000;
/// Duration of a call beyond which its edge counts as slow.
const SLOW_US: u64 = 5_000;
const SECOND_US: u64 = 1_000_000;
/// Interval at which losses are logged.
const LOG_INTERVAL_US: u64 = 10_000_000;
/// Smallest loss in a second that is logged, and that as a part of the turns. Edges that wait for
/// nobody cost the shortest turns some per cent, which is a few milliseconds.
const LEAST_LOST_US: u64 = 5_000;
const LEAST_LOST_PER_CENT: u64 = 2;

/// Edges of one card.
#[derive(Debug, Default)]
pub(super) struct EdgeTimes {
    pub(super) edges: u64,
    pub(super) late: u64,
    pub(super) latest_us: u64,
    /// Time for which calls waited in the driver, the longest edge, and those whose calls were
    /// slow.
    pub(super) wait_us: u64,
    pub(super) longest_us: u64,
    pub(super) slow: u64,
    /// Observations since the last window ended.
    seen: Seen,
    /// Windows of the last second: their end, what was lost until then in all, and what was seen.
    windows: VecDeque<(u64, u64, Seen)>,
    logged_us: Option<u64>,
}

/// Observations of what may cost turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    /// Longest edge, and the latest one.
    longest_us: u64,
    latest_us: u64,
    /// Time for which others than egpu's containers had the card.
    outside_us: u64,
}

impl Seen {
    fn and(self, other: Self) -> Self {
        Self {
            longest_us: self.longest_us.max(other.longest_us),
            latest_us: self.latest_us.max(other.latest_us),
            outside_us: self.outside_us + other.outside_us,
        }
    }
}

/// Turns lost in the last second, and what was seen in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) lost_us: u64,
    seen: Seen,
}

impl Lost {
    /// Causes, as far as they were seen.
    pub(super) fn causes(&self) -> String {
        let Seen { longest_us, latest_us, outside_us } = self.seen;
        let calls = (longest_us > SLOW_US).then(|| {
            let ms = longest_us / 1_000;
            format!("calls to the driver took up to {ms} ms, as programs that start or end on any card of this host hold its locks")
        });
        let outside = (outside_us > LATE_US).then(|| {
            let ms = outside_us / 1_000;
            format!("programs outside egpu had the card for {ms} ms of them")
        });
        let late = (latest_us > LATE_US).then(|| {
            let ms = latest_us / 1_000;
            format!("the thread that schedules ran up to {ms} ms late, as the processors of this host are busy")
        });
        let causes: Vec<String> = calls.into_iter().chain(outside).chain(late).collect();
        if causes.is_empty() { "what held them up was not seen".to_owned() } else { causes.join("; ") }
    }
}

impl EdgeTimes {
    /// Notes by how much an edge began late.
    pub(super) fn began(&mut self, late_us: u64) {
        self.late += u64::from(late_us > LATE_US);
        self.latest_us = self.latest_us.max(late_us);
        self.seen.latest_us = self.seen.latest_us.max(late_us);
    }

    /// Notes for how long others than egpu's containers had the card in a window.
    pub(super) fn outside_had(&mut self, us: u64) {
        self.seen.outside_us = self.seen.outside_us.saturating_add(us);
    }

    /// Notes how long an edge of so many calls took in the driver.
    pub(super) fn ended(&mut self, calls: usize, took_us: u64) {
        // Calls that wait for nobody may take that.
        let calls = u64::try_from(calls).unwrap_or(u64::MAX).max(1);
        let others_us = MOST_WINDOW_LOSS_US.saturating_mul(calls - 1);
        self.wait_us = self.wait_us.saturating_add(took_us.saturating_sub(others_us + MOST_WINDOW_LOSS_US));
        self.slow += u64::from(took_us.saturating_sub(others_us) > SLOW_US);
        self.longest_us = self.longest_us.max(took_us);
        self.seen.longest_us = self.seen.longest_us.max(took_us);
    }

    /// Notes the end of a window, until which so much was lost in all. Returns what is to be logged
    /// of the last second, of a container that was granted that part of the card.
    pub(super) fn window_ended(&mut self, now_us: u64, lost_us: u64, share_ppm: u32) -> Option<Lost> {
        let seen = std::mem::take(&mut self.seen);
        self.windows.push_back((now_us, lost_us, seen));
        // One that is older stays, as what was lost counts from its end on.
        while self.windows.get(1).is_some_and(|(at_us, ..)| now_us.saturating_sub(*at_us) >= SECOND_US) {
            self.windows.pop_front();
        }
        let lost = self.in_last_second(now_us);
        // A millionth of the card is a microsecond of a second.
        let least_us = LEAST_LOST_US.max(u64::from(share_ppm) * LEAST_LOST_PER_CENT / 100);
        let is_due = self.logged_us.is_none_or(|at_us| now_us.saturating_sub(at_us) >= LOG_INTERVAL_US);
        let is_logged = is_due && lost.lost_us >= least_us;
        if is_logged {
            self.logged_us = Some(now_us);
        }
        is_logged.then_some(lost)
    }

    #[cfg(test)]
    pub(super) fn is_logged(&self) -> bool {
        self.logged_us.is_some()
    }

    /// Returns what was lost in the windows of the last second.
    pub(super) fn in_last_second(&self, now_us: u64) -> Lost {
        let is_older = |(at_us, ..): &&(u64, u64, Seen)| now_us.saturating_sub(*at_us) >= SECOND_US;
        let before_us = self.windows.iter().take_while(is_older).last().map_or(0, |(_, lost_us, _)| *lost_us);
        let of_late = || self.windows.iter().skip_while(is_older);
        Lost {
            lost_us: of_late().last().map_or(0, |(_, lost_us, _)| lost_us.saturating_sub(before_us)),
            seen: of_late().map(|(.., seen)| *seen).fold(Seen::default(), Seen::and),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_wait_are_told_from_many_calls() {
        let mut times = EdgeTimes::default();
        times.ended(1, 700);
        times.ended(8, 8 * 970);
        times.ended(0, 3);
        assert_eq!((times.wait_us, times.slow, times.longest_us), (0, 0, 7_760));
        times.ended(1, 4_000);
        times.ended(1, 40_000);
        times.ended(8, 54_000);
        assert_eq!((times.wait_us, times.slow, times.longest_us), (2_000 + 38_000 + 38_000, 2, 54_000));
        times.began(400);
        times.began(1_200);
        assert_eq!((times.late, times.latest_us), (1, 1_200));
    }

    #[test]
    fn a_loss_is_told_at_once_and_then_at_intervals() {
        const PERIOD: u64 = 100_000;
        let mut times = EdgeTimes::default();
        let mut lost_us = 0;
        let mut told = Vec::new();
        for number in 1..400 {
            times.ended(1, if number % 5 == 0 { 30_000 } else { 700 });
            lost_us += if number >= 50 { 2_000 } else { 100 };
            if let Some(lost) = times.window_ended(number * PERIOD, lost_us, 250_000) {
                told.push((number, lost));
            }
        }
        let seen = Seen { longest_us: 30_000, ..Seen::default() };
        assert_eq!(told[0], (52, Lost { lost_us: 3 * 2_000 + 7 * 100, seen }));
        assert_eq!(told.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [52, 152, 252, 352]);
        assert_eq!(times.in_last_second(399 * PERIOD).lost_us, 20_000);
        assert_eq!(times.in_last_second(450 * PERIOD), Lost::default(), "nothing of late");
        assert!(times.windows.len() < 15);
    }

    #[test]
    fn only_what_was_seen_is_a_cause() {
        let causes = |longest_us, latest_us, outside_us| {
            Lost { lost_us: 20_000, seen: Seen { longest_us, latest_us, outside_us } }.causes()
        };
        assert_eq!(causes(700, 300, 0), "what held them up was not seen");
        let calls = "calls to the driver took up to 41 ms";
        assert!(causes(41_000, 0, 0).starts_with(calls) && !causes(41_000, 0, 0).contains("; "));
        assert_eq!(causes(700, 0, 12_000), "programs outside egpu had the card for 12 ms of them");
        let both = causes(700, 8_000, 12_000);
        assert!(both.ends_with("ran up to 8 ms late, as the processors of this host are busy"), "{both}");
    }

    #[test]
    fn little_of_a_large_share_is_not_told() {
        let mut times = EdgeTimes::default();
        assert_eq!(times.window_ended(0, 0, 750_000), None);
        assert_eq!(times.window_ended(500_000, 14_000, 750_000), None, "less than two per cent");
        assert!(times.window_ended(600_000, 16_000, 750_000).is_some());
    }
}
