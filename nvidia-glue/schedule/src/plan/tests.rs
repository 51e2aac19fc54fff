//! Plans for grants as no admission would have made them, too.

use base::{CardGrant, CardPolicy, ComputeEnforcement, ComputeShare, Enforcement, Percent, Period, Priority, Weight};
use proptest::prelude::*;

use super::*;

const MS: u64 = 1000;

fn grant(card: usize, policy: CardPolicy, compute: ComputeShare) -> CardGrant {
    CardGrant {
        index: 0,
        uuid: format!("GPU-{card}"),
        mig_uuid: None,
        memory: base::Bytes(1 << 30),
        compute,
        policy,
        exclusive: false,
        enforcement: Enforcement::Mediated,
        compute_by: ComputeEnforcement::Windows,
        window_loss_us: 0,
        channels: None,
        pinned_memory: None,
    }
}

fn cap(percent: u8) -> ComputeShare {
    ComputeShare::Cap { percent: Percent::new(percent).unwrap(), lifted_when_alone: false }
}

/// Containers with their cards, all of them present.
fn members<'a>(names: &'a [String], grants: &'a [Vec<CardGrant>]) -> Vec<Member<'a>> {
    let members = names.iter().zip(grants).zip(0..);
    let member = |((name, grants), order): ((&'a String, &'a Vec<CardGrant>), u64)| Member {
        grant_id: name,
        order,
        priority: Priority::High,
        is_present: true,
        is_unlimited: false,
        grants: grants.iter().map(Cow::Borrowed).collect(),
    };
    members.map(member).collect()
}

fn planned(grants: &[Vec<CardGrant>], settings: &PlanSettings) -> Vec<Turn> {
    let names: Vec<String> = (0..grants.len()).map(|number| format!("grant-{number}")).collect();
    plan(&members(&names, grants), settings, None)
}

fn lengths(turn: &Turn) -> Vec<u64> {
    let length = |card: &CardTurn| match &card.pass {
        Pass::Windows(windows) => windows.iter().map(|window| window.end_us - window.start_us).sum(),
        _ => turn.period_us,
    };
    turn.cards.iter().map(length).collect()
}

#[test]
fn three_that_meet_in_pairs_get_what_fits() {
    // Admitted beside others that have gone: now half of each card would be each one's share, and
    // cannot be laid out.
    for policy in [CardPolicy::Weighted, CardPolicy::Preemptive] {
        let on = |cards: [usize; 2]| cards.map(|card| grant(card, policy, ComputeShare::Unlimited)).to_vec();
        let turns = planned(&[on([0, 1]), on([1, 2]), on([0, 2])], &PlanSettings::default());
        for turn in &turns {
            assert_eq!(lengths(turn), [31_250, 31_250], "ten sixteenths of a half: {turn:?}");
            assert_eq!(turn.cards[0].share_ppm, 312_500);
        }
    }
}

#[test]
fn who_is_skipped_does_not_keep_the_others_from_a_layout() {
    // With the fourth on each card, a third each can be laid out; without them, a half each cannot,
    // but a third each still can.
    let on = |cards: &[usize]| -> Vec<CardGrant> {
        cards.iter().map(|card| grant(*card, CardPolicy::Preemptive, ComputeShare::Unlimited)).collect()
    };
    let grants = [on(&[0, 1]), on(&[1, 2]), on(&[0, 2]), on(&[0]), on(&[1]), on(&[2])];
    let names: Vec<String> = (0..grants.len()).map(|number| format!("grant-{number}")).collect();
    let mut members = members(&names, &grants);
    members.iter_mut().skip(3).for_each(|member| member.is_present = false);
    let turns = plan(&members, &PlanSettings::default(), None);
    for (position, turn) in turns.iter().enumerate() {
        assert_eq!(lengths(turn), if position < 3 { vec![33_333; 2] } else { vec![0] });
    }
}

#[test]
fn a_configuration_that_no_longer_fits_makes_all_shares_smaller() {
    // Slices of sixteen, and the card is now cut into eight.
    let slices = |count| vec![grant(0, CardPolicy::Fixed, ComputeShare::Weight(Weight::new(count).unwrap()))];
    let settings = PlanSettings { max_inst: 8, ..PlanSettings::default() };
    let turns = planned(
        &[slices(8), slices(4), slices(2), vec![grant(0, CardPolicy::Fixed, ComputeShare::Unlimited)]],
        &settings,
    );
    let lengths: Vec<u64> = turns.iter().flat_map(lengths).collect();
    assert_eq!(lengths[..3], [50_000, 25_000, 12_500]);
    assert!(lengths[3] >= 5 * MS, "who has no cap runs, too");
}

