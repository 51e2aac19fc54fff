//! Scheduler of the container: keeps it to its turns on its cards.
//!
//! ```text
//!  timetables ─ inotify ──> main thread ── mailbox ──> one thread a card: pacer ──> Gate
//!                               |                          └──> status page (file)
//!                               └── limits of memory ──> Session
//! ```
//!
//! The main thread reads a card's timetable whenever it has been replaced. A card's thread exists
//! from the first turn on; it waits for nothing but the driver, and has a low real-time priority
//! where the kernel allows it. When one of them cannot go on, the process ends, and the shim ends
//! the container: nothing is left with its channels off.

mod absence;
mod alarm;
mod card;
mod clock;
mod edge_failure;
mod edge_times;
mod last_second;
mod mailbox;
mod residency_view;
mod share_terms;
mod status_page;
mod thread_priority;
mod usage_sums;
mod waiting;

use std::{io, path::PathBuf, sync::Arc};

use ledger::{Ledger, timetable_dir, timetable_name};
use mediator::Session;
use nix::sys::{
    inotify::{AddWatchFlags, InitFlags, Inotify},
    timerfd::TimerFd,
};
use runtime_config::{Bytes, config::PriorityMode};
use schedule::{CardTurn, StatusFile, Timetable, now_us};

use self::{
    alarm::Alarm,
    card::{CardPlace, CardScheduler},
    clock::Monotonic,
    mailbox::Mailbox,
    residency_view::ResidencyView,
    status_page::StatusPage,
    thread_priority::{TakenPriority, ThreadStarter},
};
use super::{mediation::Mediation, outbox::Outbox, setup::Setup};

/// Stack of a card's thread: the pacer, one status, one call to the driver at a time.
const STACK: usize = 128 << 10;

/// The schedules of all cards of the container.
#[derive(Debug)]
pub(super) struct Scheduler {
    grant_id: String,
    priority: PriorityMode,
    state_dir: PathBuf,
    watch: Inotify,
    /// Expires when the next epoch begins.
    epoch: Alarm,
    cards: Vec<ScheduledCard>,
    starter: ThreadStarter,
    status_page: Arc<StatusPage>,
    /// Limits of memory as set last.
    limits: Vec<(String, Bytes)>,
}

#[derive(Debug)]
struct ScheduledCard {
    mailbox: Arc<Mailbox>,
    is_capped: bool,
    /// The timetable as read last.
    table: Option<Arc<Timetable>>,
    /// That it cannot be read was logged.
    is_failure_logged: bool,
    /// The card cannot take the container off.
    is_without_windows: bool,
    /// Its thread, until it is started.
    unstarted: Option<Box<CardScheduler<Monotonic>>>,
}

/// The parts of the scheduler that take privileges which the mediator drops.
#[derive(Debug)]
pub(super) struct PreparedScheduler {
    grant_id: String,
    priority: PriorityMode,
    state_dir: PathBuf,
    watch: Inotify,
    epoch: Alarm,
    status_page: Arc<StatusPage>,
    /// The mailbox of each card, and true if its time is capped.
    mailboxes: Vec<(Arc<Mailbox>, bool)>,
    threads: TakenPriority,
}

/// Wakers of the threads of all cards.
#[derive(Debug)]
pub(super) struct Wakers(Vec<Arc<Mailbox>>);

impl Wakers {
    #[cfg(test)]
    pub(super) const fn of_tests() -> Self {
        Self(Vec::new())
    }

    /// Wakes the thread of a card, which has its first channel.
    pub(super) fn wake(&self, uuid: &str) {
        self.0.iter().filter(|mailbox| mailbox.uuid == uuid).for_each(|mailbox| mailbox.wake());
    }
}

impl Scheduler {
    /// Makes the watch that [`Scheduler::prepare`] sets on the timetables. Its last descriptor is
    /// closed only after a grace period of the kernel, about 5 ms.
    pub(super) fn new_watch() -> io::Result<Inotify> {
        Ok(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?)
    }

    /// Opens what takes privileges. To be called while the mediator has them.
    pub(super) fn prepare(setup: &Setup, watch: Inotify) -> io::Result<PreparedScheduler> {
        // The watch is added before the first read, so that no change is missed.
        watch.add_watch(&timetable_dir(&setup.state_dir), AddWatchFlags::IN_MOVED_TO)?;
        let mailboxes = setup.cards.iter().map(|card| Ok((Arc::new(Mailbox::new(card.uuid.clone())?), card.is_capped)));
        let mailboxes = mailboxes.collect::<io::Result<Vec<_>>>()?;
        let file = StatusFile::create(&setup.status_file)?;
        let epoch = Alarm::new()?;
        let threads = thread_priority::take();
        let uuids = setup.cards.iter().map(|card| card.uuid.clone());
        Ok(PreparedScheduler {
            grant_id: setup.grant_id.clone(),
            priority: setup.priority,
            state_dir: setup.state_dir.clone(),
            watch,
            epoch,
            status_page: Arc::new(StatusPage::new(file, uuids, Some(threads.granted))),
            mailboxes,
            threads,
        })
    }

    /// Creates the scheduler, once the privileges are dropped.
    pub(super) fn new(prepared: PreparedScheduler, outbox: &Arc<Outbox>) -> io::Result<Self> {
        let PreparedScheduler { grant_id, priority, state_dir, watch, epoch, status_page, mailboxes, threads } =
            prepared;
        let scheduled = |(mailbox, is_capped)| {
            let is_without_windows = false;
            ScheduledCard {
                mailbox,
                is_capped,
                is_without_windows,
                table: None,
                is_failure_logged: false,
                unstarted: None,
            }
        };
        let cards: Vec<_> = mailboxes.into_iter().map(scheduled).collect();
        let starter = threads.hand_over(cards.len(), outbox)?;
        Ok(Self { grant_id, priority, state_dir, watch, epoch, cards, starter, status_page, limits: Vec::new() })
    }

