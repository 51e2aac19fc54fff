//! Thread of one card of the container.
//!
//! Each step brings the card to where it should be now, and returns the instant of the next step.
//! While the container has no channels there is nothing to do: the gate stays as the first channel
//! is to find it.

mod card_state;
mod neighbours;
mod turns;

use std::{io, path::PathBuf, sync::Arc};

use driver::count_thread;
use runtime_config::config::PriorityMode;
use schedule::{
    Edge, EdgeError, Gate, MOST_WINDOW_LOSS_US, Timeline, Timetable,
    pacer::{Move, Next, Pacer},
    priority::FIRST_LOOK_US,
};

use self::turns::Agreement;
use super::{
    absence::Absence,
    alarm::Alarm,
    clock::Clock,
    edge_failure::{EdgeFailures, FailureAction, is_hopeless},
    edge_times::{EdgeTimes, Lost},
    last_second::LastSecond,
    mailbox::Mailbox,
    residency_view::ResidencyView,
    share_terms::ShareTerms,
    status_page::StatusPage,
    usage_sums::UsageSums,
    waiting::Waiting,
};

/// Attempts at the same edge in a row, and the pause between them.
const ATTEMPTS: u32 = 3;
const BETWEEN_US: u64 = 300;

/// The container's place on the card.
#[derive(Debug, Clone)]
pub(super) struct CardPlace {
    /// Index of the card in the container's order.
    pub(super) index: usize,
    pub(super) grant_id: String,
    /// Way in which it leaves the card to others, if its priority is low.
    pub(super) priority: PriorityMode,
    /// The directory that has the status files of neighbours.
    pub(super) state_dir: PathBuf,
    /// It does not run until it has a turn.
    pub(super) is_capped: bool,
    /// The card cannot take it off.
    pub(super) is_without_windows: bool,
}

impl CardPlace {
    /// Returns whether the gate is closed at the start.
    fn starts_closed(&self) -> bool {
        self.is_capped && !self.is_without_windows
    }

    /// Returns the windows that hold without a timetable.
    fn default_timeline(&self) -> Timeline {
        if self.starts_closed() { Timeline::never() } else { Timeline::always() }
    }
}

#[derive(Debug)]
pub(super) struct CardScheduler<C> {
    place: CardPlace,
    gate: Arc<dyn Gate>,
    mailbox: Arc<Mailbox>,
    status_page: Arc<StatusPage>,
    clock: C,
    table: Option<Arc<Timetable>>,
    terms: ShareTerms,
    pacer: Pacer,
    /// The next move, as long as it is not due.
    planned: Option<Next>,
    /// The container has channels.
    is_awake: bool,
    residency_view: ResidencyView,
    /// It gives way to others, which have work.
    is_yielding: bool,
    /// Time slices as wanted, and as set last.
    wanted_slice_us: Option<u64>,
    slice_us: Option<u64>,
    /// Refusals in a row of the slices of [`PriorityMode::Harvest`], and the instant until which
    /// priority is strict for that.
    refused_slices: u32,
    strict_until_us: u64,
    agreement: Agreement,
    /// Its groups take turns on the card; instant of the next turn.
    takes_turns: bool,
    turn_us: u64,
    /// Begin and end of the call that opened last.
    last_opening: (u64, u64),
    /// It had work in its last window.
    ran: Option<bool>,
    /// Instants of the next check of neighbours and the next publication.
    check_us: u64,
    publish_us: u64,
    usage_sums: UsageSums,
    edge_failures: EdgeFailures,
    /// Error after which the container cannot go on.
    fatal: Option<EdgeError>,
    edge_times: EdgeTimes,
    waiting: Waiting,
    switching: LastSecond,
}

