//! What a session tells of, on its way to the shim.

use std::{
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use nvidia_glue::mediate::{Drift, Observer, OverMemoryEvent, Pid, UnknownCall};
use runtime_config::request::OverMemory;
use tracing_subscriber::fmt::MakeWriter;

use super::{
    message::{Excess, FromMediator, KillReason},
    outbox::Outbox,
    processes::ProcessTable,
    scheduler::Wakers,
};
use crate::sync::lock;

/// Refusals that are told one by one in each [`PERIOD`].
const TOLD: u32 = 5;
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Reporter {
    outbox: Arc<Outbox>,
    processes: Arc<ProcessTable>,
    denials: Mutex<Limited>,
    /// Threads that wait for a card's first channel.
    wakers: Wakers,
    /// A container can make as many kinds of unknown calls as there are numbers.
    lines: Mutex<Limited>,
}

/// At most [`TOLD`] in a [`PERIOD`].
#[derive(Debug)]
struct Limited {
    since: Instant,
    told: u32,
    untold: u64,
}

impl Limited {
    /// `None`: not this one. Else how many were left out before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= PERIOD {
            (self.since, self.told) = (now, 0);
        }
        if self.told == TOLD {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

impl Reporter {
    pub(super) fn new(outbox: Arc<Outbox>, processes: Arc<ProcessTable>, wakers: Wakers) -> Self {
        let limited = || Mutex::new(Limited { since: Instant::now(), told: 0, untold: 0 });
        Self { outbox, processes, denials: limited(), wakers, lines: limited() }
    }

    fn kill(&self, pid: Pid, reason: KillReason) {
        // One that is gone needs no killing.
        let Some(process) = self.processes.find(pid) else { return };
        let pid_in_container = process.pid_in_container();
        self.outbox.put(FromMediator::Kill { pid: pid.0, pid_in_container, reason }, Some(process));
    }

    fn tell(&self, text: String, message: impl FnOnce(String) -> FromMediator) {
        let Some(untold) = lock(&self.lines).take(Instant::now()) else { return };
        let text = if untold == 0 { text } else { format!("{text}; before it, {untold} lines were left out") };
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
        };
        match event.action {
            OverMemory::Kill => self.kill(event.pid, KillReason::OverMemory(excess)),
            OverMemory::Deny => {
                let told = lock(&self.denials).take(Instant::now());
                if let Some(untold) = told {
                    self.outbox.put(FromMediator::Denied { excess, untold }, None);
                }
            }
        }
    }

    fn new_process(&self, _: Pid) {
        // Every process is watched from its first call on, before the session sees it.
    }

    fn unknown_call(&self, call: &UnknownCall) {
        let verdict = if call.passed { "passed, since it cannot take memory" } else { "refused" };
        let text = format!("a driver call that egpu does not know, {}, was {verdict}", call.kind);
        self.tell(text, |text| FromMediator::Log { warning: true, text });
    }

    fn first_channel(&self, uuid: &str) {
        self.wakers.wake(uuid);
    }

    fn drift(&self, drift: &Drift) {
        let text = format!("accounts and driver disagree: {:?}", drift.kind);
        self.tell(format!("{text}; processes {:?}", drift.pids), |text| FromMediator::Drift { text });
        if drift.excess {
            let pids = if drift.pids.is_empty() { self.processes.known() } else { drift.pids.clone() };
            for pid in pids {
                self.kill(pid, KillReason::Drift(text.clone()));
            }
        }
    }
}

/// Has what libraries log reach the shim's log.
pub(super) fn log_to(outbox: &Arc<Outbox>) {
    let lines = Lines(Arc::clone(outbox));
    // The first to call wins, and nobody else has called: the process was forked for this.
    let _ = tracing_subscriber::fmt()
        .with_writer(lines)
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .with_level(false)
        .without_time()
        .try_init();
    let outbox = Arc::clone(outbox);
    std::panic::set_hook(Box::new(move |panic| {
        outbox.put(FromMediator::Log { warning: true, text: format!("the mediator has a defect: {panic}") }, None);
        let _ = outbox.flush();
        crate::sys::exit_now(134);
    }));
}

#[derive(Debug)]
struct Lines(Arc<Outbox>);

impl io::Write for &Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(text).trim_end().chars().take(2000).collect();
        self.0.put(FromMediator::Log { warning: true, text: line }, None);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
        process::{Child, Command},
    };

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use nvidia_glue::mediate::{DriftKind, Numbers};
    use runtime_config::Bytes;

    use super::*;
    use crate::{mediator::message, sys};

    /// Processes that end with the test, however that ends.
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

    /// What the driver says that a container has too much is not said of any process.
    #[test]
    fn an_excess_of_nobody_in_particular_ends_all_that_use_the_driver() {
        let (shim, own) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let outbox = Arc::new(Outbox::new(own).unwrap());
        let processes = Arc::new(ProcessTable::new(Vec::new()).unwrap());
        let reporter = Reporter::new(Arc::clone(&outbox), Arc::clone(&processes), Wakers::of_nobody());
        let sleeping = |_| Command::new("sleep").arg("infinity").spawn().unwrap();
        let mut children = Children((0..3).map(sleeping).collect());
        let pids: Vec<i32> = children.0.iter().map(|child| child.id().cast_signed()).collect();
        // The third one uses no driver.
        for pid in &pids[..2] {
            processes.enter(*pid, || Ok(Numbers::new(Vec::new())), |_| ()).unwrap();
        }
        let told = || -> Vec<(FromMediator, Option<std::os::fd::OwnedFd>)> {
            outbox.put(FromMediator::Pong, None);
            assert!(outbox.flush().unwrap());
            let mut told = Vec::new();
            loop {
                match message::receive(shim.as_fd()).unwrap().unwrap() {
                    (FromMediator::Pong, _) => return told,
                    other => told.push(other),
                }
            }
        };
        reporter.drift(&drift(false, &[]));
        assert!(matches!(&told()[..], [(FromMediator::Drift { .. }, None)]), "nobody has too much");
        reporter.drift(&drift(true, &[]));
        let mut killed = Vec::new();
        for (message, pidfd) in told() {
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
        // Of those that are named, and run, no other.
        reporter.drift(&drift(true, &[pids[2]]));
        let is_kill = |(message, _): &(FromMediator, _)| matches!(message, FromMediator::Kill { .. });
        assert!(!told().iter().any(is_kill), "it is not known to use the driver");
    }

    #[test]
    fn a_flood_of_refusals_is_told_in_parts() {
        let start = Instant::now();
        let mut limited = Limited { since: start, told: 0, untold: 0 };
        let told = (0..100).filter(|_| limited.take(start).is_some()).count();
        assert_eq!(told, 5);
        assert_eq!(limited.take(start + PERIOD), Some(95));
        assert_eq!(limited.take(start + PERIOD), Some(0));
    }
}
