//! From the grants of a node to who runs when: pure, and the same for admission and for the
//! timetable.
//!
//! Containers that have cards in common, directly or through others, are laid out together, in
//! periods of one length. Admission asks whether a layout exists ([`can_be_laid_out`]) in which all
//! have what they are promised; [`plan`] makes the one that runs.

use std::{borrow::Cow, collections::BTreeMap};

use base::{CardGrant, MIN_PERIOD_US, Period};

use super::plan_settings::PlanSettings;
use super::{
    CardTurn, Epoch, MOST_WINDOW_LOSS_US, Pass, Turn, Window,
    connected_cards::connected_cards,
    layout::{
        Before, Layout, LayoutError, MIN_WINDOW_US, PERIOD_PARTS, Tenant, lay_out, length_us, percent_parts, scaled,
    },
    policy::{Hold, rules},
    shares::{ByCard, Member, View, by_card, holds, remainder_parts, remainders},
};

/// A million parts are all of a card's time.
const MILLION: u64 = 1_000_000;
/// Time that a program loses of each window though its channels are on the card: kernels that were
/// interrupted, and cold caches. On an H200 0.09 to 0.15 ms (docs/driver-facts.md).
const WINDOW_RAMP_US: u64 = 120;
/// Periods that [`Period::Auto`] chooses among: of few lengths, so that old and new ones soon begin
/// together where one follows the other.
const AUTO_PERIODS_US: [u64; 4] = [MIN_PERIOD_US, 40_000, 50_000, 100_000];
/// Part of a window, in hundredths, that it may cost then, and the shortest window.
const AUTO_COST_PERCENT: u64 = 3;
const LEAST_AUTO_WINDOW_US: u64 = 10_000;
/// Number of times that a period is stretched for windows with their costs.
const COST_ROUNDS: u32 = 3;
/// Steps in which shares are made smaller that cannot be laid out as they are.
const SHRINK_STEPS: u64 = 16;

/// Turns as they were written, by grant.
type PreviousTurns<'a> = BTreeMap<&'a str, &'a Turn>;

/// Every container's turn, in the order of `members`, which is the ledger's. Windows stay where
/// they are in `before` if they can.
///
/// There always is a plan. Admission sees to it that every share has its window; where the sums no
/// longer fit all the same, as when the configuration has changed since, all that are tied to each
/// other get less by the same factor, and if even that cannot be laid out, time slices by the same
/// shares.
pub fn plan(members: &[Member<'_>], settings: &PlanSettings, before: Option<&Epoch>) -> Vec<Turn> {
    let before: Option<PreviousTurns<'_>> =
        before.map(|epoch| epoch.turns.iter().map(|turn| (turn.grant_id.as_str(), turn)).collect());
    let mut turns: Vec<(usize, Turn)> = Vec::with_capacity(members.len());
    for (positions, group) in groups(members) {
        turns.extend(positions.into_iter().zip(plan_group(&group, settings, before.as_ref())));
    }
    turns.sort_by_key(|(position, _)| *position);
    turns.into_iter().map(|(_, turn)| turn).collect()
}

/// Returns whether a layout exists in which every one of `members` has what it is promised.
///
/// # Errors
/// [`LayoutError`].
pub fn can_be_laid_out(members: &[Member<'_>], settings: &PlanSettings) -> Result<(), LayoutError> {
    for (_, group) in groups(members) {
        Group::new(&group, settings, View::Promised).lay_out(None)?;
    }
    Ok(())
}

/// Groups of members that are connected by common cards: their positions in `members`, and they
/// themselves.
fn groups<'a>(members: &[Member<'a>]) -> impl Iterator<Item = (Vec<usize>, Vec<Member<'a>>)> {
    let cards = |member: &Member<'_>| member.grants.iter().map(|grant| grant.uuid.clone()).collect();
    let groups = connected_cards(&members.iter().map(cards).collect::<Vec<Vec<String>>>());
    groups.into_iter().map(|positions| {
        let group = positions.iter().filter_map(|position| members.get(*position)).cloned().collect();
        (positions, group)
    })
}

