//! Limit on the work that the driver does for a container outside the container's turns.
//!
//! The driver makes and frees contexts under locks for which everybody's edges wait, and writes
//! over freed memory (scrubbing) on copy channels of its own. Neither knows of turns. So each costs
//! time, of which a container may use its share of the card's time, as it may of the card's
//! engines: who asks for more waits. A program's start, or a framework's first allocations, are
//! within what may be asked for at once.
//!
//! H200, 580.159.04: beside a container of 10 % that took and freed 14 GiB at a time, writes of
//! memory at 40 % fell to 35 %, and kernels at 50 % to 48.6 %; beside one that made and freed
//! contexts in four loops, kernels at 50 % fell to 46 %
//! (docs/results/2026-11-23-580.159.04-1x-NVIDIA-H200-disturbed-before.txt).

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use base::Bytes;

use crate::{clock::Clock, locks::lock};

/// Driver time of a channel group and of a channel: a CUDA context, which has 4 and 20, takes the
/// driver a tenth of a second to make and free.
pub(crate) const CHANNEL_GROUP: Duration = Duration::from_millis(5);
pub(crate) const CHANNEL: Duration = Duration::from_millis(4);
/// Bytes that the driver scrubs in a microsecond: a tenth of an H200's memory bandwidth.
const SCRUBBED_PER_US: u64 = 450_000;
/// Driver time that may be used at once: 40 CUDA contexts.
const BURST: Duration = Duration::from_secs(4);
/// The longest wait of one call, whatever the share.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// A pause of the container is noticed after that long.
const STEP: Duration = Duration::from_millis(50);

/// Driver time of memory that is taken, all of which is going to be freed.
pub(crate) const fn scrubbing(memory: Bytes) -> Duration {
    Duration::from_micros(memory.0 / SCRUBBED_PER_US)
}

/// Driver time that a container has used of one card, and not paid for yet.
#[derive(Debug)]
pub(crate) struct DriverTime {
    debt: Mutex<Debt>,
    /// The container's share of the card's time, in millionths.
    share_ppm: AtomicU32,
}

impl Default for DriverTime {
    /// The whole card's, until the timetable says less.
    fn default() -> Self {
        Self { debt: Mutex::default(), share_ppm: AtomicU32::new(1_000_000) }
    }
}

#[derive(Debug, Default)]
struct Debt {
    left: Duration,
    /// Time of that.
    at: Duration,
}

impl Debt {
    /// A container pays with its share of the time that passes.
    fn pay(&mut self, now: Duration, share_ppm: u32) {
        let passed = now.saturating_sub(self.at);
        self.left = self.left.saturating_sub(passed.mul_f64(f64::from(share_ppm) / 1e6));
        self.at = now;
    }

    fn until_paid(&self, share_ppm: u32) -> Duration {
        let excess = self.left.saturating_sub(BURST);
        excess.mul_f64(1e6 / f64::from(share_ppm.max(1))).min(LONGEST_WAIT)
    }
}

impl DriverTime {
    /// Sets the container's share of the card's time, in millionths.
    pub(super) fn set_share(&self, share_ppm: u32) {
        self.share_ppm.store(share_ppm, Ordering::Relaxed);
    }

    /// Adds the cost of a call, and waits until no more than the burst is unpaid. One call at a
    /// time: others wait for the lock.
    pub(super) fn wait(&self, cost: Duration, clock: &dyn Clock, is_hurried: impl Fn() -> bool) {
        let mut debt = lock(&self.debt);
        let share_ppm = self.share_ppm.load(Ordering::Relaxed);
        debt.pay(clock.now(), share_ppm);
        debt.left = debt.left.saturating_add(cost);
        let until = debt.at + debt.until_paid(share_ppm);
        while clock.now() < until && !is_hurried() {
            clock.wait(STEP.min(until.saturating_sub(clock.now())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::TestClock;

    const GIB_14: Bytes = Bytes(14 << 30);

    fn of_share(share_ppm: u32) -> DriverTime {
        DriverTime { share_ppm: AtomicU32::new(share_ppm), ..DriverTime::default() }
    }

    #[test]
    fn a_loop_of_frees_or_contexts_gets_the_share_of_the_drivers_time() {
        for (cost, share_ppm) in [(scrubbing(GIB_14), 100_000), (CHANNEL_GROUP, 250_000), (CHANNEL, 1_000_000)] {
            let (clock, used) = (TestClock::default(), of_share(share_ppm));
            let at_once = u32::try_from(BURST.as_micros() / cost.as_micros()).unwrap();
            (0..at_once).for_each(|_| used.wait(cost, &clock, || false));
            assert_eq!(clock.now(), Duration::ZERO, "as much as a start takes does not wait");
            (0..101).for_each(|_| used.wait(cost, &clock, || false));
            let (taken, passed) = (cost.as_secs_f64() * 100.0, clock.now().as_secs_f64());
            assert!((taken / passed / (f64::from(share_ppm) / 1e6) - 1.0).abs() < 0.02, "{taken} in {passed} s");
        }
    }

    #[test]
    fn what_was_used_is_paid_while_nothing_is_asked_for() {
        let (clock, used) = (TestClock::default(), of_share(500_000));
        used.wait(BURST, &clock, || false);
        clock.wait(Duration::from_secs(2));
        used.wait(Duration::from_secs(1), &clock, || false);
        assert_eq!(clock.now(), Duration::from_secs(2));
    }

    #[test]
    fn a_call_waits_a_second_at_most_and_not_while_the_container_is_paused() {
        let (clock, used) = (TestClock::default(), of_share(1_000));
        used.wait(BURST * 2, &clock, || false);
        assert_eq!(clock.now(), LONGEST_WAIT);
        used.wait(BURST, &clock, || true);
        assert_eq!(clock.now(), LONGEST_WAIT);
    }
}
