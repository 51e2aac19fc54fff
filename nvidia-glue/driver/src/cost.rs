//! Processor time of a thread's own calls to the driver, for threads that ask for it.
//!
//! Time in which a call waits (for a lock, for the card's firmware) is not processor time, so the
//! clock is the thread's own. To read it takes a system call, which others are spared.

use std::cell::Cell;

use nix::time::{ClockId, clock_gettime};

thread_local! {
    static IN_DRIVER_NS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Processor time of a thread, microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadCost {
    /// All.
    pub cpu_us: u64,
    /// Of that, in calls to the driver, since [`count_thread`].
    pub driver_us: u64,
}

/// Starts timing the calling thread's calls.
pub fn count_thread() {
    IN_DRIVER_NS.set(Some(IN_DRIVER_NS.get().unwrap_or(0)));
}

/// Returns the cost of the calling thread's calls; `None`: they are not timed.
pub fn thread_cost() -> Option<ThreadCost> {
    let driver_ns = IN_DRIVER_NS.get()?;
    Some(ThreadCost { cpu_us: thread_ns() / 1_000, driver_us: driver_ns / 1_000 })
}

/// Makes a call to the driver.
pub(super) fn timed<T>(call: impl FnOnce() -> T) -> T {
    if IN_DRIVER_NS.get().is_none() {
        return call();
    }
    let began_ns = thread_ns();
    let answer = call();
    let took_ns = thread_ns().saturating_sub(began_ns);
    IN_DRIVER_NS.set(IN_DRIVER_NS.get().map(|sum_ns| sum_ns.saturating_add(took_ns)));
    answer
}

fn thread_ns() -> u64 {
    // The clock is there on every kernel, and starts at 0.
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |now| now.tv_sec().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec()));
    u64::try_from(now).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works until the thread has had so much more processor time, however busy the machine is.
    fn work_us(more_us: u64) {
        let until_ns = thread_ns() + more_us * 1_000;
        while thread_ns() < until_ns {}
    }

    #[test]
    fn calls_of_a_thread_that_wants_to_know_are_added_up() {
        timed(|| work_us(100));
        assert_eq!(thread_cost(), None);
        count_thread();
        let before = thread_cost().unwrap();
        assert_eq!(before.driver_us, 0, "nobody counted before");
        work_us(3_000);
        assert_eq!(
            timed(|| {
                work_us(2_000);
                7
            }),
            7
        );
        count_thread();
        timed(|| work_us(2_000));
        let after = thread_cost().unwrap();
        assert!(after.driver_us >= 4_000, "{after:?}");
        assert!(
            after.cpu_us - before.cpu_us >= after.driver_us + 2_900,
            "what was not in calls is not counted as such: {after:?}"
        );
        std::thread::spawn(|| assert_eq!(thread_cost(), None, "another thread's")).join().unwrap();
    }
}
