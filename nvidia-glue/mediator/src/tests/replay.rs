//! Traces of real programs on real cards, replayed in a container: what the driver let them do, the
//! mediator does, and it charges for what they have.

mod expected;

use abi::{
    Node, Status,
    classes::{AMPERE_SMC_CONFIG_SESSION, AMPERE_SMC_MONITOR_SESSION, NV50_THIRD_PARTY_P2P},
    controls::{
        NV503C_CTRL_CMD_REGISTER_VA_SPACE, NV503C_CTRL_CMD_REGISTER_VIDMEM, NV503C_CTRL_CMD_UNREGISTER_VIDMEM,
        NV2080_CTRL_CMD_FB_GET_INFO_V2, NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION,
    },
    layout::{read_u32, read_u64, write_u32, write_u64},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use account::Card;
use base::Bytes;
use cards::Inventory;
use driver::Driver;
use fence::{self, Arch, kernel::NOTIFY};
use testing::replay::{Handles, NOT_SIMULATED, PROGRAMS, RecordedCard, cards, is_escape, name, node, number, recorded};
use trace::{Event, Ioctl, Line};

use self::expected::Expected;
use super::world::{Container, GIB, MIB, Machine, Program};
use crate::{Answer, locks::lock};

/// Calls that are answered otherwise than the driver did, and is meant to be: the class, control or
/// command, the status, the reason (docs/driver-calls.md). Nothing else is.
const DELIBERATE: &[(u32, Status, &str)] = &[
    (
        AMPERE_SMC_CONFIG_SESSION,
        Status::INSUFFICIENT_PERMISSIONS,
        "AMPERE_SMC_CONFIG_SESSION: the driver would refuse it and tell the kernel's log",
    ),
    (AMPERE_SMC_MONITOR_SESSION, Status::INSUFFICIENT_PERMISSIONS, "AMPERE_SMC_MONITOR_SESSION: the same"),
    (
        NV50_THIRD_PARTY_P2P,
        Status::NOT_SUPPORTED,
        "THIRD_PARTY_P2P: libcuda tells that there is no GPUDirect RDMA, and makes none of the next three calls",
    ),
    (NV503C_CTRL_CMD_REGISTER_VA_SPACE, Status::NOT_SUPPORTED, "REGISTER_VA_SPACE"),
    (NV503C_CTRL_CMD_REGISTER_VIDMEM, Status::NOT_SUPPORTED, "REGISTER_VIDMEM"),
    (NV503C_CTRL_CMD_UNREGISTER_VIDMEM, Status::NOT_SUPPORTED, "UNREGISTER_VIDMEM"),
    (
        NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION,
        Status::OK,
        "RELEASE_COMPUTE_MODE_RESERVATION: who uses a card is decided by the grant",
    ),
];

/// Of any recorded program at a time.
const PROCESSES: u64 = 2;

/// A recorded program, or several, made again in a container.
pub(super) struct Replay<'a> {
    container: &'a Arc<Container>,
    /// The container's cards, and the host's memory.
    accounts: Vec<Card>,
    limit: u64,
    /// KiB that a card may be shown to have.
    shown: RangeInclusive<u64>,
    filter: Vec<fence::BpfInstruction>,
    /// By the pids of the trace, as all that follows is by what it is called there.
    programs: BTreeMap<i32, Arc<Program>>,
    nodes: BTreeMap<u32, Node>,
    descriptors: BTreeMap<(i32, u32), i32>,
    /// Files of what processes have mapped.
    mapped: BTreeMap<(i32, u32), File>,
    handles: Handles,
    expected: Expected,
    pub(super) differences: BTreeSet<String>,
    /// Exceptions that there were, by their numbers.
    excepted: BTreeSet<u32>,
    pub(super) compared: usize,
    peak: u64,
}

impl<'a> Replay<'a> {
    /// In a container that was granted `cards` cards, all of which the trace shows.
    pub(super) fn in_container(container: &'a Arc<Container>, limit: u64, shown: RangeInclusive<u64>) -> Self {
        let cards: Vec<Card> = (0..).map(Card).take(container.machine.inventory.cards.len()).collect();
        Self {
            container,
            limit,
            shown: shown.start() >> 10..=shown.end() >> 10,
            filter: fence::program(Arch::X86_64, fence::Action::UserNotification),
            programs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            mapped: BTreeMap::new(),
            handles: Handles::default(),
            expected: Expected::of(&cards),
            accounts: cards.into_iter().chain([Card::HOST]).collect(),
            differences: BTreeSet::new(),
            excepted: BTreeSet::new(),
            compared: 0,
            peak: 0,
        }
    }

