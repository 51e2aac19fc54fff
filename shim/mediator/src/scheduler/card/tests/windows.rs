//! Windows of time: their edges, their compensation, their publication.

use super::*;

#[test]
fn windows_are_kept_and_reported() {
    let mut fixture = Fixture::new(true);
    fixture.channels(20);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    fixture.run_until(41 * PERIOD);
    let open = fixture.open_us(PERIOD);
    assert!(open.abs_diff(40 * 25_000) < 2_000, "{open}");
    let status = fixture.status();
    let card = &status.cards[0];
    assert_eq!((card.running, card.channels), (Running::Closed, 20));
    assert!(card.achieved_1s_ppm.unwrap().abs_diff(250_000) < 2_000, "{card:?}");
    assert!(card.achieved_60s_ppm.unwrap().abs_diff(250_000) < 5_000, "{card:?}");
    assert!(card.open_us.abs_diff(41 * 25_000) < 3_000 && card.edges == 82 && card.late_edges == 0, "{card:?}");
    assert!(card.latest_edge_us == 30 && card.failures == 0);
    assert!(status.next_by_us.is_some());
}

#[test]
fn what_calls_wait_for_is_made_up_and_told() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    for period in 0..20 {
        fixture.run_until(period * PERIOD);
        // Each second one of the openings waits.
        let wait_us = if period % 2 == 0 { 40_000 } else { 0 };
        fixture.state().waits = [wait_us, 0].into();
    }
    fixture.run_until(20 * PERIOD);
    let open = fixture.open_us(0);
    assert!(open.abs_diff(20 * 25_000) < 2_000, "{open}");
    let card = fixture.status().cards[0].clone();
    let waited = 10 * (40_400 - 2_000);
    assert_eq!((card.slow_edges, card.longest_edge_us, card.edge_wait_us), (10, 40_400, waited), "{card:?}");
    assert_eq!((card.lost_us, card.lost_1s_us, card.late_edges), (0, 0, 0), "{card:?}");
}

#[test]
fn turns_that_are_lost_beside_a_neighbour_are_told_within_the_period() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    let mut beside = window_epoch(0, 10_000, 35_000);
    let other = Turn { grant_id: "other".into(), ..window_epoch(0, 35_000, PERIOD).turns.remove(0) };
    beside.turns.push(other);
    fixture.set_epochs(vec![beside]);
    fixture.run_until(20 * PERIOD);
    let before = fixture.status().cards[0].clone();
    assert!(before.lost_1s_us < 5_000 && before.slow_edges == 0, "{before:?}");
    fixture.state().waits = [15_000, 0].into();
    fixture.run_until(21 * PERIOD);
    let card = fixture.status().cards[0].clone();
    assert!((card.lost_us - before.lost_us).abs_diff(15_000) < 500, "{card:?}");
    assert!(card.lost_1s_us.abs_diff(15_000) < 2_000, "{card:?}");
    assert!(fixture.scheduler.edge_times.is_logged());
    fixture.run_until(40 * PERIOD);
    assert!(fixture.status().cards[0].lost_1s_us < 5_000, "{card:?}");
}

