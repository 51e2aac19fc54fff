//! Faults for egpu's processes: an error in place of a system call, or a SIGKILL at it.
//!
//! A shell, the launcher, executes the shim and `egpu`, and is traced with everything that comes of
//! it. A [`Point`] is a process (by its way from the launcher), a system call and a number: the
//! N-th such call of that process since [`Injector::count`] or [`Injector::inject`].

mod calls;
mod registers;
mod tracer;

use std::{
    collections::HashMap,
    fmt, fs,
    io::{BufRead as _, BufReader, Write as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use self::{calls::Call, tracer::Tracer};

/// A place where a fault can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    label: String,
    /// The part that the process plays: `shim`, `helper`, `worker`, `init`, `mediator`, `broker`,
    /// `start`, `delete`, `sweep`, `egpu`.
    pub role: String,
    call: &'static str,
    number: u32,
}

impl fmt::Display for Point {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, role, call, number } = self;
        write!(formatter, "{role} ({label}) {}#{number}", call.trim_start_matches("SYS_"))
    }
}

/// The fault that is injected there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call is not executed, and fails.
    Error(Errno),
    /// The process gets SIGKILL before the call.
    Kill,
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => write!(formatter, "{error:?}"),
            Self::Kill => formatter.write_str("SIGKILL"),
        }
    }
}

enum Mode {
    Off,
    Count,
    Inject(Point, Fault),
    /// Nothing is watched.
    Done,
}

struct State {
    mode: Mode,
    /// Calls so far, by label and name.
    seen: HashMap<(String, &'static str), u32>,
    found: Vec<(Point, Fault)>,
}

impl State {
    /// A process is about to make a call.
    fn pass(&mut self, process: &tracer::Process, call: &'static Call, arguments: [u64; 3]) -> Option<Fault> {
        if matches!(self.mode, Mode::Off | Mode::Done) {
            return None;
        }
        let number = self.seen.entry((process.label.clone(), call.name)).or_default();
        *number += 1;
        match &self.mode {
            Mode::Count => {
                let (label, role) = (process.label.clone(), process.role.clone());
                let point = Point { label, role, call: call.name, number: *number };
                let faults =
                    call.errors(process.pid, arguments).map(Fault::Error).chain(call.changes.then_some(Fault::Kill));
                self.found.extend(faults.map(|fault| (point.clone(), fault)));
                None
            }
            Mode::Inject(point, fault) => {
                let is_there = point.label == process.label && point.call == call.name && point.number == *number;
                let fault = is_there.then_some(*fault)?;
                // Another call may have this number in another run.
                if let Fault::Error(error) = fault
                    && !call.errors(process.pid, arguments).any(|possible| possible == error)
                {
                    return None;
                }
                self.mode = Mode::Done;
                Some(fault)
            }
            Mode::Off | Mode::Done => None,
        }
    }
}

struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of a command of the launcher's.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; over 128: a signal.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// The launcher and what traces it. Dropped, it kills all that is traced.
pub struct Injector {
    shared: Arc<Shared>,
    directory: PathBuf,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl fmt::Debug for Injector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Injector").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Executes lines, and says how each ended.
const LAUNCHER: &str = r#"while read -r line; do (eval "$line") </dev/null >out 2>err; echo $?; done"#;

impl Injector {
    /// Starts a launcher whose commands have these variables alone; its files are in `directory`.
    ///
    /// # Errors
    /// The reason for which nothing can be traced here.
    pub fn start(directory: &Path, environment: &[(&str, String)]) -> Result<Self, String> {
        let state = State { mode: Mode::Off, seen: HashMap::new(), found: Vec::new() };
        let shared = Arc::new(Shared(Mutex::new(state)));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", LAUNCHER]).env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let (started, starting) = mpsc::channel();
        let of_tracer = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut launcher = command.spawn().expect("run sh");
            let streams = launcher.stdin.take().zip(launcher.stdout.take()).expect("its streams");
            match Tracer::attach(launcher.id().cast_signed(), of_tracer) {
                Ok(tracer) => {
                    let _ = started.send(Ok(streams));
                    tracer.run();
                }
                Err(error) => drop(started.send(Err(format!("processes cannot be traced here: {error}")))),
            }
            // Where it was traced, the tracer has seen its end.
            let _ = launcher.wait();
        });
        let (input, output) = starting.recv().expect("the tracer answers")?;
        Ok(Self { shared, directory: directory.to_owned(), input: Some(input), output: BufReader::new(output) })
    }

    /// Runs a command to its end; `None`: it takes longer than `limit`.
    pub fn run(&mut self, command: &str, limit: Duration) -> Option<Ended> {
        let input = self.input.as_mut().expect("a launcher that takes commands");
        writeln!(input, "{command}").expect("tell the launcher");
        let limit = PollTimeout::try_from(limit).expect("a limit in milliseconds");
        let ready = poll(&mut [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)], limit);
        if ready != Ok(1) {
            return None;
        }
        let mut code = String::new();
        self.output.read_line(&mut code).expect("hear from the launcher");
        let text =
            |name| String::from_utf8_lossy(&fs::read(self.directory.join(name)).unwrap_or_default()).into_owned();
        Some(Ended { code: code.trim().parse().ok()?, stdout: text("out"), stderr: text("err") })
    }

    /// From now on points are noted, nothing is injected.
    pub fn count(&self) {
        self.set(Mode::Count);
    }

    /// From now on the fault waits at its point.
    pub fn inject(&self, point: &Point, fault: Fault) {
        self.set(Mode::Inject(point.clone(), fault));
    }

    /// From now on everything is watched: to be called before the first of the processes in which
    /// points are to be counted or faults injected.
    pub fn watch(&self) {
        self.set(Mode::Off);
    }

    /// Nothing is noted or injected any more: the faults that were possible so far, and whether one
    /// has been.
    pub fn stop(&self) -> (Vec<(Point, Fault)>, bool) {
        let mut state = self.shared.lock();
        let mode = std::mem::replace(&mut state.mode, Mode::Done);
        (std::mem::take(&mut state.found), matches!(mode, Mode::Done))
    }

    fn set(&self, mode: Mode) {
        let mut state = self.shared.lock();
        state.seen.clear();
        state.found.clear();
        state.mode = mode;
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        // The launcher ends; then the tracer, when what it started has ended.
        self.input = None;
    }
}
