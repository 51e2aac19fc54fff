//! Follows a program, its threads and its children from system call to system call.

use std::{collections::HashSet, ffi::OsString, io, path::PathBuf, process::Command};

use nix::{
    errno::Errno,
    sys::{
        ptrace::{self, Options},
        signal::{SigSet, Signal},
    },
    unistd::Pid,
};
use rustix::process::{WaitOptions, WaitStatus};

use super::{RecordError, recorder::Recorder};
use crate::sys::{self, SyscallStop};

/// Runs `command` to its end and reports all that it does to `recorder`. Returns its exit code: its
/// own code, or 128 and the signal that ended it, as shells say it.
pub(super) fn run(command: &[OsString], recorder: &mut Recorder) -> Result<u8, RecordError> {
    let Some((program, arguments)) = command.split_first() else { return Ok(0) };
    // Those of the terminal are for the program; it decides.
    let terminal = SigSet::from_iter([Signal::SIGINT, Signal::SIGQUIT]);
    let child = sys::spawn_traced(Command::new(program).args(arguments))
        .map_err(|source| RecordError::Run { program: PathBuf::from(program), source })?;
    terminal.thread_block().map_err(|error| RecordError::Follow(error.into()))?;
    let result = child.id().try_into().map_err(|_| io::ErrorKind::InvalidData.into()).map(Follower::new);
    let result = result.and_then(|mut follower| follower.follow(recorder));
    terminal.thread_unblock().map_err(|error| RecordError::Follow(error.into()))?;
    result.map_err(RecordError::Follow)
}

struct Follower {
    /// The program's first process.
    first: i32,
    /// Threads that have stopped once: a new one begins with a stop of its own.
    begun: HashSet<i32>,
    code: u8,
}

impl Follower {
    fn new(first: i32) -> Self {
        Self { first, begun: HashSet::new(), code: 0 }
    }

    fn follow(&mut self, recorder: &mut Recorder) -> io::Result<u8> {
        // Threads too, but only what this thread traces: a process may have other children.
        let traced = libc::__WALL | libc::__WNOTHREAD;
        let options = WaitOptions::from_bits_retain(traced.cast_unsigned());
        loop {
            let (tid, status) = match rustix::process::wait(options) {
                Ok(Some((pid, status))) => (pid.as_raw_nonzero().get(), status),
                Ok(None) => continue,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::CHILD) => return Ok(self.code),
                Err(error) => return Err(error.into()),
            };
            if !status.stopped() {
                self.ended(tid, status);
                recorder.ended(tid)?;
                continue;
            }
            match self.stopped(tid, status, recorder).and_then(|signal| sys::resume_to_syscall(tid, signal)) {
                // Killed while it was inspected: its end is reported next.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                result => result?,
            }
        }
    }

    fn ended(&mut self, tid: i32, status: WaitStatus) {
        self.begun.remove(&tid);
        if tid == self.first {
            let killed = status.terminating_signal().map(|signal| signal + 128);
            let code = status.exit_status().or(killed).unwrap_or(1);
            self.code = u8::try_from(code).unwrap_or(1);
        }
    }

    /// The signal to deliver, 0 for none.
    fn stopped(&mut self, tid: i32, status: WaitStatus, recorder: &mut Recorder) -> io::Result<i32> {
        let pid = Pid::from_raw(tid);
        let is_new = self.begun.insert(tid);
        if is_new {
            recorder.begun(tid);
        }
        if tid == self.first && is_new {
            ptrace::setoptions(
                pid,
                Options::PTRACE_O_TRACESYSGOOD
                    | Options::PTRACE_O_TRACECLONE
                    | Options::PTRACE_O_TRACEFORK
                    | Options::PTRACE_O_TRACEVFORK
                    | Options::PTRACE_O_TRACEEXEC
                    | Options::PTRACE_O_EXITKILL,
            )?;
            return Ok(0);
        }
        // wait(2): the signal is in the second byte; ptrace(2): events are above it, and system
        // calls set its highest bit.
        let raw = status.as_raw();
        let (signal, event) = ((raw >> 8) & 0xff, raw >> 16);
        match (signal, event) {
            (_, libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK) => {
                recorder.made(tid, message(pid)?)?;
            }
            (_, libc::PTRACE_EVENT_EXEC) => recorder.executed(tid, message(pid)?)?,
            (_, 1..) => {}
            (SYSCALL, _) => match sys::syscall_stop(tid)? {
                Some(SyscallStop::Entry { audit_arch, number, arguments }) => {
                    recorder.entered(tid, audit_arch, number, arguments);
                }
                Some(SyscallStop::Exit { result }) => recorder.returned(tid, result)?,
                None => {}
            },
            (libc::SIGSTOP, _) if is_new => {}
            // A group stop: the signal has been delivered already.
            (_, _) if matches!(ptrace::getsiginfo(pid), Err(Errno::EINVAL)) => {}
            (signal, _) => return Ok(signal),
        }
        Ok(0)
    }
}

const SYSCALL: i32 = libc::SIGTRAP | 0x80;

/// A process number: the message of the events that are asked for here.
fn message(pid: Pid) -> io::Result<i32> {
    i32::try_from(ptrace::getevent(pid)?).map_err(|_| io::ErrorKind::InvalidData.into())
}
