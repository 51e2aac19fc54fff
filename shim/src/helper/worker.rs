//! A worker: one process, one operation, one answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::frame;
use super::protocol::{Failure, FailureKind, Hello, Operation, Reply};
use crate::sys;

/// What an operation hands back: the reply, and a descriptor beside it.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) beside: Option<OwnedFd>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self { reply, beside: None }
    }
}

/// Runs the operation in a worker that was just forked, answers, and ends the process.
pub(crate) fn run(shim: i32, operation: OwnedFd, fds: Vec<OwnedFd>, reply: &OwnedFd) -> ! {
    let code = match serve(shim, operation, fds, reply) {
        Ok(()) => 0,
        // Nobody is left to tell.
        Err(_) => 1,
    };
    sys::exit_now(code)
}

fn serve(shim: i32, operation: OwnedFd, fds: Vec<OwnedFd>, reply: &OwnedFd) -> Result<(), frame::FrameError> {
    let internal = |e: std::io::Error| frame::FrameError::Socket(e);
    sys::die_with_parent(shim).map_err(internal)?;
    sys::reset_signals().map_err(internal)?;
    let pid = nix::unistd::getpid().as_raw();
    let own = sys::pidfd_open(pid).map_err(internal)?;
    frame::send_value(reply, &Hello { pid }, &[own.as_fd()])?;
    drop(own);
    let answer = match frame::unpack::<Operation>(operation) {
        Ok(operation) => perform(&operation, &fds).unwrap_or_else(|failure| Reply::Failed(failure).into()),
        Err(e) => Reply::Failed(Failure { kind: FailureKind::Invalid, message: chain(&e) }).into(),
    };
    let beside: Vec<BorrowedFd<'_>> = answer.beside.iter().map(AsFd::as_fd).collect();
    frame::send_value(reply, &answer.reply, &beside)
}

fn perform(operation: &Operation, _fds: &[OwnedFd]) -> Result<Answer, Failure> {
    let name = match operation {
        Operation::Create(_) => "create",
        Operation::Start(_) => "start",
        Operation::Exec(_) => "exec",
        Operation::Delete(_) => "delete",
        Operation::Inventory(_) => "inventory",
    };
    Err(Failure { kind: FailureKind::Internal, message: format!("{name}: this build of the helper cannot do it yet") })
}

/// An error and its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let message = e.to_string();
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = e.source();
    }
    text
}
