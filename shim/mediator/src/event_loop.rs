//! The mediator's main thread: an event loop that accepts listeners, reads the shim's messages,
//! sees processes end, and supervises the threads that handle calls.
//!
//! It never reads from a caller, so nothing that a container does can stall it; it frees what the
//! container had when that has ended.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use base::usage::{MediatorCost, Usage, UsageFile};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        time::TimeSpec,
        timer::{Expiration, TimerSetTimeFlags},
        timerfd::{ClockId, TimerFd, TimerFlags},
    },
};
use sys::frame::{self, FrameError};

use super::{
    cost::thread_cpu_time,
    listener::Listener,
    mediation::Mediation,
    message::{FromMediator, KillReason, ToMediator},
    proc_read_watchdog::READ_LIMIT,
    scheduler::Scheduler,
};

const INTAKE: u64 = 0;
const CONTROL: u64 = 1;
const WAKE: u64 = 2;
const PROCESSES: u64 = 3;
const TIMER: u64 = 4;
const WATCHDOG: u64 = 5;
const TIMETABLE: u64 = 6;
const EPOCH: u64 = 7;
const BROKER: u64 = 8;
/// The number of the first listener.
const FIRST_LISTENER: u64 = 16;

/// The most listeners: one for each process that was put into the container (the first ones, and
/// those of execs), until the last that came of it has ended. Each has a thread and a descriptor
/// here, which are not the container's. No further exec begins then.
pub const MOST_LISTENERS: usize = 256;
/// Those of execs that had begun by then.
const MORE_LISTENERS: usize = 64;
/// Interval at which threads are supervised while calls are made. Beside a call that takes longer,
/// another thread takes the next one.
const TICK: Duration = Duration::from_micros(500);
/// Ticks without a call after which the timer stops.
const QUIET_TICKS: u32 = 40;
/// The delay with which a change of usage is written.
const PUBLISH_DELAY: Duration = Duration::from_millis(50);
/// Rest after a comparison, in multiples of the processor time that it took; no longer than the
/// limit.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(10);
/// Interval at which the mediator's cost is told, while anything is.
const TELL_COST: Duration = Duration::from_secs(1);
/// Time for calls that are being handled to end before a pause.
const PAUSE_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct EventLoop {
    mediation: Arc<Mediation>,
    epoll: Epoll,
    intake: OwnedFd,
    scheduler: Scheduler,
    timer: TimerFd,
    listeners: Vec<Watched>,
    next: u64,
    ticks: Ticks,
    /// Instant of a pause that is not answered yet.
    pausing: Option<Instant>,
    usage: Option<UsageFile>,
    period: Duration,
    /// Presence as last reported to the shim.
    has_processes: bool,
    /// The shim has heard that there are as many listeners as there may be.
    has_most_listeners: bool,
}

struct Watched {
    number: u64,
    listener: Arc<Listener>,
    /// Calls at the last tick.
    calls: u64,
    is_over: bool,
}

#[derive(Default)]
struct Ticks {
    are_on: bool,
    quiet: u32,
}

impl EventLoop {
    pub(super) fn new(
        mediation: Arc<Mediation>,
        intake: OwnedFd,
        scheduler: Scheduler,
        usage: UsageFile,
        period: Duration,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        let readable = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        epoll.add(&intake, readable(INTAKE))?;
        epoll.add(mediation.outbox.control(), readable(CONTROL))?;
        epoll.add(mediation.outbox.waker(), readable(WAKE))?;
        epoll.add(&mediation.processes.ended().0, readable(PROCESSES))?;
        epoll.add(&timer, readable(TIMER))?;
        epoll.add(mediation.processes.watchdog_timer(), readable(WATCHDOG))?;
        epoll.add(scheduler.watch(), readable(TIMETABLE))?;
        epoll.add(scheduler.epoch(), readable(EPOCH))?;
        // Without events only its end is reported.
        epoll.add(mediation.processes.broker().end(), EpollEvent::new(EpollFlags::empty(), BROKER))?;
        Ok(Self {
            mediation,
            epoll,
            intake,
            scheduler,
            timer,
            listeners: Vec::new(),
            next: FIRST_LISTENER,
            ticks: Ticks::default(),
            pausing: None,
            usage: Some(usage),
            period,
            has_processes: false,
            has_most_listeners: false,
        })
    }

