//! Notices a mediator that has stalled: one that does not say when it says it will, or that answers
//! no more.
//!
//! A stalled mediator may have left its container on a card in its neighbours' time, or off it for
//! ever; and whoever makes a driver call waits for it. It says in its status file when it is going
//! to write the next status (while it schedules anything), and its main thread answers pings.
//!
//! What counts is time during which this shim ran and looked, and not what clocks say: a machine or
//! a container of processes that was stopped as a whole goes on where it stood, and nobody has
//! stalled.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use procfs_core::{FromRead, process::Stat};
use runtime::blocking::blocking;
use schedule::{CardStatus, Running, Status, StatusFile, now_us};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::mediator_client::Mediator;

/// Interval at which the status is read while it is to be written in time.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of pings to a mediator whose container uses the driver; [`IDLE_PING_INTERVAL`] for one
/// that has nothing to do.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const IDLE_PING_INTERVAL: Duration = Duration::from_secs(10);
/// Time for the answer. The main thread waits for nobody, but a host may be busy.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A status may be late by two of the intervals at which it is written, and by no less and no more
/// than this.
const MIN_GRACE: Duration = Duration::from_millis(300);
const MAX_GRACE: Duration = Duration::from_secs(1);
/// Time for which lateness is put down to a busy host: while one of the mediator's threads would
/// run if it had a processor.
const STARVED_LIMIT: Duration = Duration::from_secs(5);
/// Time for which lateness is put down to the driver: a thread that is in it waits for a lock that
/// somebody else's call holds, or for the card, and nobody's calls get through then, those of
/// another mediator as little. To end a container for that helps no neighbour. Longer than the
/// driver waits for a card's firmware, and than it takes to free all that a mediator that was
/// killed has left.
const DRIVER_LIMIT: Duration = Duration::from_secs(30);

/// The reason for which a mediator counts as stalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stall {
    /// A status that was not written in time.
    Late(Duration),
    /// A ping that was not answered.
    Silent(Duration),
}

impl fmt::Display for Stall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late(by) => write!(formatter, "its scheduler is late by {} ms", by.as_millis()),
            Self::Silent(since) => write!(formatter, "it has not answered for {} s", since.as_secs()),
        }
    }
}

/// Waits until the mediator has stalled. `has_processes`: whether its container uses the driver.
/// `on_degraded` hears of each card that ceases or begins again to take the container off.
pub(super) async fn until_stalled(
    mediator: &Mediator,
    status_file: PathBuf,
    mut has_processes: watch::Receiver<bool>,
    on_degraded: impl Fn(&CardStatus),
) -> Stall {
    let mut watch = StallDetector::default();
    let mut degraded = BTreeSet::new();
    let mut is_delayed = false;
    loop {
        let (begin, wait) = (Instant::now(), watch.wait(*has_processes.borrow_and_update()));
        tokio::select! {
            () = sleep(wait) => {}
            changed = has_processes.changed() => if changed.is_err() { sleep(wait).await },
        }
        // More than that has passed only if this process was stopped, or had no processor.
        let passed = begin.elapsed().min(wait * 2);
        let now_us = now_us();
        // Without a process, nothing is scheduled, and nothing changes in the file.
        let is_watched = *has_processes.borrow() || watch.is_scheduled();
        let path = is_watched.then(|| status_file.clone());
        // Half a status, of a mediator that was stopped in the middle, is none: the last one before
        // it stands. Without a thread to look with, nothing is known of the mediator.
        let read = match path {
            Some(path) => blocking(move || StatusFile::read(&path).ok()).await,
            None => Ok(None),
        };
        let Ok(status) = read else { continue };
        status.iter().for_each(|status| report_degraded(&mut degraded, status, &on_degraded));
        let stall = watch.look(passed, now_us, status.as_ref(), mediator.is_silent());
        if let Some(stall) = stall {
            let pid = mediator.process().pid;
            let Ok(cause) = blocking(move || DelayCause::of(pid)).await else { continue };
            if watch.is_over(stall, cause) {
                return stall;
            }
            if let Some(cause) = cause.filter(|_| !std::mem::replace(&mut is_delayed, true)) {
                let pid = mediator.process().pid;
                tracing::warn!(mediator = pid, "the mediator is late, {stall}, because {cause}; waiting longer");
            }
        }
        is_delayed &= stall.is_some();
        if watch.ping_is_due(*has_processes.borrow()) {
            // A socket that takes nothing more is silence, too.
            let _ = timeout(POLL_INTERVAL, mediator.ping()).await;
        }
    }
}

