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

use crate::{
    NO_MEMORY, RmError,
    bytes::{get, get_u64, put, put_bytes, put_u64, words},
    client::{ALLOC, ROOT, address_of, command},
    device::{Device, VIDEO_MEMORY},
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

fn params(device: &Device<'_>, size: u64) -> Vec<u8> {
    let mut params = vec![0; 128];
    // `owner`: the driver refuses 0 before it looks at anything else.
    put(&mut params, 0, device.client.handle);
    put_u64(&mut params, 64, size);
    params
}

/// The call of an allocation, with parameters at `address`.
fn alloc_args(device: &Device<'_>, address: u64) -> Vec<u8> {
    let mut args = words([device.client.handle, device.device, 0, VIDEO_MEMORY], 48);
    put_u64(&mut args, 16, address);
    args
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
        let mut args = alloc_args(device, address_of(&mut params));
        device
            .client
            .nodes
            .ioctl(&device.client.control, number, &mut args)
            .map_err(system("allocation by a foreign command"))?;
        Ok(if get(&args, 40) == 0 && get(&args, 8) != 0 { get_u64(&params, 64) } else { 0 })
    })
}

/// The driver does not look at a command's type byte.
fn foreign_type(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    with_command(device, size, command(ALLOC, 48) & !0xff00 | u32::from(b'Q') << 8)
}

/// Nor at its direction.
fn no_direction(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    with_command(device, size, command(ALLOC, 48) & 0x3fff_ffff)
}

/// The 32-bit entry has other numbers of system calls.
fn int80(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    sum(|| {
        let mut low = Mapping::low(4096).map_err(system("memory below 4 GiB"))?;
        let address = low.address();
        let params_at = address + 2048;
        let args = alloc_args(device, params_at);
        put_bytes(low.bytes(), 0, &args);
        put_bytes(low.bytes(), 2048, &params(device, size));
        let fd = device.client.control.as_raw_fd();
        let address = u32::try_from(address).map_err(|_| RmError::Nonsense { what: "not below 4 GiB".into() })?;
        sys::ioctl_int80(fd, command(ALLOC, 48), address).map_err(system("allocation by int 0x80"))?;
        let bytes = low.bytes();
        Ok(if get(bytes, 40) == 0 && get(bytes, 8) != 0 { get_u64(bytes, 2048 + 64) } else { 0 })
    })
}

/// One call wraps another, which the driver reads from memory.
fn xfer(device: &Device<'_>, size: u64) -> Result<u64, RmError> {
    const XFER: u32 = 0xd3;
    sum(|| {
        let mut params = params(device, size);
        let mut inner = alloc_args(device, address_of(&mut params));
        let mut args = words([ALLOC, 48], 16);
        put_u64(&mut args, 8, address_of(&mut inner));
        device
            .client
            .nodes
            .ioctl(&device.client.control, command(XFER, 16), &mut args)
            .map_err(system("wrapped allocation"))?;
        Ok(if get(&inner, 40) == 0 && get(&inner, 8) != 0 { get_u64(&params, 64) } else { 0 })
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
                flipped.store_u64(2048 + 64, if turn % 2 == 0 { 4096 } else { size });
                // A client costs nothing, and the driver refuses it silently, if at all.
                flipped.store_u32(12, if turn == 0 { ROOT } else { VIDEO_MEMORY });
            }
        });
        let mut attempt = || {
            put_bytes(shared.bytes(), 0, &alloc_args(device, address + 2048));
            put_bytes(shared.bytes(), 2048, &params(device, 4096));
            let fd = device.client.control.as_raw_fd();
            sys::ioctl_raw(fd, u64::from(command(ALLOC, 48)), address)?;
            let bytes = shared.bytes();
            io::Result::Ok((get(bytes, 40), get(bytes, 8)))
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
    const GROUP: u32 = 0xa06c;
    const CHANNEL: u32 = 0xc86f;
    const GRAPHICS: u32 = 1;
    let client = device.client;
    sum(|| {
        let mut params = words([0, 0, 0, GRAPHICS], 20);
        let group = client.alloc(device.device, 0, GROUP, Some(&mut params))?;
        client.alloc(group, 0, CHANNEL, Some(&mut vec![0; 368]))?;
        client.control(group, 0xa06c_0101, &mut [1, 0, 0])?;
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
        put(&mut params, 8, FIXED_ADDRESS_ALIGNED);
        put_u64(&mut params, 72, alignment);
        device.client.alloc(device.device, 0, VIDEO_MEMORY, Some(&mut params))?;
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
    const VID_HEAP_CONTROL: u32 = 0x4a;
    const ALLOC_SIZE: u32 = 2;
    sum(|| {
        let mut args = words([device.client.handle, device.device, ALLOC_SIZE], 184);
        put(&mut args, 40, device.client.handle);
        put_u64(&mut args, 88, size);
        device.client.escape("older allocation", VID_HEAP_CONTROL, &mut args, 20)?;
        Ok(get_u64(&args, 88))
    })
}

/// Bytes without any sense, for every number, on every node. Numbers of UVM's begin at 8: those
/// below are file systems' and disks', which nobody may keep from the kernel.
fn garbage(device: &Device<'_>, seed: u64) -> Result<u64, RmError> {
    let mut random = Random(seed);
    let nodes = &device.client.nodes;
    let files = [nodes.control()?, nodes.card(device.info.minor)?, nodes.uvm()?];
    for _ in 0..10_000 {
        let size = u32::try_from(random.below(512)).unwrap_or(0);
        let number = u32::try_from(random.below(256)).unwrap_or(0);
        let uvm_number = 8 + u32::try_from(random.below(0x1f8)).unwrap_or(0);
        let mut args = vec![0; 16384];
        for at in (0..size as usize).step_by(4) {
            let word = u32::try_from(random.number() >> 32).unwrap_or(0);
            // Handles and small numbers now and then, so that some calls come further than the
            // first check.
            let word = match random.below(4) {
                0 => device.client.handle,
                1 => word % 8,
                2 => device.device,
                _ => word,
            };
            put(&mut args, at, word);
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
