//! The kernel's interpreter of a filter, for tests.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests use it")]

use super::{
    BpfInstruction,
    bpf::{AND, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_OR_EQUAL, LOAD, RETURN},
};

/// `SECCOMP_RET_USER_NOTIF`.
pub const NOTIFY: u32 = 0x7fc0_0000;

/// Runs a filter as the kernel would, and returns its answer. Panics on what the kernel's checker
/// refuses: unknown operations, running off the end.
pub fn run_with(program: &[BpfInstruction], arch: u32, nr: u32, arguments: [u64; 6]) -> u32 {
    let word = |offset: u32| match offset {
        0 => nr,
        4 => arch,
        16..64 if offset.is_multiple_of(4) => {
            let argument = arguments[usize::try_from((offset - 16) / 8).unwrap()];
            u32::try_from(argument >> (8 * (offset % 8)) & 0xffff_ffff).unwrap()
        }
        other => panic!("load of offset {other}"),
    };
    let (mut accumulator, mut at) = (0u32, 0usize);
    loop {
        let instruction = program[at];
        let branch = |condition: bool| usize::from(if condition { instruction.jt } else { instruction.jf });
        at += 1;
        match instruction.code {
            LOAD => accumulator = word(instruction.k),
            AND => accumulator &= instruction.k,
            JUMP => at += usize::try_from(instruction.k).unwrap(),
            JUMP_EQUAL => at += branch(accumulator == instruction.k),
            JUMP_GREATER => at += branch(accumulator > instruction.k),
            JUMP_GREATER_OR_EQUAL => at += branch(accumulator >= instruction.k),
            RETURN => return instruction.k,
            other => panic!("operation {other:#x}"),
        }
    }
}