impl<C: Clock> CardScheduler<C> {
    /// Creates the scheduler, and closes the gate if the container is capped and its card can close
    /// it.
    pub(super) fn new(
        place: CardPlace,
        gate: Arc<dyn Gate>,
        residency_view: ResidencyView,
        (mailbox, status_page): (Arc<Mailbox>, Arc<StatusPage>),
        clock: C,
    ) -> Self {
        let mut edge_failures = EdgeFailures::default();
        if place.is_without_windows {
            // The mediator has already reported it.
            edge_failures.start_degraded(clock.now_us());
        }
        let pacer = Pacer::new(place.default_timeline());
        if place.starts_closed() {
            // There are no channels, so no call is made that could fail.
            let _ = gate.close();
        }
        Self {
            place,
            gate,
            mailbox,
            status_page,
            clock,
            table: None,
            terms: ShareTerms::none(None),
            pacer,
            planned: None,
            is_awake: false,
            residency_view,
            is_yielding: false,
            wanted_slice_us: None,
            slice_us: None,
            refused_slices: 0,
            strict_until_us: 0,
            agreement: Agreement::default(),
            takes_turns: false,
            turn_us: 0,
            last_opening: (0, 0),
            ran: None,
            check_us: 0,
            publish_us: 0,
            usage_sums: UsageSums::default(),
            edge_failures,
            fatal: None,
            edge_times: EdgeTimes::default(),
            waiting: Waiting::default(),
            switching: LastSecond::default(),
        }
    }

    /// Schedules as long as the process lives.
    pub(super) fn run(mut self) -> io::Error {
        count_thread();
        let mailbox = Arc::clone(&self.mailbox);
        let sleep = |alarm: &Alarm, at_us| alarm.set(at_us).and_then(|()| alarm.sleep(&mailbox.waker));
        let alarm = match Alarm::new() {
            Ok(alarm) => alarm,
            Err(error) => return error,
        };
        loop {
            let at_us = self.step();
            if let Some(error) = self.fatal {
                return io::Error::other(error);
            }
            if let Err(error) = sleep(&alarm, at_us) {
                return error;
            }
        }
    }

    /// Takes the step that is due. Returns the instant of the next one; `None`: when it is woken.
    pub(super) fn step(&mut self) -> Option<u64> {
        let now_us = self.clock.now_us();
        if let Some(table) = self.mailbox.receive() {
            self.table = table;
            self.apply_timetable(now_us);
        } else if self.terms.until_us.is_some_and(|until| until <= now_us) {
            self.apply_timetable(now_us);
        }
        if self.gate.channels() == 0 {
            self.idle(now_us);
            return self.terms.until_us;
        }
        if !self.is_awake {
            self.is_awake = true;
            self.pacer.resume(now_us);
            self.usage_sums.set_open(now_us, Some(self.pacer.is_open()));
        }
        let mut wake_us = self.check_neighbours(now_us);
        wake_us = wake_us.min(self.terms.until_us.unwrap_or(u64::MAX));
        wake_us = wake_us.min(self.pace());
        wake_us = wake_us.min(self.look_at_waits());
        wake_us = wake_us.min(self.publish());
        Some(wake_us)
    }

    /// Applies another timetable, or another epoch of it.
    fn apply_timetable(&mut self, now_us: u64) {
        self.update_terms(now_us);
        self.check_us = 0;
        if !self.may_agree() {
            self.end_turns(now_us);
        }
        self.set_course(now_us);
    }

    fn update_terms(&mut self, now_us: u64) {
        let has_windows = !self.edge_failures.is_degraded();
        let terms =
            |table: &Timetable| ShareTerms::at(table, &self.place.grant_id, self.gate.uuid(), now_us, has_windows);
        self.terms = self.table.as_deref().map_or(ShareTerms::none(None), terms);
        self.residency_view.terms_changed();
    }

    fn set_course(&mut self, now_us: u64) {
        let default_timeline = self.place.default_timeline();
        let timeline = if self.edge_failures.is_degraded() {
            Timeline::always()
        } else if self.is_yielding {
            Timeline::never()
        } else {
            match &self.table {
                Some(_) if let Some(agreed) = &self.agreement.timeline => agreed.clone(),
                Some(table) => Timeline::of(table, &self.place.grant_id, self.gate.uuid(), &default_timeline),
                None => default_timeline,
            }
        };
        if timeline != *self.pacer.timeline() {
            self.pacer.follow(timeline, now_us);
            self.planned = None;
        }
    }

