//! Windows of time: kept, compensated, and told.

use super::*;

#[test]
fn windows_are_kept_and_told() {
    let mut world = World::new(true);
    world.channels(20);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(41 * PERIOD);
    let open = world.open_us(PERIOD);
    assert!(open.abs_diff(40 * 25_000) < 2_000, "{open}");
    let status = world.status();
    let card = &status.cards[0];
    assert_eq!((card.running, card.channels), (Running::Closed, 20));
    assert!(card.achieved_1s_ppm.unwrap().abs_diff(250_000) < 2_000, "{card:?}");
    assert!(card.achieved_60s_ppm.unwrap().abs_diff(250_000) < 5_000, "{card:?}");
    assert!(card.open_us.abs_diff(41 * 25_000) < 3_000 && card.edges == 82 && card.late_edges == 0, "{card:?}");
    assert!(card.latest_edge_us == 30 && card.failures == 0);
    assert!(status.next_by_us.is_some());
}

#[test]
fn without_channels_nothing_is_done_and_new_ones_find_it_closed() {
    let mut world = World::new(true);
    assert!(world.state().is_closed);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    assert_eq!(world.run_until(5 * PERIOD), None, "nothing but a change wakes it");
    assert!(world.state().edges.is_empty() && world.state().is_closed);
    assert_eq!((world.status().next_by_us, world.running()), (None, Running::Closed));
    world.channels(3);
    world.run_until(6 * PERIOD);
    assert_eq!(world.state().edges.len(), 2);
    world.run_until(6 * PERIOD + 20_000);
    assert!(!world.state().is_closed);
    world.channels(0);
    assert_eq!(world.run_until(9 * PERIOD), None);
    assert!(world.state().is_closed, "also when they go within a window");
    assert_eq!(world.status().next_by_us, None);
}

#[test]
fn who_is_capped_and_has_no_turn_does_not_run() {
    let mut world = World::new(true);
    world.channels(3);
    world.run_until(PERIOD);
    world.tell(vec![Epoch { from_us: 0, turns: Vec::new() }]);
    world.run_until(2 * PERIOD);
    assert!(world.state().is_closed && world.state().edges.is_empty());
    assert_eq!(world.running(), Running::Closed);
}

#[test]
fn who_is_not_capped_runs_until_it_is_told_otherwise() {
    let mut world = World::new(false);
    world.channels(3);
    world.run_until(PERIOD);
    assert!(!world.state().is_closed);
    assert_eq!(world.running(), Running::Free);
    world.tell(vec![window_epoch(3 * PERIOD, 10_000, 35_000)]);
    world.run_until(3 * PERIOD + 5_000);
    assert!(world.state().is_closed, "from the instant on that is named");
    assert_eq!(world.state().edges.last().unwrap().0.abs_diff(3 * PERIOD) / 1_000, 0);
}

#[test]
fn changes_hold_at_their_instant() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(10 * PERIOD);
    world.tell(vec![window_epoch(0, 10_000, 35_000), window_epoch(12 * PERIOD, 50_000, 100_000)]);
    world.run_until(12 * PERIOD);
    assert!(world.open_us(0).abs_diff(12 * 25_000) < 2_000);
    world.run_until(22 * PERIOD + 2_000);
    assert!(world.open_us(12 * PERIOD).abs_diff(10 * 50_000) < 2_000, "{}", world.open_us(12 * PERIOD));
}

