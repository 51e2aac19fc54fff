//! Log drivers: programs that read a container's output (containerd, docs/runtime-v2.md,
//! "Logging").
//!
//! The program gets stdout as descriptor 3, stderr as 4, and says through 5 that it is ready. It
//! has the container's ends of the pipes themselves, so nothing is copied, and it reads on when the
//! shim is gone.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use runtime::reaper::{Expectation, ProcessExit};
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::oneshot, time::timeout};

use super::{StreamContext, target::Binary};

/// Time for it to say that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// Time for it to end by itself once its input has ended.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Time for it to end after SIGTERM; as long as containerd's own shim waits.
const TERM_LIMIT: Duration = Duration::from_secs(10);

/// A log driver that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum LogDriverError {
    /// A driver that could not be started.
    #[error("cannot run {}", path.display())]
    Spawn {
        /// The program.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A driver that ended without having said that it is ready.
    #[error("{} ended, or closed descriptor 5, without a byte written to it to say that it is ready", path.display())]
    NotReady {
        /// The program.
        path: PathBuf,
    },
    /// A driver that says nothing.
    #[error("{} did not say within {limit:?} that it is ready (by closing descriptor 5)", path.display())]
    Silent {
        /// The program.
        path: PathBuf,
        /// The time limit.
        limit: Duration,
    },
    /// No pipes.
    #[error("cannot make its pipes")]
    Pipe(#[source] io::Error),
}

/// A running log driver. Dropping it kills it.
#[derive(Debug)]
pub(super) struct LogDriver {
    path: PathBuf,
    pidfd: OwnedFd,
    exit: Option<oneshot::Receiver<ProcessExit>>,
}

/// The container's ends of the driver's pipes.
pub(super) struct LogDriverEnd {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl LogDriver {
    /// Starts the program and waits until it is ready.
    pub(super) async fn spawn(
        binary: &Binary,
        owner: &StreamContext<'_>,
    ) -> Result<(Self, LogDriverEnd), LogDriverError> {
        let (out, stdout) = io::pipe().map_err(LogDriverError::Pipe)?;
        let (err, stderr) = io::pipe().map_err(LogDriverError::Pipe)?;
        let (ready, says_ready) = io::pipe().map_err(LogDriverError::Pipe)?;
        let driver = {
            let mut command = Command::new(&binary.path);
            command
                .args(&binary.arguments)
                .env_clear()
                .env("CONTAINER_ID", owner.id)
                .env("CONTAINER_NAMESPACE", owner.namespace)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            sys::pass_descriptors(&mut command, [out.into(), err.into(), says_ready.into()]);
            Self::run(command, binary, &owner.reaper.expect())?
        };
        let spawn_error = |source| LogDriverError::Spawn { path: binary.path.clone(), source };
        let mut ready = pipe::Receiver::from_owned_fd(ready.into()).map_err(spawn_error)?;
        match timeout(READY_LIMIT, ready.read(&mut [0])).await {
            Err(_) => Err(LogDriverError::Silent { path: binary.path.clone(), limit: READY_LIMIT }),
            Ok(Err(source)) => Err(spawn_error(source)),
            Ok(Ok(0)) if binary.must_say_ready => Err(LogDriverError::NotReady { path: binary.path.clone() }),
            Ok(Ok(_)) => Ok((driver, LogDriverEnd { stdout: stdout.into(), stderr: stderr.into() })),
        }
    }

    fn run(mut command: Command, binary: &Binary, expectation: &Expectation) -> Result<Self, LogDriverError> {
        let spawn_error = |source| LogDriverError::Spawn { path: binary.path.clone(), source };
        let child = command.spawn().map_err(spawn_error)?;
        // The reaper waits for it, not the standard library. It is not reaped before it is claimed.
        let pid = i32::try_from(child.id()).map_err(|_| spawn_error(io::ErrorKind::InvalidData.into()))?;
        let pidfd = sys::pidfd_open(pid).map_err(spawn_error)?;
        Ok(Self { path: binary.path.clone(), pidfd, exit: Some(expectation.claim(pid)) })
    }

    /// Waits for its end after its input has ended, and sees to it.
    pub(super) async fn finish(mut self) {
        let Some(mut exit) = self.exit.take() else { return };
        if timeout(END_LIMIT, &mut exit).await.is_ok() {
            return;
        }
        self.signal(libc::SIGTERM);
        if timeout(TERM_LIMIT, &mut exit).await.is_ok() {
            return;
        }
        tracing::warn!(program = %self.path.display(), "a log driver does not exit and is killed");
        self.signal(libc::SIGKILL);
    }

    fn signal(&self, signal: i32) {
        // It may have ended in the same instant.
        let _ = sys::pidfd_send_signal(self.pidfd.as_fd(), signal);
    }
}

impl Drop for LogDriver {
    fn drop(&mut self) {
        if self.exit.is_some() {
            self.signal(libc::SIGKILL);
        }
    }
}
