//! A container that only looks at its cards: it sees all of them, and can have nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::world::{Container, GIB, MIB, Machine, Program, host_memory_params, uuid_bytes, words};
use crate::{
    cards::Inventory,
    mediate::{Answer, locks::lock},
    rm::{
        Node, Status,
        layout::{read_u32, write_u32, write_u64},
    },
    trace::{
        Event, Ioctl,
        recorded::{cards, is_escape, node, recorded},
    },
};

/// `NV2080_CTRL_CMD_FB_GET_INFO_V2` with HEAP_SIZE and HEAP_FREE: both, KiB.
fn heap(context: &super::world::Context<'_, '_>) -> (u32, u32) {
    let mut params = vec![0; 1028];
    for (at, value) in [(0, 2), (4, 0x09), (12, 0x16)] {
        assert!(write_u32(&mut params, at, value));
    }
    context.subdevice_control(0x2080_1303, &mut params).unwrap();
    (read_u32(&params, 8).unwrap(), read_u32(&params, 16).unwrap())
}

fn beside_a_neighbour(test: impl FnOnce(&Container)) {
    let machine = Machine::new(1);
    let neighbour = machine.container(&[0], 8 * GIB);
    let other = neighbour.program();
    other.context(0).memory(4 * GIB).unwrap();
    let monitor = machine.container(&[0], 0);
    test(&monitor);
    assert_eq!(monitor.used(0), 0);
    assert_eq!(neighbour.used(0), 4 * GIB);
}

#[test]
fn it_sees_the_whole_card_and_what_is_taken_of_it() {
    beside_a_neighbour(|monitor| {
        let program = monitor.program();
        let context = program.context(0);
        let (size, free) = heap(&context);
        let seen = |kib: u32| u64::from(kib) << 10;
        assert!(seen(size) > 100 * GIB, "{size} KiB");
        let taken = seen(size) - seen(free);
        assert!((4 * GIB..5 * GIB).contains(&taken), "{} MiB", taken / MIB);
        // No process of its own has anything, and others are nobody's business.
        let mut pids = vec![0; 3812];
        assert!(write_u32(&mut pids, 4, 0x40));
        context.subdevice_control(0x2080_018d, &mut pids).unwrap();
        assert_eq!(read_u32(&pids, 8), Some(0));
    });
}

#[test]
fn it_can_have_nothing() {
    beside_a_neighbour(|monitor| {
        let program = monitor.program();
        let context = program.context(0);
        for size in [1, MIB, u64::MAX] {
            assert_eq!(context.memory(size), Err(Status::NO_MEMORY), "{size}");
        }
        // NVOS32_FUNCTION_ALLOC_SIZE.
        let mut heap = vec![0; 184];
        for (at, value) in [(0, context.client), (4, context.device), (8, 2)] {
            assert!(write_u32(&mut heap, at, value));
        }
        assert!(write_u64(&mut heap, 88, 1));
        assert_eq!(program.escape(context.control, 0x4a, &mut heap), Answer::Return(0));
        assert_eq!(read_u32(&heap, 20), Some(Status::NO_MEMORY.0));
        // A channel group, a channel without one, an address space.
        let refused = Status::INSUFFICIENT_RESOURCES;
        for (class, size) in [(0xa06c, 20), (0xc86f, 368), (0x90f1, 56)] {
            assert_eq!(context.object(class, &mut vec![0; size]), Err(refused), "{class:#x}");
        }
        let uvm = program.uvm_file();
        let mut gpu = [uuid_bytes(&monitor.inventory.cards[0].uuid).to_vec(), vec![0; 24]].concat();
        assert_eq!(program.uvm(uvm, 37, &mut gpu, 36), Err(Status::NO_MEMORY));
        assert_eq!(program.mmap(uvm, 0x7f00_0000_0000, 4096, 0x7f00_0000_0000), Answer::Errno(libc::ENOMEM));
        assert_eq!(program.create_range(uvm, 0x7000_0000, MIB), Err(refused));
        // Memory of the host's is not the card's.
        context.object(0x3e, &mut host_memory_params(MIB)).unwrap();
    });
}

#[test]
fn a_limit_of_nothing_alone_refuses_what_takes_memory() {
    let machine = Machine::new(1);
    // As a grant with a limit that was set to nothing: without the counts of a container that only looks.
    let container = machine.container(&[0], GIB);
    container.session.set_limits(&[(container.inventory.cards[0].uuid.clone(), runtime_config::Bytes(0))]).unwrap();
    let program = container.program();
    let context = program.context(0);
    assert_eq!(context.object(0xa06c, &mut [0; 20]), Err(Status::NO_MEMORY));
    assert_eq!(context.object(0xc86f, &mut [0; 368]), Err(Status::NO_MEMORY));
    assert_eq!(container.used(0), 0);
}

/// A recorded program, made again by one in a container.
struct Again<'p, 'a> {
    program: &'p Program<'a>,
    files: BTreeMap<u32, (i32, Node)>,
    /// Handles that the driver chose, by what it chose when it was recorded.
    handles: BTreeMap<u32, u32>,
    differences: BTreeSet<String>,
    compared: usize,
}

