//! Channels and the time that engines give them, as programs and schedulers meet them.

use std::{
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering},
};

use cards::SimulatedEdges;
use driver::OwnClient;
use schedule::{Presence, Switch, SwitchLog};

use super::*;

const MS: u64 = 1_000_000;
const ENDLESS: u64 = u64::MAX;
const GRAPHICS: u32 = 1;
const COPY: u32 = 9;

/// One or more processes' drivers of the same cards, at a time that the test sets.
pub(super) struct Node {
    pub(super) now: Arc<AtomicU64>,
    pub(super) state_dir: tempfile::TempDir,
}

impl Node {
    pub(super) fn new() -> Self {
        Self { now: Arc::new(AtomicU64::new(1_000 * MS)), state_dir: tempfile::tempdir().unwrap() }
    }

    pub(super) fn machine(&self) -> Machine {
        Machine::with_clock(self.state_dir.path(), &Clock::Set(Arc::clone(&self.now)))
    }

    pub(super) fn wait(&self, ms: u64) {
        self.now.fetch_add(ms * MS, Ordering::Relaxed);
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}

/// A program with work for card 0.
pub(super) struct Worker<'a> {
    pub(super) program: Program<'a>,
    node: DeviceFile,
    pub(super) device: u32,
    pub(super) subdevice: u32,
}

impl<'a> Worker<'a> {
    pub(super) fn new(machine: &'a Machine) -> Self {
        let program = machine.program();
        let (device, subdevice) = program.device(0);
        Self { program, node: machine.driver.open(abi::Node::Card(0)).unwrap(), device, subdevice }
    }

    fn group(&self, engine: u32) -> u32 {
        let mut params = vec![0; 20];
        put(&mut params, 12, engine);
        self.program.alloc(self.device, 0, KEPLER_CHANNEL_GROUP_A, Some(&mut params)).unwrap()
    }

    fn channel(&self, group: u32) -> u32 {
        self.program.alloc(group, 0, HOPPER_CHANNEL_GPFIFO_A, Some(&mut vec![0; 368])).unwrap()
    }

    fn schedule(&self, target: u32) {
        self.program.control(target, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut vec![1, 0, 0]).unwrap();
    }

    /// A group of one channel that has work without end.
    pub(super) fn busy(&self) -> (u32, u32) {
        let group = self.group(GRAPHICS);
        let channel = self.channel(group);
        self.schedule(group);
        // Turns of a whole millisecond.
        self.slice(group, 1000);
        self.submit(channel, ENDLESS, 0);
        (group, channel)
    }

    fn slice(&self, group: u32, slice_us: u64) {
        self.program.control(group, NVA06C_CTRL_CMD_SET_TIMESLICE, &mut slice_us.to_le_bytes().to_vec()).unwrap();
    }

    fn token(&self, channel: u32) -> u32 {
        let mut params = vec![0; 4];
        self.program.control(channel, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, &mut params).unwrap();
        get(&params, 0)
    }

    fn submit(&self, channel: u32, work_ns: u64, at_ns: u64) {
        let mut bytes = [0; 16];
        put_u64(&mut bytes, 0, work_ns);
        put_u64(&mut bytes, 8, at_ns);
        self.node.file.write_all_at(&bytes, u64::from(self.token(channel)) * 64).unwrap();
    }

    /// In milliseconds, as the program reads it at its doorbell.
    pub(super) fn executed(&self, channel: u32) -> u64 {
        self.executed_us(channel) / 1_000
    }

    pub(super) fn executed_us(&self, channel: u32) -> u64 {
        let mut bytes = [0; 8];
        self.node.file.read_exact_at(&mut bytes, u64::from(self.token(channel)) * 64 + 16).unwrap();
        u64::from_le_bytes(bytes) / 1_000
    }

    pub(super) fn disable(&self, named: &[(u32, u32)], off: bool) -> Result<(), Status> {
        let mut params = vec![0; 536];
        params[0] = u8::from(off);
        put(&mut params, 4, u32::try_from(named.len()).unwrap());
        for (index, (client, channel)) in named.iter().enumerate() {
            put(&mut params, 24 + index * 4, *client);
            put(&mut params, 280 + index * 4, *channel);
        }
        self.program.control(self.subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &mut params)
    }
}

