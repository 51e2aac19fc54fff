//! `Start`: lets init execute its program, and says whether it did. The shim does it itself; hooks
//! run in a worker.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use ledger::ProcessId;
use libcontainer::{
    config::{ConfigError, YoukiConfig},
    container::{Container, ContainerStatus},
    error::LibcontainerError,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use oci_spec::runtime::Hook;

use super::{
    hooks::{self, HookFailed},
    program::ABOUT_TO_EXECUTE,
    protocol::{FailureKind, Start},
    state::{StateDir, StateError},
};

/// A container that did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The runtime's own directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// libcontainer's part of it.
    #[error("cannot use the state of container {id:?}")]
    Container {
        id: String,
        #[source]
        source: Box<LibcontainerError>,
    },
    /// Started before, or ended.
    #[error("container {id:?} is {status}; only a created one can be started")]
    Status { id: String, status: ContainerStatus },
    /// init does not listen any more.
    #[error("the init of container {id:?} cannot be told to start")]
    Notify {
        id: String,
        #[source]
        source: io::Error,
    },
    /// The pipe from init.
    #[error("cannot learn whether container {id:?} started")]
    Outcome {
        id: String,
        #[source]
        source: io::Error,
    },
    /// init could not execute the program.
    #[error("{0}")]
    Program(String),
    /// init ended before that.
    #[error("the init of container {id:?} ended before it executed its program")]
    Ended { id: String },
    /// The hooks that the spec has.
    #[error("cannot read the hooks of container {id:?}")]
    Hooks {
        id: String,
        #[source]
        source: ConfigError,
    },
    /// One of them.
    #[error("container {id:?} was ended")]
    Poststart {
        id: String,
        #[source]
        source: HookFailed,
    },
}

impl StartError {
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::State(StateError::Unknown(_)) => FailureKind::NotFound,
            Self::State(StateError::Id(_)) => FailureKind::Invalid,
            Self::Status { .. } | Self::Notify { .. } => FailureKind::FailedPrecondition,
            _ => FailureKind::Internal,
        }
    }
}

/// Starts a created container; returns when its program runs (or has ended), or after `limit`.
/// `true`: its poststart hooks are still to be run.
pub(crate) fn start(start: &Start, limit: Duration) -> Result<bool, StartError> {
    let id = || start.id.clone();
    let deadline = Instant::now() + limit;
    let state = StateDir::open(&start.runtime_root, &start.id)?;
    let failed = |e| StartError::Container { id: start.id.clone(), source: Box::new(e) };
    let mut container = Container::load(state.path().to_owned()).map_err(failed)?;
    if container.status() != ContainerStatus::Created {
        return Err(StartError::Status { id: id(), status: container.status() });
    }
    let hooks = hooks(&state, &start.id)?;
    let outcome = open_outcome(&state.outcome()).map_err(|source| StartError::Outcome { id: id(), source })?;
    notify(&state).map_err(|source| StartError::Notify { id: id(), source })?;
    read_outcome(outcome, &start.id, deadline)?;
    container.set_status(ContainerStatus::Running).save().map_err(failed)?;
    Ok(!hooks.is_empty())
}

/// Tells init. Where that has ended, nobody has the pipe open.
fn notify(state: &StateDir) -> io::Result<()> {
    File::options().write(true).custom_flags(libc::O_NONBLOCK).open(state.start())?.write_all(b"+")
}

fn open_outcome(path: &Path) -> io::Result<File> {
    // Not blocking: init holds the other end since its creation, or has ended.
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Reads until init's end closes: by executing, or by ending. Somebody may have stopped it.
fn read_outcome(mut pipe: File, id: &str, deadline: Instant) -> Result<(), StartError> {
    let failed = |source| StartError::Outcome { id: id.to_owned(), source };
    let mut bytes = Vec::new();
    loop {
        match pipe.read_to_end(&mut bytes) {
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let mut wait = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
                let left = deadline.saturating_duration_since(Instant::now());
                match poll(&mut wait, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                    Ok(0) if left.is_zero() => return Err(failed(io::ErrorKind::TimedOut.into())),
                    Ok(_) | Err(nix::Error::EINTR) => {}
                    Err(e) => return Err(failed(e.into())),
                }
            }
            Err(e) => return Err(failed(e)),
        }
    }
    match bytes.split_first() {
        Some((&ABOUT_TO_EXECUTE, [])) => Ok(()),
        Some((&ABOUT_TO_EXECUTE, message)) | Some((_, message @ [])) => {
            Err(StartError::Program(String::from_utf8_lossy(message).into_owned()))
        }
        Some(_) => Err(StartError::Program(String::from_utf8_lossy(&bytes).into_owned())),
        None => Err(StartError::Ended { id: id.to_owned() }),
    }
}

