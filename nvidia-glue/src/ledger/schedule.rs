//! Schedule arithmetic: does a layout of exclusive time windows exist in which every container gets its share?
//!
//! A card's time is cut into periods; a container with a share runs alone in its window of each period. A container with
//! several cards has its windows at the same instant on all of them, because its kernels wait for each other. Everything
//! here is pure and exact: shares are whole parts of a period, so that every process that knows the same records comes to
//! the same layout.

use std::cmp::Reverse;

/// So many parts make one period: a hundredth and a slice of 1/1 to 1/20 are whole numbers of them.
pub(crate) const PERIOD_PARTS: u64 = 1_163_962_800;
/// The usual period.
const PERIOD_US: u64 = 100_000;
/// A period is stretched at most to this for the sake of small shares.
const MAX_PERIOD_US: u64 = 500_000;
/// No window is shorter: a switch costs about 0.5 ms of the card.
const MIN_WINDOW_US: u64 = 5_000;
/// Containers without a cap keep at least this much of a card, together.
pub(crate) const MIN_REMAINDER_PERCENT: u64 = 5;
/// Placements that a search tries before it gives up. Reached only with many containers on several cards each.
const SEARCH_LIMIT: u32 = 20_000;

/// `percent` of a period.
pub(crate) fn percent_parts(percent: u64) -> u64 {
    PERIOD_PARTS / 100 * percent
}

/// `numerator` / `denominator` of a period, rounded down.
pub(crate) fn ratio_parts(numerator: u64, denominator: u64) -> u64 {
    let parts = u128::from(PERIOD_PARTS) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(parts).unwrap_or(u64::MAX)
}

/// One who needs a window: its share of each of its cards, in parts of a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tenant {
    /// Card (any numbering) and length.
    pub(crate) windows: Vec<(usize, u64)>,
}

/// Where every tenant's windows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Length of a period.
    pub(crate) period_us: u64,
    /// Start of each tenant's windows in parts of a period, in the order of the tenants.
    pub(crate) starts: Vec<u64>,
}

/// Why there is no layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoLayout {
    /// A share is too small for any period.
    #[error("a share of {parts} of {PERIOD_PARTS} parts is shorter than 5 ms even in a period of 500 ms")]
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

/// Lays out the windows of `tenants`, which come in ledger order: each as early as it can be. Where that leaves no
/// place for one, those with the most cards go first; where that fails too, other orders are tried.
///
/// # Errors
/// [`NoLayout`].
pub(crate) fn lay_out(tenants: &[Tenant]) -> Result<Layout, NoLayout> {
    let shortest = tenants.iter().flat_map(|tenant| &tenant.windows).map(|(_, parts)| *parts).min();
    let period_us = period_for(shortest.unwrap_or(PERIOD_PARTS))?;
    let in_order: Vec<usize> = (0..tenants.len()).collect();
    let mut widest_first = in_order.clone();
    widest_first.sort_by_key(|&tenant| {
        let windows = &tenants[tenant].windows;
        (Reverse(windows.len()), Reverse(windows.iter().map(|(_, parts)| *parts).max()), tenant)
    });
    let starts = place_all(tenants, &in_order)
        .or_else(|| place_all(tenants, &widest_first))
        .or_else(|| search(tenants, &widest_first))
        .ok_or(NoLayout::NoOrder)?;
    Ok(Layout { period_us, starts })
}

fn period_for(shortest: u64) -> Result<u64, NoLayout> {
    let needed = u128::from(MIN_WINDOW_US) * u128::from(PERIOD_PARTS);
    let needed = needed.div_ceil(u128::from(shortest.max(1)));
    match u64::try_from(needed) {
        Ok(needed) if needed <= MAX_PERIOD_US => Ok(needed.max(PERIOD_US)),
        _ => Err(NoLayout::TooShort { parts: shortest }),
    }
}

/// What is taken of each card.
#[derive(Debug, Clone, Default)]
struct Taken(Vec<Vec<(u64, u64)>>);

impl Taken {
    fn of(tenants: &[Tenant]) -> Self {
        let cards = tenants.iter().flat_map(|tenant| &tenant.windows).map(|(card, _)| card + 1).max().unwrap_or(0);
        Self(vec![Vec::new(); cards])
    }

    /// The earliest instant at which `tenant` fits on all of its cards. Only instants at which another window ends can
    /// be the earliest.
    fn earliest(&self, tenant: &Tenant) -> Option<u64> {
        let ends = tenant.windows.iter().flat_map(|(card, _)| &self.0[*card]).map(|(_, end)| *end);
        let mut candidates: Vec<u64> = ends.chain([0]).collect();
        candidates.sort_unstable();
        candidates.dedup();
        candidates.into_iter().find(|&start| {
            tenant.windows.iter().all(|(card, length)| {
                let end = start + length;
                end <= PERIOD_PARTS && self.0[*card].iter().all(|(from, to)| end <= *from || *to <= start)
            })
        })
    }

    fn take(&mut self, tenant: &Tenant, start: u64) {
        for (card, length) in &tenant.windows {
            self.0[*card].push((start, start + length));
        }
    }

    fn give_back(&mut self, tenant: &Tenant) {
        for (card, _) in &tenant.windows {
            self.0[*card].pop();
        }
    }
}

fn place_all(tenants: &[Tenant], order: &[usize]) -> Option<Vec<u64>> {
    let mut taken = Taken::of(tenants);
    let mut starts = vec![0; tenants.len()];
    for &tenant in order {
        let start = taken.earliest(&tenants[tenant])?;
        taken.take(&tenants[tenant], start);
        starts[tenant] = start;
    }
    Some(starts)
}

