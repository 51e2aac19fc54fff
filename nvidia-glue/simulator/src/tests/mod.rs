//! The simulated driver as programs meet it: by bytes.

mod bytes;
mod engines;
mod fabric;
mod faults;
mod garbage;
mod lifetimes;
mod objects;
mod programs;
mod questions;
mod replay;
mod windows;

use std::{collections::BTreeMap, os::fd::AsFd, path::Path, sync::Arc};

use abi::{Node, Status, classes::*, controls::*, escapes::*, uvm::*};
use base::Bytes;
use cards::Inventory;
use driver::{Buffer, DeviceFile, Driver, DriverCall, FileField, Holder};
use runtime_config::config::{Config, DriverKind, SimulatedCards};
use testing::NoForks;

use bytes::{get, get_u64, put, put_u64};

use super::{
    SimulatedDriver,
    engines::Clock,
    objects::{Kind, VideoMemory},
    state::State,
};

const MIB: u64 = 1 << 20;
const CARD: u64 = 1 << 30;

/// Two cards of 1 GiB.
fn inventory() -> Inventory {
    let mut config = Config { state_dir: "/nonexistent".into(), ..Config::default() };
    config.driver.kind = DriverKind::Simulated;
    config.driver.simulated = vec![SimulatedCards::free("NVIDIA H200", Bytes(CARD), 2)];
    cards::discover(&config).unwrap()
}

/// A machine with the simulated driver, and its nodes open as a mediator has them.
struct Machine {
    driver: SimulatedDriver,
    _cards: Vec<DeviceFile>,
    _no_forks: NoForks,
    _state_dir: Option<tempfile::TempDir>,
}

impl Machine {
    fn new() -> Self {
        let state_dir = tempfile::tempdir().unwrap();
        let machine = Self::below(state_dir.path());
        Self { _state_dir: Some(state_dir), ..machine }
    }

    fn below(state_dir: &Path) -> Self {
        Self::with_clock(state_dir, &Clock::Monotonic)
    }

    fn with_clock(state_dir: &Path, clock: &Clock) -> Self {
        let no_forks = NoForks::hold();
        let driver = SimulatedDriver::with_clock(state_dir, &inventory(), clock).unwrap();
        let cards = (0..2).map(|minor| driver.open(Node::Card(minor)).unwrap()).collect();
        Self { driver, _cards: cards, _no_forks: no_forks, _state_dir: None }
    }

    /// A process that has just opened the control node and has a client there.
    fn program(&self) -> Program<'_> {
        let control = self.driver.open(Node::Control).unwrap();
        let mut program = Program { driver: &self.driver, control, client: 0 };
        program.client = program.alloc(0, 0, NV01_ROOT_CLIENT, None).unwrap();
        program
    }

    fn used(&self, card: usize) -> u64 {
        let mut state = self.driver.state();
        state.free_closed();
        state.cards[card].memory.used().unwrap()
    }

    /// Returns the bytes of both cards that all living objects hold, each piece once.
    fn live(&self) -> u64 {
        live(&self.driver.state())
    }
}

fn live(state: &State) -> u64 {
    let of_kind = |kind: &Kind| match kind {
        Kind::VideoMemory(memory) => vec![Arc::clone(memory)],
        Kind::ChannelGroup { buffers, .. } => buffers.iter().cloned().collect(),
        Kind::Channel { buffers, userd, .. } => {
            buffers.iter().cloned().chain(userd.iter().filter_map(|(memory, _)| memory.video())).collect()
        }
        _ => Vec::new(),
    };
    let objects = state.clients.values().flat_map(|client| client.objects.values().map(|object| &object.kind));
    let exports = state.exports.values().flat_map(|export| export.objects.values());
    let mapped = state.uvm.values().flat_map(super::uvm_file::UvmFile::pieces);
    let pieces = objects.chain(exports).flat_map(of_kind).chain(mapped);
    let distinct: BTreeMap<*const VideoMemory, u64> =
        pieces.map(|piece| (Arc::as_ptr(&piece), piece.piece.bytes())).collect();
    distinct.values().sum()
}