/// Twenty windows, the first 35 ms of each period, after which the neighbour has its own, and in
/// each of which another process has the card for so long, again and again.
fn visited(process: u32, visit_us: u64, visits: u64) -> Fixture {
    let mut fixture = Fixture::with(true, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    let mut beside = window_epoch(0, 0, 35_000);
    let other = Turn { grant_id: "other".into(), ..window_epoch(0, 35_000, PERIOD).turns.remove(0) };
    beside.turns.push(other);
    fixture.set_epochs(vec![beside]);
    for period in 0..20 {
        fixture.run_until(period * PERIOD + 5_000);
        fixture.log.add(period * PERIOD + 100, OWN, Presence::On);
        for number in 0..visits {
            let at_us = period * PERIOD + 200 + number * 2 * visit_us;
            fixture.log.add(at_us, OWN, Presence::Off);
            fixture.log.add(at_us, process, Presence::On);
            fixture.log.add(at_us + visit_us, process, Presence::Off);
            fixture.log.add(at_us + visit_us, OWN, Presence::On);
        }
        fixture.run_until(period * PERIOD + 60_000);
    }
    fixture
}

#[test]
fn what_programs_outside_have_of_a_window_is_told_and_not_achieved() {
    let alone = visited(OTHER + 1, 2_000, 0).status().cards[0].clone();
    assert!(alone.lost_1s_us < 10_000 && alone.achieved_1s_ppm.unwrap() > 345_000, "{alone:?}");
    let fixture = visited(OTHER + 1, 2_000, 2);
    let card = fixture.status().cards[0].clone();
    assert!((card.lost_1s_us - alone.lost_1s_us).abs_diff(42_400) < 2_000, "{card:?}");
    assert!(card.achieved_1s_ppm.unwrap().abs_diff(alone.achieved_1s_ppm.unwrap() - 42_400) < 2_000, "{card:?}");
    assert!(fixture.scheduler.edge_times.is_logged());
}

/// Time for which a container alone on its card works in twenty periods, if it takes itself off so
/// often in each of its windows.
fn worked_us(gaps: u64) -> u64 {
    const GAP_US: u64 = 400;
    let mut fixture = Fixture::with(true, true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    for period in 0..40 {
        fixture.run_until(period * PERIOD + 15_000);
        fixture.log.add(period * PERIOD + 10_100, OWN, Presence::On);
        for number in 0..gaps {
            let at_us = period * PERIOD + 10_500 + number * 500;
            fixture.log.add(at_us, OWN, Presence::Off);
            fixture.log.add(at_us + GAP_US, OWN, Presence::On);
        }
        fixture.run_until((period + 1) * PERIOD);
    }
    fixture.open_us(20 * PERIOD) - 20 * gaps * GAP_US
}

#[test]
fn who_takes_itself_off_works_no_longer_than_its_window() {
    let (always, with_gaps) = (worked_us(0), worked_us(40));
    assert!(with_gaps.abs_diff(always) < 2_000, "{with_gaps}, {always}");
}

#[test]
fn what_a_neighbour_has_of_a_window_it_gives_back() {
    let opened = |fixture: &Fixture| fixture.state().edges.iter().rfind(|edge| edge.1).unwrap().0;
    let early = opened(&visited(OTHER, 500, 2));
    assert!(early.abs_diff(19 * PERIOD) < 1_000, "both are there for a moment: {early}");
    let fixture = visited(OTHER, 2_000, 2);
    assert!(opened(&fixture) < 19 * PERIOD - 3_000, "{}", opened(&fixture));
    let lost_us = fixture.status().cards[0].lost_us;
    let alone = visited(OTHER, 2_000, 0);
    assert!(lost_us.abs_diff(alone.status().cards[0].lost_us) < 2_000, "{lost_us}");
}

#[test]
fn without_channels_nothing_is_done_and_new_ones_find_it_closed() {
    let mut fixture = Fixture::new(true);
    assert!(fixture.state().is_closed);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    assert_eq!(fixture.run_until(5 * PERIOD), None, "nothing but a change wakes it");
    assert!(fixture.state().edges.is_empty() && fixture.state().is_closed);
    assert_eq!((fixture.status().next_by_us, fixture.running()), (None, Running::Closed));
    fixture.channels(3);
    fixture.run_until(6 * PERIOD);
    assert_eq!(fixture.state().edges.len(), 2);
    fixture.run_until(6 * PERIOD + 20_000);
    assert!(!fixture.state().is_closed);
    fixture.channels(0);
    assert_eq!(fixture.run_until(9 * PERIOD), None);
    assert!(fixture.state().is_closed, "also when they go within a window");
    assert_eq!(fixture.status().next_by_us, None);
}

#[test]
fn who_is_capped_and_has_no_turn_does_not_run() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.run_until(PERIOD);
    fixture.set_epochs(vec![Epoch { from_us: 0, turns: Vec::new() }]);
    fixture.run_until(2 * PERIOD);
    assert!(fixture.state().is_closed && fixture.state().edges.is_empty());
    assert_eq!(fixture.running(), Running::Closed);
}

#[test]
fn who_is_not_capped_runs_until_it_is_told_otherwise() {
    let mut fixture = Fixture::new(false);
    fixture.channels(3);
    fixture.run_until(PERIOD);
    assert!(!fixture.state().is_closed);
    assert_eq!(fixture.running(), Running::Free);
    fixture.set_epochs(vec![window_epoch(3 * PERIOD, 10_000, 35_000)]);
    fixture.run_until(3 * PERIOD + 5_000);
    assert!(fixture.state().is_closed, "from the instant on that is named");
    assert_eq!(fixture.state().edges.last().unwrap().0.abs_diff(3 * PERIOD) / 1_000, 0);
}

#[test]
fn changes_hold_at_their_instant() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    fixture.run_until(10 * PERIOD);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000), window_epoch(12 * PERIOD, 50_000, 100_000)]);
    fixture.run_until(12 * PERIOD);
    assert!(fixture.open_us(0).abs_diff(12 * 25_000) < 2_000);
    fixture.run_until(22 * PERIOD + 2_000);
    assert!(fixture.open_us(12 * PERIOD).abs_diff(10 * 50_000) < 2_000, "{}", fixture.open_us(12 * PERIOD));
}

