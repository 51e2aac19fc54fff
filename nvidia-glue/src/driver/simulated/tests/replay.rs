//! Traces of real programs on real cards, replayed: the simulated driver answers each call as the driver did.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::trace::{
    Event, Ioctl,
    recorded::{self, is_escape, node, recorded},
};

/// Replies that differ, and may: the classes and controls, with the reason.
const MAY_DIFFER: &[(u32, &str)] = &[
    (0xc639, "MIG sessions: the traced programs had rights that no program in a container has"),
    (0xc640, "the same"),
    (0x2080_0146, "gives back a reservation that a process had not made: reservations are not simulated"),
    (0x2080_014b, "what is in a card's ROM"),
    (0x2080_182a, "what the machine's bus can do"),
    (75, "UVM_MM_INITIALIZE of a process in which memory cannot be watched"),
];

/// One trace on one simulated machine.
struct Replay {
    driver: SimulatedDriver,
    /// As a mediator has them.
    own: Vec<DeviceFile>,
    files: BTreeMap<u32, DeviceFile>,
    /// Handles that the driver chose, by what it chose when it was recorded.
    handles: BTreeMap<u32, u32>,
    differences: BTreeSet<String>,
    compared: usize,
    _state_dir: tempfile::TempDir,
    _no_forks: NoForks,
}

impl Replay {
    fn of(program: &str) -> Self {
        let no_forks = NoForks::hold();
        let (header, lines) = recorded(program);
        let state_dir = tempfile::tempdir().unwrap();
        let inventory = Inventory {
            driver_version: header.driver.unwrap(),
            cards: recorded::cards(&lines, &inventory().cards[0]),
            ..inventory()
        };
        let driver = SimulatedDriver::new(state_dir.path(), &inventory).unwrap();
        let own = inventory.cards.iter().map(|card| driver.open(Node::Card(card.minor)).unwrap()).collect();
        let mut replay = Self {
            driver,
            own,
            files: BTreeMap::new(),
            handles: BTreeMap::new(),
            differences: BTreeSet::new(),
            compared: 0,
            _state_dir: state_dir,
            _no_forks: no_forks,
        };
        for line in &lines {
            match &line.event {
                Event::Open { file, node: name } => {
                    replay.files.insert(*file, replay.driver.open(node(name)).unwrap());
                }
                Event::Close { file } => drop(replay.files.remove(file)),
                Event::Ioctl(call) => replay.call(call),
                _ => {}
            }
        }
        replay
    }

    /// Puts today's handles where the recorded ones are.
    fn translate(&self, bytes: &mut [u8]) {
        for word in bytes.chunks_exact_mut(4) {
            if let Some(handle) = self.handles.get(&get(word, 0)) {
                put(word, 0, *handle);
            }
        }
    }

    fn call(&mut self, call: &Ioctl) {
        let mut args = call.args.before.0.clone();
        self.translate(&mut args);
        let holder = |holder: Option<usize>| holder.map_or(Holder::Args, Holder::Buffer);
        let mut buffers: Vec<Buffer> = call
            .buffers
            .iter()
            .map(|buffer| {
                let mut bytes = buffer.bytes.before.0.clone();
                self.translate(&mut bytes);
                Buffer { holder: holder(buffer.holder), offset: buffer.offset, bytes }
            })
            .collect();
        let files: Vec<FileField> = call
            .files
            .iter()
            .filter_map(|field| {
                let file = self.files.get(&field.file?)?.clone();
                Some(FileField { holder: holder(field.holder), offset: field.offset, file })
            })
            .collect();
        let file = self.files.get(&call.file).unwrap_or_else(|| panic!("{call:?} on a closed file"));
        let made = DriverCall { command: call.command, args: &mut args, buffers: &mut buffers, files: &files };
        let result = self.driver.ioctl(file, made);
        self.compare(call, &args, &buffers, result.map_err(|error| error.raw_os_error()));
    }

    fn compare(&mut self, call: &Ioctl, args: &[u8], buffers: &[Buffer], result: Result<i32, Option<i32>>) {
        let after = call.args.after();
        let name = call.name.as_deref().unwrap_or("?");
        let subject = call.subject.as_deref().unwrap_or("");
        let number = match call.command {
            _ if is_escape(call, 0x2b) => get(after, 12),
            _ if is_escape(call, 0x2a) => get(after, 8),
            command => command,
        };
        if MAY_DIFFER.iter().any(|(known, _)| *known == number) {
            return;
        }
        self.compared += 1;
        let was = i32::try_from(call.result).unwrap();
        if result != (if was < 0 { Err(Some(-was)) } else { Ok(was) }) {
            self.differences.insert(format!("{name} {subject}: {result:?}, was {}", call.result));
            return;
        }
        if let Some(was) = call.status {
            let row = crate::rm::row(abi(), self.files[&call.file].node, call.command).unwrap();
            let status = row.status(args).map_or(0, |status| status.0);
            if status != was {
                self.differences.insert(format!("{name} {subject} ({number:#x}): status {status:#x}, was {was:#x}"));
                return;
            }
        }
        if is_escape(call, 0x2b) {
            self.handles.insert(get(after, 8), get(args, 8));
            // Memory has the size that the driver gave it.
            if matches!(get(after, 12), 0x40 | 0x3e) {
                let (is, was) = (get_u64(&buffers[0].bytes, 64), get_u64(call.buffers[0].bytes.after(), 64));
                if is != was {
                    self.differences.insert(format!("{name} {subject}: {is} bytes, were {was}"));
                }
            }
        }
        if is_escape(call, 0x34) {
            self.handles.insert(get(after, 8), get(args, 8));
        }
    }

    fn used(&self) -> u64 {
        let mut state = self.driver.state();
        state.free_closed();
        state.cards.iter().map(|card| card.memory.used().unwrap()).sum()
    }
}

fn abi() -> crate::rm::Abi {
    crate::rm::Abi::nearest(crate::rm::DriverRelease::new(580, 159, 4))
}

#[test]
fn real_programs_are_answered_as_they_were() {
    let mut differences = Vec::new();
    for program in ["nvidia-smi", "cuda", "managed", "pytorch", "export", "ipc", "mps"] {
        let mut replay = Replay::of(program);
        differences.extend(replay.differences.iter().map(|difference| format!("{program}: {difference}")));
        assert!(replay.compared > 100, "{program}: {} calls were compared", replay.compared);
        assert!(replay.files.is_empty(), "{program}");
        replay.own.clear();
        assert_eq!(replay.used(), 0, "{program}");
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