    /// Makes every event again, and looks at the accounts after each.
    pub(super) fn run(&mut self, lines: &[Line]) {
        for (number, line) in (2..).zip(lines) {
            self.event(line);
            for of in self.accounts.clone() {
                let usage = self.container.accounts().card(of).unwrap();
                let used = usage.used.0;
                // CUDA asks for whole frames; beside them there are the buffers of each process'
                // four channel groups.
                let beside = usage.frames.0 - used;
                assert!(
                    of == Card::HOST || beside <= PROCESSES * 16 * MIB,
                    "frames of {beside} bytes more after line {number}"
                );
                let expected = self.expected.used(of);
                let differences = &self.differences;
                assert_eq!(used, expected, "{of:?} after line {number}, {}; {differences:#?}", what(&line.event));
                assert!(of == Card::HOST || used <= self.limit, "{used} bytes of {of:?} after line {number}");
                self.peak = self.peak.max(if of == Card::HOST { 0 } else { used });
            }
        }
        assert_eq!(self.descriptors, BTreeMap::new(), "the trace closes all");
    }

    fn event(&mut self, line: &Line) {
        let pid = line.pid;
        // One that has ended closes its files, too, as the trace has it.
        if !matches!(line.event, Event::Close { .. }) {
            self.programs.entry(pid).or_insert_with(|| self.container.program());
        }
        match &line.event {
            Event::Open { file, node: name } => {
                let node = node(name);
                self.nodes.insert(*file, node);
                self.descriptors.insert((pid, *file), self.programs[&pid].open(node));
            }
            Event::Close { file } => {
                if let Some(fd) = self.descriptors.remove(&(pid, *file)) {
                    self.programs[&pid].close(fd);
                    self.reclaim_after_exit(&[*file]);
                }
            }
            Event::Ioctl(call) => self.call(pid, call),
            Event::Mmap { .. } => self.mmap(pid, &line.event),
            Event::Munmap { address, length } => {
                self.programs[&pid].unmap_uvm(*address);
                self.expected.unmapped(pid, *address, *length);
                // Nobody hears of it. It is looked for from time to time, and when room is needed.
                self.reclaim_after_exit(&[]);
            }
            Event::Fork { child } => self.fork(pid, *child),
            Event::Exec => {
                self.programs[&pid].exec();
                self.process_gone(pid);
            }
            Event::Exit => {
                let ended = self.programs.remove(&pid).unwrap().exit();
                self.container.session.process_ended(ended);
                self.process_gone(pid);
            }
        }
    }

    fn fork(&mut self, pid: i32, child: i32) {
        let forked = self.programs[&pid].fork();
        self.programs.insert(child, forked);
        let same: Vec<_> =
            self.descriptors.range((pid, 0)..=(pid, u32::MAX)).map(|((_, file), fd)| (*file, *fd)).collect();
        self.descriptors.extend(same.into_iter().map(|(file, fd)| ((child, file), fd)));
    }

    /// A process has no file and no mapping any more.
    fn process_gone(&mut self, pid: i32) {
        let had = |(of, file): &(i32, u32)| (*of == pid).then_some(*file);
        let mut files: Vec<u32> = self.descriptors.keys().chain(self.mapped.keys()).filter_map(had).collect();
        files.sort_unstable();
        files.dedup();
        self.descriptors.retain(|(of, _), _| *of != pid);
        self.mapped.retain(|(of, _), _| *of != pid);
        self.expected.memory_gone(pid);
        self.reclaim_after_exit(&files);
    }

    /// Does what the mediator does from time to time, after these files have lost a holder.
    fn reclaim_after_exit(&mut self, files: &[u32]) {
        for file in files {
            let is_held = |(_, held): &(i32, u32)| held == file;
            if !self.descriptors.keys().chain(self.mapped.keys()).any(is_held) {
                self.expected.closed(*file);
            }
        }
        let session = &self.container.session;
        session.look_for_closed_files();
        session.host_mappings.drop_gone(&session.objects.accounts);
        // As if what may be on its way through a socket had been on it for a minute.
        session.drop_unheld_tokens([Duration::ZERO; 2]);
    }

