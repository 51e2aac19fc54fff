//! The thread that traces: it follows every process that the launcher starts, until that executes
//! a program which is not egpu's.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        ptrace::{self, Options},
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use rustix::process::{WaitOptions, wait};

use super::{Fault, Mode, Shared, calls::Call, registers};
use crate::node::PROGRAMS;

/// Threads, too, and none that another thread of this process waits for.
const OF_THIS_THREAD: WaitOptions = WaitOptions::from_bits_retain((libc::__WALL | libc::__WNOTHREAD).cast_unsigned());

/// Time for a parent to be seen in the fork of a process that has begun.
const FORK_LIMIT: Duration = Duration::from_millis(100);

/// A traced process.
#[derive(Debug, Clone, Default)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// Its way from the launcher, by the number of each fork: the same in each run.
    pub(super) label: String,
    forks: u32,
    /// It has executed a program of egpu's, or is a fork of one that has.
    is_ours: bool,
    /// As which it was last seen.
    pub(super) role: String,
    /// That of the process which forked it.
    parent: String,
}

/// A traced thread.
#[derive(Debug, Clone, Copy)]
struct Thread {
    pid: i32,
    is_in_call: bool,
}

pub(super) struct Tracer {
    shared: Arc<Shared>,
    launcher: i32,
    processes: HashMap<i32, Process>,
    threads: HashMap<i32, Thread>,
    /// Stopped before their parents said whose they are; since when.
    early: HashMap<i32, Instant>,
}

impl Tracer {
    /// Traces `launcher`, a child of the calling thread.
    pub(super) fn attach(launcher: i32, shared: Arc<Shared>) -> nix::Result<Self> {
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(Pid::from_raw(launcher), options)?;
        let process = Process { pid: launcher, ..Process::default() };
        Ok(Self {
            shared,
            launcher,
            processes: HashMap::from([(launcher, process)]),
            threads: HashMap::from([(launcher, Thread { pid: launcher, is_in_call: false })]),
            early: HashMap::new(),
        })
    }

    /// Goes on until none is left.
    pub(super) fn run(mut self) {
        while let Ok(Some((thread, status))) = wait(OF_THIS_THREAD) {
            let (thread, status) = (thread.as_raw_pid(), status.as_raw());
            if libc::WIFSTOPPED(status) {
                self.stopped(thread, libc::WSTOPSIG(status), status >> 16);
            } else {
                self.ended(thread);
            }
        }
    }

    fn ended(&mut self, thread: i32) {
        self.threads.remove(&thread);
        self.processes.remove(&thread);
        self.early.remove(&thread);
        // A parent that was killed says nothing any more.
        for (orphan, _) in self.early.extract_if(|_, since| since.elapsed() > FORK_LIMIT) {
            let _ = ptrace::cont(Pid::from_raw(orphan), None);
        }
    }

    fn stopped(&mut self, thread: i32, signal: i32, event: i32) {
        if !self.threads.contains_key(&thread) {
            self.early.entry(thread).or_insert_with(Instant::now);
            return;
        }
        let mut passed_on = None;
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => self.forked(thread),
            libc::PTRACE_EVENT_EXEC if !self.executed(thread) => return,
            0 if signal == libc::SIGTRAP | 0x80 => self.called(thread),
            0 => passed_on = Some(Signal::try_from(signal).expect("a signal that has a name")),
            _ => {}
        }
        self.resume(thread, passed_on);
    }

    fn resume(&self, thread: i32, signal: Option<Signal>) {
        let is_ours = self.process(thread).is_some_and(|process| process.is_ours);
        let pid = Pid::from_raw(thread);
        let watches = is_ours && !matches!(self.shared.lock().mode, Mode::Done);
        // It may have been killed meanwhile.
        let _ = if watches { ptrace::syscall(pid, signal) } else { ptrace::cont(pid, signal) };
    }

    fn process(&self, thread: i32) -> Option<&Process> {
        self.processes.get(&self.threads.get(&thread)?.pid)
    }

    fn forked(&mut self, thread: i32) {
        let Ok(new) = ptrace::getevent(Pid::from_raw(thread)) else { return };
        let new = i32::try_from(new).expect("an event that carries a process id");
        let Some(parent) = self.threads.get(&thread).map(|thread| thread.pid) else { return };
        let is_thread = Path::new(&format!("/proc/{parent}/task/{new}")).exists();
        let pid = if is_thread { parent } else { new };
        if let Some(process) = self.processes.get_mut(&parent).filter(|_| !is_thread) {
            let label = format!("{}.{}", process.label, process.forks);
            process.forks += 1;
            let child = Process { pid, label, forks: 0, parent: process.role.clone(), ..process.clone() };
            self.processes.insert(pid, child);
        }
        self.threads.insert(new, Thread { pid, is_in_call: false });
        if self.early.remove(&new).is_some() {
            self.resume(new, None);
        }
    }

    /// Returns whether it is still traced.
    fn executed(&mut self, thread: i32) -> bool {
        if thread == self.launcher {
            return true;
        }
        let program = fs::read_link(format!("/proc/{thread}/exe")).unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        if !PROGRAMS.iter().any(|program| name.starts_with(program)) {
            let _ = ptrace::detach(Pid::from_raw(thread), None);
            self.ended(thread);
            return false;
        }
        if let Some(process) = self.processes.get_mut(&thread) {
            if !process.is_ours {
                // The launcher's children: so many came before this one as came.
                process.label = action(thread);
            }
            process.is_ours = true;
        }
        // What comes next is the end of that call.
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.is_in_call = true;
        }
        true
    }

    /// A call begins or ends.
    fn called(&mut self, thread: i32) {
        let Some(state) = self.threads.get_mut(&thread) else { return };
        let pid = Pid::from_raw(thread);
        state.is_in_call = !state.is_in_call;
        if !state.is_in_call {
            return;
        }
        let Some(process) = self.processes.get_mut(&state.pid) else { return };
        let Ok(entry) = registers::entry(pid) else { return };
        let Some(call) = Call::find(entry.number, entry.arguments) else { return };
        let mut shared = self.shared.lock();
        if matches!(shared.mode, Mode::Count) {
            process.role = role(process);
        }
        match shared.pass(process, call, entry.arguments) {
            Some(Fault::Kill) => {
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
            Some(Fault::Error(error)) => {
                let _ = registers::fail(pid, error);
            }
            None => {}
        }
    }
}

/// `start`, `delete` or `egpu`: what the launcher executed.
fn action(pid: i32) -> String {
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = command.trim_end_matches('\0').split('\0');
    let is_shim = arguments.next().is_some_and(|program| program.contains("shim"));
    let last = arguments.next_back().unwrap_or_default();
    match last {
        "start" | "delete" | "sweep" | "helper" if is_shim => last.to_owned(),
        _ if is_shim => "shim".to_owned(),
        _ => "egpu".to_owned(),
    }
}

/// The part that a process plays, by its name.
fn role(process: &Process) -> String {
    let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
    match name.trim_end() {
        "egpu-helper" => match process.parent.as_str() {
            "helper" => "worker".to_owned(),
            "worker" => "intermediate".to_owned(),
            _ => "helper".to_owned(),
        },
        "egpu-mediator" => "mediator".to_owned(),
        "egpu-broker" => "broker".to_owned(),
        name if name.starts_with("egpu:") || name.starts_with("youki:") => "init".to_owned(),
        _ => action(process.pid),
    }
}
