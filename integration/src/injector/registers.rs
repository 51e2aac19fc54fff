//! A stopped process's system call, as the registers of x86_64 have it.

use nix::{Result, errno::Errno, sys::ptrace, unistd::Pid};

/// A system call that begins.
pub(super) struct Entry {
    pub(super) number: i64,
    /// The first three.
    pub(super) arguments: [u64; 3],
}

pub(super) fn entry(thread: Pid) -> Result<Entry> {
    let registers = ptrace::getregs(thread)?;
    Ok(Entry { number: registers.orig_rax.cast_signed(), arguments: [registers.rdi, registers.rsi, registers.rdx] })
}

/// At the beginning of a call: the kernel executes none, and leaves the result that it finds.
pub(super) fn fail(thread: Pid, error: Errno) -> Result<()> {
    let mut registers = ptrace::getregs(thread)?;
    registers.orig_rax = u64::MAX;
    registers.rax = i64::from(-(error as i32)).cast_unsigned();
    ptrace::setregs(thread, registers)
}