#[test]
fn a_program_alone_has_the_whole_engine_while_it_has_work() {
    let node = Node::new();
    let machine = node.machine();
    let worker = Worker::new(&machine);
    let group = worker.group(GRAPHICS);
    let channel = worker.channel(group);
    worker.submit(channel, 30 * MS, node.now_ns());
    node.wait(10);
    assert_eq!(worker.executed(channel), 0, "it is on no run list");
    worker.schedule(group);
    node.wait(10);
    assert_eq!(worker.executed(channel), 10);
    node.wait(100);
    assert_eq!(worker.executed(channel), 30);
    // A burst, which came when it says.
    node.wait(40);
    worker.submit(channel, 50 * MS, node.now_ns());
    node.wait(15);
    assert_eq!(worker.executed(channel), 45);
    node.wait(15);
    assert_eq!(worker.executed(channel), 50);
}

#[test]
fn processes_share_by_slices_of_groups_whatever_their_numbers_of_channels() {
    let node = Node::new();
    let (one, other) = (node.machine(), node.machine());
    let (first, second) = (Worker::new(&one), Worker::new(&other));
    let (group, channel) = first.busy();
    let more = first.channel(group);
    first.schedule(group);
    first.submit(more, ENDLESS, 0);
    let (slow, alone) = second.busy();
    node.wait(100);
    assert_eq!((first.executed(channel), first.executed(more), second.executed(alone)), (25, 25, 50));
    second.slice(slow, 3000);
    node.wait(100);
    assert_eq!((first.executed(channel), second.executed(alone)), (37, 125));
    // Another engine is another time.
    let copies = second.group(COPY);
    let copy = second.channel(copies);
    second.schedule(copies);
    second.submit(copy, ENDLESS, 0);
    node.wait(100);
    assert_eq!((first.executed(channel), second.executed(alone), second.executed(copy)), (50, 200, 100));
}

#[test]
fn a_channel_that_is_off_stays_off_whatever_its_program_does() {
    let node = Node::new();
    let (one, other) = (node.machine(), node.machine());
    let (victim, anybody) = (Worker::new(&one), Worker::new(&other));
    let (group, channel) = victim.busy();
    let neighbour = anybody.busy().1;
    let name = [(victim.program.client, channel)];
    anybody.disable(&name, true).unwrap();
    node.wait(10);
    victim.schedule(group);
    victim.slice(group, 100_000);
    node.wait(10);
    assert_eq!((victim.executed(channel), anybody.executed(neighbour)), (0, 20));
    // A new channel of the group was not off.
    let new = victim.channel(group);
    victim.schedule(group);
    victim.submit(new, ENDLESS, 0);
    victim.slice(group, 1000);
    node.wait(10);
    assert_eq!((victim.executed(channel), victim.executed(new)), (0, 5));
    anybody.disable(&name, false).unwrap();
    node.wait(20);
    assert_eq!((victim.executed(channel), victim.executed(new)), (5, 10));
    assert_eq!(anybody.disable(&[(victim.program.client, 0x777)], true), Err(Status::INVALID_CHANNEL));
    assert_eq!(anybody.disable(&[name[0]; 65], true), Err(Status::INVALID_PARAM_STRUCT));
    assert_eq!(
        anybody.disable(&[], true),
        Err(Status::INVALID_PARAM_STRUCT),
        "which is how one asks whether a card can do this"
    );
    // A group is bound by four bytes (`NVA06C_CTRL_BIND_PARAMS`).
    assert_eq!(victim.program.control(group, NVA06C_CTRL_CMD_BIND, &mut vec![0]), Err(Status::INVALID_PARAM_STRUCT));
    victim.program.control(group, NVA06C_CTRL_CMD_BIND, &mut vec![0; 4]).unwrap();
    // As seen on a card: this stops nothing.
    victim.program.control(group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut vec![0, 0, 0]).unwrap();
    node.wait(20);
    assert_eq!(victim.executed(channel), 10);
}

#[test]
fn channels_leave_their_engine_with_their_object_their_client_and_their_file() {
    let node = Node::new();
    let (one, other) = (node.machine(), node.machine());
    let stays = Worker::new(&one);
    let channel = stays.busy().1;
    let mut tokens = Vec::new();
    for end in 0..3 {
        let goes = Worker::new(&other);
        let (group, gone) = goes.busy();
        tokens.push(goes.token(gone));
        let before = stays.executed(channel);
        node.wait(10);
        assert_eq!(stays.executed(channel), before + 5);
        match end {
            0 => goes.program.free(group).unwrap(),
            1 => goes.program.free(goes.program.client).unwrap(),
            _ => {
                drop(goes);
                other.driver.state().free_closed();
            }
        }
        node.wait(10);
        assert_eq!(stays.executed(channel), before + 15);
    }
    assert_eq!(tokens, [1, 1, 1], "a place is given away again, and starts empty");
}

