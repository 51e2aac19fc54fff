//! Keeps one container to its spans of time on one card: when to put its channels on the card and
//! when to take them off.
//!
//! Pure: it is given the time. Its caller asks what comes [`next`](Pacer::next), does that at
//! the instant named, and says how it went ([`moved`](Pacer::moved), [`failed`](Pacer::failed)).
//!
//! What counts is the time during which the channels are on the card. A call that puts them there
//! or takes them off takes effect some time after it began (its caller says when), and is
//! therefore issued ahead by what that took of late ([`Lead`]): for each call to the driver that
//! it takes, so that channels come to be many ahead of the edge and not with it. What a span came
//! out too long by is taken off the next ones (the balance), however long that takes; what it came
//! out too short by is made up only where nobody else has the card, now or after the next spans: a
//! neighbour is never made to pay for the lateness of the host. Where a call waits in the driver
//! between two neighbours, though, the one has what the other does not get: the one ends that much
//! earlier the next time, and the other begins that much earlier (what is due). Time that others
//! had the card though the channels were on it does not count as the container's
//! ([`shared`](Pacer::shared)). All that is carried on is bounded, so that nobody has much more
//! than his share in any second; what is beyond that is lost.

use super::{Calls, Span, Timeline};

/// A rest of a span that is shorter is not worth its two edges.
const LEAST_US: u64 = 1_000;
/// Longest credit of a span with little free time after it.
const LEAST_CREDIT_US: u64 = 2_000;
/// Time before a neighbour's span, or the own next one, by which what is made up is over: the
/// closing call may take that.
const CLOSING_MARGIN_US: u64 = 2_000;
/// Time between the calls of two neighbours. The next one is put on the card before the other one
/// is taken off: the driver makes one call at a time, and the call that closes is to find the one
/// that opens done. The card stays with the other one until then, and goes from one to the other
/// without a pause. What lies between the two calls, beside what closing takes:
const BETWEEN_CALLS_US: u64 = 60;
/// The most that both are apart: what is taken over early is not counted. Where compute takes
/// several calls, the most that the first of them is ahead, and what is on the card from then on
/// counts.
const MOST_TAKEOVER_US: u64 = 1_500;
/// Most that a window is taken to lose: more than that is no matter of opening and closing.
pub const MOST_WINDOW_LOSS_US: u64 = 2_000;
/// The most that is ever taken off later spans: as much as ten periods of the default length.
const MOST_DEBT_US: i64 = 1_000_000;
/// Longest deficit that is carried on to be made up: one period of the default length.
const MOST_CARRY_US: i64 = 100_000;
/// Most spans that are settled one by one: beyond them the debt is at its limit.
const MOST_PASSED: usize = 1_000;

/// Puts a container's channels on a card, or takes them off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// On the card.
    Open,
    /// Off.
    Close,
}

/// Next action, and the time for its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// The action.
    pub what: Move,
    /// `CLOCK_MONOTONIC`, microseconds; not before the instant at which it was asked for.
    pub at_us: u64,
}

#[derive(Debug, Clone)]
pub struct Pacer {
    timeline: Timeline,
    /// The span that is open, and its start.
    open: Option<Current>,
    /// The next span, as it was planned, and how much earlier it is to begin.
    planned: Option<(Span, u64)>,
    /// Whatever began before begins here: before it, the container had no channels.
    since_us: u64,
    /// Spans that end by then are accounted for.
    settled_us: u64,
    /// Surplus (positive) or deficit of its spans.
    balance_us: i64,
    /// Time of its spans that the neighbour had from whom it takes over, as calls waited in the
    /// driver: it begins that much earlier the next time, and the neighbour pays as much back.
    due_us: u64,
    /// Time of its spans that it did not get, and will not.
    lost_us: u64,
    /// No move before that.
    not_before_us: u64,
    opening: Lead,
    closing: Lead,
    /// Number of driver calls of an edge.
    calls: Calls,
    losses: Losses,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    span: Span,
    /// Time before it that is its own, too: its neighbour pays back.
    early_us: u64,
    opened_us: u64,
    /// Time of it that the neighbour before had.
    left_us: u64,
    others: Others,
    /// Compute took several calls: some channels were on the card long before the last ones.
    is_in_parts: bool,
}

