//! Limit on how often is looked for what is gone, when there is no room.
//!
//! A reclaim asks the driver for every client and the kernel for every process, which costs the
//! more the more a container has. Whoever is refused in a loop must not spend the node's time in
//! its mediator: looks take at most a tenth of one processor, by making those wait who ask for
//! more. The first one after a while is at once, so who has closed a file and asks again is not
//! refused for want of a look.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    clock::{Clock, MachineClock},
    locks::lock,
};

/// Rest after a reclaim, in multiples of its duration.
const REST: u32 = 9;
/// Not longer than this, however long one took: somebody waits.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// Reclaims, one after the other.
#[derive(Debug)]
pub(crate) struct ReclaimThrottle {
    pub(crate) clock: Box<dyn Clock>,
    /// Time at which the next one may begin. Held by whoever reclaims, or waits for that moment.
    next: Mutex<Duration>,
    /// Numbers of those that have begun, and that are over.
    began: AtomicU64,
    ended: AtomicU64,
}

impl Default for ReclaimThrottle {
    fn default() -> Self {
        Self {
            clock: Box::new(MachineClock(Instant::now())),
            next: Mutex::default(),
            began: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }
}

impl ReclaimThrottle {
    /// Does `work`, unless that of another thread that began after this call does for it.
    pub(crate) fn run(&self, work: impl FnOnce()) {
        let before = self.began.load(Ordering::SeqCst);
        let mut next = lock(&self.next);
        if self.ended.load(Ordering::SeqCst) > before {
            return;
        }
        let rest = next.saturating_sub(self.clock.now());
        if rest > Duration::ZERO {
            self.clock.wait(rest);
        }
        self.began.fetch_add(1, Ordering::SeqCst);
        let worked = self.clock.worked();
        work();
        let cost = self.clock.worked().saturating_sub(worked);
        *next = self.clock.now().saturating_add(cost.saturating_mul(REST).min(LONGEST_REST));
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of reclaims so far.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::clock::tests::TestClock;

    #[test]
    fn they_take_a_tenth_of_the_time_however_often_one_is_asked_for() {
        let clock = TestClock::default();
        let throttle = ReclaimThrottle { clock: Box::new(clock.clone()), ..ReclaimThrottle::default() };
        throttle.run(|| clock.work(Duration::from_millis(2)));
        assert_eq!(clock.now(), Duration::from_millis(2), "the first is at once");
        while clock.now() < Duration::from_secs(1) {
            throttle.run(|| clock.work(Duration::from_millis(2)));
        }
        assert_eq!(throttle.count(), 51);
        clock.wait(Duration::from_secs(1));
        let idle = clock.now();
        throttle.run(|| clock.work(Duration::from_secs(60)));
        assert_eq!(clock.now() - idle, Duration::from_secs(60), "so is the first after a while");
        let long = clock.now();
        throttle.run(|| {});
        assert_eq!(clock.now() - long, LONGEST_REST);
    }

    #[test]
    fn one_that_began_later_does_for_all_who_wait() {
        let throttle = ReclaimThrottle::default();
        let (looking, asked) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                throttle.run(|| {
                    looking.wait();
                    asked.wait();
                });
            });
            looking.wait();
            // These ask while one looks, which began before.
            let others: Vec<_> = (0..8).map(|_| scope.spawn(|| throttle.run(|| {}))).collect();
            asked.wait();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        assert!(throttle.count() >= 2, "the one that was on its way was too early for them");
    }
}
