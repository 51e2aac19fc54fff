//! Reports of a session, on their way to the shim.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use account::Bound;
use mediator::{Drift, Observer, OverMemoryEvent, Pid, Shortage, UnknownKind};
use runtime_config::request::OverMemory;
use sys::sync::lock;

use super::{
    message::{Excess, FromMediator, KillReason},
    outbox::Outbox,
    processes::ProcessTable,
    rate_limit::RateLimit,
    scheduler::Wakers,
};

/// The most processes that a report of drift names: a container has as many as it likes.
const MAX_NAMED_PIDS: usize = 16;
/// Time for a container to end, after which it is to be ended again.
const END_RETRY: Duration = Duration::from_secs(30);
/// Interval at which progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(super) struct Reporter {
    outbox: Arc<Outbox>,
    processes: Arc<ProcessTable>,
    denials: Mutex<RateLimit>,
    /// Kills: a process that is killed may have forked.
    kills: Mutex<RateLimit>,
    /// Threads that wait for the first channel on their card.
    wakers: Wakers,
    /// Other lines: a container can make as many kinds of unknown calls as there are numbers.
    lines: Mutex<RateLimit>,
    /// Instant at which the shim was last told of progress.
    freed: Mutex<Option<Instant>>,
    /// Instant at which the shim was last asked to end the container.
    ended: Mutex<Option<Instant>>,
}

impl Reporter {
    pub(super) fn new(outbox: Arc<Outbox>, processes: Arc<ProcessTable>, wakers: Wakers) -> Self {
        let limit = || Mutex::new(RateLimit::new(Instant::now()));
        let (freed, ended) = (Mutex::default(), Mutex::default());
        Self { outbox, processes, denials: limit(), kills: limit(), wakers, lines: limit(), freed, ended }
    }

    fn kill(&self, pid: Pid, reason: KillReason) {
        // A process that has made no driver call can have the memory of one that has. One that is
        // gone needs no kill.
        let Some(process) = self.processes.process(pid) else { return };
        let pid_in_container = process.pid_in_container();
        let suppressed = lock(&self.kills).take(Instant::now());
        self.outbox.put(FromMediator::Kill { pid: pid.0, pid_in_container, reason, suppressed }, Some(process));
    }

    /// Has the shim end the container, unless that is under way: each time, the shim logs it and
    /// ends the processes that there are.
    fn end_container_at(&self, now: Instant, why: &str) {
        let mut ended = lock(&self.ended);
        if ended.is_none_or(|last| now.duration_since(last) >= END_RETRY) {
            *ended = Some(now);
            self.outbox.put(FromMediator::EndContainer { text: why.to_owned() }, None);
        }
    }

    fn log_limited(&self, text: String, message: impl FnOnce(String) -> FromMediator) {
        let Some(suppressed) = lock(&self.lines).take(Instant::now()) else { return };
        let text = if suppressed == 0 { text } else { format!("{text}; {suppressed} lines before it were left out") };
        self.outbox.put(message(text), None);
    }
}

impl Observer for Reporter {
    fn over_memory(&self, event: &OverMemoryEvent) {
        let excess = Excess {
            pid: event.pid.0,
            card: event.card.clone(),
            asked: event.asked,
            used: event.used,
            limit: event.limit,
            in_frames: event.bound == Bound::Frames,
        };
        match event.action {
            OverMemory::Kill => self.kill(event.pid, KillReason::OverMemory(excess)),
            OverMemory::Deny => {
                let report = lock(&self.denials).take(Instant::now());
                if let Some(suppressed) = report {
                    self.outbox.put(FromMediator::Denied { excess, suppressed }, None);
                }
            }
        }
    }

    fn shortage(&self, shortage: &Shortage) {
        let Shortage { text, count } = shortage.clone();
        self.outbox.put(FromMediator::Short { text, count }, None);
    }

    fn new_process(&self, _: Pid) {
        // Every process is watched from its first call on, before the session sees it.
    }

    fn unknown_call(&self, kind: UnknownKind) {
        let text = format!("a driver call that egpu does not know, {kind}, was refused");
        self.log_limited(text, |text| FromMediator::Log { warning: true, text });
    }

    fn lacks_graphics(&self, class: &str) {
        let text = format!(
            "an object of class {class}, which draws, was refused: it needs the driver capability `graphics` or `display` \
             (NVIDIA_DRIVER_CAPABILITIES), and the container has neither"
        );
        self.log_limited(text, |text| FromMediator::Log { warning: true, text });
    }