/// Time for which others had the card though the channels were on it: before the span, until what
/// is free after it ends, and then.
#[derive(Debug, Clone, Copy, Default)]
struct Others {
    before_us: u64,
    within_us: u64,
    after_us: u64,
}

impl Current {
    /// Since when the time on the card counts: who takes over does not have the card before the
    /// other one leaves.
    fn counted_from_us(&self) -> u64 {
        let start_us = if self.span.takes_over() && !self.is_in_parts { self.span.start_us } else { 0 };
        self.opened_us.max(start_us.saturating_sub(self.early_us))
    }

    /// Time before the span that is paid back to it.
    fn before_us(&self) -> u64 {
        self.span.start_us.saturating_sub(self.counted_from_us()).min(self.early_us)
    }
}

impl Pacer {
    /// Pacer of a card on which the container's channels are off.
    pub fn new(timeline: Timeline) -> Self {
        Self {
            timeline,
            open: None,
            planned: None,
            since_us: 0,
            settled_us: 0,
            balance_us: 0,
            due_us: 0,
            lost_us: 0,
            not_before_us: 0,
            opening: Lead::new(1, 2, 0),
            // One that had to wait for a neighbour's call is no rule. What was closed late is taken
            // off the next time.
            closing: Lead::new(1, 4, 500),
            calls: Calls::default(),
            losses: Losses::new(),
        }
    }

    /// Follows another timeline from now on.
    pub fn follow(&mut self, timeline: Timeline, now_us: u64) {
        if let Some(open) = &mut self.open {
            let span = timeline.span(now_us).filter(|span| span.start_us <= now_us);
            // What was open in another span than the course says now is over.
            let (end_us, free_after_us) = span.map_or((now_us, 0), |span| (span.end_us, span.free_after_us));
            open.span.end_us = end_us.max(open.span.start_us);
            open.span.free_after_us = free_after_us;
        }
        self.timeline = timeline;
        self.forget_deficit();
    }

    /// Timeline that it follows.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns whether the channels are on the card.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Since when the time on the card counts; `None`: the channels are off. May be a moment ahead:
    /// see [`Span::takes_over`].
    pub fn on_since_us(&self) -> Option<u64> {
        self.open.map(|open| open.counted_from_us())
    }

    /// Time that it had beyond its spans and has not paid back. For tests and views.
    pub fn balance_us(&self) -> i64 {
        self.balance_us
    }

    /// Time of its spans that it did not get, and will not, in all.
    pub fn lost_us(&self) -> u64 {
        self.lost_us
    }

    /// Mean loss of its recent spans, in microseconds; `None`: too few are known.
    pub fn window_loss_us(&self) -> Option<u64> {
        self.losses.mean_us()
    }

    /// Sets the number of driver calls that an edge takes from now on.
    pub fn expect(&mut self, calls: Calls) {
        let all = calls.all.max(1);
        self.calls = Calls { all, compute: calls.compute.clamp(1, all) };
    }

    /// Next step and its instant; `None`: nothing before the timeline changes.
    pub fn next(&mut self, now_us: u64) -> Option<Next> {
        let earliest_us = now_us.max(self.not_before_us);
        match self.open {
            Some(open) => {
                let end_us = self.end(&open)?;
                let at_us = end_us.saturating_sub(self.closing.of(self.calls.compute)).max(earliest_us);
                Some(Next { what: Move::Close, at_us })
            }
            None => {
                let span = self.upcoming(earliest_us)?;
                let early_us = self.due_us.min(span.taken_from_us);
                self.planned = Some((span, early_us));
                // The neighbour's call to close takes what the own ones do, as far as can be known.
                let takeover_us = if span.takes_over() { self.closing.of(1) + BETWEEN_CALLS_US } else { 0 };
                let takeover_us = takeover_us.min(MOST_TAKEOVER_US);
                let Calls { all, compute } = self.calls;
                // Compute comes last.
                let mut compute_us = self.opening.of(compute) + takeover_us;
                if compute > 1 && span.takes_over() {
                    compute_us = compute_us.min(MOST_TAKEOVER_US);
                }
                let ahead_us = self.opening.of(all - compute) + compute_us + early_us;
                let at_us = span.start_us.saturating_sub(ahead_us).max(earliest_us);
                Some(Next { what: Move::Open, at_us })
            }
        }
    }

