//! Memory in as many frames of 2 MiB as it can be had in: what is held open so, nobody else can
//! have in whole frames.

use std::collections::{BTreeMap, BTreeSet};

use abi::{
    Handle,
    classes::NV01_MEMORY_LOCAL_USER,
    encode,
    escapes::NV_ESC_RM_VID_HEAP_CONTROL,
    params::{Field, NV_MEMORY_ALLOCATION_PARAMS, NVOS32_PARAMETERS},
};

use crate::{
    RmError,
    bytes::{get, put},
    device::Device,
};

type Memory = NV_MEMORY_ALLOCATION_PARAMS;

/// A frame, and the driver's smallest piece.
const FRAME: u64 = 2 << 20;
const GRANULE: u64 = 64 << 10;

/// `NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE` beside what libcuda says, and `_USE_BEGIN_END`.
const ALIGNED: u32 = 0x1c101;
const RANGE: u32 = 0x2_0001;
/// `NVOS32_ATTR_PAGE_SIZE_BIG`; `_PHYSICALITY_CONTIGUOUS`, `_NONCONTIGUOUS`.
const BIG_PAGES: u32 = 2 << 23;
const CONTIGUOUS: u32 = BIG_PAGES | 2 << 27;
const NONCONTIGUOUS: u32 = BIG_PAGES | 1 << 27;

/// Pieces at most: more than any card has frames.
const MOST: usize = 200_000;

/// Result of a fragmentation.
#[derive(Debug, Default)]
pub struct Fragments {
    /// Number of pieces that are held.
    pub pieces: usize,
    /// Frames that they begin in, where the driver says.
    pub frames: usize,
    /// Status that the last one was refused with.
    pub status: u32,
}

/// A way to do it.
pub type Method = fn(&Device<'_>) -> Result<Fragments, RmError>;

/// All of them, by name.
pub const METHODS: &[(&str, Method)] = &[
    ("aligned", |device| until_refused(|| aligned(device, CONTIGUOUS))),
    ("default", |device| until_refused(|| aligned(device, BIG_PAGES))),
    ("heap", |device| until_refused(|| heap(device))),
    ("range", ranges),
    ("scattered", |device| until_refused(|| scattered(device))),
    ("emptied", emptied),
    ("holes", holes),
];

/// A piece: its handle and where it begins.
type Fragment = (u32, u64);

fn allocate(
    device: &Device<'_>,
    size: u64,
    flags: u32,
    attr: u32,
    fields: &[(Field<u64>, u64)],
) -> Result<Fragment, RmError> {
    let mut params = encode!(Memory { owner: device.client.handle, flags: flags, attr: attr, size: size });
    fields.iter().for_each(|&(field, value)| put(&mut params, field, value));
    let handle = device.client.alloc(device.device, 0, NV01_MEMORY_LOCAL_USER, Some(&mut params))?;
    Ok((handle, get(&params, Memory::offset)))
}

/// The first granule of a frame.
fn aligned(device: &Device<'_>, attr: u32) -> Result<Fragment, RmError> {
    allocate(device, GRANULE, ALIGNED, attr, &[(Memory::alignment, FRAME)])
}

/// The same by the older call.
fn heap(device: &Device<'_>) -> Result<Fragment, RmError> {
    type Args = NVOS32_PARAMETERS;
    /// `NVOS32_FUNCTION_ALLOC_SIZE`.
    const ALLOC_SIZE: u32 = 2;
    let mut args = encode!(Args {
        hRoot: Handle(device.client.handle),
        hObjectParent: Handle(device.device),
        function: ALLOC_SIZE,
        owner: device.client.handle,
        flags: ALIGNED,
        attr: CONTIGUOUS,
        size: GRANULE,
        alignment: FRAME,
    });
    device.client.escape("older allocation", NV_ESC_RM_VID_HEAP_CONTROL, &mut args, Args::status)?;
    Ok((get(&args, Args::hMemory).0, get(&args, Args::offset)))
}

/// 32 granules, each of which may be anywhere.
fn scattered(device: &Device<'_>) -> Result<Fragment, RmError> {
    allocate(device, FRAME, 1, NONCONTIGUOUS, &[])
}

/// In a frame of the program's choice each.
fn ranges(device: &Device<'_>) -> Result<Fragments, RmError> {
    let mut frames = (64..).map(|number| number * FRAME);
    until_refused(|| {
        let begin = frames.next().unwrap_or(0);
        allocate(device, GRANULE, RANGE, CONTIGUOUS, &[(Memory::rangeLo, begin), (Memory::rangeHi, begin + FRAME - 1)])
    })
}

/// Fills frames with granules and frees all but one in each, as long as that brings more of them.
fn emptied(device: &Device<'_>) -> Result<Fragments, RmError> {
    let mut kept: BTreeMap<u64, u32> = BTreeMap::new();
    for _ in 0..8 {
        let before = kept.len();
        let mut filled = Vec::new();
        let fragments = collect(&mut filled, || allocate(device, GRANULE, 1, CONTIGUOUS, &[]))?;
        for (handle, address) in filled {
            match kept.entry(address / FRAME) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(handle);
                }
                std::collections::btree_map::Entry::Occupied(_) => device.client.free(handle)?,
            }
        }
        if kept.len() == before {
            return Ok(Fragments { pieces: kept.len(), frames: kept.len(), ..fragments });
        }
    }
    Ok(Fragments { pieces: kept.len(), frames: kept.len(), status: 0 })
}

/// Leaves room for 256 KiB in each frame that it fills, for what the driver makes for itself
/// meanwhile, most of which comes in runs of that size: once this program is gone, each of those
/// keeps a frame open. It keeps three quarters of what it can have: the rest is for whoever brings
/// the driver to that.
fn holes(device: &Device<'_>) -> Result<Fragments, RmError> {
    let mut filled = Vec::new();
    let fragments = collect(&mut filled, || allocate(device, GRANULE, 1, CONTIGUOUS, &[]))?;
    let kept = filled.len() / 4 * 3;
    let (mut pieces, mut left) = (0, BTreeSet::new());
    for (at, (handle, address)) in filled.into_iter().enumerate() {
        if at >= kept || address % FRAME < 4 * GRANULE {
            device.client.free(handle)?;
        } else {
            left.insert(address / FRAME);
            pieces += 1;
        }
    }
    Ok(Fragments { pieces, frames: left.len(), ..fragments })
}

fn until_refused(make: impl FnMut() -> Result<Fragment, RmError>) -> Result<Fragments, RmError> {
    collect(&mut Vec::new(), make)
}

fn collect(
    pieces: &mut Vec<Fragment>,
    mut make: impl FnMut() -> Result<Fragment, RmError>,
) -> Result<Fragments, RmError> {
    let mut status = 0;
    while pieces.len() < MOST {
        match make() {
            Ok(piece) => pieces.push(piece),
            Err(RmError::Refused { status: refused, .. }) => {
                status = refused;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    let frames: BTreeSet<u64> = pieces.iter().map(|(_, address)| address / FRAME).collect();
    Ok(Fragments { pieces: pieces.len(), frames: frames.len(), status })
}
