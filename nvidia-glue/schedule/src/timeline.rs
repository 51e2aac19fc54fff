//! Turns of one container on one card, by the timetable: spans of time on the one clock.

use super::{Pass, Timetable, Window, round_robin::RoundRobin};

/// Spans in which a container runs on a card, from now on as far as the timetable goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// One after the other, without a gap between; the last one has no end.
    legs: Vec<Leg>,
}

/// Rule that holds for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leg {
    from_us: u64,
    rule: Rule,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Always,
    Never,
    /// Disjoint parts of a period, in order, none touching another; the last one may end in the
    /// period after.
    Windows {
        period_us: u64,
        windows: Vec<Span>,
    },
}

/// Time in which a container runs, as long as it can be: before it and after it, it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start_us: u64,
    /// End; `u64::MAX`: never.
    pub end_us: u64,
    /// Time after it for which nobody else has the card.
    pub free_after_us: u64,
    /// Length of somebody else's time that ends where it begins; 0: nobody's does.
    pub taken_from_us: u64,
}

impl Span {
    /// Length of the span.
    pub fn length_us(&self) -> u64 {
        self.end_us.saturating_sub(self.start_us)
    }

    /// Returns whether somebody else's time ends where it begins.
    pub fn takes_over(&self) -> bool {
        self.taken_from_us > 0
    }
}

impl Timeline {
    /// Timeline of a container that always runs.
    pub fn always() -> Self {
        Self { legs: vec![Leg { from_us: 0, rule: Rule::Always }] }
    }

    /// Timeline of a container that never runs.
    pub fn never() -> Self {
        Self { legs: vec![Leg { from_us: 0, rule: Rule::Never }] }
    }

    /// Timeline of a grant on a card, from a timetable. `before`: the one in force before its first
    /// epoch.
    pub fn of(table: &Timetable, grant_id: &str, uuid: &str, before: &Self) -> Self {
        let mut legs = before.legs.clone();
        for epoch in &table.epochs {
            legs.retain(|leg| leg.from_us < epoch.from_us);
            let turn = epoch.turn(grant_id);
            let rule = match turn.and_then(|turn| Some((turn.period_us, &turn.card(uuid)?.pass))) {
                None => Rule::Never,
                Some((_, Pass::Free | Pass::Weight(_) | Pass::Turns(_))) => Rule::Always,
                Some((period_us, Pass::Windows(windows))) => {
                    let others = epoch.turns.iter().filter(|turn| turn.grant_id != grant_id);
                    let others = others.filter_map(|turn| Some((turn.period_us, &turn.card(uuid)?.pass)));
                    Rule::windows(period_us, windows, &others.collect::<Vec<_>>())
                }
            };
            legs.push(Leg { from_us: epoch.from_us, rule });
        }
        Self { legs }
    }

    /// Timeline of a grant that takes turns as of a plan, from the instant on at which that holds.
    /// `before`: the one in force until then.
    pub fn of_turns(plan: &RoundRobin, grant_id: &str, before: &Self, now_us: u64) -> Self {
        let holds = before.legs.iter().rposition(|leg| leg.from_us <= now_us).unwrap_or_default();
        let mut legs: Vec<Leg> = before.legs.get(holds..).unwrap_or_default().to_vec();
        legs.retain(|leg| leg.from_us < plan.from_us);
        let (period_us, passes) = (plan.cycle_us(), plan.passes());
        let of = |is_own: bool| passes.iter().filter(move |(member, _)| (*member == grant_id) == is_own);
        let rule = match of(true).next() {
            Some((_, Pass::Windows(windows))) => {
                let others: Vec<(u64, &Pass)> = of(false).map(|(_, pass)| (period_us, pass)).collect();
                Rule::windows(period_us, windows, &others)
            }
            _ => Rule::Always,
        };
        legs.push(Leg { from_us: plan.from_us, rule });
        Self { legs }
    }