#[test]
fn what_cannot_be_laid_out_at_all_is_weights() {
    let caps: Vec<Vec<CardGrant>> = (0..120).map(|_| vec![grant(0, CardPolicy::Fixed, cap(50))]).collect();
    let turns = planned(&caps, &PlanSettings::default());
    assert!(turns.iter().all(|turn| turn.cards[0].pass == Pass::Weight(500_000) && turn.cards[0].share_ppm == 8333));
}

#[test]
fn pieces_that_are_too_short_are_nobodys() {
    let gap = |start_us, end_us| Window { start_us, end_us };
    let (period_us, long) = (100 * MS, gap(20 * MS, 30 * MS));
    let kept = |gaps: &[Window]| without_splinters(gaps.to_vec(), period_us);
    assert_eq!(kept(&[gap(0, 4999), long, gap(50 * MS, 54 * MS)]), [long]);
    assert_eq!(kept(&[gap(0, 4999)]), []);
    // The end of one period and the beginning of the next are one piece.
    let (first, last) = (gap(0, 2 * MS), gap(97 * MS, 100 * MS));
    assert_eq!(kept(&[first, long, last]), [first, long, last]);
    assert_eq!(kept(&[gap(0, 1999), last]), []);
    assert_eq!(kept(&[gap(0, period_us)]), [gap(0, period_us)]);
}

/// Containers of one card by weight, and what their windows lose as far as is known; each one's
/// window.
fn weighted(weights: &[u16], losses_us: &[u64]) -> (u64, Vec<Turn>) {
    let one = |(weight, loss_us): (&u16, &u64)| {
        let compute = ComputeShare::Weight(Weight::new(*weight).unwrap());
        vec![CardGrant { window_loss_us: *loss_us, ..grant(0, CardPolicy::Weighted, compute) }]
    };
    let grants: Vec<Vec<CardGrant>> = weights.iter().zip(losses_us).map(one).collect();
    let turns = planned(&grants, &PlanSettings::default());
    (turns[0].period_us, turns)
}

/// Unevenness of time for weight: by how much the worst is behind the best, as a part of the best.
#[allow(clippy::cast_precision_loss, reason = "microseconds of a period")]
fn unevenness(weights: &[u16], turns: &[Turn], lost_us: &[u64]) -> f64 {
    let each = turns
        .iter()
        .zip(weights)
        .zip(lost_us)
        .map(|((turn, weight), lost)| (lengths(turn)[0] as f64 - *lost as f64) / f64::from(*weight));
    let (least, most) = each.fold((f64::MAX, 0.0_f64), |(least, most), one| (least.min(one), most.max(one)));
    1.0 - least / most
}

#[test]
fn windows_by_weight_have_their_costs_beside_their_shares() {
    let lengths_of = |weights: &[u16], losses: &[u64]| -> Vec<u64> {
        weighted(weights, losses).1.iter().flat_map(lengths).collect()
    };
    // 120 us are lost in each whatever is known.
    assert_eq!(lengths_of(&[1, 2], &[0, 0]), [33_373, 66_626]);
    assert_eq!(lengths_of(&[1, 2], &[880, 880]), [33_666, 66_333]);
    assert_eq!(lengths_of(&[1, 1], &[2_000, 0]), [51_000, 49_000]);
    assert_eq!(lengths_of(&[7], &[2_000]), [100_000], "alone there is nothing to compare with");
    let (_, turns) = weighted(&[1, 2], &[880, 880]);
    assert_eq!(
        [0, 1].map(|turn: usize| turns[turn].cards[0].share_ppm),
        [333_333, 666_666],
        "what is shown is the share"
    );
    // As measured on a card: without costs, 1 ms in each window makes of 1 to 2 something else.
    let plain = [33_333, 66_666].map(|us: u64| us - 1_000);
    assert!(plain[1] * 1_000 / plain[0] >= 2_030);
}