    /// Instant at which the channels are to be off.
    fn end(&self, open: &Current) -> Option<u64> {
        let (span, from_us) = (open.span, open.counted_from_us() + open.before_us());
        if span.end_us == u64::MAX {
            return None;
        }
        let length = signed(span.length_us());
        let wanted = u64::try_from(length.saturating_sub(self.balance_us)).unwrap_or(0);
        Some(from_us.saturating_add(wanted).min(span.end_us + credit(&span)))
    }

    /// The next span that is worth opening; those before it are accounted for.
    fn upcoming(&mut self, now_us: u64) -> Option<Span> {
        loop {
            let mut span = self.timeline.span(now_us.max(self.settled_us))?;
            span.start_us = span.start_us.max(self.since_us);
            if span.end_us == u64::MAX {
                self.forget_deficit();
                self.balance_us = 0;
                return Some(span);
            }
            let length = signed(span.length_us());
            let is_over = now_us + self.opening.of(self.calls.all) + LEAST_US > span.end_us;
            let is_paid = length.saturating_sub(self.balance_us) < LEAST_US.cast_signed();
            if !is_over && !is_paid {
                return Some(span);
            }
            self.settle(&span, 0, 0, 0);
        }
    }

    /// Records a move: planned for one instant, it took effect at another, by its end if nobody
    /// knows better.
    pub fn moved(&mut self, what: Move, planned_us: u64, effect_us: u64) {
        self.moved_in(1, what, planned_us, (planned_us, effect_us));
    }

    /// Records a move that took some calls to the driver, the first of which began at one instant,
    /// and the last of which took effect at another.
    pub fn moved_in(&mut self, calls: usize, what: Move, planned_us: u64, (began_us, effect_us): (u64, u64)) {
        self.not_before_us = 0;
        let took_us = effect_us.saturating_sub(planned_us);
        match what {
            Move::Open => {
                let usual_us = self.opening.of(calls);
                self.opening.learn(took_us, calls);
                // Nobody planned it: unless it is time, it is to end at once.
                let unplanned = Span { start_us: effect_us, end_us: effect_us, free_after_us: 0, taken_from_us: 0 };
                let now = || self.timeline.span(effect_us).filter(|span| span.start_us <= effect_us);
                let (mut span, early_us) = self.planned.take().unwrap_or_else(|| (now().unwrap_or(unplanned), 0));
                if span.end_us == u64::MAX {
                    // Nobody is owed any of it before it has begun.
                    span.start_us = effect_us;
                }
                // When the first call for compute was done, as far as can be known.
                let compute = self.calls.compute.min(calls.max(1));
                let parts_us = effect_us.saturating_sub(began_us) / divisor(calls) * (divisor(compute) - 1);
                let (opened_us, is_in_parts) = (effect_us.saturating_sub(parts_us), compute > 1);
                let mut left_us = 0;
                if span.takes_over() {
                    let waited_us = effect_us.saturating_sub(began_us).saturating_sub(usual_us);
                    let waited_us = waited_us.min(opened_us.saturating_sub(span.start_us));
                    // Less is no matter of what others hold.
                    left_us = Some(waited_us).filter(|waited_us| *waited_us > MOST_WINDOW_LOSS_US).unwrap_or(0);
                }
                let others = Others::default();
                self.open = Some(Current { span, early_us, opened_us, left_us, others, is_in_parts });
            }
            Move::Close => {
                // By the card's log, it is over when compute has gone, which goes first.
                self.closing.learn(took_us, calls.min(self.calls.compute));
                if let Some(open) = self.open.take() {
                    self.losses.learn(open.span.length_us(), effect_us.saturating_sub(open.counted_from_us()));
                    self.close(&open, effect_us);
                    self.settle_passed(effect_us);
                }
            }
        }
    }

