//! A worker: one process, one operation, one answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sys::{frame, spans};

use super::{
    create, delete, exec, freed, image, inventory,
    launch::Launched,
    log_capture::LogCapture,
    protocol::{Failure, FailureKind, Hello, Operation, WorkerReply},
    start,
};

/// The result of an operation: the reply, and a descriptor beside it.
struct Answer {
    reply: WorkerReply,
    beside: Option<OwnedFd>,
}

impl From<WorkerReply> for Answer {
    fn from(reply: WorkerReply) -> Self {
        Self { reply, beside: None }
    }
}

/// Runs the operation in a worker that was just forked, answers, and ends the process.
pub(crate) fn run(shim: i32, operation: OwnedFd, fds: Vec<OwnedFd>, reply: &OwnedFd) -> ! {
    let code = match serve(shim, operation, fds, reply) {
        Ok(()) => 0,
        // Nobody is left to report to.
        Err(_) => 1,
    };
    sys::exit_now(code)
}

fn serve(shim: i32, operation: OwnedFd, fds: Vec<OwnedFd>, reply: &OwnedFd) -> Result<(), frame::FrameError> {
    spans::mark("worker", "");
    let internal = |e: std::io::Error| frame::FrameError::Socket(e);
    sys::die_with_parent(shim).map_err(internal)?;
    // All others are as the zygote has set them: to their defaults.
    sys::heed_child_exits();
    // A hook may end without reading its state. What a container executes starts with the default
    // again.
    sys::ignore_broken_pipes();
    let pid = nix::unistd::getpid().as_raw();
    let own = sys::pidfd_open(pid).map_err(internal)?;
    frame::send_value(reply, &Hello { pid }, &[own.as_fd()])?;
    drop(own);
    let operation = match frame::unpack::<Operation>(operation) {
        // It lives on, and logs in its own way.
        Ok(Operation::Mediate(setup)) => return mediate(shim, *setup, fds, reply, pid),
        operation => operation,
    };
    let log = LogCapture::capture().map_err(internal)?;
    let answer = match operation {
        Ok(operation) => perform(&operation, fds, reply).unwrap_or_else(|failure| with_log(failure, &log)),
        Err(e) => WorkerReply::Failed(Failure::new(FailureKind::Invalid, &e)).into(),
    };
    spans::mark("worker answers", "");
    let beside: Vec<BorrowedFd<'_>> = answer.beside.iter().map(AsFd::as_fd).collect();
    frame::send_value(reply, &answer.reply, &beside)
}

fn perform(operation: &Operation, fds: Vec<OwnedFd>, reply: &OwnedFd) -> Result<Answer, Failure> {
    match operation {
        Operation::Create(operation) => match create::create(operation, fds, reply) {
            Ok(created) => Ok(process(created.init, created.warnings)),
            Err(e) => Err(Failure::new(e.kind(), &e)),
        },
        Operation::Poststart(operation) => match start::poststart(operation) {
            Ok(()) => Ok(WorkerReply::Done.into()),
            Err(e) => Err(Failure::new(e.kind(), &e)),
        },
        Operation::Exec(operation) => match exec::exec(operation, fds, reply) {
            Ok(executed) => Ok(process(executed.process, executed.warnings)),
            Err(e) => Err(Failure::new(e.kind(), &e)),
        },
        Operation::Delete(operation) => match delete::remove(operation) {
            Ok(()) => Ok(WorkerReply::Done.into()),
            Err(e) => Err(Failure::new(e.kind(), &e)),
        },
        Operation::Inventory => match inventory::inventory() {
            Ok(cards) => Ok(WorkerReply::Inventory(Box::new(cards)).into()),
            Err(e) => Err(Failure::new(e.kind(), &e)),
        },
        Operation::Freed(asked) => match freed::look(asked) {
            Ok(()) => Ok(WorkerReply::Done.into()),
            Err(e) => Err(Failure::new(e.kind(), &e)),
        },
        Operation::ImageVariable(asked) => match image::variable(asked) {
            Ok(values) => Ok(WorkerReply::ImageVariable(values).into()),
            Err(e) => Err(Failure::new(FailureKind::Internal, &e)),
        },
        Operation::Mediate(_) => {
            Err(Failure { kind: FailureKind::Internal, message: "a mediator is no operation that ends".to_owned() })
        }
    }
}

/// Begins to mediate, says so, and goes on until the shim ends it.
fn mediate(
    shim: i32,
    setup: mediator_process::Setup,
    fds: Vec<OwnedFd>,
    reply: &OwnedFd,
    pid: i32,
) -> Result<(), frame::FrameError> {
    let own = sys::pidfd_open(pid).map_err(frame::FrameError::Socket)?;
    match mediator_process::begin(shim, setup, fds) {
        Ok(ready) => {
            frame::send_value(reply, &WorkerReply::Process { pid, warnings: vec![] }, &[own.as_fd()])?;
            drop(own);
            sys::close_fd_of(reply);
            ready.run()
        }
        Err(error) => {
            let failure = Failure::new(FailureKind::Internal, &error);
            frame::send_value(reply, &WorkerReply::Failed(failure), &[])
        }
    }
}

fn process(process: Launched, warnings: Vec<String>) -> Answer {
    Answer { reply: WorkerReply::Process { pid: process.pid.as_raw(), warnings }, beside: Some(process.pidfd) }
}

/// Adds what libcontainer only logged. A message about the program or its directory is complete,
/// and tools compare it.
fn with_log(mut failure: Failure, log: &LogCapture) -> Answer {
    const COMPLETE: [&str; 2] = ["exec", "chdir to cwd"];
    let quote = log.quote();
    let is_complete = COMPLETE.iter().any(|words| failure.message.starts_with(words));
    if !quote.is_empty() && failure.kind == FailureKind::Internal && !is_complete {
        failure.message = format!("{} ({quote})", failure.message);
    }
    WorkerReply::Failed(failure).into()
}