#[test]
fn windows_that_come_and_go_lose_and_add_nothing() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.is_busy(250_000);
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    fixture.run_until(20 * PERIOD + 50_000);
    let asked = lock(&fixture.card.state).asked;
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    for period in 21..40 {
        fixture.run_until(period * PERIOD + 20_000);
        fixture.log.add(fixture.clock.now_us(), OWN, Presence::On);
        fixture.run_until(period * PERIOD + 60_000);
    }
    assert!(fixture.achieved().0.unwrap().abs_diff(250_000) < 5_000, "{:?}", fixture.achieved());
    assert!(lock(&fixture.card.state).asked <= asked + 1, "edges are not to wait for the driver");
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    fixture.run_until(60 * PERIOD + 50_000);
    assert!(fixture.achieved().0.unwrap().abs_diff(250_000) < 5_000, "{:?}", fixture.achieved());
    let used_us = fixture.achieved().1.unwrap();
    assert!(used_us.abs_diff(60 * PERIOD / 4) < PERIOD, "{used_us}");
}

#[test]
fn windows_in_which_nothing_ran_are_not_used() {
    let mut fixture = Fixture::with(true, true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    let periods = |fixture: &mut Fixture, periods: std::ops::Range<u64>, runs: bool| {
        for period in periods {
            fixture.run_until(period * PERIOD + 20_000);
            if runs {
                fixture.log.add(fixture.clock.now_us(), OWN, Presence::On);
            }
            fixture.run_until(period * PERIOD + 60_000);
        }
    };
    periods(&mut fixture, 0..20, true);
    let busy = fixture.status().cards[0].clone();
    assert!(busy.achieved_1s_ppm.unwrap().abs_diff(250_000) < 5_000, "{busy:?}");
    periods(&mut fixture, 20..40, false);
    let idle = fixture.status().cards[0].clone();
    assert_eq!((idle.achieved_1s_ppm, idle.used_us), (Some(0), busy.used_us), "{idle:?}");
    assert!(idle.open_us > busy.open_us, "they were its own all the same");
}

/// Thirty windows of a card whose log says so long before each call to open has ended that work
/// began, and so long before each call to close has ended that work did.
fn with_log(began_before_us: u64, ended_before_us: u64) -> Fixture {
    let mut fixture = Fixture::with(true, true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    fixture.run_until(5_000);
    for period in 0..30 {
        let edges = fixture.state().edges.len();
        fixture.run_until(period * PERIOD + 30_000);
        let opened = fixture.state().edges[edges].0;
        fixture.log.add(opened - began_before_us, OWN, Presence::On);
        lock(&fixture.gate.state).off = Some((fixture.log.clone(), ended_before_us));
        fixture.run_until(period * PERIOD + 60_000);
    }
    fixture
}

/// Ends of the calls of the last window.
fn last_window(fixture: &Fixture) -> (u64, u64) {
    let state = fixture.state();
    let [.., (opened, true), (closed, false)] = state.edges[..] else { panic!("{:?}", state.edges) };
    (opened, closed)
}

#[test]
fn edges_count_from_when_work_began_and_ended() {
    let mut fixture = with_log(50, 150);
    let (opened, closed) = last_window(&fixture);
    let (began, ended) = (opened - 50, closed - 150);
    assert!(
        began.abs_diff(29 * PERIOD + 10_000) < 100 && ended.abs_diff(29 * PERIOD + 35_000) < 100,
        "{began} {ended}"
    );
    assert_eq!(fixture.status().cards[0].busy, Some(true));
    fixture.run_until(31 * PERIOD);
    assert_eq!(fixture.status().cards[0].busy, Some(false), "nothing came when it was opened");
}

#[test]
fn what_came_onto_the_card_before_its_call_ended_counts() {
    let (opened, closed) = last_window(&with_log(350, 0));
    assert!((closed - (opened - 350)).abs_diff(25_000) < 150, "{opened} {closed}");
}

#[test]
fn who_gets_channels_in_the_middle_of_a_window_has_the_rest_of_it() {
    let mut fixture = Fixture::new(true);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    fixture.run_until(PERIOD + 30_000);
    fixture.channels(3);
    fixture.run_until(PERIOD + 60_000);
    let closed = fixture.state().edges.last().copied().unwrap();
    assert!(!closed.1 && closed.0.abs_diff(PERIOD + 35_000) < 600, "nothing is owed for the time before: {closed:?}");
}

#[test]
fn an_edge_that_fails_is_tried_again_and_costs_later_time() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    fixture.run_until(PERIOD + 20_000);
    fixture.state().refusals.extend([RmStatus::INVALID_STATE; 2]);
    fixture.run_until(2 * PERIOD);
    assert_eq!(fixture.status().cards[0].failures, 2);
    assert_eq!(fixture.state().edges.len(), 4, "the third attempt succeeded");
    let closed = fixture.state().edges[3].0;
    assert!(closed.abs_diff(PERIOD + 35_000) < 5_000, "at once: {closed}");
    fixture.run_until(2 * PERIOD + 20_000);
    fixture.state().refusals.extend([RmStatus::INVALID_STATE; 3]);
    fixture.run_until(20 * PERIOD);
    assert_eq!(fixture.running(), Running::Closed);
    assert!(fixture.open_us(0) <= 20 * 25_000 + 2_000, "{}", fixture.open_us(0));
}

#[test]
fn what_fails_now_and_then_stays_exact() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    for number in 1..=3 {
        fixture.run_until(20 * number * PERIOD + 20_000);
        fixture.state().refusals.extend([RmStatus::INVALID_STATE; 3]);
        fixture.run_until((20 * number + 2) * PERIOD);
        assert_eq!(fixture.running(), Running::Closed, "with successes in between, it is not for long");
        assert_eq!(fixture.status().cards[0].failures, 3 * number);
    }
}