    /// Corrects the instant at which the open channels came onto the card.
    pub fn correct_opening(&mut self, opened_us: u64) {
        if let Some(open) = &mut self.open {
            open.opened_us = opened_us;
        }
    }

    /// Notes a time for which others had the card, though the channels of the open span were there:
    /// programs outside, or a neighbour that is not off yet, or on already.
    pub fn shared(&mut self, (from_us, until_us): (u64, u64), is_neighbours: bool) {
        let Some(open) = &mut self.open else { return };
        let Span { start_us, end_us, free_after_us, .. } = open.span;
        let from_us = from_us.max(open.counted_from_us());
        let free_until_us = end_us.saturating_add(free_after_us);
        let within = |least_us: u64, most_us: u64| until_us.min(most_us).saturating_sub(from_us.max(least_us));
        let within_us = within(start_us, free_until_us);
        open.others.before_us += within(0, start_us);
        open.others.within_us += within_us;
        open.others.after_us += within(free_until_us, u64::MAX);
        // Whoever comes next may come early, but not that early.
        if is_neighbours && open.span.takes_over() && from_us < start_us + open.span.length_us() / 2 {
            open.left_us += within_us;
        }
    }

    /// Adds time for which it had the card while its channels were to be off.
    pub fn owe(&mut self, us: u64) {
        if us == 0 {
            return;
        }
        // It was not there for what its spans came out too short by.
        self.forget_deficit();
        self.balance_us = self.balance_us.saturating_add(signed(us)).min(MOST_DEBT_US);
    }

    /// Records that a move failed, which is not to be tried again before an instant. A container
    /// whose channels could not be taken off counts as running on.
    pub fn failed(&mut self, not_before_us: u64) {
        self.not_before_us = not_before_us;
    }

    /// Suspends it while the container has no channels and the card's gate is closed: nothing is
    /// owed for that time.
    pub fn rest(&mut self, now_us: u64) {
        self.planned = None;
        if let Some(open) = self.open.take() {
            let end_us = now_us.clamp(open.span.start_us, open.span.end_us);
            let span = Span { end_us, free_after_us: 0, ..open.span };
            self.close(&Current { span, ..open }, now_us);
            self.settle_passed(now_us);
        }
        self.forget_deficit();
    }

    /// Resumes, as the container has channels again.
    pub fn resume(&mut self, now_us: u64) {
        self.since_us = now_us;
        self.forget_deficit();
    }

    /// Drops what its spans came out too short by: it is not made up.
    fn forget_deficit(&mut self) {
        self.lost_us = self.lost_us.saturating_add(self.balance_us.min(0).unsigned_abs());
        self.balance_us = self.balance_us.max(0);
        self.lost_us = self.lost_us.saturating_add(std::mem::take(&mut self.due_us));
    }

    /// Accounts for the open span, which ends.
    fn close(&mut self, open: &Current, closed_us: u64) {
        let Current { span, left_us, others, .. } = *open;
        let on_us = closed_us.saturating_sub(open.counted_from_us());
        // What comes after it is somebody else's.
        let left_us = left_us.min(span.length_us());
        let before_us = open.before_us().min(on_us);
        let due_us = (self.due_us + left_us).saturating_sub(before_us.saturating_sub(others.before_us));
        self.due_us = due_us.min(MOST_CARRY_US.unsigned_abs());
        self.lost_us = self.lost_us.saturating_add(due_us - self.due_us);
        let on_us = on_us.saturating_sub(before_us + others.within_us + others.after_us);
        self.settle(&span, on_us, left_us, closed_us.saturating_sub(others.after_us));
    }

    /// Settles the spans that passed while an earlier one was left open: their use was that one's
    /// own.
    fn settle_passed(&mut self, now_us: u64) {
        for _ in 0..MOST_PASSED {
            match self.timeline.span(self.settled_us) {
                Some(span) if span.end_us <= now_us => self.settle(&span, 0, 0, 0),
                _ => break,
            }
        }
    }

