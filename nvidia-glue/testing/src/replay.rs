//! The traces of `integration/fixtures/traces`, for tests that replay them.

use std::{collections::BTreeMap, fs::File, io::BufReader, path::Path};

use abi::{
    Node, Status,
    layout::{read_u32, write_u32},
};
use base::PciBusId;
use flate2::read::GzDecoder;

use trace::{Event, Header, Ioctl, Line, read};

/// Every program of which there is a trace.
pub const PROGRAMS: [&str; 7] = ["nvidia-smi", "cuda", "managed", "pytorch", "export", "ipc", "mps"];

const NO_RIGHTS: Status = Status::INSUFFICIENT_PERMISSIONS;

/// Differences between the simulated driver's answers and the driver's: the class, control or
/// command, its status, the reason.
pub const NOT_SIMULATED: &[(u32, Status, &str)] = &[
    (0xc639, NO_RIGHTS, "MIG sessions: the traced programs had rights that no program in a container has"),
    (0xc640, NO_RIGHTS, "the same"),
    (
        0x2080_0146,
        Status::NOT_SUPPORTED,
        "gives back a reservation that a process had not made: they are not simulated",
    ),
    (0x2080_014b, Status::OK, "what is in a card's ROM"),
    (0x2080_182a, Status::OK, "what the machine's bus can do"),
    (75, Status::OK, "UVM_MM_INITIALIZE of a process in which memory cannot be watched"),
];

fn word(bytes: &[u8], at: usize) -> u32 {
    read_u32(bytes, at).unwrap()
}

/// Returns what a program did.
pub fn recorded(program: &str) -> (Header, Vec<Line>) {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/fixtures/traces");
    let file = File::open(traces.join(format!("{program}.jsonl.gz"))).unwrap();
    let (header, lines) = read(BufReader::new(GzDecoder::new(file))).unwrap();
    (header, lines.map(Result::unwrap).collect())
}

/// A node by its file name.
pub fn node(name: &str) -> Node {
    match name {
        "nvidiactl" => Node::Control,
        "nvidia-uvm" => Node::Uvm,
        card => Node::Card(card.strip_prefix("nvidia").unwrap().parse().unwrap()),
    }
}

/// Returns whether it is that escape of the driver's.
pub fn is_escape(call: &Ioctl, number: u32) -> bool {
    call.command >> 30 == 3 && call.command >> 8 & 0xff == u32::from(b'F') && call.command & 0xff == number
}

/// Returns what a call is about: the class of an allocation, the number of a control, else the
/// command.
pub fn number(call: &Ioctl) -> u32 {
    match call.command {
        _ if is_escape(call, 0x2b) => word(call.args.after(), 12),
        _ if is_escape(call, 0x2a) => word(call.args.after(), 8),
        command => command,
    }
}

/// A call as people read it.
pub fn name(call: &Ioctl) -> String {
    let subject = call.subject.as_deref().unwrap_or("");
    format!("{} {subject} ({:#x})", call.name.as_deref().unwrap_or("?"), number(call))
}

/// Handles that the driver chose, by what it chose when it was recorded.
#[derive(Debug, Default)]
pub struct Handles(BTreeMap<u32, u32>);

impl Handles {
    /// Today's answer to a call that succeeds.
    pub fn answered(&mut self, call: &Ioctl, args: &[u8]) {
        if is_escape(call, 0x2b) || is_escape(call, 0x34) {
            self.0.insert(word(call.args.after(), 8), word(args, 8));
        }
    }

    /// Bytes of the program's with today's handles where the recorded ones were.
    pub fn translated(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for bytes in bytes.chunks_exact_mut(4) {
            if let Some(handle) = self.0.get(&word(bytes, 0)) {
                assert!(write_u32(bytes, 0, *handle));
            }
        }
        bytes
    }
}

fn calls(lines: &[Line]) -> impl Iterator<Item = &Ioctl> {
    lines.iter().filter_map(|line| match &line.event {
        Event::Ioctl(call) => Some(call),
        _ => None,
    })
}

/// A card of the machine that a trace was recorded on.
#[derive(Debug, Clone)]
pub struct RecordedCard {
    /// Position among its cards.
    pub index: u32,
    /// Minor number of its node.
    pub minor: u32,
    /// Its address.
    pub pci: PciBusId,
    /// Its UUID; made up where the program never asked for it.
    pub uuid: String,
}

/// The cards that a trace shows.
pub fn cards(lines: &[Line]) -> Vec<RecordedCard> {
    let list = calls(lines).find(|call| is_escape(call, 0xc8)).unwrap().args.after();
    let uuids = uuids(lines);
    let entries = list.chunks_exact(72).filter(|entry| entry[0] == 1);
    let card = |(index, entry): (u32, &[u8])| RecordedCard {
        index,
        minor: word(entry, 56),
        pci: PciBusId { domain: word(entry, 4), bus: entry[8], device: entry[9], function: entry[10] },
        uuid: uuids.get(&index).cloned().unwrap_or_else(|| format!("GPU-00000000-0000-0000-0000-{index:012}")),
    };
    (0..).zip(entries).map(card).collect()
}

/// By device instance: which object is of which card, and what its UUID was told to be.
fn uuids(lines: &[Line]) -> BTreeMap<u32, String> {
    let (mut instances, mut uuids) = (BTreeMap::new(), BTreeMap::new());
    for call in calls(lines) {
        let args = call.args.after();
        let params = call.buffers.first().map(|buffer| buffer.bytes.after()).unwrap_or_default();
        if is_escape(call, 0x2b) && call.status == Some(0) {
            let instance = match word(args, 12) {
                0x80 => Some(word(params, 0)),
                0x2080 => instances.get(&(word(args, 0), word(args, 4))).copied(),
                _ => None,
            };
            if let Some(instance) = instance {
                instances.insert((word(args, 0), word(args, 8)), instance);
            }
        }
        if is_escape(call, 0x2a)
            && word(args, 8) == 0x2080_014a
            && let Some(instance) = instances.get(&(word(args, 0), word(args, 4)))
        {
            let data = &params[12..];
            let text = match word(params, 8) {
                16 => {
                    let digits = hex::encode(&data[..16]);
                    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
                    format!("GPU-{}", parts.join("-"))
                }
                length => String::from_utf8(data[..length as usize - 1].to_vec()).unwrap(),
            };
            uuids.insert(*instance, text);
        }
    }
    uuids
}
