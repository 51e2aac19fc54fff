//! A driver that is watched: what reaches it, and what a real card makes of that.
//!
//! It does to channels what an H200 was seen to do (docs/driver-facts.md): to take off one that is
//! not scheduled yet has no effect; one that is off stays off when it is scheduled again; one that
//! is added to a group that is scheduled does work at once.

use abi::{
    Abi, Node, Status,
    classes::{HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A},
    controls::{
        NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, NVA06C_CTRL_CMD_GET_TIMESLICE, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
        NVA06C_CTRL_CMD_SET_TIMESLICE, NVA06F_CTRL_CMD_GPFIFO_SCHEDULE,
    },
    layout::{read_u32, read_u64, write_u32},
    uvm::UVM_SET_PREFERRED_LOCATION,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, io,
    sync::{Arc, Mutex},
};

use base::OverMemory;
use driver::{CardPlace, DeviceFile, Driver, DriverCall, MappedPage, OwnClient};
use schedule::Gate;
use simulator::SimulatedDriver;

use super::world::{Container, Context, GIB, Machine, struct_with};
use crate::{UvmMapping, locks::lock};

pub(super) const SCHEDULE_GROUP: u32 = NVA06C_CTRL_CMD_GPFIFO_SCHEDULE;
pub(super) const SET_TIMESLICE: u32 = NVA06C_CTRL_CMD_SET_TIMESLICE;
pub(super) const GET_TIMESLICE: u32 = NVA06C_CTRL_CMD_GET_TIMESLICE;
pub(super) const SCHEDULE_CHANNEL: u32 = NVA06F_CTRL_CMD_GPFIFO_SCHEDULE;
pub(super) const DISABLE: u32 = NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS;
/// `NV_ESC_RM_VID_HEAP_CONTROL`.
pub(super) const HEAP: u32 = 0x4a;
pub(super) const GR: u32 = 1;
pub(super) const COPY: u32 = 0x0b;
pub(super) const NVDEC: u32 = 0x13;

/// All that a driver does besides [`Driver::ioctl`], as the one behind it does.
macro_rules! like_the_driver_behind {
    () => {
        fn in_callers_place(
            &self,
            file: &driver::DeviceFile,
            call: driver::DriverCall<'_>,
        ) -> Option<std::io::Result<i32>> {
            self.driver.in_callers_place(file, call)
        }
        fn is_in_kernel(&self) -> bool {
            self.driver.is_in_kernel()
        }
        fn open(&self, node: abi::Node) -> std::io::Result<driver::DeviceFile> {
            self.driver.open(node)
        }
        fn node_of(&self, file: &std::fs::File) -> std::io::Result<Option<abi::Node>> {
            self.driver.node_of(file)
        }
        fn client_exists(&self, probe: &driver::OwnClient, client: abi::Handle) -> std::io::Result<bool> {
            self.driver.client_exists(probe, client)
        }
        fn file_watch(&self) -> std::io::Result<Box<dyn driver::FileWatch>> {
            self.driver.file_watch()
        }
    };
}
pub(super) use like_the_driver_behind;

/// A control as it reached the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) client: u32,
    pub(super) object: u32,
    pub(super) id: u32,
    pub(super) params: Vec<u8>,
}

type LockName = (u32, u32);

#[derive(Debug, Default)]
struct Card {
    /// Each with what it is in.
    channels: BTreeMap<LockName, Channel>,
    /// Duplicates, with what they are of.
    same: HashMap<LockName, LockName>,
    slices: HashMap<LockName, u64>,
    groups: BTreeSet<LockName>,
}

#[derive(Debug)]
struct Channel {
    parent: LockName,
    scheduled: bool,
    /// Number of times that it was taken off, less how often it was put back.
    off: u32,
}

impl Card {
    fn root(&self, name: LockName) -> LockName {
        self.same.get(&name).map_or(name, |of| self.root(*of))
    }

