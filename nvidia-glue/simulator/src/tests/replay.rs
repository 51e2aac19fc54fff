//! Traces of real programs on real cards, replayed: the simulated driver answers each call as the
//! driver did.

use std::collections::{BTreeMap, BTreeSet};

use testing::replay::{Handles, NOT_SIMULATED, PROGRAMS, RecordedCard, cards, is_escape, name, node, number, recorded};
use trace::{Event, Ioctl};

use super::*;

/// One trace on one simulated machine.
struct Replay {
    driver: SimulatedDriver,
    /// As a mediator has them.
    own: Vec<DeviceFile>,
    files: BTreeMap<u32, DeviceFile>,
    handles: Handles,
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
        let like = inventory().cards.remove(0);
        let card = |card: RecordedCard| ::cards::Card {
            index: card.index,
            minor: card.minor,
            pci: card.pci,
            uuid: card.uuid,
            memory: Bytes(140 << 30),
            ..like.clone()
        };
        let inventory = Inventory {
            driver_version: header.driver.unwrap(),
            cards: cards(&lines).into_iter().map(card).collect(),
            ..inventory()
        };
        let driver = SimulatedDriver::new(state_dir.path(), &inventory).unwrap();
        let own = inventory.cards.iter().map(|card| driver.open(Node::Card(card.minor)).unwrap()).collect();
        let mut replay = Self {
            driver,
            own,
            files: BTreeMap::new(),
            handles: Handles::default(),
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
                // The kernel maps, and makes processes. What the mediator makes of that,
                // mediator/src/tests/replay.rs tells.
                _ => {}
            }
        }
        replay
    }

    fn call(&mut self, call: &Ioctl) {
        let mut args = self.handles.translated(&call.args.before.0);
        let holder = |holder: Option<usize>| holder.map_or(Holder::Args, Holder::Buffer);
        let mut buffers: Vec<Buffer> = call
            .buffers
            .iter()
            .map(|buffer| {
                let bytes = self.handles.translated(&buffer.bytes.before.0);
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
        let name = name(call);
        self.compared += 1;
        let was = i32::try_from(call.result).unwrap();
        if result != (if was < 0 { Err(Some(-was)) } else { Ok(was) }) {
            self.differences.insert(format!("{name}: {result:?}, was {}", call.result));
            return;
        }
        if let Some(was) = call.status {
            let row = abi::row(abi(), self.files[&call.file].node, call.command).unwrap();
            let status = row.status(args).map_or(0, |status| status.0);
            let known = NOT_SIMULATED.iter().find(|(known, ..)| *known == number(call));
            if status != was {
                if known.is_none_or(|(_, known, _)| known.0 != status) {
                    self.differences.insert(format!("{name}: status {status:#x}, was {was:#x}"));
                }
                return;
            }
        }
        self.handles.answered(call, args);
        // Memory has the size that the driver gave it.
        if is_escape(call, NV_ESC_RM_ALLOC) && matches!(number(call), NV01_MEMORY_LOCAL_USER | NV01_MEMORY_SYSTEM) {
            let (is, was) = (get_u64(&buffers[0].bytes, 64), get_u64(call.buffers[0].bytes.after(), 64));
            if is != was {
                self.differences.insert(format!("{name}: {is} bytes, were {was}"));
            }
        }
    }

    fn used(&self) -> u64 {
        let mut state = self.driver.state();
        state.free_closed();
        state.cards.iter().map(|card| card.memory.used().unwrap()).sum()
    }
}

fn abi() -> abi::Abi {
    abi::Abi::nearest(abi::DriverRelease::new(580, 159, 4))
}

#[test]
fn real_programs_are_answered_as_they_were() {
    let mut differences = Vec::new();
    for program in PROGRAMS {
        let mut replay = Replay::of(program);
        differences.extend(replay.differences.iter().map(|difference| format!("{program}: {difference}")));
        assert!(replay.compared > 100, "{program}: {} calls were compared", replay.compared);
        assert!(replay.files.is_empty(), "{program}");
        replay.own.clear();
        assert_eq!(replay.used(), 0, "{program}");
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
