//! Windows of several containers on a card whose edges cost what they cost on an H200, in virtual
//! time: what comes out of the planner, the pacers and the engines together.

use std::sync::atomic::Ordering;

use base::{CardGrant, CardPolicy, ComputeEnforcement, ComputeShare, Enforcement, Percent, Priority, Weight};
use cards::SimulatedEdges;
use driver::OwnClient;
use schedule::{
    Epoch, Member, PlanSettings, Presence, Switch, SwitchLog, Timeline, Timetable, Turn,
    pacer::{Move, Next, Pacer},
    plan,
};

use super::{
    engines::{Node, Worker, machine_with},
    *,
};

const MEASURED: SimulatedEdges = SimulatedEdges { are_taken: true, opening_us: 410, closing_us: 690, ramp_us: 120 };
/// Time of a neighbour's slice, and a little more.
const AFTER_US: u64 = 2_200;

/// Turns on one card of containers with these shares, whose windows lose what is said.
fn turns(policy: CardPolicy, shares: &[ComputeShare], losses_us: &[u64]) -> Vec<Turn> {
    let grant = |(compute, window_loss_us): (&ComputeShare, &u64)| CardGrant {
        index: 0,
        uuid: "GPU-a".into(),
        mig_uuid: None,
        memory: Bytes(1 << 30),
        compute: *compute,
        policy,
        exclusive: false,
        enforcement: Enforcement::Mediated,
        compute_by: ComputeEnforcement::Windows,
        window_loss_us: *window_loss_us,
        channels: None,
        pinned_memory: None,
    };
    let grants: Vec<CardGrant> = shares.iter().zip(losses_us).map(grant).collect();
    let names: Vec<String> = (0..grants.len()).map(|number| number.to_string()).collect();
    let mut members = Vec::new();
    for ((name, grant), order) in names.iter().zip(&grants).zip(0..) {
        members.push(Member {
            grant_id: name,
            order,
            priority: Priority::High,
            is_present: true,
            is_unlimited: false,
            grants: vec![std::borrow::Cow::Borrowed(grant)],
        });
    }
    plan(&members, &PlanSettings::default(), None)
}

/// State of one container.
struct Paced<'a> {
    worker: Worker<'a>,
    channel: u32,
    context: u32,
    pacer: Pacer,
    next: Next,
    /// Delay with which its thread is woken for it.
    late_us: u64,
    opening: (u64, u64),
    switches: Vec<Switch>,
}

impl Paced<'_> {
    fn turn(&self, is_off: bool) {
        self.worker.disable(&[(self.worker.program.client, self.channel)], is_off).unwrap();
    }

    fn came_us(&self) -> Option<u64> {
        let at_us = |switch: &Switch| switch.at_ns / 1_000;
        let is_it = |switch: &&Switch| {
            let at_us = at_us(switch);
            switch.presence == Presence::On && at_us >= self.opening.0 && at_us <= self.opening.1 + AFTER_US
        };
        self.switches.iter().find(is_it).map(at_us)
    }
}

