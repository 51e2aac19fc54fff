//! The traces of `integration/fixtures/traces`, for tests that replay them.

use std::{collections::BTreeMap, fs::File, io::BufReader, path::Path};

use abi::{
    Handle, Node, Status,
    classes::{AMPERE_SMC_CONFIG_SESSION, AMPERE_SMC_MONITOR_SESSION, NV01_DEVICE_0, NV20_SUBDEVICE_0},
    controls::{
        NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS, NV2080_CTRL_CMD_GPU_GET_GID_INFO,
        NV2080_CTRL_CMD_GPU_GET_INFOROM_OBJECT_VERSION, NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION,
    },
    escapes::{NV_ESC_CARD_INFO, NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL, NV_ESC_RM_DUP_OBJECT},
    params::{
        Field, NV0080_ALLOC_PARAMETERS, NV2080_CTRL_GPU_GET_GID_INFO_PARAMS, NVOS21_PARAMETERS, NVOS54_PARAMETERS,
        NVOS55_PARAMETERS, nv_ioctl_card_info_t as Entry,
    },
    uvm::UVM_MM_INITIALIZE,
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
    (
        AMPERE_SMC_CONFIG_SESSION,
        NO_RIGHTS,
        "MIG sessions: the traced programs had rights that no program in a container has",
    ),
    (AMPERE_SMC_MONITOR_SESSION, NO_RIGHTS, "the same"),
    (
        NV2080_CTRL_CMD_GPU_RELEASE_COMPUTE_MODE_RESERVATION,
        Status::NOT_SUPPORTED,
        "gives back a reservation that a process had not made: they are not simulated",
    ),
    (NV2080_CTRL_CMD_GPU_GET_INFOROM_OBJECT_VERSION, Status::OK, "what is in a card's ROM"),
    (NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS, Status::OK, "what the machine's bus can do"),
    (UVM_MM_INITIALIZE, Status::OK, "of a process in which memory cannot be watched"),
];

/// Reads the recorded trace of a program.
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
pub fn is_escape(call: &Ioctl, number: u8) -> bool {
    call.command >> 30 == 3 && call.command >> 8 & 0xff == u32::from(b'F') && call.command & 0xff == u32::from(number)
}

/// Number that identifies a call: the class of an allocation, the number of a control, else the
/// command.
pub fn number(call: &Ioctl) -> u32 {
    match call.command {
        _ if is_escape(call, NV_ESC_RM_ALLOC) => NVOS21_PARAMETERS::hClass.get(call.args.after()).unwrap(),
        _ if is_escape(call, NV_ESC_RM_CONTROL) => NVOS54_PARAMETERS::cmd.get(call.args.after()).unwrap(),
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
        let field = match () {
            () if is_escape(call, NV_ESC_RM_ALLOC) => NVOS21_PARAMETERS::hObjectNew,
            () if is_escape(call, NV_ESC_RM_DUP_OBJECT) => NVOS55_PARAMETERS::hObject,
            () => return,
        };
        self.0.insert(field.get(call.args.after()).unwrap().0, field.get(args).unwrap().0);
    }

    /// Bytes of the program's with today's handles where the recorded ones were.
    pub fn translated(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for word in bytes.as_chunks_mut::<4>().0 {
            if let Some(handle) = self.0.get(&u32::from_le_bytes(*word)) {
                *word = handle.to_le_bytes();
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
    let list = calls(lines).find(|call| is_escape(call, NV_ESC_CARD_INFO)).unwrap().args.after();
    let uuids = uuids(lines);
    let entries = list.chunks_exact(Entry::SIZE).filter(|entry| Entry::valid.get(entry) == Some(1));
    let card = |(index, entry): (u32, &[u8])| RecordedCard {
        index,
        minor: Entry::minor_number.get(entry).unwrap(),
        pci: PciBusId {
            domain: Entry::domain.get(entry).unwrap(),
            bus: Entry::bus.get(entry).unwrap(),
            device: Entry::slot.get(entry).unwrap(),
            function: Entry::function.get(entry).unwrap(),
        },
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
        if is_escape(call, NV_ESC_RM_ALLOC) && call.status == Some(0) {
            type Alloc = NVOS21_PARAMETERS;
            let object = |field: Field<Handle>| (Alloc::hRoot.get(args).unwrap(), field.get(args).unwrap());
            let instance = match Alloc::hClass.get(args).unwrap() {
                NV01_DEVICE_0 => Some(NV0080_ALLOC_PARAMETERS::deviceId.get(params).unwrap()),
                NV20_SUBDEVICE_0 => instances.get(&object(Alloc::hObjectParent)).copied(),
                _ => None,
            };
            if let Some(instance) = instance {
                instances.insert(object(Alloc::hObjectNew), instance);
            }
        }
        type Control = NVOS54_PARAMETERS;
        if is_escape(call, NV_ESC_RM_CONTROL)
            && Control::cmd.get(args) == Some(NV2080_CTRL_CMD_GPU_GET_GID_INFO)
            && let Some(instance) =
                instances.get(&(Control::hClient.get(args).unwrap(), Control::hObject.get(args).unwrap()))
        {
            let data = NV2080_CTRL_GPU_GET_GID_INFO_PARAMS::data.bytes(params).unwrap();
            let text = match NV2080_CTRL_GPU_GET_GID_INFO_PARAMS::length.get(params).unwrap() {
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