    /// Accounts for a span: how long the channels were on the card for it, how long the neighbour
    /// before, and when they were off.
    fn settle(&mut self, span: &Span, on_us: u64, left_us: u64, closed_us: u64) {
        // What was off the card until after the span took no more of anybody's time than it was on.
        let free_until_us = span.end_us.saturating_add(span.free_after_us);
        let overlap = signed(closed_us.saturating_sub(free_until_us).min(on_us));
        let had = signed(on_us.saturating_add(left_us));
        let balance = self.balance_us.saturating_add(had).saturating_sub(signed(span.length_us()));
        let is_made_up = overlap == 0 && credit(span) > 0;
        let least = if is_made_up { -MOST_CARRY_US } else { overlap };
        self.lost_us = self.lost_us.saturating_add(least.saturating_sub(balance).try_into().unwrap_or(0));
        self.balance_us = balance.max(least).min(MOST_DEBT_US);
        self.settled_us = self.settled_us.max(span.end_us);
    }
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

/// Microseconds by which a span may be longer than planned.
fn credit(span: &Span) -> u64 {
    let free_us = span.free_after_us;
    free_us.saturating_sub(CLOSING_MARGIN_US).max((free_us / 2).min(LEAST_CREDIT_US))
}

/// Time by which spans came out too short. Those that were too long count, too, and those that make
/// up for them.
#[derive(Debug, Clone)]
struct Losses {
    us: [i64; Self::KEPT],
    known: usize,
    next: usize,
}

impl Losses {
    /// Some seconds of the default period.
    const KEPT: usize = 64;

    const fn new() -> Self {
        Self { us: [0; Self::KEPT], known: 0, next: 0 }
    }

    fn learn(&mut self, length_us: u64, on_us: u64) {
        let most = signed(MOST_WINDOW_LOSS_US);
        if let Some(slot) = self.us.get_mut(self.next) {
            *slot = signed(length_us).saturating_sub(signed(on_us)).clamp(-most, most);
        }
        self.next = (self.next + 1) % Self::KEPT;
        self.known = (self.known + 1).min(Self::KEPT);
    }

    fn mean_us(&self) -> Option<u64> {
        let mean_us = self.us.iter().sum::<i64>() / i64::try_from(Self::KEPT).unwrap_or(i64::MAX);
        (self.known == Self::KEPT).then(|| u64::try_from(mean_us).unwrap_or(0))
    }
}

fn divisor(calls: usize) -> u64 {
    u64::try_from(calls).unwrap_or(u64::MAX).max(1)
}

/// Lead with which a call is issued: what such calls took of late. Of edges that take several, one
/// of them.
#[derive(Debug, Clone)]
struct Lead {
    took_us: [u64; Self::KEPT],
    known: usize,
    next: usize,
    /// The one that counts, as a part of all.
    quantile: (usize, usize),
    at_first_us: u64,
}

impl Lead {
    const KEPT: usize = 16;
    /// Hundreds of channels take that long. Whatever takes longer is no matter of the call's.
    const MOST_US: u64 = 8_000;

    fn new(numerator: usize, denominator: usize, at_first_us: u64) -> Self {
        Self { took_us: [0; Self::KEPT], known: 0, next: 0, quantile: (numerator, denominator), at_first_us }
    }

    fn learn(&mut self, took_us: u64, calls: usize) {
        // Nothing was asked of the driver, which says nothing of how long that takes.
        if calls == 0 {
            return;
        }
        if let Some(slot) = self.took_us.get_mut(self.next) {
            *slot = (took_us / divisor(calls)).min(Self::MOST_US);
        }
        self.next = (self.next + 1) % Self::KEPT;
        self.known = (self.known + 1).min(Self::KEPT);
    }

    /// Lead time for an edge of `calls` calls.
    fn of(&self, calls: usize) -> u64 {
        self.get().saturating_mul(u64::try_from(calls).unwrap_or(u64::MAX)).min(Self::MOST_US)
    }

    fn get(&self) -> u64 {
        let mut known = self.took_us;
        let known = known.get_mut(..self.known).unwrap_or_default();
        known.sort_unstable();
        let (numerator, denominator) = self.quantile;
        known.get(known.len() * numerator / denominator).copied().unwrap_or(self.at_first_us)
    }
}

#[cfg(test)]
mod tests;