    /// The first span that ends after an instant; it may have begun before.
    pub fn span(&self, after_us: u64) -> Option<Span> {
        let mut found: Option<Span> = None;
        for (index, leg) in self.legs.iter().enumerate() {
            let until_us = self.legs.get(index + 1).map_or(u64::MAX, |next| next.from_us);
            if until_us <= after_us {
                continue;
            }
            match &mut found {
                None => found = leg.rule.span(after_us, leg.from_us, until_us),
                // What goes on in the next leg is one.
                Some(span) if span.end_us == leg.from_us => match leg.rule.span(leg.from_us, leg.from_us, until_us) {
                    Some(more) if more.start_us == leg.from_us => {
                        *span = Span { start_us: span.start_us, taken_from_us: span.taken_from_us, ..more };
                    }
                    _ => break,
                },
                Some(_) => break,
            }
        }
        found
    }

    /// Returns whether it runs from an instant on without an end.
    pub fn is_unlimited(&self, now_us: u64) -> bool {
        self.span(now_us).is_some_and(|span| span.start_us <= now_us && span.end_us == u64::MAX)
    }
}

impl Rule {
    /// `others`: the periods and passes of those who share the card.
    fn windows(period_us: u64, windows: &[Window], others: &[(u64, &Pass)]) -> Self {
        let mut own: Vec<(u64, u64)> = Vec::new();
        let mut sorted: Vec<(u64, u64)> =
            windows.iter().map(|window| (window.start_us, window.end_us.min(period_us))).collect();
        sorted.sort_unstable();
        for (start, end) in sorted.into_iter().filter(|(start, end)| start < end) {
            match own.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => own.push((start, end)),
            }
        }
        // What ends with the period and what begins with it are one.
        if let [first, .., last] = own.as_slice()
            && first.0 == 0
            && last.1 == period_us
        {
            let (first, last) = (*first, *last);
            own.remove(0);
            own.pop();
            own.push((last.0, period_us + first.1));
        }
        match own.as_slice() {
            [] => Self::Never,
            // An empty period has no windows: all end at 0.
            [(0, end)] if *end == period_us => Self::Always,
            _ => {
                let free = free_after(period_us, &own, others);
                let span = |(&(start_us, end_us), free_after_us): (&(u64, u64), u64)| {
                    let taken_from_us = taken_from(period_us, start_us, others);
                    Span { start_us, end_us, free_after_us, taken_from_us }
                };
                Self::Windows { period_us, windows: own.iter().zip(free).map(span).collect() }
            }
        }
    }

    /// The first span within `[from_us, until_us)` that ends after an instant.
    fn span(&self, after_us: u64, from_us: u64, until_us: u64) -> Option<Span> {
        let whole = |span: &Span| {
            let end_us = span.end_us.min(until_us);
            // Somebody else may begin where the rule ends.
            let free_after_us = if end_us == span.end_us { span.free_after_us.min(until_us - end_us) } else { 0 };
            let start_us = span.start_us.max(from_us);
            let taken_from_us = if start_us == span.start_us { span.taken_from_us } else { 0 };
            Span { start_us, end_us, free_after_us, taken_from_us }
        };
        let is_it = |span: &Span| span.start_us < span.end_us && span.end_us > after_us;
        match self {
            Self::Never => None,
            Self::Always => {
                Some(whole(&Span { start_us: from_us, end_us: u64::MAX, free_after_us: 0, taken_from_us: 0 }))
                    .filter(is_it)
            }
            Self::Windows { period_us, windows } => {
                let number = after_us.max(from_us) / period_us;
                // A window may have begun in the period before.
                (number.saturating_sub(1)..=number.saturating_add(1)).find_map(|number| {
                    let base = number.saturating_mul(*period_us);
                    let at = |window: &Span| Span {
                        start_us: base.saturating_add(window.start_us),
                        end_us: base.saturating_add(window.end_us),
                        ..*window
                    };
                    windows.iter().map(|window| whole(&at(window))).find(is_it)
                })
            }
        }
    }
}

/// Time after each of a container's windows for which nobody has the card.
fn free_after(period_us: u64, own: &[(u64, u64)], others: &[(u64, &Pass)]) -> Vec<u64> {
    let mut starts: Vec<u64> = own.iter().map(|(start, _)| *start).collect();
    for (period, pass) in others {
        match pass {
            Pass::Windows(windows) if *period == period_us => {
                starts.extend(windows.iter().map(|window| window.start_us));
            }
            // Whatever it does, it is not known when.
            _ => return vec![0; own.len()],
        }
    }
    let gap = |end: u64, start: u64| (start % period_us + 2 * period_us - end) % period_us;
    own.iter().map(|(_, end)| starts.iter().map(|start| gap(*end, *start)).min().unwrap_or(0)).collect()
}