/// Reports cards that became degraded or recovered. `before`: the UUIDs of those that were
/// degraded.
fn report_degraded(before: &mut BTreeSet<String>, status: &Status, report: impl Fn(&CardStatus)) {
    for card in &status.cards {
        let is_degraded = card.running == Running::Degraded;
        if is_degraded != before.contains(&card.uuid) {
            report(card);
        }
        if is_degraded {
            before.insert(card.uuid.clone());
        } else {
            before.remove(&card.uuid);
        }
    }
}

/// A reason for which one that is late may not be to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DelayCause {
    /// A thread runs, or waits for a processor.
    Processor,
    /// One cannot be interrupted: it is in the driver, or waits for a disk.
    Driver,
}

impl fmt::Display for DelayCause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Processor => "it waits for a processor",
            Self::Driver => "it waits in the driver, or for a disk",
        })
    }
}

impl DelayCause {
    /// Returns the cause of a process's delay, by the states of its threads.
    fn of(pid: i32) -> Option<Self> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let states = tasks.filter_map(|task| {
            let state = Stat::from_file(task.path().join("stat")).ok()?.state;
            let is_elsewhere = || {
                fs::read_to_string(task.path().join("syscall")).is_ok_and(|call| waits_for_process(&task.path(), &call))
            };
            // One that waits for a page of the container's is no more excused than one that sleeps.
            Some(if state == 'D' && is_elsewhere() { 'S' } else { state })
        });
        Self::of_states(states)
    }

    fn of_states(states: impl IntoIterator<Item = char>) -> Option<Self> {
        // The driver counts for longer: that another thread runs does not take that away.
        let causes = states.into_iter().filter_map(|state| match state {
            'D' => Some(Self::Driver),
            'R' => Some(Self::Processor),
            _ => None,
        });
        causes.max_by_key(|cause| cause.limit())
    }

    /// Returns the time for which the cause is believed.
    const fn limit(self) -> Duration {
        match self {
            Self::Processor => STARVED_LIMIT,
            Self::Driver => DRIVER_LIMIT,
        }
    }
}

/// Returns whether a thread is in a call that waits for another process: a read or write of a file
/// of /proc, as the memory of the container's is. `task` is its directory in /proc, `call` the
/// content of `syscall` there: the number and the arguments, or a word. Its own files are on disks,
/// which may be slow.
fn waits_for_process(task: &Path, call: &str) -> bool {
    let mut words = call.split_ascii_whitespace();
    let Some(number) = words.next().and_then(|number| number.parse::<i64>().ok()) else { return false };
    match number {
        libc::SYS_kcmp => true,
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_write | libc::SYS_pwrite64 => {
            let fd = words.next().and_then(|fd| u64::from_str_radix(fd.trim_start_matches("0x"), 16).ok());
            let path = fd.and_then(|fd| fs::read_link(task.join(format!("fd/{fd}"))).ok());
            path.is_some_and(|path| path.starts_with("/proc"))
        }
        _ => false,
    }
}

/// Observations so far.
#[derive(Debug, Default)]
struct StallDetector {
    /// The last status that could be read.
    status: Option<Status>,
    /// Time for which that has been seen to be late; `None`: it is not.
    late: Option<Duration>,
    /// True while a ping is not answered, and since which instant.
    is_silent: bool,
    silent: Duration,
    since_ping: Duration,
}

