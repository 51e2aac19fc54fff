//! Waiting for something that another process does.

use std::time::{Duration, Instant};

/// Limit after which a test calls anything "did not happen". No test measures time with it.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// Calls `probe` until it answers `Some`; panics, naming `what`, when it never does.
#[track_caller]
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