    fn control(&mut self, seen: &Seen) {
        let (name, on) = ((seen.client, seen.object), seen.params.first() != Some(&0));
        match seen.id {
            DISABLE => {
                for at in (0..read_u32(&seen.params, 4).unwrap() as usize).map(|at| 4 * at) {
                    let word = |base| read_u32(&seen.params, base + at).unwrap();
                    let channel = self.channels.get_mut(&(word(24), word(280)));
                    if let Some(channel) = channel.filter(|channel| channel.scheduled) {
                        channel.off = if on { channel.off + 1 } else { channel.off.saturating_sub(1) };
                    }
                }
            }
            SCHEDULE_GROUP | SCHEDULE_CHANNEL if on => {
                let target = self.root(name);
                let roots: Vec<(LockName, LockName)> =
                    self.channels.iter().map(|(name, channel)| (*name, self.root(channel.parent))).collect();
                for (channel, root) in roots {
                    if channel == name || root == target {
                        self.channels.get_mut(&channel).unwrap().scheduled = true;
                    }
                }
            }
            SET_TIMESLICE => {
                self.slices.insert(self.root(name), read_u64(&seen.params, 0).unwrap());
            }
            _ => {}
        }
    }
}

/// Work in a thread of its own once a control is executed.
#[derive(Debug, Default)]
pub(super) struct Elsewhere(Arc<Mutex<Option<std::thread::JoinHandle<()>>>>);

impl Elsewhere {
    /// It has happened.
    pub(super) fn join(self) {
        lock(&self.0).take().expect("the control was executed").join().unwrap();
    }
}

/// Work while a control is executed.
type During = Box<dyn Fn() + Send>;

pub(super) struct Spy {
    driver: Arc<SimulatedDriver>,
    seen: Mutex<Vec<Seen>>,
    escapes: Mutex<Vec<(u8, Vec<u8>)>>,
    /// Parameters of allocations, with the class.
    allocated: Mutex<Vec<(u32, Vec<u8>)>>,
    card: Mutex<Card>,
    during: Mutex<Option<(u32, During)>>,
    refused: Mutex<HashMap<u32, Status>>,
    refused_though_done: Mutex<HashMap<u32, Status>>,
    answers: Mutex<HashMap<u32, Vec<u8>>>,
    uvm_seen: Mutex<Vec<(u32, Vec<u8>)>>,
    /// Managed memory that UVM knows, if it is told so.
    managed: Mutex<Option<Vec<UvmMapping>>>,
    /// With where its status is.
    uvm_refused: Mutex<HashMap<u32, (usize, Status)>>,
    free_refused: Mutex<Option<Status>>,
    stays: Mutex<Option<u32>>,
}

impl fmt::Debug for Spy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Spy").finish_non_exhaustive()
    }
}

impl Spy {
    pub(super) fn new(machine: &Machine) -> Arc<Self> {
        Arc::new(Self {
            driver: Arc::clone(&machine.driver),
            seen: Mutex::default(),
            escapes: Mutex::default(),
            allocated: Mutex::default(),
            card: Mutex::default(),
            during: Mutex::default(),
            refused: Mutex::default(),
            refused_though_done: Mutex::default(),
            answers: Mutex::default(),
            uvm_seen: Mutex::default(),
            managed: Mutex::default(),
            uvm_refused: Mutex::default(),
            free_refused: Mutex::default(),
            stays: Mutex::default(),
        })
    }

    /// A container on card 0, whose calls it sees.
    pub(super) fn container(self: &Arc<Self>, machine: &Machine) -> Arc<Container> {
        self.container_with(machine, &[0])
    }

    pub(super) fn container_with(self: &Arc<Self>, machine: &Machine, cards: &[usize]) -> Arc<Container> {
        machine.container_on(Arc::clone(self) as Arc<dyn Driver>, OverMemory::Deny, cards, 8 * GIB)
    }