fn plan_group(members: &[Member<'_>], settings: &PlanSettings, before: Option<&PreviousTurns<'_>>) -> Vec<Turn> {
    for view in [View::Now, View::Promised] {
        let mut group = Group::new(members, settings, view);
        if view == View::Promised {
            group.skip_absent();
        }
        if let Ok(layout) = group.lay_out(before) {
            return group.turns_with_costs(&layout, before).unwrap_or_else(|| group.turns(&layout));
        }
    }
    let full = Group::new(members, settings, View::Promised);
    for numerator in (1..SHRINK_STEPS).rev() {
        let group = full.shrunk(numerator, SHRINK_STEPS);
        if let Ok(layout) = group.lay_out(None) {
            tracing::warn!(
                numerator,
                SHRINK_STEPS,
                "shares of time do not fit beside each other; all are made smaller"
            );
            return group.turns(&layout);
        }
    }
    tracing::warn!("shares of time do not fit beside each other; they are weights instead");
    let layout = Layout { period_us: full.period_us, starts_us: Vec::new() };
    full.by_weight().turns(&layout)
}

/// Containers that are tied to each other.
#[derive(Debug, Clone)]
struct Group<'a> {
    members: &'a [Member<'a>],
    cards: ByCard<'a>,
    /// By member: each of its cards, by number in `cards`, and what its grant there means. In the
    /// container's order.
    holds: Vec<Vec<(usize, Hold)>>,
    /// The period that the cards' settings want.
    period_us: u64,
}

