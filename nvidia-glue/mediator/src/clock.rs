//! Clock of what is limited over time.

use std::{
    fmt,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

/// Clock of what is limited over time.
pub(crate) trait Clock: fmt::Debug + Send + Sync {
    /// Since any moment that stays the same.
    fn now(&self) -> Duration;
    /// Time that this thread has had of a processor.
    fn worked(&self) -> Duration;
    /// Lets time pass.
    fn wait(&self, duration: Duration);
}

#[derive(Debug)]
pub(crate) struct MachineClock(pub(crate) Instant);

impl Clock for MachineClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn worked(&self) -> Duration {
        // Every thread has this clock.
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
    }

    fn wait(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::locks::lock;

    /// Clock that a test sets.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct TestClock(Arc<Mutex<(Duration, Duration)>>);

    impl TestClock {
        /// A thread works for so long.
        pub(crate) fn work(&self, duration: Duration) {
            let mut times = lock(&self.0);
            times.0 += duration;
            times.1 += duration;
        }
    }

    impl Clock for TestClock {
        fn now(&self) -> Duration {
            lock(&self.0).0
        }
        fn worked(&self) -> Duration {
            lock(&self.0).1
        }
        fn wait(&self, duration: Duration) {
            lock(&self.0).0 += duration;
        }
    }

    #[test]
    fn the_machines_clock_tells_work_from_waiting() {
        let clock = MachineClock(Instant::now());
        let (worked, now) = (clock.worked(), clock.now());
        clock.wait(Duration::from_millis(20));
        assert!(clock.now() - now >= Duration::from_millis(20));
        while clock.worked() == worked {}
    }
}
