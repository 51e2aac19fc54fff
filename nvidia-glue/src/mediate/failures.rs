//! How often the driver may be asked for objects that it does not make.
//!
//! For many of them it writes a line into the kernel's log, which is the node's. A program that looks what there is is refused some dozens of
//! times when it starts. Whoever goes on is made to wait, whatever it is given in between.

use std::{sync::Mutex, time::Duration};

use super::{locks::lock, looks::Clock};

/// So many at once.
const BURST: u32 = 1024;
/// And one in that time.
const EVERY: Duration = Duration::from_millis(50);

/// Those of one container.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// When all that were are paid for, each by the time that it takes.
    paid: Mutex<Duration>,
}

impl Failures {
    /// There was one: waits until that is no more than there may be.
    pub(super) fn wait(&self, clock: &dyn Clock) {
        let mut paid = lock(&self.paid);
        let now = clock.now();
        *paid = (*paid).max(now).saturating_add(EVERY);
        let excess = paid.saturating_sub(now).saturating_sub(EVERY * BURST);
        if excess > Duration::ZERO {
            // One at a time: others that fail wait for the lock.
            clock.wait(excess);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::looks::tests::Told, *};

    #[test]
    fn a_program_that_looks_what_there_is_does_not_wait_and_a_loop_does() {
        let (clock, failures) = (Told::default(), Failures::default());
        (0..BURST).for_each(|_| failures.wait(&clock));
        assert_eq!(clock.now(), Duration::ZERO);
        (0..100).for_each(|_| failures.wait(&clock));
        assert_eq!(clock.now(), EVERY * 100);
        // After a while there is room again.
        clock.wait(EVERY * 10);
        let now = clock.now();
        (0..10).for_each(|_| failures.wait(&clock));
        assert_eq!(clock.now(), now);
        failures.wait(&clock);
        assert_eq!(clock.now(), now + EVERY);
    }
}
