//! Messages between mediator and shim over the control socket: one JSON text a datagram, with at
//! most one descriptor.

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use runtime_config::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The longest message, in bytes.
const MAX_MESSAGE: usize = 32 << 10;
/// The longest text in a message. JSON may take six bytes for one, and even then the message is
/// shorter than [`MAX_MESSAGE`].
pub(super) const MAX_TEXT: usize = 4 << 10;

/// Message of the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMediator {
    /// Finish the calls that are being handled, take up none, and answer [`FromMediator::Paused`].
    ///
    /// The container is about to be frozen, and a process that waits for an answer cannot be.
    Pause,
    /// Take up calls again.
    Resume,
    /// Answer [`FromMediator::Pong`].
    Ping,
    /// Free all that the driver has given the container, which has ended, and end; or answer
    /// [`FromMediator::StillHeld`], and stay.
    End,
}

/// Message of the mediator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromMediator {
    /// No call is being handled. `all` is false if some call did not end in time.
    Paused {
        /// False: some call is still being handled.
        all: bool,
    },
    /// A process was refused memory beyond the limit of the container.
    Denied {
        /// The request.
        excess: Excess,
        /// Refusals since the last message: only a few a second are sent one by one.
        #[serde(rename = "untold")]
        suppressed: u64,
    },
    /// Calls were refused for want of something that is no card memory of the container's.
    Short {
        /// The bound that they met, in a line.
        text: String,
        /// Number of them since it was last told.
        count: u64,
    },
    /// A process is to be killed; a pidfd of it comes with the message.
    Kill {
        /// Its pid in the shim's namespace.
        pid: i32,
        /// Its pid in the container.
        pid_in_container: i32,
        reason: KillReason,
        /// Kills before this one that were not logged; `None`: this one is not logged either.
        #[serde(rename = "told")]
        suppressed: Option<u64>,
    },
    /// The whole container is to be ended, as killing processes does not help.
    EndContainer {
        /// The reason, in a line.
        text: String,
    },
    /// The answer to [`ToMediator::Ping`]: the main thread is alive.
    Pong,
    /// The mediator is freeing what its container has, and comes on.
    Freeing,
    /// The answer to [`ToMediator::End`] where the driver does not free everything.
    StillHeld {
        /// The objects that are left.
        text: String,
    },
    /// The first process of the container has made a driver call, or the last such process has
    /// ended.
    Presence {
        /// True if there is such a process.
        has_processes: bool,
    },
    /// There are as many listeners as there may be, or there are fewer again.
    Listeners {
        /// True if no further process is to bring one.
        are_most: bool,
    },
    /// The accounts of the container and the driver disagree.
    Drift {
        /// One line.
        text: String,
    },
    /// A card cannot take the container off, as windows need: the share of its time is a weight.
    WeightsOnly {
        /// `GPU-...`.
        card: String,
    },
    /// A line for the log.
    Log {
        /// True for a warning.
        warning: bool,
        /// One line.
        text: String,
    },
}

impl FromMediator {
    /// Cuts the text to [`MAX_TEXT`]: a message that does not arrive whole is not understood.
    pub(super) fn truncate(&mut self) {
        let text = match self {
            Self::Kill { reason: KillReason::Drift(text), .. }
            | Self::EndContainer { text }
            | Self::StillHeld { text }
            | Self::Drift { text }
            | Self::Short { text, .. }
            | Self::Log { text, .. } => text,
            Self::Denied { excess: Excess { card, .. }, .. }
            | Self::Kill { reason: KillReason::OverMemory(Excess { card, .. }), .. }
            | Self::WeightsOnly { card } => card,
            Self::Paused { .. } | Self::Pong | Self::Freeing | Self::Presence { .. } | Self::Listeners { .. } => return,
        };
        if let Some(end) = (0..=MAX_TEXT.min(text.len())).rev().find(|&end| text.is_char_boundary(end)) {
            text.truncate(end);
        }
    }
}

/// Reason for the kill of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// It asked for more memory than its container may have.
    OverMemory(Excess),
    /// The container has more memory than it may.
    Drift(String),
}

/// A request for too much memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excess {
    /// The process, in the shim's namespace.
    pub pid: i32,
    /// `GPU-...`.
    pub card: String,
    /// Size of the request.
    pub asked: Bytes,
    /// Memory that the container had.
    pub used: Bytes,
    /// Limit of the container.
    pub limit: Bytes,
    /// The numbers count frames of 2 MiB that it holds open, and not its quota.
    #[serde(default)]
    pub in_frames: bool,
}

/// Sends one message; `WouldBlock` when the socket is full and not blocking.
pub fn send(socket: BorrowedFd<'_>, message: &impl Serialize, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let fds: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &rights[..0] } else { &rights[..] };
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&text)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives one message; `None` when the other end is closed.
///
/// Fails with `InvalidData` for a message that cannot be understood, or whose descriptor could not
/// be taken; it is gone then.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Option<OwnedFd>)>> {
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