#[test]
fn costs_are_no_matter_of_caps() {
    let caps = |loss_us| -> Vec<u64> {
        let one = |percent| vec![CardGrant { window_loss_us: loss_us, ..grant(0, CardPolicy::Fixed, cap(percent)) }];
        planned(&[one(10), one(30), one(60)], &PlanSettings::default()).iter().flat_map(lengths).collect()
    };
    assert_eq!((caps(0), caps(2_000)), (vec![10_000, 30_000, 60_000], vec![10_000, 30_000, 60_000]));
}

fn policies() -> impl Strategy<Value = CardPolicy> {
    prop::sample::select(CardPolicy::ALL)
}

fn computes() -> impl Strategy<Value = ComputeShare> {
    prop_oneof![
        (1_u8..=100).prop_map(cap),
        Just(ComputeShare::Unlimited),
        (1_u16..=1000).prop_map(|weight| ComputeShare::Weight(Weight::new(weight).unwrap())),
    ]
}

proptest! {
    /// Whatever each window loses, and whatever of it is known to the step in which it is noted:
    /// what is left is by weight.
    #[test]
    fn what_is_achieved_is_by_weight_whatever_windows_lose(
        containers in prop::collection::vec((1_u16..=16, 0_u64..=2_000, -50_i64..=50), 2..=6),
    ) {
        let weights: Vec<u16> = containers.iter().map(|one| one.0).collect();
        let known: Vec<u64> = containers.iter().map(|one| one.1.saturating_add_signed(one.2)).collect();
        let lost: Vec<u64> = containers.iter().map(|one| WINDOW_RAMP_US + one.1).collect();
        let (period_us, turns) = weighted(&weights, &known);
        let all: u64 = turns.iter().flat_map(lengths).sum();
        prop_assert!((period_us - 10..=period_us).contains(&all), "{all} of {period_us}");
        prop_assert!(turns.iter().flat_map(lengths).all(|length| length >= 5 * MS));
        let uneven = unevenness(&weights, &turns, &lost);
        prop_assert!(uneven <= 0.025, "{uneven}: {turns:?}");
    }

    #[test]
    fn there_always_is_a_plan_in_which_everybody_runs_and_no_two_windows_overlap(
        policies in prop::collection::vec(policies(), 4),
        containers in prop::collection::vec(prop::collection::btree_map(0_usize..4, computes(), 1..=3), 1..9),
        max_inst in 1_u32..=20,
        period_us in prop::option::of(0_u64..=1_000_000),
    ) {
        let grants: Vec<Vec<CardGrant>> = containers
            .iter()
            .map(|cards| cards.iter().map(|(card, compute)| grant(*card, policies[*card], *compute)).collect())
            .collect();
        let mut settings = PlanSettings::default();
        (settings.max_inst, settings.period) = (max_inst, period_us.map_or(Period::Auto, Period::Us));
        let turns = planned(&grants, &settings);
        prop_assert_eq!(&turns, &planned(&grants, &settings), "the same for everybody who makes it");
        prop_assert_eq!(turns.len(), grants.len());
        for (position, turn) in turns.iter().enumerate() {
            prop_assert!((20 * MS..=500 * MS).contains(&turn.period_us));
            for (card, grant) in turn.cards.iter().zip(&grants[position]) {
                prop_assert_eq!(&card.uuid, &grant.uuid);
                let Pass::Windows(windows) = &card.pass else { continue };
                let length: u64 = windows.iter().map(|window| window.end_us - window.start_us).sum();
                prop_assert!(length >= 5 * MS, "{:?}", turn);
                let is_left = |grant: &CardGrant| {
                    grant.policy == CardPolicy::Fixed && grant.compute == ComputeShare::Unlimited
                };
                for (other, theirs) in turns.iter().zip(&grants).skip(position + 1) {
                    let Some(Pass::Windows(others)) = other.card(&card.uuid).map(|card| &card.pass) else { continue };
                    let on_card = theirs.iter().find(|other| other.uuid == grant.uuid).unwrap();
                    if is_left(grant) && is_left(on_card) {
                        continue;
                    }
                    prop_assert_eq!(turn.period_us, other.period_us);
                    for (window, other) in windows.iter().flat_map(|window| others.iter().map(move |other| (window, other))) {
                        prop_assert!(window.end_us <= other.start_us || other.end_us <= window.start_us);
                    }
                }
            }
        }
    }

    #[test]
    fn equal_shares_are_equally_long_and_equal_ratios_alike(count in 1_u64..=16, factor in 1_u16..=4) {
        let with = |policy, compute| -> Vec<Vec<CardGrant>> {
            (0..count).map(|_| vec![grant(0, policy, compute)]).collect()
        };
        let one = ComputeShare::Weight(Weight::ONE);
        let scaled = ComputeShare::Weight(Weight::new(factor).unwrap());
        for policy in [CardPolicy::Fair, CardPolicy::Preemptive, CardPolicy::Weighted] {
            let turns = planned(&with(policy, one), &PlanSettings::default());
            let first = lengths(&turns[0]);
            prop_assert!(turns.iter().all(|turn| lengths(turn) == first));
        }
        let weighted = CardPolicy::Weighted;
        prop_assert_eq!(
            planned(&with(weighted, one), &PlanSettings::default()),
            planned(&with(weighted, scaled), &PlanSettings::default())
        );
    }

    #[test]
    fn a_plan_that_is_made_again_stays_as_it_is(
        caps in prop::collection::vec((1_u8..=30, prop::sample::subsequence(vec![0_usize, 1, 2], 1..=2)), 1..7),
        gone in 0_usize..7,
    ) {
        let grants: Vec<Vec<CardGrant>> = caps
            .iter()
            .map(|(percent, cards)| cards.iter().map(|card| grant(*card, CardPolicy::Fixed, cap(*percent))).collect())
            .collect();
        let names: Vec<String> = (0..grants.len()).map(|number| format!("grant-{number}")).collect();
        let mut members = members(&names, &grants);
        let settings = PlanSettings::default();
        if can_be_laid_out(&members, &settings).is_err() {
            return Ok(());
        }
        let turns = plan(&members, &settings, None);
        let epoch = Epoch { from_us: 0, turns };
        prop_assert_eq!(&plan(&members, &settings, Some(&epoch)), &epoch.turns);
        // One goes: where the period stays, so do the windows of all others.
        if gone < members.len() {
            members.remove(gone);
        }
        for turn in plan(&members, &settings, Some(&epoch)) {
            let before = epoch.turn(&turn.grant_id).unwrap();
            if before.period_us == turn.period_us {
                prop_assert!(before.cards.iter().map(|card| &card.pass).eq(turn.cards.iter().map(|card| &card.pass)));
            }
        }
    }
}

