//! The bytes of one call, before it and after it.

use std::{fs::File, io, os::unix::fs::FileExt};

use abi::{
    Abi, Call, Decoded, Node, Row,
    classes::ClassKind,
    decode::{self, Alloc, Control},
    escapes::command_size,
    layout::{Descriptor, Pointer, read_u32},
};

use crate::{Traced, TracedBuffer};

/// Bytes that are copied of the parameters of a class whose size the tables do not know.
const UNKNOWN_PARAMS: usize = 256;

/// A process's memory.
#[derive(Debug)]
pub(super) struct Memory(File);

impl Memory {
    pub(super) fn of(tid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{tid}/mem")).map(Self)
    }

    /// Bytes from `address` on, as far as they are readable without a gap.
    fn read(&self, address: u64, length: usize) -> Vec<u8> {
        const PAGE: u64 = 4096;
        let mut bytes = vec![0; length];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = address.wrapping_add(done as u64);
            // Not beyond a page at once: what is not mapped must not take the rest with it.
            let to_page_end = usize::try_from(PAGE - at % PAGE).unwrap_or(1).min(rest.len());
            match rest.get_mut(..to_page_end).map(|piece| self.0.read_at(piece, at)) {
                Some(Ok(read)) if read > 0 => done += read,
                _ => break,
            }
        }
        bytes.truncate(done);
        bytes
    }
}

/// A call that has been made and has not returned.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) row: Option<Row>,
    pub(super) call: Option<Call>,
    args: Piece,
    buffers: Vec<(Option<usize>, usize, Piece)>,
    /// Descriptors that it names: where (`None`: in the argument struct, else in that buffer), and
    /// their numbers.
    pub(super) descriptors: Vec<(Option<usize>, usize, i32)>,
}

#[derive(Debug)]
struct Piece {
    address: u64,
    before: Vec<u8>,
}

impl Piece {
    fn read(memory: &Memory, address: u64, length: usize) -> Self {
        Self { address, before: memory.read(address, length) }
    }

    fn traced(&self, memory: Option<&Memory>) -> Traced {
        let after = memory.map(|memory| memory.read(self.address, self.before.len()));
        Traced::new(self.before.clone(), after.filter(|after| after.len() == self.before.len()))
    }
}

impl Captured {
    /// Captures a driver call that a thread is about to make.
    pub(super) fn before(memory: &Memory, abi: Abi, node: Node, command: u32, argument: u64) -> Self {
        let row = decode::row(abi, node, command).ok();
        // Type and size of a command (asm-generic/ioctl.h); UVM's have neither.
        let in_command = if node == Node::Uvm { 0 } else { command_size(command) };
        let length = row.map_or(in_command, |row| row.size().max(in_command));
        let args = Piece::read(memory, argument, length);
        let call = decode::decode(abi, node, command, &args.before).ok().map(|Decoded { call, .. }| call);
        let mut captured = Self { row, call, args, buffers: Vec::new(), descriptors: Vec::new() };
        captured.follow(memory, abi);
        captured
    }

    fn follow(&mut self, memory: &Memory, abi: Abi) {
        if let Some(row) = self.row {
            self.follow_pointers(memory, None, row.pointers());
            self.name_files(None, row.descriptors());
        }
        match self.call {
            Some(Call::Alloc(alloc)) => {
                let is_described = alloc.class().is_some_and(|class| !matches!(class.kind, ClassKind::Refused(..)));
                let length = if is_described { alloc.buffer_size() } else { UNKNOWN_PARAMS };
                self.add(memory, None, Alloc::PARAMS_AT, alloc.params, length);
                self.add(memory, None, Alloc::RIGHTS_AT, alloc.rights, Alloc::RIGHTS_SIZE);
            }
            Some(Call::Control(control)) => {
                let length = control.params_size.min(Control::PARAMS_MOST) as usize;
                let params = self.add(memory, None, Control::PARAMS_AT, control.params, length);
                if let (Some(params), Some(row)) = (params, control.row()) {
                    self.follow_pointers(memory, Some(params), row.pointers_in(abi));
                    self.name_files(Some(params), row.descriptors);
                }
            }
            _ => {}
        }
    }

    /// The new buffer's index.
    fn add(
        &mut self,
        memory: &Memory,
        holder: Option<usize>,
        offset: usize,
        address: u64,
        length: usize,
    ) -> Option<usize> {
        if address == 0 || length == 0 {
            return None;
        }
        self.buffers.push((holder, offset, Piece::read(memory, address, length)));
        Some(self.buffers.len() - 1)
    }

    fn holder(&self, holder: Option<usize>) -> &[u8] {
        match holder {
            None => &self.args.before,
            Some(at) => self.buffers.get(at).map(|(_, _, piece)| piece.before.as_slice()).unwrap_or_default(),
        }
    }

    fn follow_pointers<'a>(
        &mut self,
        memory: &Memory,
        holder: Option<usize>,
        pointers: impl IntoIterator<Item = &'a Pointer>,
    ) {
        for pointer in pointers {
            let bytes = self.holder(holder);
            let (address, length) = (pointer.address(bytes), pointer.length.of(bytes));
            if let (Some(address), Some(length)) = (address, length) {
                self.add(memory, holder, usize::from(pointer.at), address, length);
            }
        }
    }

    fn name_files(&mut self, holder: Option<usize>, descriptors: &[Descriptor]) {
        let bytes = self.holder(holder);
        let numbers = descriptors.iter().filter_map(|at| Some((holder, usize::from(at.at), at.number(bytes)?)));
        let numbers: Vec<_> = numbers.collect();
        self.descriptors.extend(numbers);
    }

    /// All bytes, now that it has returned; without `memory` (the process is gone) only what they
    /// were before.
    pub(super) fn after(&self, memory: Option<&Memory>) -> (Traced, Vec<TracedBuffer>) {
        let buffers = self.buffers.iter().map(|(holder, offset, piece)| TracedBuffer {
            holder: *holder,
            offset: *offset,
            bytes: piece.traced(memory),
        });
        (self.args.traced(memory), buffers.collect())
    }

    /// The driver's status in its argument struct.
    pub(super) fn status(&self, args: &Traced) -> Option<u32> {
        read_u32(args.after(), self.row?.status_at()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_up_to_what_is_not_mapped() {
        let memory = Memory::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let here = [7_u8; 10_000];
        assert_eq!(memory.read(here.as_ptr() as u64, here.len()), here);
        assert_eq!(memory.read(8, 16), Vec::<u8>::new());
    }
}