    fn refused_tool(&self, call: &str) {
        let text = format!(
            "a driver call of a debugger or a profiler, {call}, was refused: it acts on whoever is on the card; run such \
             tools in a container with a whole card"
        );
        self.log_limited(text, |text| FromMediator::Log { warning: true, text });
    }

    fn freed(&self) {
        // Others free for programs. The main thread frees at the end, and sends nothing meanwhile
        // unless it does so here.
        if !sys::is_main_thread() {
            return;
        }
        let now = Instant::now();
        let mut last = lock(&self.freed);
        if last.is_none_or(|last| now.duration_since(last) >= PROGRESS_INTERVAL) {
            *last = Some(now);
            self.outbox.put(FromMediator::Freeing, None);
            // The main thread finds out if the shim is gone.
            let _ = self.outbox.flush();
        }
    }

    fn first_channel(&self, uuid: &str) {
        self.wakers.wake(uuid);
    }

    fn end_container(&self, why: &str) {
        self.end_container_at(Instant::now(), why);
    }

    fn drift(&self, drift: &Drift) {
        let text = format!("accounts and driver disagree: {:?}", drift.kind);
        let (named, others) = drift.pids.split_at(drift.pids.len().min(MAX_NAMED_PIDS));
        let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        self.log_limited(format!("{text}; processes {named:?}{more}"), |text| FromMediator::Drift { text });
        if drift.excess {
            let pids = if drift.pids.is_empty() { self.processes.known_pids() } else { drift.pids.clone() };
            for pid in pids {
                self.kill(pid, KillReason::Drift(text.clone()));
            }
        }
    }
}

/// Tells the shim of a panic, which ends the process.
pub(super) fn panics_to(outbox: &Arc<Outbox>) {
    let outbox = Arc::clone(outbox);
    std::panic::set_hook(Box::new(move |panic| {
        outbox.put(FromMediator::Log { warning: true, text: format!("the mediator panicked: {panic}") }, None);
        // The main thread frees what the container has; without it nobody does.
        if !sys::is_main_thread() {
            outbox.fail(format!("a thread of the mediator panicked: {panic}"));
        }
        let _ = outbox.flush();
        sys::exit_now(134);
    }));
}

#[cfg(test)]
mod tests {
    use std::{
        os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
        process::{Child, Command},
    };

    use mediator::{DriftKind, Numbers};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use runtime_config::Bytes;

    use super::*;
    use crate::{broker::Broker, message};

    /// Processes that end with the test, whatever its result.
    struct Children(Vec<Child>);

    impl Drop for Children {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    fn drift(excess: bool, pids: &[i32]) -> Drift {
        let (accounted, driver, limit) = (Bytes(1), Bytes(3), Bytes(2));
        let kind = DriftKind::Card { card: "GPU-1".to_owned(), accounted, driver, limit };
        Drift { kind, excess, pids: pids.iter().copied().map(Pid).collect() }
    }