/// Microseconds of the engine's time in a period that each had of it, and what its windows lost as
/// its pacer has seen, on a host that wakes threads up to `most_late_us` late.
fn played(turns: &[Turn], edges: SimulatedEdges, most_late_us: u64) -> Vec<(u64, u64)> {
    const PERIODS: u64 = 300;
    let node = Node::new();
    let mut inventory = inventory();
    inventory.cards[0].simulated = Some(edges);
    let clock = Clock::Set(Arc::clone(&node.now));
    let machines: Vec<Machine> = turns
        .iter()
        .map(|_| machine_with(|| SimulatedDriver::with_clock(node.state_dir.path(), &inventory, &clock).unwrap()))
        .collect();
    let now_us = || node.now_ns() / 1_000;
    let table = Timetable {
        version: 1,
        format: 1,
        boot_id: String::new(),
        revision: 1,
        epochs: vec![Epoch { from_us: 0, turns: turns.to_vec() }],
    };
    let mut seed = 7_u64;
    let mut late_us = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % most_late_us
    };
    let mut log: Option<Box<dyn SwitchLog>> = None;
    let mut all: Vec<Paced<'_>> = Vec::new();
    for (machine, turn) in machines.iter().zip(turns) {
        let worker = Worker::new(machine);
        let (_, channel) = worker.busy();
        let log = log.get_or_insert_with(|| {
            let abi = abi::Abi::of(abi::DriverRelease::new(580, 159, 4)).unwrap();
            let (control, client) = (worker.program.control.clone(), abi::Handle(worker.program.client));
            let own = OwnClient { control, client };
            let log = machine.driver.switch_log(&abi, &own, abi::Handle(worker.subdevice)).unwrap();
            log.expect("a simulated card keeps one")
        });
        // The others are off, so that what comes now is its own.
        node.wait(1);
        let mut switches = Vec::new();
        log.take(&mut switches).unwrap();
        let context =
            switches.iter().rfind(|switch| switch.presence == Presence::On).map_or(0, |switch| switch.context);
        worker.disable(&[(worker.program.client, channel)], true).unwrap();
        let pacer = Pacer::new(Timeline::of(&table, &turn.grant_id, "GPU-a", &Timeline::never()));
        let next = Next { what: Move::Open, at_us: 0 };
        all.push(Paced { worker, channel, context, pacer, next, late_us: 0, opening: (0, 0), switches: Vec::new() });
    }
    let mut log = log.expect("there are containers");
    for one in &mut all {
        one.next = one.pacer.next(now_us()).unwrap();
    }
    let period_us = turns[0].period_us;
    let from_us = now_us().next_multiple_of(period_us) + 100 * period_us;
    let mut before = Vec::new();
    loop {
        let one = all.iter_mut().min_by_key(|one| one.next.at_us + one.late_us).unwrap();
        let issue_us = one.next.at_us + one.late_us;
        if before.is_empty() && issue_us > from_us {
            node.now.fetch_max(from_us * 1_000, Ordering::Relaxed);
            before = all.iter().map(|one| one.worker.executed_us(one.channel)).collect();
            continue;
        }
        if issue_us > from_us + PERIODS * period_us {
            break;
        }
        node.now.fetch_max(issue_us * 1_000, Ordering::Relaxed);
        let (began_us, planned_us, what) = (now_us(), one.next.at_us, one.next.what);
        one.turn(what == Move::Close);
        let ended_us = now_us();
        match what {
            Move::Open => one.opening = (began_us, ended_us),
            Move::Close => {
                if let Some(came_us) = one.came_us() {
                    one.pacer.correct_opening(came_us);
                }
                one.switches.clear();
            }
        }
        one.pacer.moved(what, planned_us, ended_us);
        one.next = one.pacer.next(ended_us).unwrap();
        one.late_us = late_us();
        let mut switches = Vec::new();
        log.take(&mut switches).unwrap();
        for switch in switches {
            if let Some(of) = all.iter_mut().find(|one| one.context == switch.context) {
                of.switches.push(switch);
            }
        }
    }
    node.now.fetch_max((from_us + PERIODS * period_us) * 1_000, Ordering::Relaxed);
    let had = |(one, before): (&Paced<'_>, &u64)| {
        ((one.worker.executed_us(one.channel) - before) / PERIODS, one.pacer.window_loss_us().unwrap())
    };
    all.iter().zip(&before).map(had).collect()
}

/// Returns the distance between the ratio of two containers' times and that of their shares.
#[allow(clippy::cast_precision_loss, reason = "microseconds of a period")]
fn off(had: &[(u64, u64)], shares: [u64; 2]) -> f64 {
    let ratio = had[1].0 as f64 / had[0].0 as f64;
    (ratio / (shares[1] as f64 / shares[0] as f64) - 1.0).abs()
}

fn caps(percents: &[u8]) -> Vec<Turn> {
    let cap = |percent: &u8| ComputeShare::Cap { percent: Percent::new(*percent).unwrap(), lifted_when_alone: false };
    turns(CardPolicy::Fixed, &percents.iter().map(cap).collect::<Vec<_>>(), &vec![0; percents.len()])
}

#[test]
fn caps_are_within_a_point_though_edges_cost_time() {
    for percents in [&[10, 30, 60][..], &[25, 25, 25, 25], &[20, 80], &[5]] {
        let turns = caps(percents);
        let period_us = turns[0].period_us;
        for ((had_us, _), percent) in played(&turns, MEASURED, 150).iter().zip(percents) {
            let error_us = had_us.abs_diff(period_us / 100 * u64::from(*percent));
            assert!(error_us <= period_us / 100, "{percents:?}: {had_us} of {period_us} us for {percent} %");
        }
    }
}

#[test]
fn weights_are_within_two_and_a_half_percent_only_with_the_costs_of_windows() {
    // The worst that was measured.
    let edges = SimulatedEdges { ramp_us: 150, ..MEASURED };
    let shares = [5, 95];
    // As caps, these shares are windows without their costs.
    let plain = off(&played(&caps(&[5, 95]), edges, 150), shares);
    let weights = shares.map(|share| ComputeShare::Weight(Weight::new(u16::try_from(share).unwrap()).unwrap()));
    let mut losses = vec![0, 0];
    let mut with_costs = 0.0;
    for _ in 0..2 {
        let had = played(&turns(CardPolicy::Weighted, &weights, &losses), edges, 150);
        with_costs = off(&had, shares);
        losses = had.iter().map(|(_, loss_us)| *loss_us).collect();
    }
    assert!(plain > 0.025 && with_costs <= 0.025, "{plain} without, {with_costs} with; {losses:?}");
}

#[test]
fn free_edges_lose_nothing_to_speak_of() {
    let had = played(&caps(&[20, 80]), SimulatedEdges::default(), 20);
    assert!(had[0].0.abs_diff(20_000) <= 200 && had[1].0.abs_diff(80_000) <= 200, "{had:?}");
}
