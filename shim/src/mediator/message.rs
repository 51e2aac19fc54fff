//! What mediator and shim tell each other over the control socket: one JSON text a datagram, at most one descriptor beside.

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use runtime_config::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::sys;

/// The longest message. What one tells is a line or two.
const MAX_MESSAGE: usize = 32 << 10;
/// Of a text, no more than this is told. JSON may take six bytes for one, and all of it is less than [`MAX_MESSAGE`] even then.
pub(super) const MAX_TEXT: usize = 4 << 10;

/// From the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMediator {
    /// Finish what is being handled, take up nothing new, and say [`FromMediator::Paused`]: the container is about to be
    /// frozen, and a process that waits for an answer cannot be.
    Pause,
    /// Go on.
    Resume,
    /// Say [`FromMediator::Pong`].
    Ping,
    /// The container has ended: free all that the driver has given it, and end; or say [`FromMediator::StillHeld`], and stay.
    End,
}

/// From the mediator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromMediator {
    /// Nothing is being handled. `all` is false where some call did not come to its end in time.
    Paused {
        /// See above.
        all: bool,
    },
    /// A process asked for more than the container may have, and was refused.
    Denied {
        /// Who asked, for how much, of what.
        excess: Excess,
        /// Refusals since the last that was told; more than a few a second are not told one by one.
        untold: u64,
    },
    /// A process is to be killed; a pidfd of it travels beside.
    Kill {
        /// Its pid in the shim's namespace.
        pid: i32,
        /// Its pid in the container.
        pid_in_container: i32,
        /// Why.
        reason: KillReason,
        /// Kills that were not logged before this one, which is; `None`: this one is not either.
        told: Option<u64>,
    },
    /// To kill processes does not help: all of the container is to be ended.
    EndContainer {
        /// Why, in a line.
        text: String,
    },
    /// The answer to [`ToMediator::Ping`]: the main thread goes round.
    Pong,
    /// The answer to [`ToMediator::End`] where the driver does not free everything.
    StillHeld {
        /// What is left.
        text: String,
    },
    /// The container's first process has made a driver call, or the last that had is gone.
    Presence {
        /// Whether any has.
        has_processes: bool,
    },
    /// What the container has is not what the driver says.
    Drift {
        /// One line.
        text: String,
    },
    /// A card on which the container was to run in windows does not take it off: its share there is a weight.
    WeightsOnly {
        /// `GPU-...`.
        card: String,
    },
    /// For the log.
    Log {
        /// Whether somebody should look at it.
        warning: bool,
        /// One line.
        text: String,
    },
}

impl FromMediator {
    /// Cuts its text to [`MAX_TEXT`]: one that does not arrive whole is not understood.
    pub(super) fn cut(&mut self) {
        let text = match self {
            Self::Kill { reason: KillReason::Drift(text), .. }
            | Self::EndContainer { text }
            | Self::StillHeld { text }
            | Self::Drift { text }
            | Self::Log { text, .. } => text,
            Self::Denied { excess: Excess { card, .. }, .. }
            | Self::Kill { reason: KillReason::OverMemory(Excess { card, .. }), .. }
            | Self::WeightsOnly { card } => card,
            Self::Paused { .. } | Self::Pong | Self::Presence { .. } => return,
        };
        if let Some(end) = (0..=MAX_TEXT.min(text.len())).rev().find(|&end| text.is_char_boundary(end)) {
            text.truncate(end);
        }
    }
}

/// Why a process is killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// It asked for more than its container may have.
    OverMemory(Excess),
    /// The container was found to have more than it may.
    Drift(String),
}

/// A request for too much memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excess {
    /// The process, in the shim's namespace.
    pub pid: i32,
    /// `GPU-...`.
    pub card: String,
    /// What was asked for.
    pub asked: Bytes,
    /// What the container had.
    pub used: Bytes,
    /// What it may have.
    pub limit: Bytes,
    /// These are of what it holds open in frames of 2 MiB, and not of its quota.
    #[serde(default)]
    pub in_frames: bool,
}

/// Sends one message; `WouldBlock` when the socket is full and not blocking.
pub(super) fn send(socket: BorrowedFd<'_>, message: &impl Serialize, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let fds: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &rights[..0] } else { &rights[..] };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&text)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives one message; `None` when the other end is closed. `InvalidData`: there was one, and it is gone, but it cannot be understood, or the
/// descriptor beside it could not be taken.
pub(super) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut text = vec![0u8; MAX_MESSAGE];
    let mut iov = [IoSliceMut::new(&mut text)];
    let mut control = nix::cmsg_space!([RawFd; 4]);
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) => break message,
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::ECONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let bytes = message.bytes;
    let mut fds = Vec::new();
    for item in message.cmsgs().map_err(not_understood)? {
        if let ControlMessageOwned::ScmRights(received) = item {
            fds.extend(received.into_iter().map(sys::received_fd));
        }
    }
    if bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(text.get(..bytes).unwrap_or_default()).map_err(not_understood)?;
    Ok(Some((message, fds.pop())))
}

fn not_understood(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