    /// The process's descriptor of a file. One that it does not have was sent by one that had it,
    /// which has closed it by then.
    fn descriptor(&mut self, pid: i32, file: u32) -> i32 {
        if let Some(fd) = self.descriptors.get(&(pid, file)) {
            return *fd;
        }
        let sender = *self.descriptors.keys().find(|(_, held)| *held == file).unwrap();
        let fd = self.descriptors.remove(&sender).unwrap();
        let sent = self.programs[&sender.0].file_of(fd);
        self.programs[&sender.0].close(fd);
        self.container.session.look_for_closed_files();
        let fd = self.programs[&pid].give(sent);
        self.descriptors.insert((pid, file), fd);
        fd
    }

    /// Returns whether the fence hands a system call of x86-64 to the mediator.
    fn is_mediated(&self, call: u32, arguments: [u64; 6]) -> bool {
        fence::kernel::run_with(&self.filter, 0xc000_003e, call, arguments) == NOTIFY
    }

    fn mmap(&mut self, pid: i32, event: &Event) {
        const MMAP: u32 = 9;
        let Event::Mmap { file, address, length, protection, flags, offset, result } = *event else { unreachable!() };
        assert!(result > 0, "none failed");
        let fd = self.descriptor(pid, file);
        let program = &self.programs[&pid];
        let arguments = [address, length, protection.into(), flags.into(), fd.unsigned_abs().into(), offset];
        if self.is_mediated(MMAP, arguments) {
            assert_eq!(flags.cast_signed(), libc::MAP_SHARED | libc::MAP_FIXED);
            assert_eq!(program.mmap(fd, address, length, offset), Answer::Continue, "{}", what(event));
        }
        // As the kernel does. What is mapped of the card's page about itself is a file of the
        // mediator's.
        let mapped = program.file_of(fd);
        if self.container.machine.driver.node_of(&mapped).unwrap().is_some() {
            self.mapped.insert((pid, file), mapped);
        }
        if self.nodes[&file] == Node::Uvm {
            program.map_uvm(address, length);
            self.expected.mapped(pid, address, length);
        }
    }

    fn call(&mut self, pid: i32, call: &Ioctl) {
        const IOCTL: u32 = 16;
        let mut holders: Vec<Vec<u8>> =
            call.buffers.iter().map(|buffer| self.handles.translated(&buffer.bytes.before.0)).collect();
        let mut args = self.handles.translated(&call.args.before.0);
        for field in &call.files {
            let fd = self.descriptor(pid, field.file.unwrap());
            let holder = field.holder.map_or(&mut args, |index| &mut holders[index]);
            assert!(write_u32(holder, field.offset, fd.cast_unsigned()));
        }
        let fd = self.descriptor(pid, call.file);
        let program = &self.programs[&pid];
        // What hangs from another buffer comes after it, so its address is known when that is put
        // down.
        let mut addresses = BTreeMap::new();
        for index in (0..holders.len()).rev() {
            let bytes = std::mem::take(&mut holders[index]);
            let address = program.put(&bytes);
            addresses.insert(index, address);
            let buffer = &call.buffers[index];
            let holder = buffer.holder.map_or(&mut args, |holder| &mut holders[holder]);
            assert!(write_u64(holder, buffer.offset, address));
        }
        let arguments = [fd.unsigned_abs().into(), call.command.into(), 0x1000, 0, 0, 0];
        assert!(self.is_mediated(IOCTL, arguments), "{}", name(call));
        let answer = program.ioctl(fd, call.command, &mut args);
        let after: Vec<Vec<u8>> = (0..call.buffers.len()).map(|index| program.take(addresses[&index])).collect();
        self.compare(call, &args, &after, answer);
        if call.result == 0 && call.status.is_none_or(|status| status == 0) {
            self.expected.call(call);
        }
    }

