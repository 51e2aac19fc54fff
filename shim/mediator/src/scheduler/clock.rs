//! Clock of the schedules; tests have one of their own.

use std::{fmt, thread, time::Duration};

/// A clock, and pauses on it.
pub(super) trait Clock: fmt::Debug {
    /// Returns `CLOCK_MONOTONIC`, in microseconds.
    fn now_us(&self) -> u64;

    /// Pauses.
    fn pause_us(&self, pause_us: u64);
}

/// The clock of the kernel.
#[derive(Debug)]
pub(super) struct Monotonic;

impl Clock for Monotonic {
    fn now_us(&self) -> u64 {
        schedule::now_us()
    }

    fn pause_us(&self, pause_us: u64) {
        thread::sleep(Duration::from_micros(pause_us));
    }
}
