//! Just enough of a classic BPF assembler for the fence: forward jumps over lists of constants.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// `struct sock_filter` (linux/filter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpfInstruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip when a condition holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// `BPF_LD | BPF_W | BPF_ABS`.
pub(super) const LOAD: u16 = 0x20;
/// `BPF_ALU | BPF_AND | BPF_K`.
pub(super) const AND: u16 = 0x54;
/// `BPF_JMP | BPF_JA`.
pub(super) const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
pub(super) const JUMP_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`.
pub(super) const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
/// `BPF_JMP | BPF_JGT | BPF_K`.
pub(super) const JUMP_GREATER: u16 = 0x25;
/// `BPF_RET | BPF_K`.
pub(super) const RETURN: u16 = 0x06;

/// A conditional jump reaches 255 instructions; lists are cut well before.
const LONGEST_LIST: u8 = 200;

/// A program in the making. All jumps are relative, so programs can be put one after the other.
#[derive(Debug, Default, Clone)]
pub(super) struct Assembler {
    code: Vec<BpfInstruction>,
}

impl Assembler {
    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.code.push(BpfInstruction { code, jt, jf, k });
    }

    /// Loads the word of `struct seccomp_data` at `offset`.
    pub(super) fn load(&mut self, offset: u32) {
        self.push(LOAD, 0, 0, offset);
    }

    /// Keeps the bits of `mask`.
    pub(super) fn and(&mut self, mask: u32) {
        self.push(AND, 0, 0, mask);
    }

    /// Ends with `value`.
    pub(super) fn ret(&mut self, value: u32) {
        self.push(RETURN, 0, 0, value);
    }

    /// Ends with `value` if the accumulator is one of `candidates`.
    pub(super) fn if_any(&mut self, candidates: &[u32], value: u32) {
        for chunk in candidates.chunks(usize::from(LONGEST_LIST)) {
            self.jump_list(chunk);
            self.push(JUMP, 0, 0, 1);
            self.ret(value);
        }
    }

    /// Ends with `value` unless the accumulator is one of `candidates` (at most [`LONGEST_LIST`]).
    pub(super) fn unless_any(&mut self, candidates: &[u32], value: u32) {
        self.jump_list(candidates);
        self.ret(value);
    }

    /// Compares with each candidate; a match skips the rest of the list and the one instruction
    /// after it.
    fn jump_list(&mut self, candidates: &[u32]) {
        for (candidate, left) in candidates.iter().rev().zip(1u8..).collect::<Vec<_>>().into_iter().rev() {
            self.push(JUMP_EQUAL, left, 0, *candidate);
        }
    }

    /// Ends with `value` if the accumulator is in `range`.
    pub(super) fn if_in_range(&mut self, range: &RangeInclusive<u32>, value: u32) {
        self.push(JUMP_GREATER_OR_EQUAL, 0, 2, *range.start());
        self.push(JUMP_GREATER, 1, 0, *range.end());
        self.ret(value);
    }

    /// Runs `section`, which must end by itself, if the accumulator is in `range`; else goes on
    /// behind it.
    pub(super) fn section_if_in_range(&mut self, range: &RangeInclusive<u32>, section: &Self) {
        self.push(JUMP_GREATER_OR_EQUAL, 0, 1, *range.start());
        self.push(JUMP_GREATER, 0, 1, *range.end());
        self.skip(section);
    }

    /// Runs `section`, which must end by itself, if the accumulator equals `value`; else goes on
    /// behind it.
    pub(super) fn section_if_equal(&mut self, value: u32, section: &Self) {
        self.push(JUMP_EQUAL, 1, 0, value);
        self.skip(section);
    }

    /// Appends `section`, and a jump over it for who comes here.
    fn skip(&mut self, section: &Self) {
        let length = u32::try_from(section.code.len()).unwrap_or(u32::MAX);
        self.push(JUMP, 0, 0, length);
        self.extend(section);
    }

    /// Appends another program.
    pub(super) fn extend(&mut self, other: &Self) {
        self.code.extend_from_slice(&other.code);
    }

    pub(super) fn finish(self) -> Vec<BpfInstruction> {
        self.code
    }
}
