//! Limit on how often the driver is asked for what it refuses.
//!
//! For many objects that it does not make, and many controls whose parameters are wrong ("size
//! mismatch", "Invalid engine ID", failed checks), it writes a line into the kernel's log, which is
//! the node's. A program that looks what there is is refused some dozens of times when it starts,
//! and `nvidia-smi` ten times a card. Whoever goes on is made to wait, whatever it is given in
//! between.

use std::{sync::Mutex, time::Duration};

use abi::Call;

use crate::{clock::Clock, locks::lock};

/// So many objects at once.
const BURST: u32 = 1024;
/// And one object in that time.
const EVERY: Duration = Duration::from_millis(50);
/// Anything else that is refused counts as this part of an object: tools that look at many cards
/// each second are refused that often.
const OTHERS: u32 = 5;

/// Kind of a refused call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedCall {
    /// To make an object.
    Object,
    /// Anything else.
    Other,
}

impl FailedCall {
    /// Returns the kind of a call.
    pub(crate) const fn at(call: Call) -> Self {
        match call {
            Call::Alloc(_) | Call::AllocObject(_) | Call::AllocContextDma(_) | Call::VidHeap(_) | Call::Dup(_) => {
                Self::Object
            }
            _ => Self::Other,
        }
    }
}

/// Those of one container.
#[derive(Debug, Default)]
pub(crate) struct FailureThrottle {
    /// Time at which all that were are paid for, each by the time that it takes.
    paid: Mutex<Duration>,
}

impl FailureThrottle {
    /// There was one: waits until that is no more than there may be.
    pub(crate) fn wait(&self, failed: FailedCall, clock: &dyn Clock) {
        let cost = match failed {
            FailedCall::Object => EVERY,
            FailedCall::Other => EVERY / OTHERS,
        };
        let mut paid = lock(&self.paid);
        let now = clock.now();
        *paid = (*paid).max(now).saturating_add(cost);
        let excess = paid.saturating_sub(now).saturating_sub(EVERY * BURST);
        if excess > Duration::ZERO {
            // One at a time: others that fail wait for the lock.
            clock.wait(excess);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::TestClock;

    #[test]
    fn a_program_that_looks_what_there_is_does_not_wait_and_a_loop_does() {
        let (clock, failures) = (TestClock::default(), FailureThrottle::default());
        (0..BURST).for_each(|_| failures.wait(FailedCall::Object, &clock));
        assert_eq!(clock.now(), Duration::ZERO);
        (0..100).for_each(|_| failures.wait(FailedCall::Object, &clock));
        assert_eq!(clock.now(), EVERY * 100);
        // After a while there is room again.
        clock.wait(EVERY * 10);
        let now = clock.now();
        (0..10).for_each(|_| failures.wait(FailedCall::Object, &clock));
        assert_eq!(clock.now(), now);
        failures.wait(FailedCall::Object, &clock);
        assert_eq!(clock.now(), now + EVERY);
    }

    #[test]
    fn what_is_no_object_counts_less() {
        let (clock, failures) = (TestClock::default(), FailureThrottle::default());
        (0..BURST * OTHERS).for_each(|_| failures.wait(FailedCall::Other, &clock));
        assert_eq!(clock.now(), Duration::ZERO);
        (0..100).for_each(|_| failures.wait(FailedCall::Other, &clock));
        assert_eq!(clock.now(), Duration::from_secs(1));
    }
}