impl Again<'_, '_> {
    fn translated(&self, bytes: &[u8]) -> Vec<u8> {
        let handle = |word: &[u8]| {
            let word = read_u32(word, 0).unwrap();
            self.handles.get(&word).copied().unwrap_or(word)
        };
        let words_of = bytes.chunks_exact(4);
        let rest = words_of.remainder().to_vec();
        [words(&words_of.map(handle).collect::<Vec<_>>()), rest].concat()
    }

    fn call(&mut self, call: &Ioctl) {
        let mut holders: Vec<Vec<u8>> =
            call.buffers.iter().map(|buffer| self.translated(&buffer.bytes.before.0)).collect();
        let mut args = self.translated(&call.args.before.0);
        for field in &call.files {
            let number = field.file.map_or(-1, |file| self.files[&file].0);
            let holder = field.holder.map_or(&mut args, |index| &mut holders[index]);
            assert!(write_u32(holder, field.offset, number.cast_unsigned()));
        }
        // What hangs from another buffer comes after it, so its address is known when that is put down.
        let mut addresses = BTreeMap::new();
        for index in (0..holders.len()).rev() {
            let bytes = std::mem::take(&mut holders[index]);
            let address = self.program.put(&bytes);
            addresses.insert(index, address);
            let buffer = &call.buffers[index];
            let holder = buffer.holder.map_or(&mut args, |holder| &mut holders[holder]);
            assert!(write_u64(holder, buffer.offset, address));
        }
        let (fd, _) = self.files[&call.file];
        let answer = self.program.ioctl(fd, call.command, &mut args);
        let after: Vec<Vec<u8>> = (0..call.buffers.len()).map(|index| self.program.take(addresses[&index])).collect();
        self.compare(call, &args, &after, answer);
    }

    fn compare(&mut self, call: &Ioctl, args: &[u8], buffers: &[Vec<u8>], answer: Answer) {
        let was = call.args.after();
        let number = match call.command {
            _ if is_escape(call, 0x2b) => read_u32(was, 12),
            _ if is_escape(call, 0x2a) => read_u32(was, 8),
            command => Some(command),
        };
        let name = format!("{} {}", call.name.as_deref().unwrap_or("?"), call.subject.as_deref().unwrap_or(""));
        if MAY_DIFFER.iter().any(|(known, _)| Some(*known) == number) {
            return;
        }
        self.compared += 1;
        if answer != Answer::Return(call.result) {
            self.differences.insert(format!("{name}: {answer:?}, was {}", call.result));
            return;
        }
        if let Some(status) = call.status {
            let abi = self.program.container.session.abi;
            let row = crate::rm::row(abi, self.files[&call.file].1, call.command).unwrap();
            let now = row.status(args).map_or(0, |status| status.0);
            if now != status {
                self.differences.insert(format!("{name}: status {now:#x}, was {status:#x}"));
                return;
            }
        }
        if is_escape(call, 0x2b) || is_escape(call, 0x34) {
            self.handles.insert(read_u32(was, 8).unwrap(), read_u32(args, 8).unwrap());
        }
        // The sizes of the card, as the driver told them then.
        if number == Some(0x2080_1303) {
            for (now, was) in buffers[0][4..].chunks_exact(8).zip(call.buffers[0].bytes.after()[4..].chunks_exact(8)) {
                let total = [0x08, 0x09].contains(&read_u32(was, 0).unwrap());
                if total && u64::from(read_u32(now, 4).unwrap()) < (139 * GIB) >> 10 {
                    self.differences.insert(format!("{name}: {now:?}, was {was:?}"));
                }
            }
        }
    }
}

/// Replies that differ, and may, with the reason.
const MAY_DIFFER: &[(u32, &str)] = &[
    (0xc639, "MIG sessions: the traced program had rights that no program in a container has"),
    (0xc640, "the same"),
    (0x2080_014b, "what is in a card's ROM"),
    (75, "UVM_MM_INITIALIZE of a process in which memory cannot be watched"),
];

#[test]
fn nvidia_smi_is_answered_as_it_was() {
    let (header, lines) = recorded("nvidia-smi");
    let like = &Machine::new(1).inventory.cards[0];
    let all: Vec<_> = cards(&lines, like);
    let machine =
        Machine::of(Inventory { driver_version: header.driver.unwrap(), cards: all, ..Machine::new(1).inventory });
    let granted: Vec<usize> = (0..machine.inventory.cards.len()).collect();
    let monitor = machine.container(&granted, 0);
    let program = monitor.program();
    let mut again = Again {
        program: &program,
        files: BTreeMap::new(),
        handles: BTreeMap::new(),
        differences: BTreeSet::new(),
        compared: 0,
    };
    for line in &lines {
        match &line.event {
            Event::Open { file, node: name } => {
                let node = node(name);
                again.files.insert(*file, (program.open(node), node));
            }
            Event::Close { file } => program.close(again.files.remove(file).unwrap().0),
            Event::Ioctl(call) => again.call(call),
            _ => {}
        }
    }
    assert_eq!(again.differences, BTreeSet::new());
    assert!(again.compared > 150, "{} calls were compared", again.compared);
    assert_eq!(*lock(&monitor.told.over_memory), []);
    program.exit();
    assert_eq!(monitor.session.reconcile(), []);
    monitor.assert_nothing_left();
}
