//! Schedule arithmetic: does a layout of exclusive time windows exist in which every container gets
//! its share?
//!
//! A card's time is cut into periods; a container with a share runs alone in its window of each
//! period. A container with several cards has its windows begin at the same instant on all of them,
//! because its kernels wait for each other. Everything here is pure: shares are whole parts of a
//! period, windows whole microseconds, so that the same grants come to the same layout.

use std::cmp::Reverse;

use base::{MAX_PERIOD_US, MIN_PERIOD_US};

/// Parts that make one period: a hundredth and a slice of 1/1 to 1/20 are whole numbers of them.
pub const PERIOD_PARTS: u64 = 1_163_962_800;
/// Shortest window: a switch costs about 0.5 ms of the card.
pub(crate) const MIN_WINDOW_US: u64 = 5_000;
/// Containers without a cap keep at least this much of a card, together.
pub const MIN_REMAINDER_PERCENT: u64 = 5;
/// Stretched periods are whole multiples of this, so that they meet again soon.
const PERIOD_STEP_US: u64 = 5_000;
/// Placements that a search tries before it gives up. Reached only with many containers on several
/// cards each.
const SEARCH_LIMIT: u32 = 20_000;

/// `percent` of a period.
pub fn percent_parts(percent: u64) -> u64 {
    PERIOD_PARTS / 100 * percent
}

/// `numerator` / `denominator` of a period, rounded down.
pub fn ratio_parts(numerator: u64, denominator: u64) -> u64 {
    scaled(PERIOD_PARTS, numerator, denominator)
}

/// `value` x `numerator` / `denominator`, rounded down.
pub(crate) fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// Length of a share's window in a period of `period_us`.
pub(super) fn length_us(parts: u64, period_us: u64) -> u64 {
    scaled(period_us, parts, PERIOD_PARTS)
}

/// One who needs a window: its share of each of its cards, in parts of a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tenant {
    /// Card (any numbering) and share.
    pub(super) windows: Vec<(usize, u64)>,
    /// Its earlier windows. They stay there if they can.
    pub(super) before: Option<Before>,
}

/// Earlier windows of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Before {
    /// In periods of this length.
    pub(super) period_us: u64,
    /// They began here.
    pub(super) start_us: u64,
    /// And were so long, in the order of [`Tenant::windows`].
    pub(super) lengths_us: Vec<u64>,
}

/// Windows of every tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Length of a period.
    pub(super) period_us: u64,
    /// Start of each tenant's windows in microseconds, in the order of the tenants.
    pub(super) starts_us: Vec<u64>,
}

/// Reason for which there is no layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A share is too small for any period.
    #[error("a share would be shorter than 5 ms even in a period of 500 ms")]
    TooShort {
        /// The share.
        parts: u64,
    },
    /// The windows do not fit beside each other.
    #[error(
        "containers with several cards need their windows at the same instant on all of them, and no such order of windows exists"
    )]
    NoOrder,
}

/// Lays out the windows of `tenants`, which come in ledger order, in periods of `period_us` or,
/// where a share needs that, longer ones. Windows stay where they were; the others are as early as
/// they can be. Where that leaves no place for one, all are placed anew, those with the most cards
/// first if need be; where that fails too, other orders are tried.
///
/// # Errors
/// [`LayoutError`].
pub(super) fn lay_out(tenants: &[Tenant], period_us: u64) -> Result<Layout, LayoutError> {
    let shortest = tenants.iter().flat_map(|tenant| &tenant.windows).map(|(_, parts)| *parts).min();
    let period_us = period_for(shortest.unwrap_or(PERIOD_PARTS), period_us)?;
    let boxes: Vec<Block> = tenants.iter().map(|tenant| Block::new(tenant, period_us)).collect();
    let in_order: Vec<usize> = (0..boxes.len()).collect();
    let mut widest_first = in_order.clone();
    widest_first.sort_by_key(|&tenant| {
        let windows = boxes.get(tenant).map_or(&[][..], |found| found.windows.as_slice());
        (Reverse(windows.len()), Reverse(windows.iter().map(|(_, length)| *length).max()), tenant)
    });
    let starts_us = place_where_they_were(&boxes, period_us)
        .or_else(|| place_all(&boxes, &in_order, period_us))
        .or_else(|| place_all(&boxes, &widest_first, period_us))
        .or_else(|| search(&boxes, &widest_first, period_us))
        .ok_or(LayoutError::NoOrder)?;
    Ok(Layout { period_us, starts_us })
}