    /// The same in a thread of its own, which may have to wait until the control has been executed.
    pub(super) fn during_elsewhere(&self, id: u32, work: impl FnOnce() + Send + 'static) -> Elsewhere {
        let elsewhere = Elsewhere::default();
        let (started, work) = (Arc::clone(&elsewhere.0), Mutex::new(Some(work)));
        self.during(id, move || {
            if let Some(work) = lock(&work).take() {
                *lock(&started) = Some(std::thread::spawn(work));
                // For it to come as far as it can.
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        elsewhere
    }

    /// The next time that this control comes, an allocation of this class, or [`HEAP`], `work` is
    /// done before the driver executes it.
    pub(super) fn during(&self, id: u32, work: impl Fn() + Send + 'static) {
        *lock(&self.during) = Some((id, Box::new(work)));
    }

    fn happens_during(&self, id: u32) {
        let during = lock(&self.during).take_if(|(expected, _)| *expected == id);
        if let Some((_, work)) = during {
            work();
        }
    }

    /// From now on the driver refuses this control.
    pub(super) fn refuse(&self, id: u32, status: Status) {
        lock(&self.refused).insert(id, status);
    }

    pub(super) fn refuse_no_more(&self) {
        lock(&self.refused).clear();
    }

    /// The same, but it is done all the same.
    pub(super) fn refuse_what_is_done(&self, id: u32, status: Status) {
        lock(&self.refused_though_done).insert(id, status);
    }

    /// From now on the driver answers this control so.
    pub(super) fn answer(&self, id: u32, params: Vec<u8>) {
        lock(&self.answers).insert(id, params);
    }

    /// From now on the driver refuses this command of UVM's, whose status is there.
    pub(super) fn refuse_uvm(&self, command: u32, status_at: usize, status: Status) {
        lock(&self.uvm_refused).insert(command, (status_at, status));
    }

    /// From now on the driver frees nothing.
    pub(super) fn refuse_to_free(&self, status: Status) {
        *lock(&self.free_refused) = Some(status);
    }

    /// Freeing that object by itself is refused from now on.
    pub(super) fn refuse_to_free_one(&self, object: u32) {
        *lock(&self.stays) = Some(object);
    }

    /// The commands of UVM's that have come since it was last asked.
    pub(super) fn uvm_seen(&self) -> Vec<u32> {
        self.uvm_calls().into_iter().map(|(command, _)| command).collect()
    }

    /// The same, with the structs.
    pub(super) fn uvm_calls(&self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut lock(&self.uvm_seen))
    }

    /// From now on UVM knows this managed memory alone, and refuses advice about any other.
    pub(super) fn has_managed(&self, ranges: &[(u64, u64)]) {
        let known = ranges.iter().map(|&(address, length)| UvmMapping { address, length, offset: address });
        *lock(&self.managed) = Some(known.collect());
    }

    fn knows_managed(&self, args: &[u8]) -> bool {
        let (base, length) = (read_u64(args, 0).unwrap(), read_u64(args, 8).unwrap());
        let is_within = |known: &UvmMapping| known.address <= base && base + length <= known.address + known.length;
        lock(&self.managed).as_ref().is_none_or(|known| known.iter().any(is_within))
    }

    pub(super) fn refuse_nothing(&self) {
        lock(&self.uvm_refused).clear();
        lock(&self.refused).clear();
        lock(&self.refused_though_done).clear();
        *lock(&self.free_refused) = None;
    }

    /// Returns what has come since it was last asked.
    pub(super) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut lock(&self.seen))
    }

    /// The structs of an escape that have come since it was last asked.
    pub(super) fn escapes(&self, number: u8) -> Vec<Vec<u8>> {
        let seen = std::mem::take(&mut *lock(&self.escapes));
        seen.into_iter().filter(|(seen, _)| *seen == number).map(|(_, args)| args).collect()
    }

    /// The parameters with which the driver was asked for an object of a class, the last time.
    pub(super) fn last_params(&self, class: u32) -> Option<Vec<u8>> {
        lock(&self.allocated).iter().rev().find(|(asked, _)| *asked == class).map(|(_, params)| params.clone())
    }

    /// The classes of objects that it was asked to make since escapes were last asked for, by
    /// either escape.
    pub(super) fn made_classes(&self) -> Vec<u32> {
        let seen = std::mem::take(&mut *lock(&self.escapes));
        let made = seen.iter().filter(|(number, _)| [0x28, 0x2b].contains(number));
        made.map(|(_, args)| read_u32(args, 12).unwrap()).collect()
    }

    /// Returns how many of this control have come since anything was last asked.
    pub(super) fn count(&self, id: u32) -> usize {
        self.seen().iter().filter(|seen| seen.id == id).count()
    }

    /// Returns whether a channel does work.
    pub(super) fn works(&self, context: &Context, channel: u32) -> bool {
        self.does_work((context.client, channel))
    }