#[test]
fn auto_periods_are_as_short_as_costs_little() {
    let auto = PlanSettings { period: Period::Auto, ..PlanSettings::default() };
    let fixed = |percents: &[u8]| -> Vec<Vec<CardGrant>> {
        percents.iter().map(|percent| vec![grant(0, CardPolicy::Fixed, cap(*percent))]).collect()
    };
    let period_ms = |grants: &[Vec<CardGrant>]| planned(grants, &auto)[0].period_us / MS;
    for (percents, expected_ms) in [
        (&[50, 50][..], 20),
        (&[25; 4], 40),
        (&[80, 20], 50),
        (&[10; 10], 100),
        // No window is shorter than 5 ms.
        (&[97, 3], 170),
    ] {
        assert_eq!(period_ms(&fixed(percents)), expected_ms, "{percents:?}");
    }
    let mut beside_rest = fixed(&[75]);
    beside_rest.push(vec![grant(0, CardPolicy::Fixed, ComputeShare::Unlimited)]);
    assert_eq!(period_ms(&beside_rest), 100, "what is left may be as little as 5 %");
    let mut losing = fixed(&[50, 50]);
    losing[1][0].window_loss_us = 600;
    assert_eq!(period_ms(&losing), 50, "kernels that are long to take off");
    let of_card = PlanSettings { card_periods: [("GPU-0".to_owned(), Period::Us(70_000))].into(), ..auto.clone() };
    assert_eq!(planned(&fixed(&[50, 50]), &of_card)[0].period_us, 70 * MS, "what is set stays");
    let equal = |count| vec![vec![grant(0, CardPolicy::Preemptive, ComputeShare::Unlimited)]; count];
    assert_eq!([2, 4].map(|count| period_ms(&equal(count))), [20, 40]);
}
