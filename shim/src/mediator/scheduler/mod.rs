//! Keeps the container to its turns on its cards.
//!
//! ```text
//!  timetables ─ inotify ──> main thread ── posts ──> one thread a card: pacer ──> Gate (channels on and off)
//!                               └── limits of memory ──> Session          └──> board (status file)
//! ```
//! The main thread reads a card's timetable whenever somebody has replaced it. A card's thread is there from the first turn on; it waits for nobody but the driver, and has a low real-time priority where the kernel lets it. When one of
//! them cannot go on, the process ends, and the shim ends the container: nothing is left with its channels off.

mod alarm;
mod card;
mod clock;
mod edge_failure;
mod mailbox;
mod residency_view;
mod share_terms;
mod status_page;
mod thread_priority;
mod usage_sums;

use std::{io, path::PathBuf, sync::Arc};

use nix::sys::{
    inotify::{AddWatchFlags, InitFlags, Inotify},
    timerfd::TimerFd,
};
use nvidia_glue::{
    ledger::{Ledger, timetable_dir, timetable_name},
    mediate::Session,
    schedule::{CardTurn, StatusFile, Timetable, now_us},
};
use runtime_config::Bytes;

use self::{
    alarm::Alarm,
    card::{CardScheduler, Place},
    clock::Monotonic,
    mailbox::Post,
    residency_view::Sight,
    status_page::Board,
    thread_priority::{Starter, Taken},
};
use super::{listener::Mediation, setup::Setup};

/// A card's thread needs little: the pacer, one status, one call to the driver at a time.
const STACK: usize = 128 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Scheduler {
    grant_id: String,
    state_dir: PathBuf,
    watch: Inotify,
    /// Goes off when the next epoch begins.
    epoch: Alarm,
    cards: Vec<Scheduled>,
    starter: Starter,
    board: Arc<Board>,
    /// Limits of memory as they were set last.
    limits: Vec<(String, Bytes)>,
}

#[derive(Debug)]
struct Scheduled {
    post: Arc<Post>,
    is_capped: bool,
    /// As it was read last.
    table: Option<Arc<Timetable>>,
    /// It was told that it cannot be read.
    is_troubled: bool,
    /// It does not take the container off.
    is_without_windows: bool,
    /// Its thread, before it is started.
    waiting: Option<Box<CardScheduler<Monotonic>>>,
}

/// What takes rights that the mediator gives up.
#[derive(Debug)]
pub(super) struct Prepared {
    grant_id: String,
    state_dir: PathBuf,
    watch: Inotify,
    epoch: Alarm,
    board: Arc<Board>,
    /// Each card's, and whether its time is capped.
    posts: Vec<(Arc<Post>, bool)>,
    priority: Taken,
}

/// The threads of all cards, for who sees that there is something to do.
#[derive(Debug)]
pub(super) struct Wakers(Vec<Arc<Post>>);

impl Wakers {
    #[cfg(test)]
    pub(super) const fn of_nobody() -> Self {
        Self(Vec::new())
    }

    /// A card has its first channel.
    pub(super) fn wake(&self, uuid: &str) {
        self.0.iter().filter(|post| post.uuid == uuid).for_each(|post| post.wake());
    }
}

impl Scheduler {
    /// To be called while the mediator has its rights.
    pub(super) fn prepare(setup: &Setup) -> io::Result<Prepared> {
        // Watched before it is read for the first time, so that no change is missed.
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        watch.add_watch(&timetable_dir(&setup.state_dir), AddWatchFlags::IN_MOVED_TO)?;
        let posts = setup.cards.iter().map(|card| Ok((Arc::new(Post::new(card.uuid.clone())?), card.is_capped)));
        let posts = posts.collect::<io::Result<Vec<_>>>()?;
        let file = StatusFile::create(&setup.status_file)?;
        Ok(Prepared {
            grant_id: setup.grant_id.clone(),
            state_dir: setup.state_dir.clone(),
            watch,
            epoch: Alarm::new()?,
            board: Arc::new(Board::new(file, setup.cards.iter().map(|card| card.uuid.clone()))),
            posts,
            priority: thread_priority::take(),
        })
    }

    /// Once they are given up.
    pub(super) fn new(prepared: Prepared) -> io::Result<Self> {
        let Prepared { grant_id, state_dir, watch, epoch, board, posts, priority } = prepared;
        let scheduled = |(post, is_capped)| {
            let is_without_windows = false;
            Scheduled { post, is_capped, is_without_windows, table: None, is_troubled: false, waiting: None }
        };
        let cards = posts.into_iter().map(scheduled).collect();
        let starter = priority.leave()?;
        Ok(Self { grant_id, state_dir, watch, epoch, cards, starter, board, limits: Vec::new() })
    }

