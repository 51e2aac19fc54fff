//! Cost of the mediator to the node, and its bound. No cgroup of the container's counts it.
//!
//! A thread that makes a driver call may hold locks of the driver for which everybody's edges wait,
//! so a tenant's `cpu.max` must not stop it. The mediator bounds itself instead: the threads that
//! take up calls wait before they do, when they hold nothing and are in no call. What schedules
//! waits for nothing. It counts all the same: the more channels a program has, the more it costs.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use base::usage::MediatorCost;
use mediator::Session;
use nix::{
    time::{ClockId, clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};
use runtime_config::Bytes;
use sys::sync::lock;

/// Processor time that may be saved up, in multiples of what a second allows.
const MOST_SAVED: f64 = 20.0;
/// Interval at which processor time is looked at, and memory.
const LOOK: Duration = Duration::from_millis(2);
const LOOK_AT_MEMORY: Duration = Duration::from_millis(50);
/// The longest wait of one call: whatever else the mediator has to do, some are taken up.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// A pause of the container is noticed after that long.
const LONGEST_STEP: Duration = Duration::from_millis(50);
const SHORTEST_STEP: Duration = Duration::from_millis(1);
/// As containerd's own shims have: none but containerd is taken later.
const OOM_SCORE: i32 = -998;
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// Cost of this process and of its broker.
#[derive(Debug)]
pub(super) struct Cost {
    begun: Instant,
    clocks: [ClockId; 2],
    statm: File,
    page: u64,
    /// Processors that it may use.
    processors: f64,
    oom_score_adj: i32,
    budget: Mutex<Budget>,
    /// Times since `begun` of the next looks.
    next_look_us: AtomicU64,
    next_look_at_memory_us: AtomicU64,
    memory_used: AtomicU64,
    held_back_us: AtomicU64,
    pub(super) listeners: AtomicU32,
    listeners_limit: u32,
}

impl Cost {
    /// Opens what tells it. To be called while `/proc` is there.
    pub(super) fn new(broker: i32, processors: f64, listeners_limit: usize) -> io::Result<Self> {
        let broker = clock_getcpuclockid(Pid::from_raw(broker))?;
        Ok(Self {
            begun: Instant::now(),
            clocks: [ClockId::CLOCK_PROCESS_CPUTIME_ID, broker],
            statm: File::open("/proc/self/statm")?,
            page: u64::try_from(rustix::param::page_size()).unwrap_or(4096),
            processors,
            oom_score_adj: oom_score()?,
            budget: Mutex::new(Budget::new(processors)),
            next_look_us: AtomicU64::new(0),
            next_look_at_memory_us: AtomicU64::new(0),
            memory_used: AtomicU64::new(0),
            held_back_us: AtomicU64::new(0),
            listeners: AtomicU32::new(0),
            listeners_limit: u32::try_from(listeners_limit).unwrap_or(u32::MAX),
        })
    }

    /// Waits until there is processor time for another call, or the wait `is_over`.
    pub(super) fn wait_for_processor(&self, session: &Session, is_over: impl Fn() -> bool) {
        let began = self.begun.elapsed();
        if as_us(began) < self.next_look_us.load(Ordering::Relaxed) {
            return;
        }
        let mut now = began;
        loop {
            self.next_look_us.store(as_us(now + LOOK), Ordering::Relaxed);
            self.look_at_memory(session, now);
            let excess = lock(&self.budget).excess(self.processor_time(), now);
            if excess.is_zero() || now - began >= LONGEST_WAIT || is_over() {
                break;
            }
            let until_paid = excess.div_f64(self.processors);
            thread::sleep(until_paid.clamp(SHORTEST_STEP, LONGEST_STEP));
            now = self.begun.elapsed();
        }
        self.held_back_us.fetch_add(as_us(now - began), Ordering::Relaxed);
    }

    /// Returns what it costs, and its bounds.
    pub(super) fn told(&self, session: &Session) -> MediatorCost {
        self.look_at_memory(session, self.begun.elapsed());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the configuration bounds it")]
        let processor_limit_millis = (self.processors * 1000.0).round() as u64;
        MediatorCost {
            processor_us: as_us(self.processor_time()),
            processor_limit_millis,
            held_back_us: self.held_back_us.load(Ordering::Relaxed),
            memory_used_bytes: Bytes(self.memory_used.load(Ordering::Relaxed)),
            memory_limit_bytes: session.own_memory_limit(),
            listeners: self.listeners.load(Ordering::Relaxed),
            listeners_limit: self.listeners_limit,
            oom_score_adj: self.oom_score_adj,
        }
    }

    fn processor_time(&self) -> Duration {
        // Without its broker this process is about to end.
        self.clocks.iter().map(|clock| clock_gettime(*clock).map_or(Duration::ZERO, Duration::from)).sum()
    }

    fn look_at_memory(&self, session: &Session, now: Duration) {
        if as_us(now) < self.next_look_at_memory_us.load(Ordering::Relaxed) {
            return;
        }
        self.next_look_at_memory_us.store(as_us(now + LOOK_AT_MEMORY), Ordering::Relaxed);
        let mut text = [0; 128];
        let Ok(length) = self.statm.read_at(&mut text, 0) else { return };
        let Some(pages) = own_pages(text.get(..length).unwrap_or_default()) else { return };
        let used = pages.saturating_mul(self.page);
        self.memory_used.store(used, Ordering::Relaxed);
        session.set_own_memory(Bytes(used));
    }
}

/// Makes the calling process, and so its broker, the last that the kernel takes when memory runs
/// out: its end would be its container's, and what it has of a card might outlive it.
///
/// Where the kernel does not let it, it stays as the shim is: lowering needs CAP_SYS_RESOURCE.
pub(super) fn avoid_oom_killer() {
    if oom_score().is_ok_and(|score| score > OOM_SCORE) {
        let _ = std::fs::write(OOM_SCORE_FILE, OOM_SCORE.to_string());
    }
}

fn oom_score() -> io::Result<i32> {
    std::fs::read_to_string(OOM_SCORE_FILE)?.trim().parse().map_err(io::Error::other)
}

/// Returns the pages of a process that are of no file: those that are there (second number of its
/// `statm`) without those of files (third).
fn own_pages(statm: &[u8]) -> Option<u64> {
    let mut numbers = std::str::from_utf8(statm).ok()?.split(' ').skip(1);
    let mut next = || numbers.next()?.parse::<u64>().ok();
    Some(next()?.saturating_sub(next()?))
}

fn as_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Processor time that has been used and is not paid for yet.
#[derive(Debug)]
struct Budget {
    processors: f64,
    paid: Duration,
    /// Time of that.
    at: Duration,
}

impl Budget {
    fn new(processors: f64) -> Self {
        Self { processors, paid: Duration::ZERO, at: Duration::ZERO }
    }

    /// Returns by how much all that was `used` exceeds what may be unpaid now.
    fn excess(&mut self, used: Duration, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at);
        self.paid = (self.paid + passed.mul_f64(self.processors)).min(used);
        self.at = now.max(self.at);
        used.saturating_sub(self.paid).saturating_sub(Duration::from_secs_f64(MOST_SAVED * self.processors))
    }
}