impl<'a> Group<'a> {
    fn new(members: &'a [Member<'a>], settings: &PlanSettings, view: View) -> Self {
        let cards = by_card(members);
        let mut of_members: Vec<BTreeMap<&str, (usize, Hold)>> = vec![BTreeMap::new(); members.len()];
        for (number, (uuid, grants)) in cards.iter().enumerate() {
            for ((position, _), hold) in grants.iter().zip(holds(grants, members, settings, view)) {
                if let Some(member) = of_members.get_mut(*position) {
                    member.insert(uuid, (number, hold));
                }
            }
        }
        let in_order = |(member, found): (&Member<'_>, BTreeMap<&str, (usize, Hold)>)| {
            member.grants.iter().filter_map(|grant| found.get(grant.uuid.as_str()).copied()).collect()
        };
        let holds = members.iter().zip(of_members).map(in_order).collect();
        let mut group = Self { members, cards, holds, period_us: 0 };
        let wanted_us = |(card, uuid): (usize, &&str)| match settings.period(uuid) {
            Period::Us(us) => us,
            Period::Auto => group.auto_period_us(card),
        };
        group.period_us = group.cards.keys().enumerate().map(wanted_us).max().unwrap_or(MIN_PERIOD_US);
        group
    }

    /// The shortest of [`AUTO_PERIODS_US`] in which each window of a card costs little of it.
    fn auto_period_us(&self, card: usize) -> u64 {
        let on_card = self.members.iter().zip(&self.holds).flat_map(|(member, holds)| {
            let here = holds.iter().zip(&member.grants).filter(|((on, _), _)| *on == card);
            here.map(|((_, hold), grant)| (*hold, grant.window_loss_us))
        });
        let parts = |hold: Hold| match hold {
            Hold::Window(parts) => Some(parts),
            Hold::Remainder => None,
            Hold::Free | Hold::Weight(_) | Hold::Turns(_) | Hold::Absent => Some(0),
        };
        let left = PERIOD_PARTS.saturating_sub(on_card.clone().filter_map(|(hold, _)| parts(hold)).sum());
        let needed_us = |(hold, loss_us): (Hold, u64)| {
            let parts = parts(hold).unwrap_or(left.max(remainder_parts()));
            let cost_us = WINDOW_RAMP_US + loss_us.min(MOST_WINDOW_LOSS_US);
            let window_us = (cost_us * 100 / AUTO_COST_PERCENT).max(LEAST_AUTO_WINDOW_US);
            if parts == 0 { 0 } else { scaled(window_us, PERIOD_PARTS, parts) }
        };
        let needed_us = on_card.map(needed_us).max().unwrap_or(0);
        let [.., longest_us] = AUTO_PERIODS_US;
        AUTO_PERIODS_US.into_iter().find(|us| *us >= needed_us).unwrap_or(longest_us)
    }

    fn all_holds(&mut self) -> impl Iterator<Item = (&'a Member<'a>, &mut Hold)> {
        let members = self.members.iter().zip(&mut self.holds);
        members.flat_map(|(member, holds)| holds.iter_mut().map(move |(_, hold)| (member, hold)))
    }

    /// Marks the windows of absent containers that the policy skips.
    fn skip_absent(&mut self) {
        let skips_absent = |(_, grant): &(usize, &CardGrant)| rules(grant.policy).skips_absent;
        let cards: Vec<bool> = self.cards.values().map(|grants| grants.first().is_some_and(skips_absent)).collect();
        for (member, holds) in self.members.iter().zip(&mut self.holds) {
            for (card, hold) in holds.iter_mut().filter(|_| !member.is_present) {
                if matches!(hold, Hold::Window(_)) && cards.get(*card) == Some(&true) {
                    *hold = Hold::Absent;
                }
            }
        }
    }

    /// The turns where the windows of policy `weighted` have their costs beside their shares, if
    /// they can be laid out so. What is shown as granted are the shares.
    fn turns_with_costs(&self, layout: &Layout, before: Option<&PreviousTurns<'_>>) -> Option<Vec<Turn>> {
        let mut period_us = layout.period_us;
        for _ in 0..COST_ROUNDS {
            let group = Self { period_us, ..self.with_costs(period_us)? };
            let layout = group.lay_out(before).ok()?;
            if layout.period_us == period_us {
                let mut turns = group.turns(&layout);
                let shares = self.turns(&layout);
                let cards = |turns: Vec<Turn>| turns.into_iter().flat_map(|turn| turn.cards);
                for (card, share) in turns.iter_mut().flat_map(|turn| &mut turn.cards).zip(cards(shares)) {
                    card.share_ppm = share.share_ppm;
                }
                return Some(turns);
            }
            // The costs of others make a window too short for this period.
            period_us = layout.period_us;
        }
        None
    }

    /// The group with windows of policy `weighted` that include their costs: each gets its cost and
    /// its share of the rest of the card. `None`: there is no such card, or the costs would take
    /// more than half of one.
    fn with_costs(&self, period_us: u64) -> Option<Self> {
        let mut group = self.clone();
        let mut is_any = false;
        for (card, grants) in self.cards.values().enumerate() {
            let of_member = |position: usize| {
                let holds = self.holds.get(position)?;
                holds.iter().find_map(|(on, hold)| match hold {
                    Hold::Window(parts) if *on == card => Some(*parts),
                    _ => None,
                })
            };
            let windows: Vec<(usize, u64, u64)> = grants
                .iter()
                .filter(|(_, grant)| rules(grant.policy).shares_costs)
                .filter_map(|(position, grant)| {
                    let cost_us = WINDOW_RAMP_US + grant.window_loss_us.min(MOST_WINDOW_LOSS_US);
                    Some((*position, of_member(*position)?, scaled(PERIOD_PARTS, cost_us, period_us)))
                })
                .collect();
            let all: u64 = windows.iter().map(|(_, parts, _)| parts).sum();
            let costs: u64 = windows.iter().map(|(_, _, cost)| cost).sum();
            if windows.len() < 2 {
                continue;
            }
            if costs > all / 2 {
                return None;
            }
            is_any = true;
            for (position, parts, cost) in windows {
                let hold = group.holds.get_mut(position)?.iter_mut().find(|(on, _)| *on == card);
                if let Some((_, hold)) = hold {
                    *hold = Hold::Window(cost + scaled(all - costs, parts, all));
                }
            }
        }
        is_any.then_some(group)
    }

    fn shrunk(&self, numerator: u64, denominator: u64) -> Self {
        let mut group = self.clone();
        for (_, hold) in group.all_holds() {
            if let Hold::Window(parts) = hold {
                *parts = scaled(*parts, numerator, denominator).max(percent_parts(1));
            }
        }
        group
    }

    fn by_weight(&self) -> Self {
        let mut group = self.clone();
        for (_, hold) in group.all_holds() {
            *hold = match *hold {
                Hold::Window(parts) => {
                    let ppm = scaled(MILLION, parts, PERIOD_PARTS);
                    Hold::Weight(u32::try_from(ppm).unwrap_or(u32::MAX).max(1))
                }
                // Its 5 %.
                Hold::Remainder => Hold::Weight(50_000),
                Hold::Free | Hold::Weight(_) | Hold::Turns(_) | Hold::Absent => *hold,
            };
        }
        group
    }

    fn lay_out(&self, before: Option<&PreviousTurns<'_>>) -> Result<Layout, LayoutError> {
        let remainders = remainders(&self.holds);
        // What is left is to be in one piece, so nobody keeps his place for its own sake.
        let before = before.filter(|_| remainders.is_empty());
        let own = self.members.iter().zip(&self.holds).map(|(member, holds)| {
            let windows: Vec<(usize, u64)> = windows_of(holds).collect();
            let before = before.and_then(|previous| self.before(previous, member, &windows));
            Tenant { windows, before }
        });
        let left = remainders.into_iter().map(|cards| Tenant {
            windows: cards.into_iter().map(|card| (card, remainder_parts())).collect(),
            before: None,
        });
        lay_out(&own.chain(left).collect::<Vec<_>>(), self.period_us)
    }

    /// Previous windows of a member, if it had one on each of these cards.
    fn before(&self, previous: &PreviousTurns<'_>, member: &Member<'_>, windows: &[(usize, u64)]) -> Option<Before> {
        let turn = previous.get(member.grant_id)?;
        let mut found: Option<Before> = None;
        for (card, _) in windows {
            let uuid = self.cards.keys().nth(*card)?;
            let Pass::Windows(windows) = &turn.card(uuid)?.pass else { return None };
            let [window] = windows.as_slice() else { return None };
            let before = found.get_or_insert(Before {
                period_us: turn.period_us,
                start_us: window.start_us,
                lengths_us: Vec::new(),
            });
            before.lengths_us.push(window.end_us.saturating_sub(window.start_us));
        }
        found
    }

    fn turns(&self, layout: &Layout) -> Vec<Turn> {
        let gaps = self.gaps(layout);
        let turn = |(position, member): (usize, &Member<'_>)| Turn {
            grant_id: member.grant_id.to_owned(),
            period_us: layout.period_us,
            priority: member.priority,
            cards: self.card_turns(position, member, layout, &gaps),
        };
        self.members.iter().enumerate().map(turn).collect()
    }

    fn card_turns(&self, position: usize, member: &Member<'_>, layout: &Layout, gaps: &[Vec<Window>]) -> Vec<CardTurn> {
        let Some(holds) = self.holds.get(position) else { return Vec::new() };
        let start_us = layout.starts_us.get(position).copied().unwrap_or_default();
        let own_gaps = common_gaps(holds, gaps, layout.period_us);
        let turn = |((card, hold), grant): (&(usize, Hold), &Cow<'_, CardGrant>)| {
            let pass = match hold {
                Hold::Free => Pass::Free,
                Hold::Absent => Pass::Windows(Vec::new()),
                Hold::Weight(weight) => Pass::Weight(*weight),
                Hold::Turns(weight) => Pass::Turns(*weight),
                Hold::Remainder => Pass::Windows(own_gaps.clone()),
                Hold::Window(parts) => {
                    let end_us = start_us + length_us(*parts, layout.period_us);
                    match (start_us, end_us) {
                        (0, end_us) if end_us == layout.period_us => Pass::Free,
                        (start_us, end_us) => Pass::Windows(vec![Window { start_us, end_us }]),
                    }
                }
            };
            CardTurn {
                uuid: grant.uuid.clone(),
                memory: if member.is_unlimited { CardTurn::NO_LIMIT } else { grant.memory },
                share_ppm: self.share_ppm(*card, *hold, &own_gaps, layout.period_us),
                pass,
            }
        };
        holds.iter().zip(&member.grants).map(turn).collect()
    }

    fn on_card(&self, card: usize) -> impl Iterator<Item = Hold> {
        self.holds.iter().flatten().filter(move |(on, _)| *on == card).map(|(_, hold)| *hold)
    }

    fn share_ppm(&self, card: usize, hold: Hold, own_gaps: &[Window], period_us: u64) -> u32 {
        let ppm = match hold {
            // Idle time of others is theirs, too.
            Hold::Free | Hold::Turns(_) => MILLION,
            Hold::Absent => 0,
            Hold::Window(parts) => scaled(MILLION, parts, PERIOD_PARTS),
            Hold::Remainder => {
                let sharers = self.on_card(card).filter(|other| *other == Hold::Remainder).count() as u64;
                let gaps: u64 = own_gaps.iter().map(|gap| gap.end_us - gap.start_us).sum();
                scaled(MILLION, gaps, period_us.saturating_mul(sharers))
            }
            Hold::Weight(weight) => {
                let weight_of = |other| match other {
                    Hold::Weight(weight) => u64::from(weight),
                    _ => 0,
                };
                scaled(MILLION, weight.into(), self.on_card(card).map(weight_of).sum())
            }
        };
        u32::try_from(ppm.min(MILLION)).unwrap_or_default()
    }

    /// Gaps between the windows, by card.
    fn gaps(&self, layout: &Layout) -> Vec<Vec<Window>> {
        let mut taken: Vec<Vec<Window>> = vec![Vec::new(); self.cards.len()];
        for (holds, start_us) in self.holds.iter().zip(&layout.starts_us) {
            for (card, parts) in windows_of(holds) {
                if let Some(taken) = taken.get_mut(card) {
                    let end_us = start_us + length_us(parts, layout.period_us);
                    taken.push(Window { start_us: *start_us, end_us });
                }
            }
        }
        taken.into_iter().map(|taken| complement(taken, layout.period_us)).collect()
    }
}