impl StallDetector {
    fn is_scheduled(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.next_by_us.is_some())
    }

    /// Returns whether it is a stall, with that cause.
    fn is_over(&self, stall: Stall, cause: Option<DelayCause>) -> bool {
        match (stall, cause) {
            (Stall::Late(_), Some(cause)) => self.late.is_some_and(|seen| seen >= cause.limit()),
            (Stall::Late(_), None) | (Stall::Silent(_), _) => true,
        }
    }

    /// Returns the wait until the next poll.
    fn wait(&self, has_processes: bool) -> Duration {
        match (self.is_scheduled(), has_processes || self.is_silent) {
            (true, _) => POLL_INTERVAL,
            (false, true) => PING_INTERVAL,
            (false, false) => IDLE_PING_INTERVAL,
        }
    }

    fn look(&mut self, passed: Duration, now_us: u64, status: Option<&Status>, is_silent: bool) -> Option<Stall> {
        self.since_ping += passed;
        self.silent = if self.is_silent && is_silent { self.silent + passed } else { Duration::ZERO };
        self.is_silent = is_silent;
        if self.silent >= ANSWER_LIMIT {
            return Some(Stall::Silent(self.silent));
        }
        let is_same = status.is_none_or(|status| self.status.as_ref() == Some(status));
        if let Some(status) = status {
            self.status = Some(status.clone());
        }
        let Some((by, grace)) = self.late_by(now_us) else {
            self.late = None;
            return None;
        };
        let seen = self.late.filter(|_| is_same).map_or(Duration::ZERO, |seen| seen + passed);
        self.late = Some(seen);
        (seen >= MIN_GRACE && by >= grace).then_some(Stall::Late(by))
    }

    /// Returns the delay of the next status, and the delay that is allowed; `None`: it is not late.
    fn late_by(&self, now_us: u64) -> Option<(Duration, Duration)> {
        let (late, interval) = self.status.as_ref()?.late_by(now_us)?;
        Some((late, (interval * 2).clamp(MIN_GRACE, MAX_GRACE)))
    }

    /// Returns whether a ping is to be sent now, which then counts as sent.
    fn ping_is_due(&mut self, has_processes: bool) -> bool {
        let every = if has_processes { PING_INTERVAL } else { IDLE_PING_INTERVAL };
        let is_due = !self.is_silent && self.since_ping >= every;
        if is_due {
            (self.since_ping, self.is_silent) = (Duration::ZERO, true);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    const MS: u64 = 1000;

    fn status(written_us: u64, next_by_us: Option<u64>) -> Status {
        Status { written_us, next_by_us, ..Status::default() }
    }

    /// Looks every 250 ms from `from_us` on, at what `status` says; when that ended it, and why.
    fn watch(from_us: u64, looks: u64, status: impl Fn(u64) -> Option<Status>) -> Option<(u64, Stall)> {
        let mut watch = StallDetector::default();
        (0..looks).find_map(|look| {
            let now_us = from_us + look * 250 * MS;
            watch.look(POLL_INTERVAL, now_us, status(now_us).as_ref(), false).map(|stall| (now_us, stall))
        })
    }

    #[test]
    fn a_card_that_ceases_to_take_the_container_off_is_reported_once() {
        let status = |running| {
            let card = CardStatus { uuid: "GPU-1".to_owned(), running, ..CardStatus::default() };
            Status { cards: vec![card], ..Status::default() }
        };
        let (mut before, reported) = (BTreeSet::new(), std::cell::RefCell::new(Vec::new()));
        for running in [Running::Open, Running::Degraded, Running::Degraded, Running::Closed, Running::Open] {
            report_degraded(&mut before, &status(running), |card| {
                reported.borrow_mut().push((card.uuid.clone(), card.running));
            });
        }
        let uuid = || "GPU-1".to_owned();
        assert_eq!(reported.into_inner(), [(uuid(), Running::Degraded), (uuid(), Running::Closed)]);
    }

    #[test]
    fn a_status_that_comes_in_time_is_no_stall() {
        let written = |now_us: u64| now_us / (100 * MS) * (100 * MS);
        assert_eq!(watch(0, 1000, |now| Some(status(written(now), Some(written(now) + 100 * MS)))), None);
        // Nothing is promised, or nothing was ever written.
        assert_eq!(watch(0, 1000, |_| Some(status(0, None))), None);
        assert_eq!(watch(0, 1000, |_| None), None);
    }

    #[test]
    fn one_that_does_not_come_is_noticed_within_a_second() {
        let (at_us, stall) = watch(0, 100, |_| Some(status(0, Some(100 * MS)))).unwrap();
        assert!((400 * MS..=1000 * MS).contains(&at_us), "{at_us}: {stall}");
        assert_eq!(stall.to_string(), format!("its scheduler is late by {} ms", at_us / MS - 100));
        // At long periods it may be later.
        let (at_us, _) = watch(0, 100, |_| Some(status(0, Some(500 * MS)))).unwrap();
        assert!((1500 * MS..=2000 * MS).contains(&at_us), "{at_us}");
    }

    #[test]
    fn one_that_was_written_halfway_does_not_hide_it() {
        let half = |now_us| (now_us < 250 * MS).then(|| status(0, Some(100 * MS)));
        assert!(matches!(watch(0, 100, half), Some((_, Stall::Late(_)))));
    }

    #[test]
    fn always_a_bit_late_is_no_stall() {
        // A host without a free processor: each status is written 200 ms late.
        let late = |now_us: u64| {
            let written = now_us / (300 * MS) * (300 * MS);
            Some(status(written, Some(written + 100 * MS)))
        };
        assert_eq!(watch(0, 1000, late), None);
    }

    #[test]
    fn one_that_comes_late_each_time_is_no_stall() {
        // At each check, the next status should have come long ago; but there is another one each
        // time.
        let late = |now_us: u64| Some(status(now_us, Some(now_us.saturating_sub(400 * MS))));
        assert_eq!(watch(1_000 * MS, 1000, late), None);
    }

    /// Returns the first of many polls, every 250 ms, of a mediator that writes nothing any more,
    /// by which it counts as stalled.
    fn over_at(cause: Option<DelayCause>) -> u64 {
        let mut watch = StallDetector::default();
        let last = status(0, Some(100 * MS));
        let mut over = Vec::new();
        for look in 0..200 {
            let stall = watch.look(POLL_INTERVAL, look * 250 * MS, Some(&last), false);
            over.push(stall.is_some_and(|stall| watch.is_over(stall, cause)));
        }
        let first = over.iter().position(|over| *over).unwrap();
        assert!(over[first..].iter().all(|over| *over), "{over:?}");
        first as u64
    }

    #[test]
    fn who_only_lacks_a_processor_is_given_longer() {
        assert!((2..=5).contains(&over_at(None)));
        assert!((18..25).contains(&over_at(Some(DelayCause::Processor))));
        assert_eq!(
            DelayCause::of(nix::unistd::getpid().as_raw()).map(|cause| cause.limit() >= STARVED_LIMIT),
            Some(true)
        );
        assert_eq!(DelayCause::of(0), None);
    }

    /// A mediator waits in the kernel, uninterruptible, while another container's call holds the
    /// driver's lock.
    #[test]
    fn who_waits_in_the_driver_is_given_longer_still() {
        assert!((118..126).contains(&over_at(Some(DelayCause::Driver))));
        assert_eq!(DelayCause::of_states("SSDS".chars()), Some(DelayCause::Driver));
        assert_eq!(DelayCause::of_states("RDRS".chars()), Some(DelayCause::Driver));
        assert_eq!(DelayCause::of_states("SRSS".chars()), Some(DelayCause::Processor));
        assert_eq!(DelayCause::of_states("STZt".chars()), None);
        // Whether its main thread answers has nothing to do with the driver.
        assert!(StallDetector::default().is_over(Stall::Silent(ANSWER_LIMIT), Some(DelayCause::Driver)));
    }

    /// A page that does not come holds up who reads the container's memory, as long as the
    /// container likes.
    #[test]
    fn who_waits_for_the_container_does_not_wait_in_the_driver() {
        let memory = fs::File::open("/proc/self/mem").unwrap();
        let waits = |number: i64, fd: i32| {
            waits_for_process(
                Path::new("/proc/self"),
                &format!("{number} {fd:#x} 0x7f00 0x10 0x0 0x0 0x0 0x7ffc 0x7f00\n"),
            )
        };
        for number in [libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_read, libc::SYS_write] {
            assert!(waits(number, memory.as_raw_fd()));
        }
        assert!(waits(libc::SYS_kcmp, 0));
        assert!(!waits(libc::SYS_ioctl, memory.as_raw_fd()));
        assert!(!waits(libc::SYS_close, memory.as_raw_fd()));
        assert!(!waits_for_process(Path::new("/proc/self"), "running\n"));
    }

    /// Its own files, the ledger's among them, are no faster than the host's disk, and no container
    /// chooses how fast that is.
    #[test]
    fn who_waits_for_a_disk_is_given_longer() {
        let file = tempfile::tempfile().unwrap();
        // Far more than sixteen: the number is a hexadecimal one.
        let high = nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(500)).unwrap();
        let fds = [file.as_raw_fd(), high, 1 << 30];
        for (number, fd) in
            [libc::SYS_read, libc::SYS_pwrite64].into_iter().flat_map(|number| fds.map(|fd| (number, fd)))
        {
            assert!(!waits_for_process(
                Path::new("/proc/self"),
                &format!("{number} {fd:#x} 0x7f00 0x10 0x0 0x0 0x0 0x7ffc 0x7f00\n")
            ));
        }
        nix::unistd::close(high).unwrap();
    }

    #[test]
    fn a_host_that_stood_still_has_stalled_nobody() {
        let mut watch = StallDetector::default();
        let last = status(0, Some(100 * MS));
        assert_eq!(watch.look(POLL_INTERVAL, 50 * MS, Some(&last), false), None);
        // An hour in which nothing ran, and the shim is the first to run again.
        let hour = 3_600_000 * MS;
        assert_eq!(watch.look(POLL_INTERVAL * 2, hour, Some(&last), true), None);
        let fresh = status(hour + 100 * MS, Some(hour + 300 * MS));
        assert_eq!(watch.look(POLL_INTERVAL, hour + 250 * MS, Some(&fresh), false), None);
        assert_eq!(watch.late, None);
    }

    #[test]
    fn silence_ends_it_and_an_answer_begins_anew() {
        let mut watch = StallDetector::default();
        assert_eq!(watch.wait(false), IDLE_PING_INTERVAL);
        assert_eq!(watch.look(IDLE_PING_INTERVAL, 0, None, false), None);
        assert!(watch.ping_is_due(false));
        assert!(!watch.ping_is_due(false), "one at a time");
        assert_eq!(watch.wait(false), PING_INTERVAL, "the answer is waited for");
        for _ in 0..4 {
            assert_eq!(watch.look(PING_INTERVAL, 0, None, true), None);
        }
        assert_eq!(watch.look(PING_INTERVAL, 0, None, false), None, "an answer");
        assert!(watch.ping_is_due(true));
        for _ in 0..4 {
            assert_eq!(watch.look(PING_INTERVAL, 0, None, true), None);
        }
        let stall = watch.look(PING_INTERVAL, 0, None, true).unwrap();
        assert_eq!(stall.to_string(), "it has not answered for 10 s");
    }
}
