//! A random program: allocations, frees, mappings, duplicates and exports.

use std::fs::File;

use crate::{
    RmError,
    device::{Allocation, Device},
    exports,
    uvm::AddressSpace,
};

/// SplitMix64: the same steps for the same seed, everywhere.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Below `limit`; 0 for 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number().checked_rem(limit).unwrap_or(0)
    }

    fn place(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }
}

/// Result of a random program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Allocations that were given.
    pub given: u64,
    /// Those that were refused for want of memory.
    pub refused: u64,
    /// The most that it had at one time, duplicates counted once.
    pub peak: u64,
}

/// A piece of memory with all that refers to it.
struct Piece {
    memory: Allocation,
    /// Handles; the first is the allocation's own.
    handles: Vec<u32>,
    mappings: Vec<u64>,
    exports: Vec<File>,
}

/// Runs `steps` steps with allocations of at most `most` bytes, then gives everything back.
///
/// # Errors
/// When the driver answers anything but success or "no memory": an honest program's call was
/// refused.
pub fn run(device: &Device<'_>, seed: u64, steps: u64, most: u64) -> Result<Outcome, RmError> {
    let mut random = Random(seed);
    let mut space = AddressSpace::open(device)?;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut outcome = Outcome::default();
    for _ in 0..steps {
        let which = random.place(pieces.len());
        match random.below(10) {
            0..4 => match device.alloc(random.below(most) + 1) {
                Ok(memory) => {
                    outcome.given += 1;
                    pieces.push(Piece {
                        memory,
                        handles: vec![memory.handle],
                        mappings: Vec::new(),
                        exports: Vec::new(),
                    });
                }
                Err(error) if error.is_out_of_memory() => outcome.refused += 1,
                Err(error) => return Err(error),
            },
            4 => {
                if let Some(piece) = pieces.get_mut(which) {
                    refer(&mut space, device, piece, random.below(3))?;
                }
            }
            5 | 6 => {
                if let Some(piece) = pieces.get_mut(which) {
                    // One reference fewer, but not the last.
                    if let Some(base) = piece.mappings.pop() {
                        space.unmap(base, piece.memory.size)?;
                    } else if piece.exports.pop().is_none()
                        && piece.handles.len() > 1
                        && let Some(handle) = piece.handles.pop()
                    {
                        device.client.free(handle)?;
                    }
                }
            }
            _ if !pieces.is_empty() => give_back(&space, device, pieces.swap_remove(which))?,
            _ => {}
        }
        outcome.peak = outcome.peak.max(pieces.iter().map(|piece| piece.memory.size).sum());
    }
    for piece in pieces {
        give_back(&space, device, piece)?;
    }
    Ok(outcome)
}

fn refer(space: &mut AddressSpace, device: &Device<'_>, piece: &mut Piece, how: u64) -> Result<(), RmError> {
    match how {
        0 => piece.mappings.push(space.map(device, piece.memory)?),
        1 => piece.exports.push(exports::export(device, piece.memory)?),
        _ => {
            let client = device.client;
            piece.handles.push(client.duplicate(device.device, client.handle, piece.memory.handle)?);
        }
    }
    Ok(())
}

fn give_back(space: &AddressSpace, device: &Device<'_>, piece: Piece) -> Result<(), RmError> {
    for base in piece.mappings {
        space.unmap(base, piece.memory.size)?;
    }
    for handle in piece.handles {
        device.client.free(handle)?;
    }
    Ok(())
}