    /// Runs until the shim ends it, or closes its end of the control socket.
    ///
    /// Then, and when it cannot go on, it frees all that the container has, so that nothing is left
    /// in files that it may have handed to others.
    pub(super) fn run(self) -> io::Result<()> {
        let mediation = Arc::clone(&self.mediation);
        let ended = self.run_until_end();
        if let Err(error) = &ended {
            tracing::error!(%error, "the mediator cannot go on, and ends");
        }
        // A shim that asked has been sent what could not be freed; one that is gone has no use for
        // it.
        let _ = mediation.end();
        // The last lines of the log.
        let _ = mediation.outbox.flush();
        ended
    }

    fn run_until_end(mut self) -> io::Result<()> {
        if let Some(usage) = self.usage.take() {
            let (mediation, period) = (Arc::clone(&self.mediation), self.period);
            thread::Builder::new().name("accounts".into()).spawn(move || run_accounting(&mediation, &usage, period))?;
            let mediation = Arc::clone(&self.mediation);
            thread::Builder::new().name("leftovers".into()).spawn(move || mediation.run_reclaim())?;
        }
        self.scheduler.start(&self.mediation)?;
        let mut events = [EpollEvent::empty(); 32];
        loop {
            let ready = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(ready) => ready,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in events.iter().take(ready) {
                match event.data() {
                    INTAKE => self.accept_listener()?,
                    CONTROL if !self.on_message(event.events())? => return Ok(()),
                    CONTROL => {}
                    WAKE => {
                        self.mediation.outbox.drain_wake();
                        if let Some(why) = self.mediation.outbox.failure() {
                            return Err(io::Error::other(why.to_owned()));
                        }
                    }
                    BROKER => return Err(io::Error::other("the mediator's broker is gone")),
                    PROCESSES => {
                        for process in self.mediation.processes.take_ended()? {
                            self.mediation.process_ended(&process);
                        }
                    }
                    TIMER => self.tick()?,
                    WATCHDOG => self.kill_stalling_processes(),
                    TIMETABLE => self.scheduler.timetable_changed(&self.mediation.session)?,
                    EPOCH => self.scheduler.epoch_began(&self.mediation.session)?,
                    listener => self.listener_hung_up(listener)?,
                }
            }
            self.update_timer()?;
            self.answer_pause();
            self.publish_presence();
            self.count_listeners();
            self.flush_outbox()?;
        }
    }

    /// Kills processes that stall the reading of `/proc`, as their memory cannot be counted.
    fn kill_stalling_processes(&self) {
        let (stalling, is_repeated) = self.mediation.processes.stalled_reads(self.mediation.is_paused());
        for process in stalling {
            let reason = format!("its mappings could not be read for {} s", READ_LIMIT.as_secs());
            let (pid, pid_in_container, reason) = (process.pid, process.pid_in_container(), KillReason::Drift(reason));
            let suppressed = Some(0);
            self.mediation.outbox.put(FromMediator::Kill { pid, pid_in_container, reason, suppressed }, Some(process));
        }
        // Others may have the same memory, and stall reads in turn. Only a read could find them.
        if is_repeated {
            let text = "its mappings cannot be read, though the processes that stall that were killed".to_owned();
            self.mediation.outbox.put(FromMediator::EndContainer { text }, None);
        }
    }

