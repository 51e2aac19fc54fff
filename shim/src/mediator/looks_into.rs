//! Looks into processes, which may hold them up.

use std::{
    io,
    sync::Mutex,
    time::{Duration, Instant},
};

use nix::sys::{
    time::TimeSpec,
    timer::{Expiration, TimerSetTimeFlags},
    timerfd::{ClockId, TimerFd, TimerFlags},
};

use crate::sync::lock;

/// Longer than that no process can be looked into, unless it keeps the kernel from it (with a page that does not come, while
/// another thread waits to change its memory): then what it has mapped cannot be counted, and it is killed. Slow disks answer
/// earlier.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// Those under way.
#[derive(Debug)]
pub(super) struct LooksInto {
    /// Which processes are looked into, and since when.
    looks: Mutex<Vec<(Instant, Vec<i32>)>>,
    /// Ready when a look has taken long.
    overdue: TimerFd,
}

impl LooksInto {
    pub(super) fn new() -> io::Result<Self> {
        let overdue = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok(Self { looks: Mutex::default(), overdue })
    }

    /// Does `look`, which these processes may hold up.
    pub(super) fn looking<T>(&self, pids: &[i32], look: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        {
            let mut looks = lock(&self.looks);
            if looks.is_empty() {
                let every = Expiration::Interval(TimeSpec::from_duration(LOOK_LIMIT));
                // A timer that was made can be set.
                let _ = self.overdue.set(every, TimerSetTimeFlags::empty());
            }
            looks.push((since, pids.to_vec()));
        }
        let result = look();
        let mut looks = lock(&self.looks);
        if let Some(at) = looks.iter().position(|(began, of)| *began == since && of == pids) {
            looks.swap_remove(at);
        }
        if looks.is_empty() {
            let _ = self.overdue.unset();
        }
        result
    }

    /// Ready when [`LooksInto::held_up`] may have something.
    pub(super) const fn overdue(&self) -> &TimerFd {
        &self.overdue
    }

    /// Those that have held up a look since `limit`.
    pub(super) fn held_up(&self, limit: Duration) -> Vec<i32> {
        let _ = nix::unistd::read(&self.overdue, &mut [0u8; 8]);
        let looks = lock(&self.looks);
        let late = looks.iter().filter(|(since, _)| since.elapsed() >= limit);
        let mut pids: Vec<i32> = late.flat_map(|(_, pids)| pids.clone()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}