/// Tries the orders in which windows can be placed one after another, each as early as it can be: if there is a layout
/// at all, one of these orders gives one.
fn search(tenants: &[Tenant], order: &[usize]) -> Option<Vec<u64>> {
    fn descend(
        tenants: &[Tenant],
        left: &mut Vec<usize>,
        taken: &mut Taken,
        starts: &mut [u64],
        budget: &mut u32,
    ) -> bool {
        if left.is_empty() {
            return true;
        }
        for position in 0..left.len() {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let tenant = left[position];
            // Windows only ever become fewer places: one that fits nowhere now fits nowhere later.
            let Some(start) = taken.earliest(&tenants[tenant]) else { return false };
            left.remove(position);
            taken.take(&tenants[tenant], start);
            starts[tenant] = start;
            if descend(tenants, left, taken, starts, budget) {
                return true;
            }
            taken.give_back(&tenants[tenant]);
            left.insert(position, tenant);
        }
        false
    }
    let mut starts = vec![0; tenants.len()];
    let mut budget = SEARCH_LIMIT;
    descend(tenants, &mut order.to_vec(), &mut Taken::of(tenants), &mut starts, &mut budget).then_some(starts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(windows: &[(usize, u64)]) -> Tenant {
        Tenant { windows: windows.iter().map(|(card, percent)| (*card, percent_parts(*percent))).collect() }
    }

    fn check(tenants: &[Tenant], layout: &Layout) {
        for (a, first) in tenants.iter().enumerate() {
            for (card, length) in &first.windows {
                assert!(layout.starts[a] + length <= PERIOD_PARTS);
                let window_us = u128::from(*length) * u128::from(layout.period_us) / u128::from(PERIOD_PARTS);
                assert!(window_us >= u128::from(MIN_WINDOW_US), "{window_us} us");
                for (b, second) in tenants.iter().enumerate().skip(a + 1) {
                    for (_, other) in second.windows.iter().filter(|(other, _)| other == card) {
                        let apart = layout.starts[a] + length <= layout.starts[b]
                            || layout.starts[b] + other <= layout.starts[a];
                        assert!(apart, "windows of {a} and {b} overlap on card {card}");
                    }
                }
            }
        }
        assert!((PERIOD_US..=MAX_PERIOD_US).contains(&layout.period_us));
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
        for (percent, period_us) in [(100, 100_000), (5, 100_000), (4, 125_000), (2, 250_000), (1, 500_000)] {
            assert_eq!(lay_out(&[tenant(&[(0, percent)])]).unwrap().period_us, period_us);
        }
        let tiny = Tenant { windows: vec![(0, percent_parts(1) - 1)] };
        assert!(matches!(lay_out(&[tiny]), Err(NoLayout::TooShort { .. })));
        assert_eq!(lay_out(&[]).unwrap().starts, Vec::<u64>::new());
    }

    #[test]
    fn on_one_card_windows_follow_each_other_in_ledger_order() {
        let tenants = [tenant(&[(0, 10)]), tenant(&[(0, 30)]), tenant(&[(0, 60)])];
        let layout = lay_out(&tenants).unwrap();
        assert_eq!(layout.starts, [0, percent_parts(10), percent_parts(40)]);
    }

    #[test]
    fn several_cards_share_one_instant() {
        let tenants = [tenant(&[(0, 40)]), tenant(&[(1, 50)]), tenant(&[(0, 50), (1, 50)])];
        let layout = lay_out(&tenants).unwrap();
        check(&tenants, &layout);
        assert_eq!(layout.starts[2], percent_parts(50));
    }

    #[test]
    fn sums_that_fit_are_not_enough() {
        // Each card is exactly full, and each pair meets on one card: three windows cannot alternate between two halves.
        let triangle = [tenant(&[(0, 50), (1, 50)]), tenant(&[(1, 50), (2, 50)]), tenant(&[(0, 50), (2, 50)])];
        assert_eq!(lay_out(&triangle), Err(NoLayout::NoOrder));
        let thirds = [tenant(&[(0, 33), (1, 33)]), tenant(&[(1, 33), (2, 33)]), tenant(&[(0, 33), (2, 33)])];
        check(&thirds, &lay_out(&thirds).unwrap());
    }

    #[test]
    fn a_better_order_than_the_ledgers_is_found() {
        // As early as can be, in this order: 0..30 on both cards apart, then 60 finds no common place.
        let tenants = [tenant(&[(0, 30)]), tenant(&[(1, 40)]), tenant(&[(0, 60), (1, 60)]), tenant(&[(0, 10)])];
        check(&tenants, &lay_out(&tenants).unwrap());
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
            check(&tenants, &lay_out(&tenants).unwrap());
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
            match lay_out(&tenants) {
                Ok(layout) => check(&tenants, &layout),
                // On one card, what fits in sum always fits.
                Err(_) if tenants.iter().all(|tenant| tenant.windows.len() == 1) => {
                    prop_assert!((0..3).any(|card| sum(card) > PERIOD_PARTS));
                }
                Err(_) => {}
            }
            if (0..3).any(|card| sum(card) > PERIOD_PARTS) {
                prop_assert!(lay_out(&tenants).is_err());
            }
        }

        #[test]
        fn the_same_records_give_the_same_layout(tenants in solvable()) {
            prop_assert_eq!(lay_out(&tenants), lay_out(&tenants));
        }
    }
}