    pub(super) fn wakers(&self) -> Wakers {
        Wakers(self.cards.iter().map(|card| Arc::clone(&card.mailbox)).collect())
    }

    /// Marks a card that cannot take the container off: it has time slices only, from the start.
    pub(super) fn mark_without_windows(&mut self, uuid: &str) {
        self.cards.iter_mut().filter(|card| card.mailbox.uuid == uuid).for_each(|card| card.is_without_windows = true);
    }

    /// Starts the threads. To be called before the first call of the container: from here on its
    /// gates are as they should be.
    pub(super) fn start(&mut self, mediation: &Arc<Mediation>) -> io::Result<()> {
        let gates = mediation.session.gates();
        self.status_page.set_utilization(Arc::clone(mediation) as _);
        for (index, card) in self.cards.iter_mut().enumerate() {
            let Some(gate) = gates.iter().find(|gate| gate.uuid() == card.mailbox.uuid) else { continue };
            let place = CardPlace {
                index,
                grant_id: self.grant_id.clone(),
                priority: self.priority,
                state_dir: self.state_dir.clone(),
                is_capped: card.is_capped,
                is_without_windows: card.is_without_windows,
            };
            let (of, uuid) = (Arc::clone(mediation), card.mailbox.uuid.clone());
            let residency_view = ResidencyView::new(std::process::id(), Box::new(move || of.session.switch_log(&uuid)));
            let outputs = (Arc::clone(&card.mailbox), Arc::clone(&self.status_page));
            card.unstarted =
                Some(Box::new(CardScheduler::new(place, Arc::clone(gate), residency_view, outputs, Monotonic)));
        }
        self.read_timetables(|_| true)?;
        self.apply_limits(&mediation.session)
    }

    /// Readable when the timetable of a card has been replaced.
    pub(super) fn watch(&self) -> &Inotify {
        &self.watch
    }

    /// Readable when an epoch begins.
    pub(super) fn epoch(&self) -> &TimerFd {
        self.epoch.fd()
    }

    /// Reads timetables that have been replaced, if they are of the container's cards.
    pub(super) fn timetable_changed(&mut self, session: &Session) -> io::Result<()> {
        let events = match self.watch.read_events() {
            Ok(events) => events,
            Err(nix::Error::EAGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_replaced = |uuid: &str| {
            let file = timetable_name(uuid);
            // An event without a name: events were lost.
            events.iter().any(|event| event.name.as_ref().is_none_or(|name| *name == *file))
        };
        if !self.cards.iter().any(|card| is_replaced(&card.mailbox.uuid)) {
            return Ok(());
        }
        self.read_timetables(is_replaced)?;
        self.apply_limits(session)
    }

    /// Applies an epoch that has begun.
    pub(super) fn epoch_began(&mut self, session: &Session) -> io::Result<()> {
        self.apply_limits(session)
    }

    /// Publishes whether processes of the container have the driver open.
    pub(super) fn set_presence(&self, has_processes: bool) {
        self.status_page.set_presence(has_processes);
    }

    /// Reads the timetables of the cards that `is_new` selects.
    fn read_timetables(&mut self, is_new: impl Fn(&str) -> bool) -> io::Result<()> {
        for card in self.cards.iter_mut().filter(|card| is_new(&card.mailbox.uuid)) {
            match Ledger::card_timetable(&self.state_dir, &card.mailbox.uuid) {
                Ok(table) => {
                    card.is_failure_logged = false;
                    card.table = Some(Arc::new(table));
                }
                // The timetable that was read last stays in force.
                Err(error) if card.table.is_some() && !card.is_failure_logged => {
                    card.is_failure_logged = true;
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "cannot read the timetable; the one before stays in force");
                }
                Err(_) => {}
            }
            // A capped card has a thread even without epochs: it reports what the container
            // achieves.
            let needs_thread = card.is_capped || card.table.as_ref().is_some_and(|table| !table.epochs.is_empty());
            if needs_thread && let Some(scheduler) = card.unstarted.take() {
                self.starter.start(scheduler);
            }
            card.mailbox.send(card.table.clone());
        }
        Ok(())
    }

    /// Sets limits of memory and shares of time from the epochs in force.
    fn apply_limits(&mut self, session: &Session) -> io::Result<()> {
        let now_us = now_us();
        let (mut limits, mut next_us): (Vec<(String, Bytes)>, Option<u64>) = (Vec::new(), None);
        for card in &self.cards {
            let Some((holds, card_next_us)) = card.table.as_ref().map(|table| table.at(now_us)) else { continue };
            next_us = next_us.into_iter().chain(card_next_us).min();
            let turn = holds.and_then(|epoch| epoch.turn(&self.grant_id)?.card(&card.mailbox.uuid));
            if let Some(card) = turn {
                session.set_share(&card.uuid, card.share_ppm);
            }
            let limit = turn.filter(|card| card.memory != CardTurn::NO_LIMIT);
            limits.extend(limit.map(|card| (card.uuid.clone(), card.memory.floor_to_kib())));
        }
        if limits != self.limits {
            match session.set_limits(&limits) {
                Ok(()) => self.limits = limits,
                Err(error) => tracing::warn!(%error, "the timetable names a card that the container does not have"),
            }
        }
        self.epoch.set(next_us)
    }
}