#[test]
fn each_status_comes_by_the_instant_that_was_promised() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    fixture.run_until(1);
    for number in 2..2_000 {
        let promised = fixture.status().next_by_us.unwrap();
        fixture.run_until(number * 10_000);
        let written = fixture.status();
        assert!(promised + 2_000 > fixture.clock.now_us() || written.next_by_us > Some(promised));
        if number == 500 {
            fixture.set_epochs(vec![epoch(0, windows(0, 100_000), Priority::High, Vec::new())]);
        } else if number == 1_000 {
            fixture.set_epochs(vec![epoch(0, Pass::Weight(3), Priority::High, vec![neighbour(Priority::High)])]);
        } else if number == 1_500 {
            fixture.set_epochs(vec![]);
        }
    }
}

#[test]
fn its_thread_opens_and_closes_on_the_real_clock() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(FakeGate {
        clock: Arc::default(),
        state: Mutex::new(FakeGateState { groups: 1, ..FakeGateState::default() }),
        moved: Condvar::new(),
    });
    let (place, mailbox, status_page) = parts(&directory, true);
    let residency_view = ResidencyView::new(OWN, Box::new(|| Ok(None)));
    let outputs = (Arc::clone(&mailbox), status_page);
    let scheduler = CardScheduler::new(place, Arc::clone(&gate) as _, residency_view, outputs, Monotonic);
    // It runs until the process ends.
    std::thread::spawn(move || scheduler.run());
    let mut epoch = window_epoch(now_us(), 0, 10_000);
    epoch.turns[0].period_us = 20_000;
    let table = Timetable { version: 1, format: 1, boot_id: String::new(), revision: 1, epochs: vec![epoch] };
    mailbox.send(Some(Arc::new(table)));
    {
        let mut state = lock(&gate.state);
        (state.channels, state.is_off) = (1, state.is_closed);
    }
    // As the reporter does of the first channel.
    mailbox.wake();
    let state = gate.moved.wait_while(lock(&gate.state), |state| state.edges.len() < 10).unwrap();
    for (number, edge) in state.edges.iter().enumerate() {
        assert_eq!(edge.1, number % 2 == 0, "one after the other");
    }
}