    /// The same of one by its client's handle and its own.
    pub(super) fn does_work(&self, name: LockName) -> bool {
        let card = lock(&self.card);
        let channel = &card.channels[&name];
        channel.scheduled && channel.off == 0
    }

    /// Returns whether each of the channels does.
    pub(super) fn all_work(&self, context: &Context, channels: &[u32]) -> bool {
        channels.iter().all(|channel| self.works(context, *channel))
    }

    /// Returns whether none of the channels does.
    pub(super) fn none_works(&self, context: &Context, channels: &[u32]) -> bool {
        !channels.iter().any(|channel| self.works(context, *channel))
    }

    /// The channels are off while the gate is closed, and only then.
    #[track_caller]
    pub(super) fn assert_obey(&self, gate: &dyn Gate, context: &Context, channels: &[u32]) {
        gate.close().unwrap();
        assert!(self.none_works(context, channels));
        gate.open().unwrap();
        assert!(self.all_work(context, channels));
    }

    /// Returns whether the card would have a channel work, were it not off.
    pub(super) fn is_scheduled(&self, context: &Context, channel: u32) -> bool {
        lock(&self.card).channels[&(context.client, channel)].scheduled
    }

    /// Duplicates that were made and are not freed, those of clients that are gone among them.
    pub(super) fn duplicates(&self) -> usize {
        lock(&self.card).same.len()
    }

    /// The time slice that a group has on the card.
    pub(super) fn slice(&self, context: &Context, group: u32) -> Option<u64> {
        let card = lock(&self.card);
        card.slices.get(&card.root((context.client, group))).copied()
    }
}

impl Driver for Spy {
    fn ioctl(&self, file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32> {
        let DriverCall { command, args, buffers, files } = call;
        if file.node != Node::Uvm {
            lock(&self.escapes).push((command.to_le_bytes()[0], args.to_vec()));
        } else {
            lock(&self.uvm_seen).push((command, args.to_vec()));
            if command == UVM_SET_PREFERRED_LOCATION && !self.knows_managed(args) {
                assert!(write_u32(args, 36, Status::INVALID_ADDRESS.0));
                return Ok(0);
            }
            if let Some((at, status)) = lock(&self.uvm_refused).get(&command) {
                assert!(write_u32(args, *at, status.0));
                return Ok(0);
            }
        }
        let word = |args: &[u8], at| read_u32(args, at).unwrap_or(0);
        let number = (command & 0xff, file.node == Node::Uvm);
        if let ((0x2b, false), Some(params)) = (number, buffers.first()) {
            lock(&self.allocated).push((word(args, 12), params.bytes.clone()));
        }
        match number {
            (0x2b, false) => self.happens_during(word(args, 12)),
            (HEAP, false) => self.happens_during(HEAP),
            _ => {}
        }
        let is_one_that_stays = *lock(&self.stays) == Some(word(args, 8));
        let refused = lock(&self.free_refused).or(is_one_that_stays.then_some(Status::INVALID_STATE));
        if let (Some(status), (0x29, false)) = (refused, number) {
            assert!(write_u32(args, 12, status.0));
            return Ok(0);
        }
        let control = (number == (0x2a, false)).then(|| Seen {
            client: word(args, 0),
            object: word(args, 4),
            id: word(args, 8),
            params: buffers.first().map(|buffer| buffer.bytes.clone()).unwrap_or_default(),
        });
        if let Some(seen) = &control {
            lock(&self.seen).push(seen.clone());
            self.happens_during(seen.id);
            if let Some(status) = lock(&self.refused).get(&seen.id) {
                assert!(write_u32(args, 28, status.0));
                return Ok(0);
            }
            if let (Some(answer), Some(buffer)) = (lock(&self.answers).get(&seen.id), buffers.first_mut()) {
                buffer.bytes.clone_from(answer);
                assert!(write_u32(args, 28, 0));
                return Ok(0);
            }
        }
        let answer = self.driver.ioctl(file, DriverCall { command, args: &mut *args, buffers, files })?;
        let mut card = lock(&self.card);
        match (number, control) {
            ((0x2a, false), Some(seen)) if word(args, 28) == 0 => {
                card.control(&seen);
                if let Some(status) = lock(&self.refused_though_done).get(&seen.id) {
                    assert!(write_u32(args, 28, status.0));
                }
            }
            // It names channels that have gone; the others are done.
            ((0x2a, false), Some(seen)) if seen.id == DISABLE && word(args, 28) == Status::INVALID_CHANNEL.0 => {
                card.control(&seen);
            }
            ((0x2b, false), _) if word(args, 12) & 0xff == 0x6f => {
                let (client, parent, object) = (word(args, 0), word(args, 4), word(args, 8));
                let root = card.root((client, parent));
                let is_beside = |other: &Channel| card.root(other.parent) == root;
                let is_grouped = card.groups.contains(&root);
                let scheduled = is_grouped && card.channels.values().any(|other| is_beside(other) && other.scheduled);
                let channel = Channel { parent: (client, parent), scheduled, off: 0 };
                card.channels.insert((client, object), channel);
            }
            ((0x2b, false), _) if word(args, 12) == KEPLER_CHANNEL_GROUP_A => {
                card.groups.insert((word(args, 0), word(args, 8)));
            }
            ((0x34, false), _) if word(args, 24) == 0 => {
                let of = (word(args, 12), word(args, 16));
                card.same.insert((word(args, 0), word(args, 8)), of);
            }
            ((0x29, false), _) if word(args, 12) == 0 => {
                card.same.remove(&(word(args, 0), word(args, 8)));
            }
            _ => {}
        }
        Ok(answer)
    }
    like_the_driver_behind!();
    fn map_page(&self, abi: &Abi, own: &OwnClient, place: CardPlace) -> io::Result<Box<dyn MappedPage>> {
        self.driver.map_page(abi, own, place)
    }
}

impl Container {
    pub(super) fn gate(&self) -> Arc<dyn Gate> {
        self.session.gates().remove(0)
    }
}

impl Context {
    pub(super) fn group(&self, engine: u32) -> u32 {
        let mut params = struct_with(20, &[(12, engine)]);
        self.object(KEPLER_CHANNEL_GROUP_A, &mut params).unwrap()
    }

