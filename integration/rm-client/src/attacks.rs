//! Ways round a mediator that a hostile program may try. Each says how many bytes of a card it has
//! come to hold.

use std::{
    io,
    os::fd::AsRawFd,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use abi::{
    Handle,
    classes::{NV01_MEMORY_LOCAL_USER, NV01_ROOT_CLIENT},
    encode,
    escapes::{NV_ESC_IOCTL_XFER_CMD, NV_ESC_RM_ALLOC, NV_ESC_RM_VID_HEAP_CONTROL, command},
    params::{NV_MEMORY_ALLOCATION_PARAMS, NVOS32_PARAMETERS, NVOS64_PARAMETERS, nv_ioctl_xfer_t},
};

use crate::{
    NO_MEMORY, RmError,
    bytes::{get, put, put_bytes},
    client::{address_of, alloc_args},
    compute::{Engine, Group},
    device::Device,
    random::Random,
    sys::{self, Mapping},
    system,
    uvm::AddressSpace,
};

/// An attack: tries to hold pieces of `size` bytes and says what it got.
pub type MemoryAttack = fn(&Device<'_>, u64) -> Result<u64, RmError>;

/// All of them, by name.
pub const ATTACKS: &[(&str, MemoryAttack)] = &[
    ("foreign-type", foreign_type),
    ("no-direction", no_direction),
    ("int80", int80),
    ("xfer", xfer),
    ("race", race),
    ("leak-mappings", leak_mappings),
    ("leak-exports", leak_exports),
    ("tiny", tiny),
    ("groups", groups),
    ("huge-pages", huge_pages),
    ("fixed-alignment", fixed_alignment),
    ("managed", managed),
    ("older-calls", older_calls),
    ("garbage", garbage),
];

/// Tries that an attack makes at most: enough for any quota of a test, and it ends.
const TRIES: usize = 256;

/// Calls of a race: enough for the quota of a test, if none of them is won.
const RACES: usize = 10_000;

type Memory = NV_MEMORY_ALLOCATION_PARAMS;
type Alloc = NVOS64_PARAMETERS;

/// Command of an allocation.
const ALLOC: u32 = command(NV_ESC_RM_ALLOC, Alloc::SIZE);
/// Offset of an allocation's parameters in memory that holds both.
const PARAMS: usize = 2048;

fn params(device: &Device<'_>, size: u64) -> [u8; Memory::SIZE] {
    // The driver refuses owner 0 before it looks at anything else.
    encode!(Memory { owner: device.client.handle, size: size })
}

/// Struct of an allocation with parameters at `address`.
fn args_at(device: &Device<'_>, address: u64) -> [u8; Alloc::SIZE] {
    let mut args = alloc_args(device.client.handle, device.device, 0, NV01_MEMORY_LOCAL_USER);
    put(&mut args, Alloc::pAllocParms, address);
    args
}

/// Bytes that an allocation got.
fn held(args: &[u8], params: &[u8]) -> u64 {
    let made = get(args, Alloc::status) == 0 && get(args, Alloc::hObjectNew) != Handle::NONE;
    if made { get(params, Memory::size) } else { 0 }
}

/// Repeats an attempt that says what it got until it gets nothing. The system call failing is
/// nothing, too.
fn sum(mut attempt: impl FnMut() -> Result<u64, RmError>) -> Result<u64, RmError> {
    let mut held = 0;
    for _ in 0..TRIES {
        match attempt() {
            Ok(got) if got > 0 => held += got,
            Ok(_) | Err(RmError::System { .. } | RmError::Refused { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}

/// Allocates with a command number of one's own making.
fn with_command(device: &Device<'_>, size: u64, number: u32) -> Result<u64, RmError> {
    sum(|| {
        let mut params = params(device, size);
        let mut args = args_at(device, address_of(&mut params));
        device
            .client
            .nodes
            .ioctl(&device.client.control, number, &mut args)
            .map_err(system("allocation by a foreign command"))?;
        Ok(held(&args, &params))
    })
}

/// The driver does not look at a command's type byte.
fn foreign_type(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    with_command(device, size, ALLOC & !0xff00 | u32::from(b'Q') << 8)
}

/// Nor at its direction.
fn no_direction(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    with_command(device, size, ALLOC & !(3 << 30))
}

/// The 32-bit entry has other numbers of system calls.
fn int80(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    sum(|| {
        let mut low = Mapping::low(4096).map_err(system("memory below 4 GiB"))?;
        let address = low.address();
        let args = args_at(device, address + PARAMS as u64);
        put_bytes(low.bytes(), 0, &args);
        put_bytes(low.bytes(), PARAMS, &params(device, size));
        let fd = device.client.control.as_raw_fd();
        let address = u32::try_from(address).map_err(|_| RmError::Nonsense { what: "not below 4 GiB".into() })?;
        sys::ioctl_int80(fd, ALLOC, address).map_err(system("allocation by int 0x80"))?;
        let (args, params) = low.bytes().split_at(PARAMS);
        Ok(held(args, params))
    })
}

/// One call wraps another, which the driver reads from memory.
fn xfer(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    sum(|| {
        let mut params = params(device, size);
        let mut inner = args_at(device, address_of(&mut params));
        let mut args = encode!(nv_ioctl_xfer_t {
            cmd: u32::from(NV_ESC_RM_ALLOC),
            size: u32::try_from(inner.len()).unwrap_or(0),
            ptr: address_of(&mut inner),
        });
        device
            .client
            .nodes
            .ioctl(&device.client.control, command(NV_ESC_IOCTL_XFER_CMD, nv_ioctl_xfer_t::SIZE), &mut args)
            .map_err(system("wrapped allocation"))?;
        Ok(held(&inner, &params))
    })
}

/// Another thread changes the size and the class between whoever checks them and whoever uses them.
fn race(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    // What handles of clients begin with (`RS_CLIENT_HANDLE_BASE`).
    const CLIENT_BASE: u32 = 0xc1d0_0000;
    const CLIENT_MASK: u32 = 0xfff0_0000;
    let mut shared = Mapping::low(4096).map_err(system("memory"))?;
    let address = shared.address();
    let (running, begun) = (AtomicBool::new(true), Barrier::new(2));
    thread::scope(|scope| {
        let mut flipped = shared.alias();
        let (running, begun) = (&running, &begun);
        scope.spawn(move || {
            begun.wait();
            for turn in (0..8).cycle().take_while(|_| running.load(Ordering::Relaxed)) {
                flipped.store_u64(PARAMS + Memory::size.at(), if turn % 2 == 0 { 4096 } else { size });
                // A client costs nothing, and the driver refuses it silently, if at all.
                let class = if turn == 0 { NV01_ROOT_CLIENT } else { NV01_MEMORY_LOCAL_USER };
                flipped.store_u32(Alloc::hClass.at(), class);
            }
        });
        let mut attempt = || {
            put_bytes(shared.bytes(), 0, &args_at(device, address + PARAMS as u64));
            put_bytes(shared.bytes(), PARAMS, &params(device, 4096));
            let fd = device.client.control.as_raw_fd();
            sys::ioctl_raw(fd, u64::from(ALLOC), address)?;
            let bytes = shared.bytes();
            io::Result::Ok((get(bytes, Alloc::status), get(bytes, Alloc::hObjectNew).0))
        };
        let mut held = 0;
        begun.wait();
        for _ in 0..RACES {
            match attempt() {
                // What was really taken is what a duplicate of the handle would show; the returned
                // size may be flipped again. Count the least that it can be: the tests look at the
                // card's own account.
                Ok((0, handle)) if handle != 0 && handle & CLIENT_MASK != CLIENT_BASE => held += 64 << 10,
                Ok((NO_MEMORY, _)) | Err(_) => break,
                // It was the other class.
                Ok(_) => {}
            }
        }
        running.store(false, Ordering::Relaxed);
        Ok(held)
    })
}

/// A mapping keeps memory after its handle is gone.
fn leak_mappings(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    let mut space = AddressSpace::open(device)?;
    let held = sum(|| {
        let memory = device.alloc(size)?;
        space.map(device, memory)?;
        device.client.free(memory.handle)?;
        Ok(memory.size)
    });
    // Held until the program ends.
    std::mem::forget(space);
    held
}

/// So does an export.
fn leak_exports(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    sum(|| {
        let memory = device.alloc(size)?;
        std::mem::forget(crate::exports::export(device, memory)?);
        device.client.free(memory.handle)?;
        Ok(memory.size)
    })
}

/// Pages of 4 KiB take 64 KiB of the card each.
fn tiny(device: &Device<'_>, _: u64) -> Result<u64, RmError> {
    const PAGES_OF_4K: u32 = 1 << 23;
    let mut held = 0;
    for _ in 0..100_000 {
        match device.alloc_with(4096, PAGES_OF_4K, 0) {
            Ok(_) => held += 64 << 10,
            Err(RmError::Refused { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(held)
}

/// Channel groups have buffers that no allocation shows.
fn groups(device: &Device<'_>, _: u64) -> Result<u64, RmError> {
    sum(|| {
        Group::new(device, Engine::Compute, 1)?.schedule()?;
        Ok(8256 << 10)
    })
}

/// One page of 512 MiB for an allocation of 4 KiB.
fn huge_pages(device: &Device<'_>, _: u64) -> Result<u64, RmError> {
    sum(|| Ok(device.alloc_with(4096, 3 << 23, 2 << 20)?.size))
}

/// At a fixed address the driver takes whole multiples of the alignment that is asked for.
fn fixed_alignment(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    const FIXED_ADDRESS_ALIGNED: u32 = 0x110;
    let alignment = size.next_power_of_two();
    sum(|| {
        let mut params = params(device, 64 << 10);
        put(&mut params, Memory::flags, FIXED_ADDRESS_ALIGNED);
        put(&mut params, Memory::alignment, alignment);
        device.client.alloc(device.device, 0, NV01_MEMORY_LOCAL_USER, Some(&mut params))?;
        Ok(alignment)
    })
}

/// Managed memory is made by `mmap`, not by a call of the driver's.
fn managed(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    let mut space = AddressSpace::open(device)?;
    sum(|| {
        std::mem::forget(space.managed(size)?);
        Ok(size)
    })
}

/// `NV_ESC_RM_VID_HEAP_CONTROL` leads to the same memory.
fn older_calls(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    type Args = NVOS32_PARAMETERS;
    const ALLOC_SIZE: u32 = 2;
    sum(|| {
        let mut args = encode!(Args {
            hRoot: Handle(device.client.handle),
            hObjectParent: Handle(device.device),
            function: ALLOC_SIZE,
            owner: device.client.handle,
            size: size,
        });
        device.client.escape("older allocation", NV_ESC_RM_VID_HEAP_CONTROL, &mut args, Args::status)?;
        Ok(get(&args, Args::size))
    })
}

/// Bytes without any sense, for every number, on every node. Numbers of UVM's begin at 8: those
/// below are file systems' and disks', which nobody may keep from the kernel.
fn garbage(device: &Device<'_>, seed: u64) -> Result<u64, RmError> {
    let mut random = Random(seed);
    let nodes = &device.client.nodes;
    let files = [nodes.control()?, nodes.card(device.info.minor)?, nodes.uvm()?];
    for _ in 0..10_000 {
        let size = usize::try_from(random.below(512)).unwrap_or(0);
        let number = u8::try_from(random.below(256)).unwrap_or(0);
        let uvm_number = 8 + u32::try_from(random.below(0x1f8)).unwrap_or(0);
        let mut args = vec![0; 16384];
        for at in (0..size).step_by(4) {
            let word = u32::try_from(random.number() >> 32).unwrap_or(0);
            // Handles and small numbers now and then, so that some calls come further than the
            // first check.
            let word = match random.below(4) {
                0 => device.client.handle,
                1 => word % 8,
                2 => device.device,
                _ => word,
            };
            put_bytes(&mut args, at, &word.to_le_bytes());
        }
        let uvm = random.below(3) == 0;
        let (file, number) = match (uvm, files.as_slice()) {
            (true, [.., file]) => (file, uvm_number),
            (false, [first, second, ..]) => (if random.below(4) == 0 { second } else { first }, command(number, size)),
            _ => break,
        };
        let _answer = nodes.ioctl(file, number, &mut args);
    }
    Ok(0)
}