fn period_for(shortest: u64, wanted_us: u64) -> Result<u64, LayoutError> {
    let needed = u128::from(MIN_WINDOW_US) * u128::from(PERIOD_PARTS);
    let needed = needed.div_ceil(u128::from(shortest.max(1)));
    let wanted_us = wanted_us.clamp(MIN_PERIOD_US, MAX_PERIOD_US);
    match u64::try_from(needed) {
        Ok(needed) if needed <= wanted_us => Ok(wanted_us),
        Ok(needed) if needed <= MAX_PERIOD_US => Ok(needed.next_multiple_of(PERIOD_STEP_US)),
        _ => Err(LayoutError::TooShort { parts: shortest }),
    }
}

/// A tenant's windows in microseconds.
#[derive(Debug)]
struct Block {
    windows: Vec<(usize, u64)>,
    /// Their start in a period of the same length.
    was_at: Option<u64>,
    /// They are as long as they were.
    is_unchanged: bool,
}

impl Block {
    fn new(tenant: &Tenant, period_us: u64) -> Self {
        let windows: Vec<_> =
            tenant.windows.iter().map(|(card, parts)| (*card, length_us(*parts, period_us))).collect();
        let before = tenant.before.as_ref().filter(|before| before.period_us == period_us);
        let is_unchanged =
            before.is_some_and(|before| before.lengths_us.iter().eq(windows.iter().map(|(_, length)| length)));
        Self { windows, was_at: before.map(|before| before.start_us), is_unchanged }
    }
}

/// Time that is taken of each card.
#[derive(Debug, Clone)]
struct OccupiedTime {
    period_us: u64,
    cards: Vec<Vec<(u64, u64)>>,
}

impl OccupiedTime {
    fn nothing(boxes: &[Block], period_us: u64) -> Self {
        let cards = boxes.iter().flat_map(|tenant| &tenant.windows).map(|(card, _)| card + 1).max().unwrap_or(0);
        Self { period_us, cards: vec![Vec::new(); cards] }
    }

    fn of(&self, card: usize) -> &[(u64, u64)] {
        self.cards.get(card).map_or(&[], Vec::as_slice)
    }

    fn is_free(&self, tenant: &Block, start: u64) -> bool {
        tenant.windows.iter().all(|(card, length)| {
            let end = start + length;
            end <= self.period_us && self.of(*card).iter().all(|(from, to)| end <= *from || *to <= start)
        })
    }

    /// The earliest instant at which `tenant` fits on all of its cards. Only instants at which
    /// another window ends can be the earliest.
    fn earliest(&self, tenant: &Block) -> Option<u64> {
        let ends = tenant.windows.iter().flat_map(|(card, _)| self.of(*card)).map(|(_, end)| *end);
        let mut candidates: Vec<u64> = ends.chain([0]).collect();
        candidates.sort_unstable();
        candidates.dedup();
        candidates.into_iter().find(|&start| self.is_free(tenant, start))
    }

    fn take(&mut self, tenant: &Block, start: u64) {
        for (card, length) in &tenant.windows {
            if let Some(taken) = self.cards.get_mut(*card) {
                taken.push((start, start + length));
            }
        }
    }

    fn give_back(&mut self, tenant: &Block) {
        for (card, _) in &tenant.windows {
            self.cards.get_mut(*card).and_then(Vec::pop);
        }
    }
}

/// Places the blocks where they were, if that can be: those of unchanged length first, then those
/// that have changed, then the new ones.
fn place_where_they_were(boxes: &[Block], period_us: u64) -> Option<Vec<u64>> {
    let mut taken = OccupiedTime::nothing(boxes, period_us);
    let mut starts: Vec<Option<u64>> = vec![None; boxes.len()];
    for unchanged in [true, false] {
        for (tenant, start) in boxes.iter().zip(&mut starts).filter(|(tenant, _)| tenant.is_unchanged == unchanged) {
            if let Some(was_at) = tenant.was_at.filter(|was_at| taken.is_free(tenant, *was_at)) {
                taken.take(tenant, was_at);
                *start = Some(was_at);
            }
        }
    }
    for (tenant, start) in boxes.iter().zip(&mut starts).filter(|(_, start)| start.is_none()) {
        let earliest = taken.earliest(tenant)?;
        taken.take(tenant, earliest);
        *start = Some(earliest);
    }
    starts.into_iter().collect()
}

fn place_all(boxes: &[Block], order: &[usize], period_us: u64) -> Option<Vec<u64>> {
    let mut taken = OccupiedTime::nothing(boxes, period_us);
    let mut starts = vec![0; boxes.len()];
    for &position in order {
        let tenant = boxes.get(position)?;
        let start = taken.earliest(tenant)?;
        taken.take(tenant, start);
        *starts.get_mut(position)? = start;
    }
    Some(starts)
}

