//! Buffers of a call as the driver sees them: at the end of memory that nothing follows.
//!
//! The driver takes a buffer to be as long as the struct that it expects there, which most calls do
//! not say. If that is longer than the tables know, as it can be in an unknown release, the driver
//! must not write to whatever lies behind: the call fails, and the mediator's own memory stays as
//! it was. Each thread keeps what it has used, since to map and unmap would cost more than the
//! call.

use std::io;

use super::Buffer;
use crate::sys::GuardedMemory;

/// Room for the parameters of a call, which the driver may take to be longer than the tables say.
/// The longest of an allocation are well below this.
const LEAST_BUFFER: usize = 4096;
/// Room for the argument of UVM's calls, whose numbers do not say its length either: 9264 bytes is
/// the longest (`UVM_MAP_EXTERNAL_ALLOCATION_PARAMS` since 550.54.14,
/// kernel-open/nvidia-uvm/uvm_ioctl.h).
pub(super) const LEAST_UVM_ARGS: usize = 16384;
/// Longest memory that is kept for the next call.
const LONGEST_KEPT: usize = 64 << 10;
/// Alignment that structs of the driver's have at most. So much may lie between the end of what is
/// used and the end of the memory.
const ALIGNMENT: usize = 16;

/// A thread's.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    /// For UVM's arguments. Zeroes between calls: to fill so much at every call costs more than the
    /// call's copies together. (What UVM writes back is as long as what it reads; should that be
    /// more than the tables know, later calls of the same container may find it there.)
    args: Option<GuardedMemory>,
    /// For what pointers point to, the first for the first buffer.
    pub(super) buffers: Vec<GuardedMemory>,
}

impl Guarded {
    pub(super) const fn new() -> Self {
        Self { args: None, buffers: Vec::new() }
    }

    /// Copies of the buffers, made by [`Guarded::copy_in`], will have these addresses.
    pub(super) fn addresses(&mut self, buffers: &[Buffer]) -> io::Result<Vec<u64>> {
        let mut addresses = Vec::with_capacity(buffers.len());
        for (index, buffer) in buffers.iter().enumerate() {
            let room = buffer.bytes.len().max(LEAST_BUFFER);
            match self.buffers.get_mut(index) {
                Some(memory) => enlarge(memory, room)?,
                None => self.buffers.push(GuardedMemory::new(room)?),
            }
            let place = self.buffers.get_mut(index).map(|memory| end(memory, room).as_mut_ptr());
            addresses.push(place.map_or(0, |place| place.expose_provenance() as u64));
        }
        Ok(addresses)
    }

    pub(super) fn copy_in(&mut self, buffers: &[Buffer]) {
        for (Buffer { bytes, .. }, memory) in buffers.iter().zip(&mut self.buffers) {
            let room = end(memory, bytes.len().max(LEAST_BUFFER));
            if let Some((copy, rest)) = room.split_at_mut_checked(bytes.len()) {
                copy.copy_from_slice(bytes);
                rest.fill(0);
            }
        }
    }

    /// Copies the buffers back as the driver has left them.
    pub(super) fn copy_out(&mut self, buffers: &mut [Buffer]) {
        for (Buffer { bytes, .. }, memory) in buffers.iter_mut().zip(&mut self.buffers) {
            let length = bytes.len();
            if let Some(copy) = end(memory, length.max(LEAST_BUFFER)).get(..length) {
                bytes.copy_from_slice(copy);
            }
        }
        if let Some(long) = self.buffers.iter().position(|memory| memory.len() > LONGEST_KEPT) {
            self.buffers.truncate(long);
        }
    }

    /// Has `execute` use a copy of an argument that does not say its length, and zeroes behind it.
    pub(super) fn with_args<T>(&mut self, args: &mut [u8], execute: impl FnOnce(&mut [u8]) -> T) -> io::Result<T> {
        let room = args.len().max(LEAST_UVM_ARGS);
        let mut memory = match self.args.take() {
            Some(memory) if memory.len() >= room => memory,
            _ => GuardedMemory::new(room)?,
        };
        let padded = end(&mut memory, room);
        let Some(copy) = padded.get_mut(..args.len()) else { return Err(io::ErrorKind::InvalidInput.into()) };
        copy.copy_from_slice(args);
        let answer = execute(padded);
        if let Some(copy) = padded.get_mut(..args.len()) {
            args.copy_from_slice(copy);
            copy.fill(0);
        }
        self.args = Some(memory);
        Ok(answer)
    }
}