    /// Accepts a listener, or sees that the last process that could send one is gone.
    fn accept_listener(&mut self) -> io::Result<()> {
        let fd = match frame::receive(self.intake.as_fd()) {
            Ok((fd, _)) => fd,
            Err(FrameError::Closed) => {
                self.epoll.delete(&self.intake)?;
                return Ok(());
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        if self.listeners.len() >= MOST_LISTENERS + MORE_LISTENERS {
            tracing::warn!("there are too many execs of which processes are left: driver calls of another one fail");
            return Ok(());
        }
        if self.next == FIRST_LISTENER {
            self.mediation.mark_held()?;
        }
        let listener = match Listener::start(fd, Arc::clone(&self.mediation)) {
            Ok(listener) => listener,
            Err(error) if self.next == FIRST_LISTENER => {
                let text = format!("no thread can be started for the driver calls of its first process: {error}");
                self.mediation.outbox.put(FromMediator::EndContainer { text }, None);
                return Ok(());
            }
            Err(error) => {
                // Without a listener, the calls of the processes with this filter fail; the others
                // go on.
                tracing::warn!(%error, "cannot start a thread for a process of the container: its driver calls fail");
                return Ok(());
            }
        };
        let number = self.next;
        self.next += 1;
        // Without events only the end is reported: no process has the filter any more.
        self.epoll.add(listener.fd(), EpollEvent::new(EpollFlags::empty(), number))?;
        self.listeners.push(Watched { number, listener, calls: 0, is_over: false });
        Ok(())
    }

    /// Handles a message of the shim. `false`: it has closed the socket, or nothing is left to be
    /// done.
    fn on_message(&mut self, events: EpollFlags) -> io::Result<bool> {
        if !events.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            return Ok(true);
        }
        match self.mediation.outbox.receive() {
            Ok(Some(ToMediator::Pause)) => {
                self.mediation.set_paused(true);
                self.pausing = Some(Instant::now());
                self.listeners.iter().for_each(|watched| watched.listener.interrupt());
                Ok(true)
            }
            Ok(Some(ToMediator::Resume)) => {
                self.mediation.set_paused(false);
                self.pausing = None;
                Ok(true)
            }
            Ok(Some(ToMediator::End)) => match self.mediation.end() {
                Ok(()) => Ok(false),
                Err(left) => {
                    self.mediation.outbox.put(FromMediator::StillHeld { text: left.to_string() }, None);
                    Ok(true)
                }
            },
            Ok(Some(ToMediator::Ping)) => {
                self.mediation.outbox.put(FromMediator::Pong, None);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn listener_hung_up(&mut self, number: u64) -> io::Result<()> {
        if let Some(watched) = self.listeners.iter_mut().find(|watched| watched.number == number) {
            self.epoll.delete(watched.listener.fd())?;
            watched.is_over = true;
            watched.listener.end();
        }
        self.listeners.retain(|watched| !(watched.is_over && watched.listener.end()));
        Ok(())
    }

    fn tick(&mut self) -> io::Result<()> {
        // Only the expiry matters.
        let _ = nix::unistd::read(&self.timer, &mut [0u8; 8]);
        self.listeners.retain(|watched| !(watched.is_over && watched.listener.end()));
        let mut is_quiet = true;
        for watched in &mut self.listeners {
            let calls = watched.listener.calls();
            if calls == watched.calls && !self.mediation.is_paused() {
                // Without another thread these callers wait for one another; the next tick tries
                // again.
                let _ = watched.listener.add_thread_if_stalled();
            }
            is_quiet &= calls == watched.calls && !watched.listener.is_busy() && !watched.is_over;
            watched.calls = calls;
        }
        if self.pausing.is_some() {
            self.listeners.iter().for_each(|watched| watched.listener.interrupt());
        }
        self.ticks.quiet = if is_quiet && self.pausing.is_none() { self.ticks.quiet + 1 } else { 0 };
        Ok(())
    }

    fn update_timer(&mut self) -> io::Result<()> {
        let is_needed = self.pausing.is_some() || self.listeners.iter().any(|watched| watched.is_over);
        if self.ticks.are_on && self.ticks.quiet >= QUIET_TICKS && !is_needed {
            self.mediation.is_active.store(false, Ordering::Relaxed);
            self.timer.unset()?;
            self.ticks.are_on = false;
        } else if !self.ticks.are_on && (is_needed || self.mediation.is_active.load(Ordering::Relaxed)) {
            let every = Expiration::Interval(TimeSpec::from_duration(TICK));
            self.timer.set(every, TimerSetTimeFlags::empty())?;
            self.ticks = Ticks { are_on: true, quiet: 0 };
        }
        Ok(())
    }

    fn answer_pause(&mut self) {
        let Some(since) = self.pausing else { return };
        let all = self.listeners.iter().all(|watched| watched.listener.is_quiescent());
        if all || since.elapsed() >= PAUSE_LIMIT {
            self.pausing = None;
            self.mediation.outbox.put(FromMediator::Paused { all }, None);
        }
    }

    fn publish_presence(&mut self) {
        let has_processes = !self.mediation.processes.is_empty();
        if has_processes != self.has_processes {
            self.has_processes = has_processes;
            self.scheduler.set_presence(has_processes);
            self.mediation.outbox.put(FromMediator::Presence { has_processes }, None);
        }
    }

    fn count_listeners(&mut self) {
        let count = self.listeners.len();
        let counted = u32::try_from(count).unwrap_or(u32::MAX);
        let before = self.mediation.cost.listeners.swap(counted, Ordering::Relaxed);
        if before != counted && before > 0 {
            // Not for the first one, which most containers leave it at.
            self.mediation.request_accounting();
        }
        let are_most = count >= MOST_LISTENERS;
        if are_most != self.has_most_listeners {
            self.has_most_listeners = are_most;
            self.mediation.outbox.put(FromMediator::Listeners { are_most }, None);
        }
    }

    fn flush_outbox(&mut self) -> io::Result<()> {
        let mut wanted = EpollFlags::EPOLLIN;
        if !self.mediation.outbox.flush()? {
            wanted |= EpollFlags::EPOLLOUT;
        }
        self.epoll.modify(self.mediation.outbox.control(), &mut EpollEvent::new(wanted, CONTROL))?;
        Ok(())
    }
}

/// Runs the accounting thread: compares accounts with the driver's each period, and writes usage
/// soon after it changes.
///
/// It may have to wait for a process of the container. It sleeps while nothing of the container
/// uses the driver.
fn run_accounting(mediation: &Mediation, file: &UsageFile, period: Duration) {
    let mut last = Usage::default();
    let (mut compared, mut rest) = (Instant::now(), period);
    let mut had_processes = false;
    let (mut cost, mut cost_at) = (None::<MediatorCost>, Instant::now());
    loop {
        mediation.wait_for_accounting();
        thread::sleep(PUBLISH_DELAY.min(period));
        // An exported object may outlive its process.
        let has_processes = !mediation.processes.known_pids().is_empty() || mediation.session.holds_anything();
        had_processes |= has_processes;
        if had_processes && compared.elapsed() >= rest {
            let worked = thread_cpu_time();
            mediation.request_closed_file_scan();
            // It reports what it finds to the observer.
            mediation.session.compare();
            compared = Instant::now();
            // The more a container has mapped, the less often all of it is read.
            rest = period.max((thread_cpu_time().saturating_sub(worked) * REST).min(LONGEST_REST));
            // Compare once more after the last process has ended.
            had_processes = has_processes;
        }
        mediation.session.look_at_what_is_pinned();
        mediation.session.tell_utilization();
        let listeners = mediation.cost.listeners.load(Ordering::Relaxed);
        if cost.as_ref().is_none_or(|cost| cost.listeners != listeners) || cost_at.elapsed() >= TELL_COST {
            (cost, cost_at) = (Some(mediation.cost.told(&mediation.session)), Instant::now());
        }
        let usage = Usage { mediator: cost.clone(), ..mediation.session.usage() };
        if !has_processes && !had_processes && usage == last {
            mediation.end_accounting();
        }
        if usage != last {
            match file.write(&usage) {
                Ok(()) => last = usage,
                Err(error) => tracing::warn!(%error, "cannot write the usage of the container"),
            }
        }
    }
}