    /// A group with a channel.
    pub(super) fn group_of_one(&self, engine: u32) -> (u32, u32) {
        let group = self.group(engine);
        (group, self.channel(group, 0).unwrap())
    }

    /// The same, and it is scheduled.
    pub(super) fn scheduled_group(&self, engine: u32) -> (u32, u32) {
        let (group, channel) = self.group_of_one(engine);
        self.schedule(group, SCHEDULE_GROUP).unwrap();
        (group, channel)
    }

    /// A channel below a group or the device.
    pub(super) fn channel(&self, parent: u32, engine: u32) -> Result<u32, Status> {
        let mut params = struct_with(368, &[(128, engine)]);
        self.program.alloc(self.control, (self.client, parent, 0), HOPPER_CHANNEL_GPFIFO_A, &mut params)
    }

    pub(super) fn control(&self, object: u32, id: u32, params: &mut [u8]) -> Result<(), Status> {
        self.program.control(self.control, (self.client, object), id, params)
    }

    pub(super) fn schedule(&self, object: u32, id: u32) -> Result<(), Status> {
        self.control(object, id, &mut [1, 0, 0])
    }

    /// A scheduled group with channels; the channels.
    pub(super) fn scheduled(&self, engine: u32, channels: usize) -> Vec<u32> {
        let group = self.group(engine);
        let channels = (0..channels).map(|_| self.channel(group, 0).unwrap()).collect();
        self.schedule(group, SCHEDULE_GROUP).unwrap();
        channels
    }

    /// The program's own `DISABLE_CHANNELS`.
    pub(super) fn disable(&self, disable: bool, channels: &[(u32, u32)]) -> Result<(), Status> {
        let mut params = vec![0; 536];
        params[0] = u8::from(disable);
        assert!(write_u32(&mut params, 4, u32::try_from(channels.len()).unwrap()));
        for (at, (client, channel)) in (0..).step_by(4).zip(channels) {
            assert!(write_u32(&mut params, 24 + at, *client) && write_u32(&mut params, 280 + at, *channel));
        }
        self.subdevice_control(DISABLE, &mut params)
    }
}
