//! The kernel's clocks.

use nix::time::{ClockId, clock_gettime};

/// Now, on the clock of all schedules: microseconds of `CLOCK_MONOTONIC`.
pub fn now_us() -> u64 {
    // The clock is there on every kernel, and starts at 0.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000);
    u64::try_from(now).unwrap_or(0)
}

/// Nanoseconds of `CLOCK_REALTIME`, to which the driver sets the card's clock.
pub fn real_time_ns() -> u64 {
    // As above.
    let now = clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, |now| now.tv_sec() * 1_000_000_000 + now.tv_nsec());
    u64::try_from(now).unwrap_or(0)
}