#[test]
fn a_group_with_two_handles_is_one_group() {
    let node = Node::new();
    let machine = node.machine();
    let (owner, friend) = (Worker::new(&machine), Worker::new(&machine));
    let (group, channel) = owner.busy();
    let copy = friend.program.duplicate(friend.device, owner.program.client, group).unwrap();
    let more = friend.channel(copy);
    friend.schedule(copy);
    friend.submit(more, ENDLESS, 0);
    let rival = friend.busy().1;
    node.wait(40);
    assert_eq!((owner.executed(channel), friend.executed(more), friend.executed(rival)), (10, 10, 20));
    friend.slice(copy, 3000);
    node.wait(40);
    assert_eq!((owner.executed(channel), friend.executed(more), friend.executed(rival)), (25, 25, 30));
}

#[test]
fn a_channels_properties_are_its_own_to_set_unless_somebody_stops_it() {
    let node = Node::new();
    let machine = node.machine();
    let (greedy, honest) = (Worker::new(&machine), Worker::new(&machine));
    let (channel, other) = (greedy.busy().1, honest.busy().1);
    let mut params = vec![0; 16];
    put(&mut params, 0, channel);
    put_u64(&mut params, 8, 9000);
    greedy.program.control(greedy.device, NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES, &mut params).unwrap();
    node.wait(100);
    assert_eq!((greedy.executed(channel), honest.executed(other)), (90, 10));
    put(&mut params, 4, 2);
    greedy.program.control(greedy.device, NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES, &mut params).unwrap();
    node.wait(100);
    assert_eq!((greedy.executed(channel), honest.executed(other)), (190, 10), "not sliced out any more");
    put(&mut params, 0, greedy.device);
    assert_eq!(
        greedy.program.control(greedy.device, NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES, &mut params),
        Err(Status::INVALID_CHANNEL)
    );
}

#[test]
fn many_processes_at_once_lose_no_time_and_make_none() {
    let state_dir = tempfile::tempdir().unwrap();
    let start = std::time::Instant::now();
    let executed: u64 = std::thread::scope(|scope| {
        let process = |_| {
            scope.spawn(|| {
                let machine = Machine::below(state_dir.path());
                let worker = Worker::new(&machine);
                let mut sum = 0;
                for round in 0..20 {
                    let (group, channel) = worker.busy();
                    let name = [(worker.program.client, channel)];
                    worker.slice(group, 500 + round);
                    worker.disable(&name, true).unwrap();
                    worker.disable(&name, false).unwrap();
                    sum += worker.executed(channel);
                    worker.program.free(group).unwrap();
                }
                sum
            })
        };
        let threads: Vec<_> = (0..6).map(process).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(u128::from(executed) <= start.elapsed().as_millis(), "{executed} ms of one engine");
    let machine = Machine::below(state_dir.path());
    let worker = Worker::new(&machine);
    let channel = worker.busy().1;
    assert_eq!(worker.token(channel), 0, "nobody is left");
}

#[test]
fn every_process_sees_the_switches_of_all() {
    let node = Node::new();
    let (one, other) = (node.machine(), node.machine());
    let (first, second) = (Worker::new(&one), Worker::new(&other));
    let own = |worker: &Worker<'_>| OwnClient {
        control: worker.program.control.clone(),
        client: abi::Handle(worker.program.client),
    };
    let abi = abi::Abi::of(abi::DriverRelease::new(580, 159, 4)).unwrap();
    let log = one.driver.switch_log(&abi, &own(&first), abi::Handle(first.subdevice)).unwrap();
    let mut log = log.expect("a simulated card keeps one");
    assert!(one.driver.switch_log(&abi, &own(&first), abi::Handle(0x777)).unwrap().is_none(), "no such card");
    let take = |log: &mut Box<dyn SwitchLog>| {
        let mut switches = Vec::new();
        let taken = log.take(&mut switches).unwrap();
        (switches, taken.lost)
    };
    let start = node.now_ns();
    let (_, channel) = first.busy();
    node.wait(2);
    assert!(matches!(take(&mut log).0.as_slice(), [Switch { presence: Presence::On, at_ns, .. }] if *at_ns == start));
    second.busy();
    node.wait(10);
    let (switches, lost) = take(&mut log);
    assert_eq!((switches.len(), lost), (20, 0));
    assert!(switches.iter().all(|switch| switch.process == std::process::id()));
    let contexts: std::collections::BTreeSet<u32> = switches.iter().map(|switch| switch.context).collect();
    assert_eq!(contexts.len(), 2);
    // A minute without a call.
    node.wait(60_000);
    let (switches, lost) = take(&mut log);
    assert_eq!(switches.len() as u64 + lost, 120_000);
    assert_eq!(take(&mut log), (Vec::new(), 0));
    second.disable(&[(first.program.client, channel)], true).unwrap();
    node.wait(1);
    assert!(take(&mut log).0.len() <= 2, "who is off has left");
}

#[test]
fn the_card_counts_how_often_a_channel_was_taken_off() {
    let node = Node::new();
    let (one, other) = (node.machine(), node.machine());
    let (victim, anybody) = (Worker::new(&one), Worker::new(&other));
    let (_, channel) = victim.busy();
    let name = [(victim.program.client, channel)];
    let runs_after = |worker: &Worker<'_>, off| {
        worker.disable(&name, off).unwrap();
        let before = victim.executed(channel);
        node.wait(10);
        victim.executed(channel) > before
    };
    // As seen on an H200: over all clients, and never below none.
    assert!(!runs_after(&victim, true));
    assert!(!runs_after(&anybody, true));
    assert!(!runs_after(&victim, false));
    assert!(runs_after(&anybody, false));
    assert!(runs_after(&anybody, false));
    assert!(!runs_after(&anybody, true));
    assert!(runs_after(&victim, false));
}