    pub(super) fn wakers(&self) -> Wakers {
        Wakers(self.cards.iter().map(|card| Arc::clone(&card.post)).collect())
    }

    /// A card was found not to take the container off: time slices are what there is, from the start.
    pub(super) fn without_windows(&mut self, uuid: &str) {
        self.cards.iter_mut().filter(|card| card.post.uuid == uuid).for_each(|card| card.is_without_windows = true);
    }

    /// To be called before the first call of the container's: from here on its gates are as they should be.
    pub(super) fn start(&mut self, mediation: &Arc<Mediation>) -> io::Result<()> {
        let gates = mediation.session.gates();
        self.board.tell_container(Arc::clone(mediation) as _);
        for (index, card) in self.cards.iter_mut().enumerate() {
            let Some(gate) = gates.iter().find(|gate| gate.uuid() == card.post.uuid) else { continue };
            let place = Place {
                index,
                grant_id: self.grant_id.clone(),
                state_dir: self.state_dir.clone(),
                is_capped: card.is_capped,
                is_without_windows: card.is_without_windows,
            };
            let (of, uuid) = (Arc::clone(mediation), card.post.uuid.clone());
            let sight = Sight::new(std::process::id(), Box::new(move || of.session.switch_log(&uuid)));
            let told = (Arc::clone(&card.post), Arc::clone(&self.board));
            card.waiting = Some(Box::new(CardScheduler::new(place, Arc::clone(gate), sight, told, Monotonic)));
        }
        self.read(|_| true)?;
        self.apply(&mediation.session)
    }

    /// Readable when a card's timetable has been replaced.
    pub(super) fn watch(&self) -> &Inotify {
        &self.watch
    }

    /// Readable when an epoch begins.
    pub(super) fn epoch(&self) -> &TimerFd {
        self.epoch.fd()
    }

    /// A card's timetable has been replaced, maybe one of another's cards.
    pub(super) fn changed(&mut self, session: &Session) -> io::Result<()> {
        let events = match self.watch.read_events() {
            Ok(events) => events,
            Err(nix::Error::EAGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_replaced = |uuid: &str| {
            let file = timetable_name(uuid);
            // Without a name: events were lost.
            events.iter().any(|event| event.name.as_ref().is_none_or(|name| *name == *file))
        };
        if !self.cards.iter().any(|card| is_replaced(&card.post.uuid)) {
            return Ok(());
        }
        self.read(is_replaced)?;
        self.apply(session)
    }

    /// An epoch has begun.
    pub(super) fn epoch_began(&mut self, session: &Session) -> io::Result<()> {
        self.apply(session)
    }

    /// The container's first process has the driver open, or none has any more.
    pub(super) fn tell_presence(&self, has_processes: bool) {
        self.board.tell_presence(has_processes);
    }

    /// Reads the timetables of the cards that `is_new` names.
    fn read(&mut self, is_new: impl Fn(&str) -> bool) -> io::Result<()> {
        for card in self.cards.iter_mut().filter(|card| is_new(&card.post.uuid)) {
            match Ledger::card_timetable(&self.state_dir, &card.post.uuid) {
                Ok(table) => {
                    card.is_troubled = false;
                    card.table = Some(Arc::new(table));
                }
                // What was read last holds on.
                Err(error) if card.table.is_some() && !card.is_troubled => {
                    card.is_troubled = true;
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "the timetable cannot be read; what it said before holds on");
                }
                Err(_) => {}
            }
            // Also where there is nothing to schedule: it tells what the container achieves.
            let needs_thread = card.is_capped || card.table.as_ref().is_some_and(|table| !table.epochs.is_empty());
            if needs_thread && let Some(scheduler) = card.waiting.take() {
                self.starter.start(scheduler)?;
            }
            card.post.tell(card.table.clone());
        }
        Ok(())
    }

    /// Limits of memory, and shares of time, are those of the epochs that hold.
    fn apply(&mut self, session: &Session) -> io::Result<()> {
        let now_us = now_us();
        let (mut limits, mut next_us): (Vec<(String, Bytes)>, Option<u64>) = (Vec::new(), None);
        for card in &self.cards {
            let Some((holds, card_next_us)) = card.table.as_ref().map(|table| table.at(now_us)) else { continue };
            next_us = next_us.into_iter().chain(card_next_us).min();
            let turn = holds.and_then(|epoch| epoch.turn(&self.grant_id)?.card(&card.post.uuid));
            if let Some(card) = turn {
                session.set_share(&card.uuid, card.share_ppm);
            }
            let limited = turn.filter(|card| card.memory != CardTurn::NO_LIMIT);
            limits.extend(limited.map(|card| (card.uuid.clone(), card.memory.floor_to_kib())));
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