/// Windows are whole microseconds, and what that leaves of a period is nobody's: a window that ends
/// so little before another begins ends where it begins. Else who comes first in a period that is
/// full would be put on the card as if it were free, which the neighbour's call holds up.
const NOTHING_US: u64 = 100;

/// Length of another's window that ends where one begins; 0: none does.
fn taken_from(period_us: u64, start_us: u64, others: &[(u64, &Pass)]) -> u64 {
    let gap_us = |window: &Window| (start_us % period_us + period_us - window.end_us % period_us) % period_us;
    let ends = |window: &Window| gap_us(window) <= NOTHING_US;
    let of = |(period, pass): &(u64, &Pass)| match pass {
        Pass::Windows(windows) if *period == period_us => windows
            .iter()
            .filter(|window| ends(window))
            .map(|window| window.end_us.saturating_sub(window.start_us))
            .max(),
        _ => None,
    };
    others.iter().filter_map(of).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use base::{Bytes, Priority};
    use proptest::prelude::*;

    use super::*;
    use crate::{CardTurn, Epoch, Turn};

    pub(super) fn turn(grant: &str, period_us: u64, pass: Pass) -> Turn {
        let card = CardTurn { uuid: "GPU-a".into(), memory: Bytes(0), pass, share_ppm: 0 };
        Turn { grant_id: grant.into(), period_us, priority: Priority::High, cards: vec![card] }
    }

    fn table(epochs: Vec<(u64, Vec<Turn>)>) -> Timetable {
        let epochs = epochs.into_iter().map(|(from_us, turns)| Epoch { from_us, turns }).collect();
        Timetable { version: 1, format: 1, boot_id: String::new(), revision: 1, epochs }
    }

    fn windows(parts: &[(u64, u64)]) -> Pass {
        Pass::Windows(parts.iter().map(|&(start_us, end_us)| Window { start_us, end_us }).collect())
    }

    fn span(start_us: u64, end_us: u64, free_after_us: u64) -> Option<Span> {
        Some(Span { start_us, end_us, free_after_us, taken_from_us: 0 })
    }

    fn timeline(table: &Timetable) -> Timeline {
        Timeline::of(table, "own", "GPU-a", &Timeline::never())
    }

    fn runs_at(timeline: &Timeline, now_us: u64) -> bool {
        timeline.span(now_us).is_some_and(|span| span.start_us <= now_us)
    }

    #[test]
    fn windows_recur() {
        let timeline = timeline(&table(vec![(0, vec![turn("own", 100, windows(&[(10, 30)]))])]));
        assert_eq!(timeline.span(0), span(10, 30, 80));
        assert_eq!(timeline.span(29), span(10, 30, 80));
        assert_eq!(timeline.span(30), span(110, 130, 80));
        assert!(runs_at(&timeline, 129) && !runs_at(&timeline, 130));
    }

    #[test]
    fn windows_that_touch_over_the_end_of_the_period_are_one() {
        let timeline = timeline(&table(vec![(0, vec![turn("own", 100, windows(&[(0, 20), (90, 100)]))])]));
        assert_eq!(timeline.span(25), span(90, 120, 70));
        assert_eq!(timeline.span(119), span(90, 120, 70));
        assert_eq!(timeline.span(120), span(190, 220, 70));
        assert_eq!(timeline.span(0), span(90, 120, 70), "the first begins in the period before the first");
    }

    #[test]
    fn the_whole_period_has_no_edges() {
        let whole = timeline(&table(vec![(50, vec![turn("own", 100, windows(&[(0, 40), (40, 100)]))])]));
        assert_eq!(whole.span(0), span(50, u64::MAX, 0));
        assert!(whole.is_unlimited(50) && !whole.is_unlimited(49));
    }

    #[test]
    fn what_goes_on_in_the_next_epoch_is_one_span() {
        let first = vec![turn("own", 100, windows(&[(10, 30)]))];
        let second = vec![turn("own", 50, windows(&[(10, 40)]))];
        let third = vec![turn("own", 50, windows(&[]))];
        let timeline = timeline(&table(vec![(0, first), (120, second), (160, third)]));
        // 110..120 of the first, 120..140 of the second (its window 110..140).
        assert_eq!(timeline.span(100), span(110, 140, 20));
        assert_eq!(timeline.span(140), None, "160 is the end, before its next window");
    }

    #[test]
    fn nothing_is_free_after_what_an_epoch_cuts_short() {
        let changed_at = |at| {
            let turns = |start, end| vec![turn("own", 100, windows(&[(start, end)]))];
            timeline(&table(vec![(0, turns(10, 30)), (at, turns(60, 70))]))
        };
        assert_eq!(changed_at(20).span(0), span(10, 20, 0), "somebody else may begin at 20");
        assert_eq!(changed_at(50).span(0), span(10, 30, 20), "or at 50");
    }

    #[test]
    fn without_a_turn_it_does_not_run() {
        let gone = table(vec![(0, vec![turn("own", 100, Pass::Free)]), (70, vec![])]);
        assert_eq!(timeline(&gone).span(0), span(0, 70, 0));
        assert_eq!(timeline(&gone).span(70), None);
        let free = Timeline::of(&table(vec![(70, vec![])]), "own", "GPU-a", &Timeline::always());
        assert_eq!(free.span(0), span(0, 70, 0));
    }

    #[test]
    fn others_end_what_is_free_after_a_window() {
        let own = || turn("own", 100, windows(&[(10, 30), (60, 70)]));
        let other = |parts: &[(u64, u64)]| turn("other", 100, windows(parts));
        let free = |others: Vec<Turn>| {
            let mut turns = vec![own()];
            turns.extend(others);
            let timeline = timeline(&table(vec![(0, turns)]));
            [timeline.span(0), timeline.span(30)].map(|span| span.unwrap().free_after_us)
        };
        assert_eq!(free(vec![]), [30, 40]);
        assert_eq!(free(vec![other(&[(30, 35)])]), [0, 40]);
        assert_eq!(free(vec![other(&[(0, 5), (45, 50)])]), [15, 30]);
        assert_eq!(free(vec![turn("other", 100, Pass::Weight(1))]), [0, 0]);
        assert_eq!(free(vec![turn("other", 50, windows(&[(40, 45)]))]), [0, 0]);
    }

    #[test]
    fn who_begins_where_another_ends_takes_over() {
        let timeline = |own, other: &[(u64, u64)]| {
            let turns = vec![turn("own", 100_000, windows(own)), turn("other", 100_000, windows(other))];
            timeline(&table(vec![(0, turns)]))
        };
        let takes_over = |own, other: &[(u64, u64)]| timeline(own, other).span(0).unwrap().takes_over();
        assert!(takes_over(&[(30_000, 40_000)], &[(20_000, 30_000)]));
        assert!(takes_over(&[(0, 40_000)], &[(80_000, 100_000)]));
        assert!(!takes_over(&[(30_000, 40_000)], &[(20_000, 29_000), (40_000, 50_000)]));
        // As weights of 1 to 2 are laid out.
        assert!(takes_over(&[(0, 33_333)], &[(33_333, 99_999)]));
    }

    proptest! {
        #[test]
        fn a_span_is_where_its_windows_are(
            edges in proptest::collection::btree_set(0_u64..=100, 2..8),
            from in 100_u64..300,
            change in 0_u64..300,
        ) {
            let edges: Vec<u64> = edges.into_iter().collect();
            let parts: Vec<(u64, u64)> = edges.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let turns = || vec![turn("own", 100, windows(&parts))];
            let timeline = timeline(&table(vec![(from, turns()), (from + change + 1, turns())]));
            for now in 0..700 {
                let phase = now % 100;
                let expected = now >= from && parts.iter().any(|(start, end)| (*start..*end).contains(&phase));
                prop_assert_eq!(runs_at(&timeline, now), expected, "at {}", now);
                if let Some(span) = timeline.span(now) {
                    prop_assert!(span.end_us > now && !runs_at(&timeline, span.end_us));
                    prop_assert!((span.start_us..span.end_us.min(700)).all(|at| runs_at(&timeline, at)));
                    prop_assert!(!(now..span.start_us).any(|at| runs_at(&timeline, at)));
                }
            }
        }
    }
}
