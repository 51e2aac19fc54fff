//! The clock of all schedules, or one that is played.

use std::{fmt, thread, time::Duration};

/// See the module.
pub(super) trait Clock: fmt::Debug {
    /// `CLOCK_MONOTONIC`, microseconds.
    fn now_us(&self) -> u64;

    /// Returns after so long.
    fn pause_us(&self, pause_us: u64);
}

/// The kernel's.
#[derive(Debug)]
pub(super) struct Monotonic;

impl Clock for Monotonic {
    fn now_us(&self) -> u64 {
        nvidia_glue::schedule::now_us()
    }

    fn pause_us(&self, pause_us: u64) {
        thread::sleep(Duration::from_micros(pause_us));
    }
}