/// Returns the processor time of this thread.
pub(crate) fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time that so much work takes which is done whenever there is processor time, on several
    /// processors.
    fn worked(budget: &mut Budget, work: Duration) -> Duration {
        let (mut now, mut used) = (Duration::ZERO, Duration::ZERO);
        while used < work {
            now += Duration::from_millis(1);
            if budget.excess(used, now).is_zero() {
                used += Duration::from_millis(4);
            }
        }
        now
    }

    #[test]
    fn a_storm_does_not_wait_and_work_without_end_has_its_rate() {
        let secs = Duration::from_secs;
        assert_eq!(worked(&mut Budget::new(0.5), secs(10)), Duration::from_millis(2500), "as fast as it can");
        let long = worked(&mut Budget::new(0.5), secs(60));
        assert!(long.abs_diff(secs(100)) < secs(1), "ten seconds at once, the others at half a processor: {long:?}");
    }

    #[test]
    fn what_is_not_used_is_saved_up_to_a_limit() {
        let mut budget = Budget::new(0.5);
        let seconds = Duration::from_secs;
        assert_eq!(budget.excess(seconds(10), seconds(0)), Duration::ZERO);
        assert_eq!(budget.excess(seconds(12), seconds(2)), seconds(1));
        assert_eq!(budget.excess(seconds(12), seconds(4)), Duration::ZERO);
        assert_eq!(budget.excess(seconds(12), seconds(1000)), Duration::ZERO);
        assert_eq!(budget.excess(seconds(23), seconds(1000)), seconds(1), "no more than twenty seconds of rest");
    }

    #[test]
    fn pages_of_files_are_not_its_own() {
        assert_eq!(own_pages(b"2461 1210 960 61 0 205 0\n"), Some(250));
        assert_eq!(own_pages(b"1 2"), None);
    }

    #[test]
    fn processor_time_and_memory_of_this_process_are_told() {
        let cost = Cost::new(std::process::id().cast_signed(), 1.0, 1).unwrap();
        let before = cost.processor_time();
        while cost.processor_time() == before {}
        let mut text = [0; 128];
        let length = cost.statm.read_at(&mut text, 0).unwrap();
        assert!(own_pages(&text[..length]) > Some(10));
    }
}
