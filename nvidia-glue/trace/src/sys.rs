//! ptrace(2) where nix knows too little: signals beyond 31, and what a system call stop is.
#![allow(unsafe_code)]

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

/// A thread that has stopped at a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyscallStop {
    /// The stop before the call.
    Entry {
        /// `AUDIT_ARCH_*`, linux/audit.h.
        audit_arch: u32,
        /// Its number, that of the entry that the thread came in by.
        number: u64,
        arguments: [u64; 6],
    },
    /// The stop after the call.
    Exit {
        /// The return value, or a negative errno.
        result: i64,
    },
}

/// Starts a program that stops right after `execve(2)`, with the calling thread as its tracer.
pub(crate) fn spawn_traced(command: &mut Command) -> io::Result<Child> {
    // SAFETY: the closure makes one system call, which takes integers, between fork and exec.
    unsafe {
        command.pre_exec(|| nix::sys::ptrace::traceme().map_err(io::Error::from));
    }
    command.spawn()
}

/// Lets a stopped thread go on to its next system call, or to its next signal; `signal` is
/// delivered unless it is 0.
pub(crate) fn resume_to_syscall(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: PTRACE_SYSCALL takes no addresses: the third argument is ignored, the fourth is a
    // number.
    let answer =
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, tid, std::ptr::null_mut::<u8>(), i64::from(signal) as *mut u8) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the system call that a thread has stopped at; `None`: it stopped at none. Needs Linux
/// 5.3.
pub(crate) fn syscall_stop(tid: i32) -> io::Result<Option<SyscallStop>> {
    const PTRACE_GET_SYSCALL_INFO: i32 = 0x420e;
    // `struct ptrace_syscall_info` (linux/ptrace.h), of which the kernel fills no more than this.
    let mut info = [0_u8; 88];
    // SAFETY: the kernel writes at most as many bytes as the third argument says, into a buffer
    // that has them.
    let answer = unsafe { libc::ptrace(PTRACE_GET_SYSCALL_INFO as _, tid, info.len(), info.as_mut_ptr()) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(parse(&info))
}

fn parse(info: &[u8; 88]) -> Option<SyscallStop> {
    const ENTRY: u8 = 1;
    const EXIT: u8 = 2;
    let word = |at: usize| {
        let bytes = info.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    match info.first() {
        Some(&ENTRY) => {
            let audit_arch = info.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)?;
            let arguments = [32, 40, 48, 56, 64, 72].map(word);
            Some(SyscallStop::Entry { audit_arch, number: word(24), arguments })
        }
        Some(&EXIT) => Some(SyscallStop::Exit { result: word(24).cast_signed() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_read_at_their_offsets() {
        let mut info = [0_u8; 88];
        info[0] = 1;
        info[4..8].copy_from_slice(&0xc000_003e_u32.to_ne_bytes());
        info[24..32].copy_from_slice(&16_u64.to_ne_bytes());
        for (place, value) in info[32..80].chunks_exact_mut(8).zip(1_u64..) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
        let entry = SyscallStop::Entry { audit_arch: 0xc000_003e, number: 16, arguments: [1, 2, 3, 4, 5, 6] };
        assert_eq!(parse(&info), Some(entry));
        info[0] = 2;
        info[24..32].copy_from_slice(&(-25_i64).to_ne_bytes());
        assert_eq!(parse(&info), Some(SyscallStop::Exit { result: -25 }));
        info[0] = 0;
        assert_eq!(parse(&info), None);
    }
}
