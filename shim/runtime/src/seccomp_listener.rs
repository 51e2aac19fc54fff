//! `linux.seccomp.listenerPath`: the listener of the container's own profile goes to the agent that
//! it names.

use std::{
    io::{self, IoSlice},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use libcontainer::{
    container::Container,
    process::channel::{ChannelError, InitSender, MainReceiver},
    seccomp::is_notify,
};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::{
    ContainerProcessStateBuilder, ContainerState, LinuxSeccomp, SECCOMP_FD_NAME, StateBuilder, VERSION,
};

/// Time limit for the agent to read; a stuck one must not hold up the create for ever.
const AGENT_LIMIT: Duration = Duration::from_secs(10);

/// A listener that did not reach its agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenerError {
    #[error("the seccomp profile uses SCMP_ACT_NOTIFY, which needs linux.seccomp.listenerPath")]
    NoPath,
    /// init did not send it.
    #[error("the container's process ended before it had loaded its seccomp profile")]
    Channel(#[source] ChannelError),
    /// The state that goes with it.
    #[error("cannot describe the container to the seccomp agent: {0}")]
    State(String),
    #[error("the seccomp agent at {} cannot be reached", path.display())]
    Agent {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Receives the listener from init, if the profile notifies, and sends it on, with the state that
/// the OCI spec wants.
pub(crate) fn send_listener(
    seccomp: &LinuxSeccomp,
    container: &Container,
    pid: Pid,
    is_init: bool,
    to_init: &mut InitSender,
    from_init: &mut MainReceiver,
) -> Result<(), ListenerError> {
    if !is_notify(seccomp) {
        return Ok(());
    }
    let path = seccomp.listener_path().as_ref().ok_or(ListenerError::NoPath)?;
    let listener = from_init.wait_for_seccomp_request().map_err(ListenerError::Channel)?;
    let listener = sys::received_fd(listener);
    let state = state(seccomp, container, pid, is_init)?;
    send(path, &state, &listener).map_err(|source| ListenerError::Agent { path: path.clone(), source })?;
    to_init.seccomp_notify_done().map_err(ListenerError::Channel)
}

fn state(seccomp: &LinuxSeccomp, container: &Container, pid: Pid, is_init: bool) -> Result<Vec<u8>, ListenerError> {
    let own = &container.state;
    // As runc: `pid` is the process's, `state.pid` the container's.
    let init = if is_init { pid.as_raw() } else { own.pid.unwrap_or(pid.as_raw()) };
    let state = StateBuilder::default()
        .version(VERSION)
        .id(own.id.clone())
        .status(if is_init { ContainerState::Creating } else { ContainerState::Running })
        .pid(init)
        .bundle(own.bundle.clone())
        .annotations(own.annotations.clone().unwrap_or_default())
        .build()
        .map_err(|e| ListenerError::State(e.to_string()))?;
    let state = ContainerProcessStateBuilder::default()
        .version(VERSION)
        .fds(vec![SECCOMP_FD_NAME.to_string()])
        .pid(pid.as_raw())
        .metadata(seccomp.listener_metadata().clone().unwrap_or_default())
        .state(state)
        .build()
        .map_err(|e| ListenerError::State(e.to_string()))?;
    serde_json::to_vec(&state).map_err(|e| ListenerError::State(e.to_string()))
}

fn send(path: &Path, state: &[u8], listener: &OwnedFd) -> io::Result<()> {
    let socket = UnixStream::connect(path)?;
    socket.set_write_timeout(Some(AGENT_LIMIT))?;
    let fds = [listener.as_raw_fd()];
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(state)],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    io::Write::write_all(&mut &socket, state.get(sent..).unwrap_or_default())
}