fn enlarge(memory: &mut GuardedMemory, room: usize) -> io::Result<()> {
    if memory.len() < room {
        *memory = GuardedMemory::new(room)?;
    }
    Ok(())
}

/// The last bytes of it, as aligned as a struct may want it.
fn end(memory: &mut GuardedMemory, length: usize) -> &mut [u8] {
    let begin = memory.len().saturating_sub(length.next_multiple_of(ALIGNMENT));
    memory.bytes().get_mut(begin..).and_then(|end| end.get_mut(..length)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use abi::uvm::UVM_COMMANDS;
    use nix::{
        sys::uio::{RemoteIoVec, process_vm_writev},
        unistd::Pid,
    };

    use super::*;
    use crate::Holder;

    /// Returns the bytes that the kernel copies to an address, of as many as it thinks are there.
    fn copied(address: u64, length: usize) -> nix::Result<usize> {
        let bytes = vec![0xff; length];
        let remote = RemoteIoVec { base: usize::try_from(address).unwrap(), len: length };
        process_vm_writev(Pid::this(), &[io::IoSlice::new(&bytes)], &[remote])
    }

    #[test]
    fn a_struct_that_grows_meets_nothing_behind_its_room() {
        for length in [0, 1, 17, 4096, 4100, 100_000] {
            let mut guarded = Guarded::new();
            let mut buffers = [7, 9].map(|byte| Buffer { holder: Holder::Args, offset: 0, bytes: vec![byte; length] });
            let addresses = guarded.addresses(&buffers).unwrap();
            guarded.copy_in(&buffers);
            let room = length.max(LEAST_BUFFER).next_multiple_of(ALIGNMENT);
            for address in &addresses {
                assert_eq!(address % 16, 0, "{length}");
                assert_eq!(copied(*address, room + 8192), Ok(room), "{length}");
                assert_eq!(copied(address + room as u64, 1), Err(nix::Error::EFAULT), "{length}");
            }
            guarded.copy_out(&mut buffers);
            assert!(buffers.iter().all(|buffer| buffer.bytes == vec![0xff; length]));
            assert_eq!(guarded.buffers.is_empty(), length > LONGEST_KEPT);
            // The next call's room has nothing of it.
            let shorter = [Buffer { holder: Holder::Args, offset: 0, bytes: vec![1; 8] }];
            guarded.addresses(&shorter).unwrap();
            guarded.copy_in(&shorter);
            let room = end(&mut guarded.buffers[0], LEAST_BUFFER);
            assert!(room[..8] == [1; 8] && room[8..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn an_argument_that_grows_meets_nothing_behind_its_room() {
        let (mut guarded, mut args) = (Guarded::new(), [3; 24]);
        let answer = guarded.with_args(&mut args, |args| {
            assert!(args[..24] == [3; 24] && args[24..].iter().all(|byte| *byte == 0));
            let address = args.as_ptr().expose_provenance() as u64;
            (copied(address, LEAST_UVM_ARGS + 8192), copied(address + LEAST_UVM_ARGS as u64, 1))
        });
        assert_eq!(answer.unwrap(), (Ok(LEAST_UVM_ARGS), Err(nix::Error::EFAULT)));
        assert_eq!(args, [0xff; 24]);
    }

    #[test]
    fn arguments_of_any_length_get_room_and_leave_nothing_to_the_next() {
        let mut guarded = Guarded::new();
        for length in [9264, 24, 0, 20_000, 24] {
            let mut args = vec![7_u8; length];
            guarded.with_args(&mut args, |args| assert_eq!(args.len(), length.max(LEAST_UVM_ARGS))).unwrap();
            assert_eq!(args, vec![7; length]);
            let kept = guarded.args.as_mut().unwrap().bytes();
            assert!(kept.iter().all(|byte| *byte == 0), "{length}: not what was there before");
        }
    }

    #[test]
    fn the_room_for_uvms_arguments_is_more_than_any_of_them_takes() {
        let layouts = || UVM_COMMANDS.iter().flat_map(|row| row.layouts);
        let longest = layouts().map(|layout| usize::from(layout.size)).max();
        // A later release may make it longer before its tables are here.
        assert!(longest.is_some_and(|longest| longest + 4096 <= LEAST_UVM_ARGS), "{longest:?}");
    }
}
