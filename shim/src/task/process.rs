//! One process of a container: its init, or an exec.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Mutex,
};

use runtime::{ContainerProcess, reaper::ProcessExit};
use sys::sync::lock;
use tokio::sync::watch;

use super::{
    error::TaskError,
    state::{Change, State, Use},
};
use crate::{
    bundle::ConsoleSize,
    io::{ProcessIo, StdioPaths},
};

/// A process of a container, before, while and after it runs.
#[derive(Debug)]
pub(super) struct Process {
    /// The exec's id; empty for init.
    pub(super) exec_id: String,
    /// The streams that containerd asked for.
    pub(super) stdio: StdioPaths,
    /// Size that the terminal starts with.
    pub(super) console_size: Option<ConsoleSize>,
    /// The OCI `process` object of an exec.
    pub(super) spec: serde_json::Value,
    /// Held by whoever changes the state in more than one step, events included: an exit is
    /// published only when nobody holds it, hence never before the start.
    pub(super) operation: tokio::sync::Mutex<()>,
    inner: Mutex<Inner>,
    exit: watch::Sender<Option<ProcessExit>>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// Set once there is a process.
    child: Option<ContainerProcess>,
    io: Option<ProcessIo>,
    /// CloseIO came, perhaps before there was anything to close.
    stdin_closed: bool,
}

impl Process {
    pub(super) fn new(
        exec_id: String,
        stdio: StdioPaths,
        console_size: Option<ConsoleSize>,
        spec: serde_json::Value,
    ) -> Self {
        Self {
            exec_id,
            stdio,
            console_size,
            spec,
            operation: tokio::sync::Mutex::new(()),
            inner: Mutex::new(Inner { state: State::Created, child: None, io: None, stdin_closed: false }),
            exit: watch::channel(None).0,
        }
    }

    /// Attaches the process that now runs, with its streams.
    pub(super) fn attach(&self, child: ContainerProcess, mut io: ProcessIo) {
        let mut inner = lock(&self.inner);
        if inner.stdin_closed {
            io.close_stdin();
        }
        inner.child = Some(child);
        inner.io = Some(io);
    }

    pub(super) fn state(&self) -> State {
        lock(&self.inner).state
    }

    /// 0 as long as there is no process.
    pub(super) fn pid(&self) -> i32 {
        lock(&self.inner).child.as_ref().map_or(0, |child| child.pid)
    }

    /// Fails, and changes nothing, if the state does not allow it.
    pub(super) fn change(&self, change: Change) -> Result<(), TaskError> {
        let mut inner = lock(&self.inner);
        inner.state = inner.state.after(change).ok_or(TaskError::Change { change, state: inner.state })?;
        Ok(())
    }

    /// Fails if the state does not allow the change, which is not made.
    pub(super) fn check(&self, change: Change) -> Result<(), TaskError> {
        let state = self.state();
        state.after(change).map(|_| ()).ok_or(TaskError::Change { change, state })
    }

    /// Fails if the state does not allow it.
    pub(super) fn check_use(&self, wanted: Use) -> Result<(), TaskError> {
        let state = self.state();
        if state.allows(wanted) { Ok(()) } else { Err(TaskError::Use { wanted, state }) }
    }

    /// Records the end, and wakes who waits for it.
    pub(super) fn set_exited(&self, exit: ProcessExit) {
        // From Stopped and Deleted there is no way back, and nothing to record.
        if self.change(Change::Exit).is_ok() {
            self.exit.send_replace(Some(exit));
        }
    }

    /// Returns the exit, if it has ended.
    pub(super) fn exit(&self) -> Option<ProcessExit> {
        *self.exit.borrow()
    }

    /// Waits for its end.
    pub(super) async fn wait(&self) -> Result<ProcessExit, TaskError> {
        let mut exit = self.exit.subscribe();
        let ended = exit.wait_for(Option::is_some).await.map_err(|_| TaskError::Ending)?;
        ended.ok_or(TaskError::Ending)
    }

    /// Sends a signal. The pidfd names this process and no later one with its pid.
    pub(super) fn signal(&self, signal: u32) -> Result<(), TaskError> {
        let inner = lock(&self.inner);
        if !inner.state.allows(Use::Kill) {
            return Err(TaskError::Finished);
        }
        let child = inner.child.as_ref().ok_or(TaskError::NotStarted)?;
        send(&child.pidfd, signal)
    }

    pub(super) fn close_stdin(&self) {
        let mut inner = lock(&self.inner);
        inner.stdin_closed = true;
        if let Some(io) = &mut inner.io {
            io.close_stdin();
        }
    }

    pub(super) fn resize(&self, width: u16, height: u16) -> Result<(), TaskError> {
        match &lock(&self.inner).io {
            Some(io) => io.resize(width, height).map_err(TaskError::Resize),
            None => Ok(()),
        }
    }

    /// Delivers what is left of its output and lets go of its streams.
    pub(super) async fn finish_io(&self) {
        let io = lock(&self.inner).io.take();
        if let Some(io) = io {
            io.finish().await;
        }
    }
}

fn send(pidfd: &OwnedFd, signal: u32) -> Result<(), TaskError> {
    let number = i32::try_from(signal)
        .map_err(|_| TaskError::Invalid { field: "signal", reason: format!("{signal} is not a signal's number") })?;
    match sys::pidfd_send_signal(pidfd.as_fd(), number) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(TaskError::Finished),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(TaskError::Invalid { field: "signal", reason: format!("{signal} is not a signal's number") })
        }
        Err(source) => Err(TaskError::Signal { signal, source }),
    }
}