    /// Handles a card without channels: the gate is left as new ones are to find it, and no window
    /// is owed.
    fn idle(&mut self, now_us: u64) {
        if self.is_awake {
            self.is_awake = false;
            self.is_yielding = false;
            self.usage_sums.set_open(now_us, None);
            self.count();
            self.end_turns(now_us);
            self.set_course(now_us);
            self.waiting.rest(now_us);
        }
        self.pacer.rest(now_us);
        self.planned = None;
        // A channel may be made at this instant; then the next step, for which it wakes this
        // thread, sees the failure.
        let _ = if self.pacer.timeline().is_unlimited(now_us) { self.gate.open() } else { self.gate.close() };
        self.set_slices(now_us);
        let mut status = self.status(now_us, [None; 2]);
        status.utilization_ppm = self.report_measured(now_us).utilization_ppm;
        self.status_page.publish(self.place.index, status, None);
    }

    /// Makes the moves that are due. Returns the instant of the next one.
    fn pace(&mut self) -> u64 {
        loop {
            let now_us = self.clock.now_us();
            self.pacer.owe(self.gate.take_overrun_us());
            self.pacer.expect(self.gate.calls());
            let Some(next) = self.pacer.next(now_us) else { return u64::MAX };
            let planned = self.planned.filter(|planned| planned.what == next.what && planned.at_us <= now_us);
            if next.at_us > now_us {
                if let Some(missed) = planned {
                    self.edge_times.began(now_us - missed.at_us);
                }
                self.planned = Some(next);
                return next.at_us;
            }
            self.planned = None;
            self.make_move(next.what, planned.map_or(now_us, |planned| planned.at_us), now_us);
        }
    }

    fn make_move(&mut self, what: Move, planned_us: u64, now_us: u64) {
        self.edge_times.edges += 1;
        self.edge_times.began(now_us.saturating_sub(planned_us));
        let result = self.attempt_move(what);
        let ended_us = self.clock.now_us();
        match result {
            Ok(Edge { calls, .. }) => {
                self.edge_failures.succeeded();
                self.edge_times.ended(calls, ended_us.saturating_sub(now_us));
                match what {
                    Move::Open => self.opened(calls, planned_us, (now_us, ended_us)),
                    Move::Close => self.closed(calls, planned_us, (now_us, ended_us)),
                }
            }
            Err(error) => match self.edge_failures.failed(what, &error, ended_us, self.terms.period_us) {
                FailureAction::Retry => self.pacer.failed(ended_us + self.terms.period_us / 4),
                FailureAction::Degrade => self.degrade(error, ended_us),
            },
        }
    }

    fn opened(&mut self, calls: usize, planned_us: u64, call: (u64, u64)) {
        self.last_opening = call;
        self.residency_view.channels_opened();
        self.pacer.moved_in(calls, Move::Open, planned_us, call);
        self.usage_sums.set_open(self.pacer.on_since_us().unwrap_or(call.1), Some(true));
        self.note_edge(call.1, true);
        if self.terms.gives_way() && !self.harvests() {
            // A neighbour that goes before it comes now, or has no work.
            self.check_us = self.check_us.min(call.1 + FIRST_LOOK_US);
        }
    }

    fn closed(&mut self, calls: usize, planned_us: u64, call: (u64, u64)) {
        let effects = self.residency_view.edge_effects(self.last_opening, call);
        let counted_us = self.pacer.on_since_us();
        if let Some(opened_us) = effects.opened_us {
            self.pacer.correct_opening(opened_us);
        }
        let closed_us = effects.closed_us.unwrap_or(call.1);
        let since_us = self.pacer.on_since_us();
        let late_us = since_us.zip(counted_us).map_or(0, |(since_us, counted_us)| since_us.saturating_sub(counted_us));
        let others_us = late_us + since_us.map_or(0, |since_us| self.tell_absences(since_us, closed_us));
        self.usage_sums.others_had(others_us);
        self.pacer.moved_in(calls, Move::Close, planned_us, (call.0, closed_us));
        self.usage_sums.set_open(closed_us, Some(false));
        self.note_edge(closed_us, false);
        self.ran = effects.ran;
        self.count();
        if let Some(lost) = self.edge_times.window_ended(call.1, self.pacer.lost_us(), self.terms.share_ppm) {
            self.log_lost(lost);
        }
        // A period is complete.
        self.publish_us = 0;
    }