/// A program that speaks to the driver.
struct Program<'a> {
    driver: &'a SimulatedDriver,
    control: DeviceFile,
    client: u32,
}

fn result(status: u32) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

impl Program<'_> {
    /// A call on the control node; the status is at `status`.
    fn escape(&self, number: u8, args: &mut [u8], status: usize) -> Result<(), Status> {
        self.on(&self.control, number, args, status)
    }

    fn on(&self, file: &DeviceFile, number: u8, args: &mut [u8], status: usize) -> Result<(), Status> {
        let call = DriverCall { command: command(number, args.len()), args, buffers: &mut [], files: &[] };
        assert_eq!(self.driver.ioctl(file, call).unwrap(), 0);
        result(get(args, status))
    }

    fn alloc(&self, parent: u32, handle: u32, class: u32, params: Option<&mut Vec<u8>>) -> Result<u32, Status> {
        self.alloc_as(&self.control, self.client, [parent, handle, class], params)
    }

    fn alloc_as(
        &self,
        file: &DeviceFile,
        client: u32,
        [parent, handle, class]: [u32; 3],
        params: Option<&mut Vec<u8>>,
    ) -> Result<u32, Status> {
        let mut args = [0; 48];
        for (index, value) in [client, parent, handle, class].into_iter().enumerate() {
            put(&mut args, index * 4, value);
        }
        let mut buffers: Vec<Buffer> =
            params.iter().map(|params| Buffer { holder: Holder::Args, offset: 16, bytes: params.to_vec() }).collect();
        let call =
            DriverCall { command: command(NV_ESC_RM_ALLOC, 48), args: &mut args, buffers: &mut buffers, files: &[] };
        assert_eq!(self.driver.ioctl(file, call).unwrap(), 0);
        if let (Some(params), Some(buffer)) = (params, buffers.pop()) {
            *params = buffer.bytes;
        }
        result(get(&args, 40)).map(|()| get(&args, 8))
    }

    fn control(&self, object: u32, number: u32, params: &mut Vec<u8>) -> Result<(), Status> {
        self.control_with(object, number, params, None)
    }

    /// With a file whose number is at an offset of the parameters.
    fn control_with(
        &self,
        object: u32,
        number: u32,
        params: &mut Vec<u8>,
        file: Option<(usize, &DeviceFile)>,
    ) -> Result<(), Status> {
        let mut args = [0; 32];
        for (offset, value) in [(0, self.client), (4, object), (8, number), (24, u32::try_from(params.len()).unwrap())]
        {
            put(&mut args, offset, value);
        }
        let mut buffers = [Buffer { holder: Holder::Args, offset: 16, bytes: params.clone() }];
        let files: Vec<FileField> = file
            .map(|(offset, file)| FileField { holder: Holder::Buffer(0), offset, file: file.clone() })
            .into_iter()
            .collect();
        let call = DriverCall {
            command: command(NV_ESC_RM_CONTROL, 32),
            args: &mut args,
            buffers: &mut buffers,
            files: &files,
        };
        assert_eq!(self.driver.ioctl(&self.control, call).unwrap(), 0);
        params.clone_from(&buffers[0].bytes);
        result(get(&args, 28))
    }

    fn free(&self, handle: u32) -> Result<(), Status> {
        let mut args = [0; 16];
        put(&mut args, 0, self.client);
        put(&mut args, 8, handle);
        self.escape(NV_ESC_RM_FREE, &mut args, 12)
    }

    fn exists(&self, handle: u32) -> bool {
        let mut params = vec![0; 16];
        put(&mut params, 0, handle);
        put(&mut params, 4, 2);
        self.control(self.client, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, &mut params).is_ok()
    }

    fn duplicate(&self, parent: u32, source_client: u32, source: u32) -> Result<u32, Status> {
        let mut args = [0; 28];
        for (index, value) in [self.client, parent, 0, source_client, source].into_iter().enumerate() {
            put(&mut args, index * 4, value);
        }
        self.escape(NV_ESC_RM_DUP_OBJECT, &mut args, 24).map(|()| get(&args, 8))
    }

    /// A device and a subdevice of a card.
    fn device(&self, card: u32) -> (u32, u32) {
        let mut params = vec![0; 56];
        put(&mut params, 0, card);
        let device = self.alloc(self.client, 0, NV01_DEVICE_0, Some(&mut params)).unwrap();
        (device, self.alloc(device, 0, NV20_SUBDEVICE_0, Some(&mut vec![0; 4])).unwrap())
    }

    /// Memory of the card, and its size as the driver says.
    fn memory(&self, device: u32, size: u64) -> Result<(u32, u64), Status> {
        let mut params = memory_params(size);
        let handle = self.alloc(device, 0, NV01_MEMORY_LOCAL_USER, Some(&mut params))?;
        Ok((handle, get_u64(&params, 64)))
    }

    /// A call on a file of unified memory.
    fn uvm(&self, file: &DeviceFile, number: u32, args: &mut [u8], status: usize) -> Result<(), Status> {
        let call = DriverCall { command: number, args, buffers: &mut [], files: &[] };
        assert_eq!(self.driver.ioctl(file, call).unwrap(), 0);
        result(get(args, status))
    }

    /// A file of unified memory that has card 0 and an address space for it.
    fn address_space(&self, device: u32) -> DeviceFile {
        let file = self.driver.open(Node::Uvm).unwrap();
        self.uvm(&file, UVM_INITIALIZE, &mut [0; 16], 8).unwrap();
        let uuid = super::controls::uuid_bytes(&inventory().cards[0].uuid);
        let mut args = [0; 40];
        args[..16].copy_from_slice(&uuid);
        self.uvm(&file, UVM_REGISTER_GPU, &mut args, 36).unwrap();
        let space = self.alloc(device, 0, FERMI_VASPACE_A, Some(&mut vec![0; 56])).unwrap();
        let mut args = [0; 32];
        args[..16].copy_from_slice(&uuid);
        put(&mut args, 20, self.client);
        put(&mut args, 24, space);
        self.uvm(&file, UVM_REGISTER_GPU_VASPACE, &mut args, 28).unwrap();
        file
    }

    /// Creates a range of addresses and maps memory there.
    fn map(&self, file: &DeviceFile, base: u64, length: u64, memory: u32) -> Result<(), Status> {
        let mut args = [0; 24];
        put_u64(&mut args, 0, base);
        put_u64(&mut args, 8, length);
        self.uvm(file, UVM_CREATE_EXTERNAL_RANGE, &mut args, 16)?;
        self.map_again(file, base, length, memory)
    }

    fn map_again(&self, file: &DeviceFile, base: u64, length: u64, memory: u32) -> Result<(), Status> {
        let mut args = vec![0; 9264];
        put_u64(&mut args, 0, base);
        put_u64(&mut args, 8, length);
        args[24..40].copy_from_slice(&super::controls::uuid_bytes(&inventory().cards[0].uuid));
        put_u64(&mut args, 9240, 1);
        put(&mut args, 9252, self.client);
        put(&mut args, 9256, memory);
        self.uvm(file, UVM_MAP_EXTERNAL_ALLOCATION, &mut args, 9260)
    }

    fn unmap(&self, file: &DeviceFile, base: u64, length: u64) -> Result<(), Status> {
        let mut args = [0; 24];
        put_u64(&mut args, 0, base);
        put_u64(&mut args, 8, length);
        self.uvm(file, UVM_FREE, &mut args, 16)
    }
}

fn memory_params(size: u64) -> Vec<u8> {
    let mut params = vec![0; 128];
    put(&mut params, 0, 0xc1d0_0001);
    put_u64(&mut params, 64, size);
    params
}

/// Another descriptor of the same open file.
fn duplicate_of(file: &DeviceFile) -> DeviceFile {
    let file_again = file.file.as_fd().try_clone_to_owned().unwrap();
    DeviceFile { node: file.node, file: Arc::new(file_again.into()) }
}
