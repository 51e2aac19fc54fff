//! Turns that containers without a cap agree on.

use schedule::round_robin::{RoundRobin, RoundRobinMember};

use super::*;

const QUANTUM: u64 = 10_000;

fn plan(from_us: u64, members: &[&str]) -> RoundRobin {
    let member = |id: &&str| RoundRobinMember { grant_id: (*id).to_owned(), quantum_us: QUANTUM };
    RoundRobin { from_us, members: members.iter().map(member).collect() }
}

/// A container without a cap beside another one, whose mediator has a process.
fn beside(grant_id: &str) -> Fixture {
    let fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.mediator_is(grant_id, OTHER);
    let other = turn(grant_id, Pass::Turns(1), Priority::High, 1_000_000);
    fixture.set_epochs(vec![epoch(0, Pass::Turns(1), Priority::High, vec![other])]);
    fixture
}

impl Fixture {
    /// Publishes what the mediator of `other`, which is before `own`, has chosen.
    fn other_chooses(&self, round_robin: RoundRobin) {
        self.reports("other", Running::Free, Some(round_robin));
    }

    /// Publishes a status of another one's mediator.
    fn reports(&self, grant_id: &str, running: Running, round_robin: Option<RoundRobin>) {
        let card = CardStatus { uuid: "GPU-a".into(), channels: 1, running, round_robin, ..CardStatus::default() };
        let status = Status { process: OTHER, cards: vec![card], ..Status::default() };
        let path = status_file(self.directory.path(), grant_id).unwrap();
        StatusFile::create(&path).unwrap().write(&status).unwrap();
    }

    /// Both displace each other.
    fn both_work(&mut self, from_us: u64, until_us: u64) {
        for at in (from_us..until_us).step_by(300) {
            self.log.add(at, OWN, Presence::On);
            self.log.add(at + 70, OWN, Presence::Off);
            self.log.add(at + 150, OTHER, Presence::On);
            self.log.add(at + 220, OTHER, Presence::Off);
            self.run_until(at + 300);
        }
    }
}

#[test]
fn the_first_of_a_card_chooses_and_the_others_follow() {
    let mut fixture = beside("other");
    fixture.other_chooses(plan(5 * PERIOD, &["other", "own"]));
    fixture.run_until(5 * PERIOD - QUANTUM);
    assert!(!fixture.state().is_closed);
    assert_eq!(fixture.status().cards[0].round_robin, Some(plan(5 * PERIOD, &["other", "own"])));
    fixture.run_until(15 * PERIOD);
    let open_us = fixture.open_us(5 * PERIOD);
    assert!(open_us.abs_diff(10 * PERIOD / 2) < PERIOD, "{open_us}");
    // The other one changes its mind.
    fixture.other_chooses(plan(15 * PERIOD, &[]));
    fixture.run_until(17 * PERIOD);
    let edges = fixture.state().edges.len();
    fixture.run_until(20 * PERIOD);
    assert_eq!((fixture.state().edges.len(), fixture.running()), (edges, Running::Free));
}

#[test]
fn turns_go_on_when_the_one_that_chose_them_is_gone() {
    let mut fixture = beside("other");
    let plan = plan(2 * PERIOD, &["other", "own"]);
    fixture.other_chooses(plan.clone());
    fixture.run_until(4 * PERIOD);
    std::fs::remove_file(status_file(fixture.directory.path(), "other").unwrap()).unwrap();
    fixture.run_until(4 * PERIOD + 50_000);
    assert_eq!(fixture.status().cards[0].round_robin, Some(plan));
    // Nobody else comes.
    fixture.run_until(10 * PERIOD);
    assert_eq!(
        fixture.status().cards[0].round_robin,
        Some(RoundRobin { from_us: fixture.chosen_us(), members: vec![] })
    );
    assert!(!fixture.state().is_closed);
}

impl Fixture {
    fn chosen_us(&self) -> u64 {
        self.scheduler.residency_view.chooser.plan().from_us
    }
}

#[test]
fn those_that_displace_each_other_take_turns_and_nobody_does_beside_windows() {
    let mut fixture = beside("zeta");
    fixture.both_work(PERIOD, 6 * PERIOD);
    let chosen = fixture.status().cards[0].round_robin.clone().unwrap();
    assert_eq!(chosen.members, plan(0, &["own", "zeta"]).members);
    let closed = |fixture: &Fixture| fixture.state().edges.iter().filter(|(_, is_open)| !is_open).count();
    assert!(closed(&fixture) > 2);
    // A cap comes: what it leaves has other windows.
    let other = turn("cap", windows(0, 30_000), Priority::High, 300_000);
    let rest = |id| turn(id, windows(30_000, PERIOD), Priority::High, 350_000);
    fixture.set_epochs(vec![Epoch { from_us: 0, turns: vec![rest("own"), rest("zeta"), other] }]);
    fixture.run_until(7 * PERIOD);
    assert_eq!(fixture.status().cards[0].round_robin, None);
}

#[test]
fn a_container_of_low_priority_takes_no_turns_beside_high() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.mediator_is("other", OTHER);
    let other = turn("other", Pass::Turns(1), Priority::High, 1_000_000);
    fixture.other_chooses(plan(2 * PERIOD, &["other", "own"]));
    fixture.set_epochs(vec![epoch(0, Pass::Turns(1), Priority::Low, vec![other])]);
    fixture.run_until(10 * PERIOD);
    assert!(fixture.state().edges.is_empty() && fixture.status().cards[0].round_robin.is_none());
}

#[test]
fn the_first_one_that_comes_goes_on_with_the_turns_of_those_before() {
    let mut fixture = beside("zeta");
    let chosen = plan(2 * PERIOD, &["own", "zeta"]);
    fixture.reports("zeta", Running::Free, Some(chosen.clone()));
    fixture.run_until(PERIOD / 2);
    assert_eq!(fixture.status().cards[0].round_robin, Some(chosen));
}

#[test]
fn turns_that_nobody_may_choose_are_not_followed() {
    for wrong in [
        RoundRobin { members: vec![RoundRobinMember { grant_id: "own".into(), quantum_us: u64::MAX }], from_us: 0 },
        RoundRobin { members: vec![RoundRobinMember { grant_id: "own".into(), quantum_us: 0 }], from_us: 0 },
        plan(0, &["own", "own"]),
        plan(u64::MAX, &["other", "own"]),
    ] {
        let mut fixture = beside("other");
        fixture.other_chooses(wrong);
        fixture.run_until(5 * PERIOD);
        assert!(fixture.state().edges.is_empty());
    }
}

#[test]
fn beside_one_that_the_card_cannot_take_off_nobody_takes_turns() {
    let mut fixture = beside("zeta");
    fixture.reports("zeta", Running::Degraded, None);
    fixture.both_work(0, 8 * PERIOD);
    assert!(fixture.state().edges.is_empty());
}
