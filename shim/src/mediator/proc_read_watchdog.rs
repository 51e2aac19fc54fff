//! Looks into processes, which may hold them up.

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
pub(super) const LOOK_LIMIT: Duration = BEAT.saturating_mul(BEATS);
/// It is counted by how often a timer was met, each of which takes this: what passes while the host stands still, the mediator itself waits for a
/// processor, or the container is paused, is nobody's fault, and counts once at the most.
const BEAT: Duration = Duration::from_secs(3);
const BEATS: u32 = 10;

/// Those under way.
#[derive(Debug)]
pub(super) struct LooksInto {
    looks: Mutex<Looks>,
    /// Ready when a look has taken a beat more.
    beat: TimerFd,
}

#[derive(Debug, Default)]
struct Looks {
    next: u64,
    all: Vec<Look>,
}

#[derive(Debug)]
struct Look {
    number: u64,
    /// Which processes are looked into.
    pids: Vec<i32>,
    /// How many it has seen.
    beats: u32,
}

/// Whoever has held up a look for too long just now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HeldUp {
    /// Those that were looked into.
    pub(super) pids: BTreeSet<i32>,
    /// That was said of one of them before.
    pub(super) again: bool,
}

impl LooksInto {
    pub(super) fn new() -> io::Result<Self> {
        let beat = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok(Self { looks: Mutex::default(), beat })
    }

    /// Does `look`, which these processes may hold up.
    pub(super) fn looking<T>(&self, pids: &[i32], look: impl FnOnce() -> T) -> T {
        let number = {
            let mut looks = lock(&self.looks);
            if looks.all.is_empty() {
                let every = Expiration::Interval(TimeSpec::from_duration(BEAT));
                // A timer that was made can be set.
                let _ = self.beat.set(every, TimerSetTimeFlags::empty());
            }
            looks.next += 1;
            let number = looks.next;
            looks.all.push(Look { number, pids: pids.to_vec(), beats: 0 });
            number
        };
        let result = look();
        let mut looks = lock(&self.looks);
        looks.all.retain(|look| look.number != number);
        if looks.all.is_empty() {
            let _ = self.beat.unset();
        }
        result
    }

    /// Ready when [`LooksInto::pass`] is to be called.
    pub(super) const fn beat(&self) -> &TimerFd {
        &self.beat
    }

    /// A beat has passed, which counts unless the container was paused. Who has held up a look for [`LOOK_LIMIT`] by now, or for as long once more.
    pub(super) fn pass(&self, is_paused: bool) -> HeldUp {
        let _ = nix::unistd::read(&self.beat, &mut [0u8; 8]);
        let mut held_up = HeldUp::default();
        if is_paused {
            return held_up;
        }
        for look in &mut lock(&self.looks).all {
            look.beats = look.beats.saturating_add(1);
            if look.beats.is_multiple_of(BEATS) {
                held_up.pids.extend(&look.pids);
                held_up.again |= look.beats > BEATS;
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
        assert_eq!(LOOK_LIMIT, Duration::from_secs(30));
        let looks = LooksInto::new().unwrap();
        assert_eq!(looks.pass(false), HeldUp::default());
        looks.looking(&[7, 8], || {
            let told = |is_paused| {
                let told: Vec<HeldUp> = (0..BEATS).map(|_| looks.pass(is_paused)).collect();
                let (last, before) = told.split_last().unwrap();
                assert!(before.iter().all(|held_up| *held_up == HeldUp::default()));
                (last.pids.iter().copied().collect::<Vec<_>>(), last.again)
            };
            assert_eq!(told(true), (vec![], false), "nothing counts while the container is paused");
            assert_eq!(told(false), (vec![7, 8], false));
            assert_eq!(told(true), (vec![], false));
            // One that began later has its own time.
            looks.looking(&[9], || assert_eq!(told(false), (vec![7, 8, 9], true)));
            assert_eq!(told(false), (vec![7, 8], true));
            assert!(looks.beat().get().unwrap().is_some());
        });
        assert!(looks.beat().get().unwrap().is_none(), "nothing runs while nobody is looked into");
    }
}