#[test]
fn edges_take_their_time_and_a_return_costs_some() {
    let node = Node::new();
    let mut inventory = inventory();
    inventory.cards[0].simulated =
        Some(SimulatedEdges { are_taken: true, opening_us: 4_000, closing_us: 7_000, ramp_us: 2_000 });
    let clock = Clock::Set(Arc::clone(&node.now));
    let machine = machine_with(|| SimulatedDriver::with_clock(node.state_dir.path(), &inventory, &clock).unwrap());
    let worker = Worker::new(&machine);
    let (_, channel) = worker.busy();
    let name = [(worker.program.client, channel)];
    node.wait(10);
    let mut began = node.now_ns();
    worker.disable(&name, true).unwrap();
    assert_eq!(node.now_ns() - began, 7 * MS);
    assert_eq!(worker.executed(channel), 17, "it goes on until the call ends");
    node.wait(5);
    began = node.now_ns();
    worker.disable(&name, false).unwrap();
    assert_eq!(node.now_ns() - began, 4 * MS);
    node.wait(1);
    assert_eq!(worker.executed(channel), 17, "it comes back cold");
    node.wait(9);
    assert_eq!(worker.executed(channel), 17 + 8);
    worker.disable(&name, false).unwrap();
    node.wait(5);
    assert_eq!(worker.executed(channel), 17 + 8 + 4 + 5, "who is on loses nothing");
}

#[test]
fn a_card_whose_driver_refuses_edges_takes_no_channel_off() {
    let mut inventory = inventory();
    inventory.cards[0].simulated = Some(SimulatedEdges { are_taken: false, ..SimulatedEdges::default() });
    assert!(inventory.cards[0].hard_caps, "as far as discovery knows");
    takes_no_channel_off(&inventory);
}

#[test]
fn a_card_without_firmware_takes_no_channel_off() {
    let mut inventory = inventory();
    inventory.cards[0].hard_caps = false;
    takes_no_channel_off(&inventory);
}

pub(super) fn machine_with(driver: impl FnOnce() -> SimulatedDriver) -> Machine {
    let no_forks = NoForks::hold();
    let driver = driver();
    let cards = (0..2).map(|minor| driver.open(abi::Node::Card(minor)).unwrap()).collect();
    Machine { driver, _cards: cards, _no_forks: no_forks, _state_dir: None }
}

fn takes_no_channel_off(inventory: &Inventory) {
    let state_dir = tempfile::tempdir().unwrap();
    let machine = machine_with(|| SimulatedDriver::new(state_dir.path(), inventory).unwrap());
    let worker = Worker::new(&machine);
    let (_, channel) = worker.busy();
    assert_eq!(worker.disable(&[(worker.program.client, channel)], true), Err(Status::NOT_SUPPORTED));
}