    /// An excess that the driver reports is not of any one process.
    #[test]
    fn an_excess_of_nobody_in_particular_ends_all_that_use_the_driver() {
        let (shim, own) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let outbox = Arc::new(Outbox::new(own).unwrap());
        let cgroup = tempfile::tempdir().unwrap();
        let processes = Arc::new(ProcessTable::new(Broker::of_tests(vec![cgroup.path().to_owned()])).unwrap());
        let reporter = Reporter::new(Arc::clone(&outbox), Arc::clone(&processes), Wakers::of_tests());
        let sleeping = |_| Command::new("sleep").arg("infinity").spawn().unwrap();
        let mut children = Children((0..4).map(sleeping).collect());
        let pids: Vec<i32> = children.0.iter().map(|child| child.id().cast_signed()).collect();
        let members: String = pids[..3].iter().map(|pid| format!("{pid}\n")).collect();
        std::fs::write(cgroup.path().join("cgroup.procs"), members).unwrap();
        // The third one does not use the driver, and the fourth is not of the container.
        for pid in &pids[..2] {
            processes.register(*pid, sys::pidfd_open(*pid).unwrap(), Numbers::new(Vec::new()), |_| ()).unwrap();
        }
        let messages = || -> Vec<(FromMediator, Option<std::os::fd::OwnedFd>)> {
            outbox.put(FromMediator::Pong, None);
            assert!(outbox.flush().unwrap());
            let mut messages = Vec::new();
            loop {
                match message::receive(shim.as_fd()).unwrap().unwrap() {
                    (FromMediator::Pong, _) => return messages,
                    other => messages.push(other),
                }
            }
        };
        reporter.drift(&drift(false, &[]));
        assert!(matches!(&messages()[..], [(FromMediator::Drift { .. }, None)]), "nobody has too much");
        reporter.drift(&drift(true, &[]));
        let mut killed = Vec::new();
        for (message, pidfd) in messages() {
            if let FromMediator::Kill { pid, reason: KillReason::Drift(_), .. } = message {
                sys::pidfd_send_signal(pidfd.unwrap().as_fd(), libc::SIGKILL).unwrap();
                killed.push(pid);
            }
        }
        killed.sort_unstable();
        assert_eq!(killed, {
            let mut all = pids[..2].to_vec();
            all.sort_unstable();
            all
        });
        for child in &mut children.0[..2] {
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
        assert!(children.0[2].try_wait().unwrap().is_none());
        // A process that is named is killed, even without a driver call: it has the memory of one
        // that has made some.
        reporter.drift(&drift(true, &pids[2..]));
        let is_kill = |(message, _): &(FromMediator, _)| match message {
            FromMediator::Kill { pid, .. } => Some(*pid),
            _ => None,
        };
        assert_eq!(messages().iter().filter_map(is_kill).collect::<Vec<_>>(), pids[2..3]);
    }

    #[test]
    fn a_drift_of_many_names_some() {
        let (shim, own) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let outbox = Arc::new(Outbox::new(own).unwrap());
        let processes = Arc::new(ProcessTable::new(Broker::of_tests(Vec::new())).unwrap());
        let reporter = Reporter::new(Arc::clone(&outbox), processes, Wakers::of_tests());
        for (count, end) in [(0, "; processes []"), (16, ", Pid(16)]"), (20_000, ", Pid(16)] and 19984 more")] {
            reporter.drift(&drift(false, &(1..=count).collect::<Vec<i32>>()));
            assert!(outbox.flush().unwrap());
            let (messages, _) = message::receive(shim.as_fd()).unwrap().unwrap();
            assert!(matches!(&messages, FromMediator::Drift { text } if text.ends_with(end)), "{messages:?}");
        }
    }

    #[test]
    fn the_request_to_end_the_container_is_repeated_now_and_then() {
        let (shim, own) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let outbox = Arc::new(Outbox::new(own).unwrap());
        let processes = Arc::new(ProcessTable::new(Broker::of_tests(Vec::new())).unwrap());
        let reporter = Reporter::new(Arc::clone(&outbox), processes, Wakers::of_tests());
        let start = Instant::now();
        let messages: Vec<u64> = (0..100)
            .filter(|second| {
                reporter.end_container_at(start + Duration::from_secs(*second), "it has too much");
                outbox.put(FromMediator::Pong, None);
                assert!(outbox.flush().unwrap());
                match message::receive(shim.as_fd()).unwrap().unwrap().0 {
                    FromMediator::Pong => false,
                    FromMediator::EndContainer { .. } => {
                        message::receive::<FromMediator>(shim.as_fd()).unwrap().is_some()
                    }
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        assert_eq!(messages, [0, 30, 60, 90]);
    }

    #[test]
    fn a_flood_of_kills_is_executed_and_not_logged() {
        let (shim, own) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let outbox = Arc::new(Outbox::new(own).unwrap());
        let processes = Arc::new(ProcessTable::new(Broker::of_tests(Vec::new())).unwrap());
        let reporter = Reporter::new(Arc::clone(&outbox), Arc::clone(&processes), Wakers::of_tests());
        let pid = nix::unistd::getpid().as_raw();
        processes.register(pid, sys::pidfd_open(pid).unwrap(), Numbers::new(Vec::new()), |_| ()).unwrap();
        let logged: Vec<bool> = (0..20)
            .map(|_| {
                reporter.kill(Pid(pid), KillReason::Drift(String::new()));
                assert!(outbox.flush().unwrap());
                match message::receive(shim.as_fd()).unwrap().unwrap().0 {
                    FromMediator::Kill { suppressed, .. } => suppressed.is_some(),
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        assert_eq!((logged.len(), logged.iter().filter(|messages| **messages).count()), (20, 5));
    }
}
