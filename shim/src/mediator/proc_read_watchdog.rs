//! ReadsInFlight into processes, which may hold them up.

use std::{collections::BTreeSet, io, sync::Mutex, time::Duration};

use nix::sys::{
    time::TimeSpec,
    timer::{Expiration, TimerSetTimeFlags},
    timerfd::{ClockId, TimerFd, TimerFlags},
};

use crate::sync::lock;

/// Longer than that no process can be looked into, unless it keeps the kernel from it (with a page that does not come, while
/// another thread waits to change its memory): then what it has mapped cannot be counted, and it is killed. Slow disks answer
/// earlier.
pub(super) const READ_LIMIT: Duration = TICK.saturating_mul(TICKS);
/// It is counted by how often a timer was met, each of which takes this: what passes while the host stands still, the mediator itself waits for a
/// processor, or the container is paused, is nobody's fault, and counts once at the most.
const TICK: Duration = Duration::from_secs(3);
const TICKS: u32 = 10;

/// Those under way.
#[derive(Debug)]
pub(super) struct ProcReadWatchdog {
    reads: Mutex<ReadsInFlight>,
    /// Ready when a look has taken a beat more.
    timer: TimerFd,
}

#[derive(Debug, Default)]
struct ReadsInFlight {
    next: u64,
    all: Vec<ProcRead>,
}

#[derive(Debug)]
struct ProcRead {
    number: u64,
    /// Which processes are looked into.
    pids: Vec<i32>,
    /// How many it has seen.
    ticks: u32,
}

/// Whoever has held up a look for too long just now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StalledReads {
    /// Those that were looked into.
    pub(super) pids: BTreeSet<i32>,
    /// That was said of one of them before.
    pub(super) is_repeated: bool,
}

impl ProcReadWatchdog {
    pub(super) fn new() -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok(Self { reads: Mutex::default(), timer })
    }

    /// Does `look`, which these processes may hold up.
    pub(super) fn watch<T>(&self, pids: &[i32], read: impl FnOnce() -> T) -> T {
        let number = {
            let mut reads = lock(&self.reads);
            if reads.all.is_empty() {
                let every = Expiration::Interval(TimeSpec::from_duration(TICK));
                // A timer that was made can be set.
                let _ = self.timer.set(every, TimerSetTimeFlags::empty());
            }
            reads.next += 1;
            let number = reads.next;
            reads.all.push(ProcRead { number, pids: pids.to_vec(), ticks: 0 });
            number
        };
        let result = read();
        let mut reads = lock(&self.reads);
        reads.all.retain(|read| read.number != number);
        if reads.all.is_empty() {
            let _ = self.timer.unset();
        }
        result
    }

    /// Ready when [`ProcReadWatchdog::tick`] is to be called.
    pub(super) const fn timer(&self) -> &TimerFd {
        &self.timer
    }

    /// A beat has passed, which counts unless the container was paused. Who has held up a look for [`READ_LIMIT`] by now, or for as long once more.
    pub(super) fn tick(&self, is_paused: bool) -> StalledReads {
        let _ = nix::unistd::read(&self.timer, &mut [0u8; 8]);
        let mut held_up = StalledReads::default();
        if is_paused {
            return held_up;
        }
        for read in &mut lock(&self.reads).all {
            read.ticks = read.ticks.saturating_add(1);
            if read.ticks.is_multiple_of(TICKS) {
                held_up.pids.extend(&read.pids);
                held_up.is_repeated |= read.ticks > TICKS;
            }
        }
        held_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_up_a_look_is_told_each_time_that_the_limit_has_passed() {
        assert_eq!(READ_LIMIT, Duration::from_secs(30));
        let reads = ProcReadWatchdog::new().unwrap();
        assert_eq!(reads.tick(false), StalledReads::default());
        reads.watch(&[7, 8], || {
            let told = |is_paused| {
                let told: Vec<StalledReads> = (0..TICKS).map(|_| reads.tick(is_paused)).collect();
                let (last, before) = told.split_last().unwrap();
                assert!(before.iter().all(|held_up| *held_up == StalledReads::default()));
                (last.pids.iter().copied().collect::<Vec<_>>(), last.is_repeated)
            };
            assert_eq!(told(true), (vec![], false), "nothing counts while the container is paused");
            assert_eq!(told(false), (vec![7, 8], false));
            assert_eq!(told(true), (vec![], false));
            // One that began later has its own time.
            reads.watch(&[9], || assert_eq!(told(false), (vec![7, 8, 9], true)));
            assert_eq!(told(false), (vec![7, 8], true));
            assert!(reads.timer().get().unwrap().is_some());
        });
        assert!(reads.timer().get().unwrap().is_none(), "nothing runs while nobody is looked into");
    }
}
