//! Watchdog of reads from `/proc`, which the process that is read can stall.

use std::{collections::BTreeSet, io, sync::Mutex, time::Duration};

use nix::sys::{
    time::TimeSpec,
    timer::{Expiration, TimerSetTimeFlags},
    timerfd::{ClockId, TimerFd, TimerFlags},
};
use sys::sync::lock;

/// The longest that reading from a process may take before it is killed, as its mappings cannot be
/// counted.
///
/// A process stalls the kernel with a page that does not come, while another thread waits to change
/// its memory. Slow disks answer earlier.
pub(super) const READ_LIMIT: Duration = TICK.saturating_mul(TICKS);
/// The interval of the timer by which reads are timed.
///
/// Time that passes while the host stands still, the mediator itself waits for a processor, or the
/// container is paused counts as one tick at the most.
const TICK: Duration = Duration::from_secs(3);
const TICKS: u32 = 10;

/// The reads in flight.
#[derive(Debug)]
pub(super) struct ProcReadWatchdog {
    reads: Mutex<ReadsInFlight>,
    /// Readable when the reads in flight have taken one tick more.
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
    /// The processes that are read.
    pids: Vec<i32>,
    /// Ticks since it began.
    ticks: u32,
}

/// Processes that have just stalled a read for too long.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StalledReads {
    /// The processes that were read.
    pub(super) pids: BTreeSet<i32>,
    /// One of the reads had been reported before.
    pub(super) is_repeated: bool,
}

impl ProcReadWatchdog {
    pub(super) fn new() -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok(Self { reads: Mutex::default(), timer })
    }

    /// Performs a read that these processes may stall.
    pub(super) fn watch<T>(&self, pids: &[i32], read: impl FnOnce() -> T) -> T {
        let number = {
            let mut reads = lock(&self.reads);
            if reads.all.is_empty() {
                let every = Expiration::Interval(TimeSpec::from_duration(TICK));
                // Setting a timer that exists cannot fail.
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

    /// Timer that is readable when [`ProcReadWatchdog::tick`] is to be called.
    pub(super) const fn timer(&self) -> &TimerFd {
        &self.timer
    }

    /// Counts a tick, unless the container was paused.
    ///
    /// Returns the processes that have stalled a read for [`READ_LIMIT`] by now, or for as long
    /// once more.
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
    fn a_stalled_read_is_reported_each_time_that_the_limit_has_passed() {
        assert_eq!(READ_LIMIT, Duration::from_secs(30));
        let reads = ProcReadWatchdog::new().unwrap();
        assert_eq!(reads.tick(false), StalledReads::default());
        reads.watch(&[7, 8], || {
            let reported = |is_paused| {
                let reported: Vec<StalledReads> = (0..TICKS).map(|_| reads.tick(is_paused)).collect();
                let (last, before) = reported.split_last().unwrap();
                assert!(before.iter().all(|held_up| *held_up == StalledReads::default()));
                (last.pids.iter().copied().collect::<Vec<_>>(), last.is_repeated)
            };
            assert_eq!(reported(true), (vec![], false), "nothing counts while the container is paused");
            assert_eq!(reported(false), (vec![7, 8], false));
            assert_eq!(reported(true), (vec![], false));
            // One that began later has its own time.
            reads.watch(&[9], || assert_eq!(reported(false), (vec![7, 8, 9], true)));
            assert_eq!(reported(false), (vec![7, 8], true));
            assert!(reads.timer().get().unwrap().is_some());
        });
        assert!(reads.timer().get().unwrap().is_none(), "nothing runs while nobody is looked into");
    }
}