/// Tries the orders in which windows can be placed one after another, each as early as it can be:
/// if there is a layout at all, one of these orders gives one.
fn search(boxes: &[Block], order: &[usize], period_us: u64) -> Option<Vec<u64>> {
    struct Search<'a> {
        boxes: &'a [Block],
        taken: OccupiedTime,
        starts: Vec<u64>,
        budget: u32,
    }
    impl Search<'_> {
        fn descend(&mut self, left: &mut Vec<usize>) -> Option<()> {
            for position in 0..left.len() {
                self.budget = self.budget.checked_sub(1)?;
                let index = *left.get(position)?;
                let tenant = self.boxes.get(index)?;
                // Windows only ever become fewer places: one that fits nowhere now fits nowhere
                // later.
                let start = self.taken.earliest(tenant)?;
                left.remove(position);
                self.taken.take(tenant, start);
                *self.starts.get_mut(index)? = start;
                if left.is_empty() || self.descend(left).is_some() {
                    return Some(());
                }
                self.taken.give_back(tenant);
                left.insert(position, index);
            }
            None
        }
    }
    let taken = OccupiedTime::nothing(boxes, period_us);
    let mut search = Search { boxes, taken, starts: vec![0; boxes.len()], budget: SEARCH_LIMIT };
    search.descend(&mut order.to_vec())?;
    Some(search.starts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(windows: &[(usize, u64)]) -> Tenant {
        let windows = windows.iter().map(|(card, percent)| (*card, percent_parts(*percent))).collect();
        Tenant { windows, before: None }
    }

    fn lay(tenants: &[Tenant]) -> Result<Layout, LayoutError> {
        lay_out(tenants, 100_000)
    }

    fn check(tenants: &[Tenant], layout: &Layout) {
        for (a, first) in tenants.iter().enumerate() {
            for (card, length) in &first.windows {
                let length = length_us(*length, layout.period_us);
                assert!(layout.starts_us[a] + length <= layout.period_us);
                assert!(length >= MIN_WINDOW_US, "{length} us");
                for (b, second) in tenants.iter().enumerate().skip(a + 1) {
                    for (_, other) in second.windows.iter().filter(|(other, _)| other == card) {
                        let apart = layout.starts_us[a] + length <= layout.starts_us[b]
                            || layout.starts_us[b] + length_us(*other, layout.period_us) <= layout.starts_us[a];
                        assert!(apart, "windows of {a} and {b} overlap on card {card}");
                    }
                }
            }
        }
        assert!((100_000..=MAX_PERIOD_US).contains(&layout.period_us));
    }

    #[test]
    fn parts_are_exact() {
        assert_eq!(PERIOD_PARTS % 100, 0);
        for slices in 1..=20 {
            assert_eq!(PERIOD_PARTS % slices, 0, "1/{slices}");
        }
        assert_eq!(percent_parts(100), PERIOD_PARTS);
        assert_eq!(ratio_parts(3, 3), PERIOD_PARTS);
    }

    #[test]
    fn the_period_is_stretched_for_small_shares_and_no_further() {
        for (percent, period_us) in
            [(100, 100_000), (5, 100_000), (4, 125_000), (3, 170_000), (2, 250_000), (1, 500_000)]
        {
            assert_eq!(lay(&[tenant(&[(0, percent)])]).unwrap().period_us, period_us);
        }
        let tiny = Tenant { windows: vec![(0, percent_parts(1) - 1)], before: None };
        assert!(matches!(lay(&[tiny]), Err(LayoutError::TooShort { .. })));
        assert_eq!(lay(&[]).unwrap().starts_us, Vec::<u64>::new());
    }

    #[test]
    fn a_wanted_period_is_kept_unless_it_is_too_short() {
        let period_us = |percent, wanted_us| lay_out(&[tenant(&[(0, percent)])], wanted_us).unwrap().period_us;
        assert_eq!(period_us(50, 20_000), 20_000);
        assert_eq!(period_us(25, 20_000), 20_000);
        assert_eq!(period_us(24, 20_000), 25_000);
        assert_eq!(period_us(5, 20_000), 100_000);
        assert_eq!(period_us(5, 333_333), 333_333);
        assert_eq!((period_us(50, 0), period_us(50, u64::MAX)), (20_000, 500_000));
    }

    #[test]
    fn windows_stay_where_they_were() {
        let was = |percent: u64, start_us: u64, length_us: u64| Tenant {
            before: Some(Before { period_us: 100_000, start_us, lengths_us: vec![length_us] }),
            ..tenant(&[(0, percent)])
        };
        // One in the middle has gone, and a new one takes its place.
        let starts = |tenants: &[Tenant]| lay(tenants).unwrap().starts_us;
        assert_eq!(starts(&[was(10, 0, 10_000), was(30, 50_000, 30_000), tenant(&[(0, 20)])]), [0, 50_000, 10_000]);
        // One that grows makes room for the one beside it, which has not changed.
        assert_eq!(starts(&[was(40, 0, 30_000), was(30, 30_000, 30_000)]), [60_000, 30_000]);
        assert_eq!(starts(&[was(20, 0, 30_000), was(30, 30_000, 30_000)]), [0, 30_000]);
        // Where they do not fit as they were, all are placed anew.
        assert_eq!(starts(&[was(30, 0, 30_000), was(30, 35_000, 30_000), tenant(&[(0, 40)])]), [0, 30_000, 60_000]);
        // Another period is another layout.
        let other = Before { period_us: 200_000, start_us: 70_000, lengths_us: vec![60_000] };
        assert_eq!(starts(&[Tenant { before: Some(other), ..tenant(&[(0, 30)]) }]), [0]);
    }

    #[test]
    fn on_one_card_windows_follow_each_other_in_ledger_order() {
        let tenants = [tenant(&[(0, 10)]), tenant(&[(0, 30)]), tenant(&[(0, 60)])];
        let layout = lay(&tenants).unwrap();
        assert_eq!(layout.starts_us, [0, 10_000, 40_000]);
    }

    #[test]
    fn several_cards_share_one_instant() {
        let tenants = [tenant(&[(0, 40)]), tenant(&[(1, 50)]), tenant(&[(0, 50), (1, 50)])];
        let layout = lay(&tenants).unwrap();
        check(&tenants, &layout);
        assert_eq!(layout.starts_us[2], 50_000);
    }

    #[test]
    fn sums_that_fit_are_not_enough() {
        // Each card is exactly full, and each pair meets on one card: three windows cannot
        // alternate between two halves.
        let triangle = [tenant(&[(0, 50), (1, 50)]), tenant(&[(1, 50), (2, 50)]), tenant(&[(0, 50), (2, 50)])];
        assert_eq!(lay(&triangle), Err(LayoutError::NoOrder));
        let thirds = [tenant(&[(0, 33), (1, 33)]), tenant(&[(1, 33), (2, 33)]), tenant(&[(0, 33), (2, 33)])];
        check(&thirds, &lay(&thirds).unwrap());
    }

    #[test]
    fn a_better_order_than_the_ledgers_is_found() {
        // As early as can be, in this order: 0..30 on both cards apart, then 60 finds no common
        // place.
        let tenants = [tenant(&[(0, 30)]), tenant(&[(1, 40)]), tenant(&[(0, 60), (1, 60)]), tenant(&[(0, 10)])];
        check(&tenants, &lay(&tenants).unwrap());
    }

    /// Tenants on up to 3 cards, made by cutting time: a layout exists by construction.
    fn solvable() -> impl Strategy<Value = Vec<Tenant>> {
        let cut = (1_u64..=40, 1_usize..8);
        proptest::collection::vec(cut, 1..6).prop_shuffle().prop_map(|cuts| {
            let mut used = 0;
            let mut tenants = Vec::new();
            for (percent, cards) in cuts {
                if used + percent > 100 {
                    break;
                }
                used += percent;
                tenants.push(tenant(
                    &(0..3).filter(|card| cards & (1 << card) != 0).map(|card| (card, percent)).collect::<Vec<_>>(),
                ));
            }
            tenants
        })
    }

    proptest! {
        #[test]
        fn what_can_be_laid_out_is(tenants in solvable()) {
            check(&tenants, &lay(&tenants).unwrap());
        }

        #[test]
        fn a_layout_never_overlaps(
            tenants in proptest::collection::vec(
                proptest::collection::btree_map(0_usize..3, 1_u64..=60, 1..=3), 0..7),
        ) {
            let tenants: Vec<_> = tenants.into_iter().map(|windows| tenant(&windows.into_iter().collect::<Vec<_>>())).collect();
            let sum = |card: usize| -> u64 {
                tenants.iter().flat_map(|tenant| &tenant.windows).filter(|(on, _)| *on == card).map(|(_, parts)| parts).sum()
            };
            match lay(&tenants) {
                Ok(layout) => check(&tenants, &layout),
                // On one card, what fits in sum always fits.
                Err(_) if tenants.iter().all(|tenant| tenant.windows.len() == 1) => {
                    prop_assert!((0..3).any(|card| sum(card) > PERIOD_PARTS));
                }
                Err(_) => {}
            }
            if (0..3).any(|card| sum(card) > PERIOD_PARTS) {
                prop_assert!(lay(&tenants).is_err());
            }
        }

        #[test]
        fn the_same_records_give_the_same_layout(tenants in solvable()) {
            prop_assert_eq!(lay(&tenants), lay(&tenants));
        }
    }
}