    fn compare(&mut self, call: &Ioctl, args: &[u8], buffers: &[Vec<u8>], answer: Answer) {
        let name = name(call);
        self.compared += 1;
        if answer != Answer::Return(call.result) {
            self.differences.insert(format!("{name}: {answer:?}, was {}", call.result));
            return;
        }
        let row = abi::row(self.container.session.abi, self.nodes[&call.file], call.command).unwrap();
        let now = row.status(args).unwrap_or(Status::OK);
        let was = Status(call.status.unwrap_or(0));
        if now != was {
            let exceptions = DELIBERATE.iter().chain(NOT_SIMULATED);
            let known = exceptions.into_iter().find(|(known, status, _)| (*known, *status) == (number(call), now));
            match known {
                Some((number, ..)) => drop(self.excepted.insert(*number)),
                None => drop(self.differences.insert(format!("{name}: status {:#x}, was {:#x}", now.0, was.0))),
            }
            return;
        }
        if now.is_ok() {
            self.handles.answered(call, args);
        }
        if is_escape(call, 0x2b) && matches!(number(call), 0x40 | 0x3e) {
            let (now, was) = (read_u64(&buffers[0], 64), read_u64(call.buffers[0].bytes.after(), 64));
            if now != was {
                self.differences.insert(format!("{name}: {now:?} bytes, were {was:?}"));
            }
        }
        // RAM_SIZE and TOTAL_RAM_SIZE, USABLE_RAM_SIZE, HEAP_SIZE.
        if number(call) == NV2080_CTRL_CMD_FB_GET_INFO_V2 {
            let entries = buffers[0][4..].chunks_exact(8).take(read_u32(&buffers[0], 0).unwrap() as usize);
            for entry in entries.filter(|entry| matches!(entry[0], 0x07..=0x09)) {
                let kib = read_u32(entry, 4).unwrap();
                if !self.shown.contains(&kib.into()) {
                    self.differences.insert(format!("{name}: {kib} KiB are shown"));
                }
            }
        }
    }
}

/// An event as people read it.
fn what(event: &Event) -> String {
    match event {
        Event::Ioctl(call) => name(call),
        other => format!("{other:?}"),
    }
}

/// The machine on which a trace was recorded.
pub(super) fn machine_of(program: &str) -> (Machine, Vec<Line>) {
    let (header, lines) = recorded(program);
    let like = Machine::new(1).inventory;
    let like_card = like.cards[0].clone();
    let card = |card: RecordedCard| ::cards::Card {
        index: card.index,
        minor: card.minor,
        pci: card.pci,
        uuid: card.uuid,
        memory: Bytes(140 << 30),
        ..like_card.clone()
    };
    let all: Vec<::cards::Card> = cards(&lines).into_iter().map(card).collect();
    assert_eq!(all.len(), 2);
    (Machine::of(Inventory { driver_version: header.driver.unwrap(), cards: all, ..like }), lines)
}

/// Replays a program under a quota on both cards; what it had of one at the most.
fn replayed(program: &str, limit: u64, excepted: &mut BTreeSet<u32>) -> u64 {
    let (machine, lines) = machine_of(program);
    let container = machine.container(&[0, 1], limit);
    let mut replay = Replay::in_container(&container, limit, 1..=limit);
    replay.run(&lines);
    assert_eq!(replay.differences, BTreeSet::new(), "{program}");
    assert!(replay.compared > 150, "{program}: {} calls were compared", replay.compared);
    assert!(replay.programs.is_empty() && replay.mapped.is_empty(), "{program}: every process ends");
    excepted.append(&mut replay.excepted);
    let usage = container.session.usage();
    assert_eq!((usage.denials, usage.kills, usage.unknown_refused), (0, 0, 0), "{program}");
    assert_eq!(*lock(&container.observed.unknown), [], "{program}");
    assert_eq!(*lock(&container.observed.refused_tools), Vec::<String>::new(), "{program}");
    assert_eq!(*lock(&container.observed.shortages), [], "{program}");
    assert_eq!(container.session.reconcile(), [], "{program}");
    assert_eq!(*lock(&container.observed.drifts), [], "{program}");
    container.assert_nothing_left();
    replay.peak
}

#[test]
fn real_programs_do_under_a_quota_what_they_did() {
    let mut excepted = BTreeSet::new();
    let mut most = BTreeMap::new();
    for program in PROGRAMS {
        most.insert(program, replayed(program, 16 * GIB, &mut excepted));
    }
    let known: BTreeSet<u32> = DELIBERATE.iter().chain(NOT_SIMULATED).map(|(number, ..)| *number).collect();
    assert_eq!(excepted, known, "exceptions that no program needs");
    // docs/driver-facts.md: what libcuda takes for itself, what the driver hides, the pool that is
    // mapped like managed memory.
    let start = (530_432 << 10) + (9024 << 10) + 2 * MIB;
    assert_eq!(most["nvidia-smi"], 0);
    assert_eq!(most["cuda"], start + 3 * 64 * MIB);
    assert_eq!(most["managed"], start + 32 * MIB);
    // Exactly that is enough: nothing that is looked at on the way takes more for a moment.
    for program in ["cuda", "managed", "ipc", "mps"] {
        assert_eq!(replayed(program, most[program], &mut excepted), most[program]);
    }
}