#[test]
fn windows_that_come_and_go_lose_and_add_nothing() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.is_busy(250_000);
    world.tell(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    world.run_until(20 * PERIOD + 50_000);
    let asked = lock(&world.card.state).asked;
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    for period in 21..40 {
        world.run_until(period * PERIOD + 20_000);
        world.log.add(world.clock.now_us(), OWN, Presence::On);
        world.run_until(period * PERIOD + 60_000);
    }
    assert!(world.achieved().0.unwrap().abs_diff(250_000) < 5_000, "{:?}", world.achieved());
    assert!(lock(&world.card.state).asked <= asked + 1, "edges are not to wait for the driver");
    world.tell(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    world.run_until(60 * PERIOD + 50_000);
    assert!(world.achieved().0.unwrap().abs_diff(250_000) < 5_000, "{:?}", world.achieved());
    let used_us = world.achieved().1.unwrap();
    assert!(used_us.abs_diff(60 * PERIOD / 4) < PERIOD, "{used_us}");
}

#[test]
fn windows_in_which_nothing_ran_are_not_used() {
    let mut world = World::with(true, true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    let periods = |world: &mut World, periods: std::ops::Range<u64>, runs: bool| {
        for period in periods {
            world.run_until(period * PERIOD + 20_000);
            if runs {
                world.log.add(world.clock.now_us(), OWN, Presence::On);
            }
            world.run_until(period * PERIOD + 60_000);
        }
    };
    periods(&mut world, 0..20, true);
    let busy = world.status().cards[0].clone();
    assert!(busy.achieved_1s_ppm.unwrap().abs_diff(250_000) < 5_000, "{busy:?}");
    periods(&mut world, 20..40, false);
    let idle = world.status().cards[0].clone();
    assert_eq!((idle.achieved_1s_ppm, idle.used_us), (Some(0), busy.used_us), "{idle:?}");
    assert!(idle.open_us > busy.open_us, "they were its own all the same");
}

/// Thirty windows of a card whose log says so long before each call to open has ended that work began, and so long before each call to close
/// has ended that work did.
fn with_log(began_before_us: u64, ended_before_us: u64) -> World {
    let mut world = World::with(true, true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(5_000);
    for period in 0..30 {
        let edges = world.state().edges.len();
        world.run_until(period * PERIOD + 30_000);
        let opened = world.state().edges[edges].0;
        world.log.add(opened - began_before_us, OWN, Presence::On);
        lock(&world.gate.state).off = Some((world.log.clone(), ended_before_us));
        world.run_until(period * PERIOD + 60_000);
    }
    world
}

/// When the calls of the last window had ended.
fn last_window(world: &World) -> (u64, u64) {
    let state = world.state();
    let [.., (opened, true), (closed, false)] = state.edges[..] else { panic!("{:?}", state.edges) };
    (opened, closed)
}

#[test]
fn edges_count_from_when_work_began_and_ended() {
    let mut world = with_log(50, 150);
    let (opened, closed) = last_window(&world);
    let (began, ended) = (opened - 50, closed - 150);
    assert!(
        began.abs_diff(29 * PERIOD + 10_000) < 100 && ended.abs_diff(29 * PERIOD + 35_000) < 100,
        "{began} {ended}"
    );
    assert_eq!(world.status().cards[0].busy, Some(true));
    world.run_until(31 * PERIOD);
    assert_eq!(world.status().cards[0].busy, Some(false), "nothing came when it was opened");
}

#[test]
fn what_came_onto_the_card_before_its_call_ended_counts() {
    let (opened, closed) = last_window(&with_log(350, 0));
    assert!((closed - (opened - 350)).abs_diff(25_000) < 150, "{opened} {closed}");
}

#[test]
fn who_gets_channels_in_the_middle_of_a_window_has_the_rest_of_it() {
    let mut world = World::new(true);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(PERIOD + 30_000);
    world.channels(3);
    world.run_until(PERIOD + 60_000);
    let closed = world.state().edges.last().copied().unwrap();
    assert!(!closed.1 && closed.0.abs_diff(PERIOD + 35_000) < 600, "nothing is owed for the time before: {closed:?}");
}

#[test]
fn an_edge_that_fails_is_tried_again_and_costs_later_time() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(PERIOD + 20_000);
    world.state().refusals.extend([RmStatus::INVALID_STATE; 2]);
    world.run_until(2 * PERIOD);
    assert_eq!(world.status().cards[0].failures, 2);
    assert_eq!(world.state().edges.len(), 4, "the third attempt succeeded");
    let closed = world.state().edges[3].0;
    assert!(closed.abs_diff(PERIOD + 35_000) < 5_000, "at once: {closed}");
    world.run_until(2 * PERIOD + 20_000);
    world.state().refusals.extend([RmStatus::INVALID_STATE; 3]);
    world.run_until(20 * PERIOD);
    assert_eq!(world.running(), Running::Closed);
    assert!(world.open_us(0) <= 20 * 25_000 + 2_000, "{}", world.open_us(0));
}

#[test]
fn what_fails_now_and_then_stays_exact() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    for number in 1..=3 {
        world.run_until(20 * number * PERIOD + 20_000);
        world.state().refusals.extend([RmStatus::INVALID_STATE; 3]);
        world.run_until((20 * number + 2) * PERIOD);
        assert_eq!(world.running(), Running::Closed, "with successes in between, it is not for long");
        assert_eq!(world.status().cards[0].failures, 3 * number);
    }
}

#[test]
fn what_was_promised_is_told_in_time() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(1);
    for number in 2..2_000 {
        let promised = world.status().next_by_us.unwrap();
        world.run_until(number * 10_000);
        let written = world.status();
        assert!(promised + 2_000 > world.clock.now_us() || written.next_by_us > Some(promised));
        if number == 500 {
            world.tell(vec![epoch(0, windows(0, 100_000), Priority::High, Vec::new())]);
        } else if number == 1_000 {
            world.tell(vec![epoch(0, Pass::Weight(3), Priority::High, vec![neighbour(Priority::High)])]);
        } else if number == 1_500 {
            world.tell(vec![]);
        }
    }
}

#[test]
fn its_thread_opens_and_closes_on_the_real_clock() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(PlayedGate {
        clock: Arc::default(),
        state: Mutex::new(GateState { groups: 1, ..GateState::default() }),
        moved: Condvar::new(),
    });
    let (place, post, board) = parts(&directory, true);
    let sight = Sight::new(OWN, Box::new(|| Ok(None)));
    let told = (Arc::clone(&post), board);
    let scheduler = CardScheduler::new(place, Arc::clone(&gate) as _, sight, told, Monotonic);
    // It has no end; the process's is its.
    std::thread::spawn(move || scheduler.run());
    let mut epoch = window_epoch(now_us(), 0, 10_000);
    epoch.turns[0].period_us = 20_000;
    let table = Timetable { version: 1, boot_id: String::new(), revision: 1, epochs: vec![epoch] };
    post.tell(Some(Arc::new(table)));
    {
        let mut state = lock(&gate.state);
        (state.channels, state.is_off) = (1, state.is_closed);
    }
    // As whoever sees the first channel does.
    post.wake();
    let state = gate.moved.wait_while(lock(&gate.state), |state| state.edges.len() < 10).unwrap();
    for (number, edge) in state.edges.iter().enumerate() {
        assert_eq!(edge.1, number % 2 == 0, "one after the other");
    }
}