fn windows_of(holds: &[(usize, Hold)]) -> impl Iterator<Item = (usize, u64)> {
    holds.iter().filter_map(|(card, hold)| match hold {
        Hold::Window(parts) => Some((*card, *parts)),
        _ => None,
    })
}

/// Gaps that disjoint windows leave in a period.
fn complement(mut windows: Vec<Window>, period_us: u64) -> Vec<Window> {
    windows.sort_by_key(|window| window.start_us);
    let mut gaps = Vec::new();
    let mut start_us = 0;
    for window in windows.into_iter().chain([Window { start_us: period_us, end_us: period_us }]) {
        if start_us < window.start_us {
            gaps.push(Window { start_us, end_us: window.start_us });
        }
        start_us = window.end_us;
    }
    gaps
}

/// The time that is left on all of the cards of which a container has the remainder, without pieces
/// that are too short.
fn common_gaps(holds: &[(usize, Hold)], gaps: &[Vec<Window>], period_us: u64) -> Vec<Window> {
    let on = holds.iter().filter(|(_, hold)| *hold == Hold::Remainder).filter_map(|(card, _)| gaps.get(*card));
    let common = on.fold(vec![Window { start_us: 0, end_us: period_us }], |common, gaps| {
        let pairs = common.iter().flat_map(|one| gaps.iter().map(move |other| (one, other)));
        let meets = pairs.map(|(one, other)| Window {
            start_us: one.start_us.max(other.start_us),
            end_us: one.end_us.min(other.end_us),
        });
        meets.filter(|gap| gap.start_us < gap.end_us).collect()
    });
    without_splinters(common, period_us)
}

/// Drops gaps that are too short. The last gap of a period and the first of the next are one.
fn without_splinters(gaps: Vec<Window>, period_us: u64) -> Vec<Window> {
    let length = |gap: &Window| gap.end_us - gap.start_us;
    let around: u64 = gaps.iter().filter(|gap| gap.start_us == 0 || gap.end_us == period_us).map(length).sum();
    let meets = gaps.first().is_some_and(|first| first.start_us == 0)
        && gaps.last().is_some_and(|last| last.end_us == period_us);
    let is_long = |gap: &Window| {
        let at_edge = gap.start_us == 0 || gap.end_us == period_us;
        length(gap) >= MIN_WINDOW_US || (meets && at_edge && around >= MIN_WINDOW_US)
    };
    gaps.into_iter().filter(is_long).collect()
}

#[cfg(test)]
mod tests;