    /// Tells the pacer for how long others had the card in a window of its own. Returns that.
    fn tell_absences(&mut self, from_us: u64, until_us: u64) -> u64 {
        if !self.terms.others.is_empty() {
            return 0;
        }
        let absences = self.residency_view.absences(from_us, until_us);
        let mut is_apart =
            |process| self.residency_view.is_apart(process, until_us, &self.place.state_dir, &self.terms.apart);
        let (neighbours, outside): (Vec<_>, Vec<_>) =
            absences.into_iter().partition(|absence| absence.process.is_some_and(&mut is_apart));
        let sum_us = |of: &[Absence]| of.iter().map(Absence::length_us).sum::<u64>();
        let mut others_us = sum_us(&outside);
        self.edge_times.outside_had(others_us);
        outside.iter().for_each(|absence| self.pacer.shared((absence.from_us, absence.until_us), false));
        // Where one takes over from another, both are there for a moment.
        if sum_us(&neighbours) > MOST_WINDOW_LOSS_US {
            others_us += sum_us(&neighbours);
            neighbours.iter().for_each(|absence| self.pacer.shared((absence.from_us, absence.until_us), true));
        }
        others_us
    }

    fn log_lost(&self, lost: Lost) {
        let (ms, causes) = (lost.lost_us / 1_000, lost.causes());
        tracing::warn!("{ms} ms of its turns on {} were lost in a second: {causes}", self.gate.uuid());
    }

    /// Makes a move, with a few attempts.
    fn attempt_move(&mut self, what: Move) -> Result<Edge, EdgeError> {
        let mut attempt = 1;
        loop {
            let result = match what {
                Move::Open => self.gate.open(),
                Move::Close => self.gate.close(),
            };
            match result {
                Ok(edge) => return Ok(edge),
                Err(error) => {
                    self.edge_failures.failures += 1;
                    if attempt == ATTEMPTS || is_hopeless(&error) {
                        return Err(error);
                    }
                }
            }
            attempt += 1;
            self.clock.pause_us(BETWEEN_US);
        }
    }

    /// Falls back to time slices: the card cannot take channels off.
    fn degrade(&mut self, error: EdgeError, now_us: u64) {
        // Channels that are off are put back, if that can be done.
        let is_back = self.attempt_move(Move::Open).is_ok();
        if self.edge_failures.degrade(&error, is_back, now_us) {
            let (error, card): (&dyn std::error::Error, _) = (&error, self.gate.uuid());
            if is_back {
                tracing::warn!(
                    error,
                    card,
                    "the card cannot take the container off: its share of time is a weight from now on"
                );
            } else {
                tracing::warn!(error, card, "the card does not put the container back; retrying each second");
            }
        }
        self.update_terms(now_us);
        self.set_course(now_us);
        self.pacer.rest(now_us);
        self.pacer.moved(Move::Open, now_us, now_us);
        self.usage_sums.set_open(now_us, Some(is_back));
        self.note_edge(now_us, is_back);
        (self.check_us, self.publish_us) = (0, 0);
        if self.edge_failures.is_fatal(&error, now_us) {
            self.fatal = Some(error);
        }
    }

    fn retry_hard_caps(&mut self) {
        // Channels that are off are put back even if none is taken off any more.
        let moves = [Move::Open, Move::Close, Move::Open];
        let tried = moves.into_iter().try_for_each(|what| self.attempt_move(what).map(drop));
        let now_us = self.clock.now_us();
        match tried {
            Ok(()) => {
                if self.edge_failures.recover() {
                    tracing::warn!(
                        card = self.gate.uuid(),
                        "the card takes the container off again: its share of time is exact"
                    );
                }
                self.update_terms(now_us);
                self.set_course(now_us);
            }
            Err(error) => self.degrade(error, now_us),
        }
    }
}

#[cfg(test)]
mod tests;