fn hooks(state: &StateDir, id: &str) -> Result<Vec<Hook>, StartError> {
    let config = YoukiConfig::load(state.path()).map_err(|source| StartError::Hooks { id: id.to_owned(), source })?;
    Ok(config.hooks.and_then(|hooks| hooks.poststart().clone()).unwrap_or_default())
}

/// Runs the poststart hooks of a started container; ends it when one fails.
pub(crate) fn poststart(start: &Start) -> Result<(), StartError> {
    let state = StateDir::open(&start.runtime_root, &start.id)?;
    let failed = |e| StartError::Container { id: start.id.clone(), source: Box::new(e) };
    let container = Container::load(state.path().to_owned()).map_err(failed)?;
    let hooks = hooks(&state, &start.id)?;
    let result = hooks::run("poststart", Some(&hooks), &container.state, Some(container.bundle()), None, None);
    result.map_err(|source| {
        end_init(&state);
        StartError::Poststart { id: start.id.clone(), source }
    })
}

/// Ends a started container of which nobody knows whether its poststart hooks ran.
pub(crate) fn end(start: &Start) {
    if let Ok(state) = StateDir::open(&start.runtime_root, &start.id) {
        end_init(&state);
    }
}

/// Kills init, unless it has ended by itself and another process may have its pid by now.
fn end_init(state: &StateDir) {
    let Some(init) = state.settings().ok().and_then(|settings| settings.init) else { return };
    // Opened first: what it is bound to cannot change any more when the pid is found to be init's.
    let Ok(pidfd) = sys::pidfd_open(init.pid) else { return };
    if ProcessId::of(init.pid).is_ok_and(|now| now == init) {
        let _ = sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nvidia_glue::inject::ExecEdits;

    use super::*;
    use crate::state::Settings;

    fn outcome(written: &[u8]) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::create(directory.path(), "a").unwrap();
        let mut init = state.make_outcome().unwrap();
        let reader = open_outcome(&state.outcome()).unwrap();
        init.write_all(written).unwrap();
        drop(init);
        read_outcome(reader, "a", Instant::now() + Duration::from_secs(60)).map_err(|e| e.to_string())
    }

    #[test]
    fn an_init_that_never_says_is_not_waited_for_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::create(directory.path(), "a").unwrap();
        let _init = state.make_outcome().unwrap();
        let late = read_outcome(open_outcome(&state.outcome()).unwrap(), "a", Instant::now()).unwrap_err();
        assert!(matches!(late, StartError::Outcome { source, .. } if source.kind() == io::ErrorKind::TimedOut));
    }

    #[test]
    fn the_outcome_distinguishes_an_executed_program_from_a_failed_one() {
        assert_eq!(outcome(b"+"), Ok(()));
        assert_eq!(outcome(b"+exec /x: exec format error"), Err("exec /x: exec format error".into()));
        assert_eq!(outcome(b"broken"), Err("broken".into()));
        assert!(outcome(b"").unwrap_err().contains("ended before"));
    }

    #[test]
    fn only_init_itself_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::create(directory.path(), "a").unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        let save = |init| {
            let settings =
                Settings { no_new_keyring: true, systemd_cgroup: false, exec_edits: ExecEdits::default(), init };
            state.save(&settings).unwrap();
        };
        save(Some(ProcessId { start_time: process.start_time + 1, ..process }));
        end_init(&state);
        assert_eq!(child.try_wait().unwrap(), None, "another process with init's pid");
        save(Some(process));
        end_init(&state);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(libc::SIGKILL));
    }
}
