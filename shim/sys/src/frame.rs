//! One frame: a value as JSON in a memory file, and descriptors beside it, in one datagram.
//!
//! The memory file is there because a datagram is limited by the socket's buffer (about 200 KB),
//! and an overlay's `lowerdir` or a spec is not.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Seek, SeekFrom, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use nix::sys::{
    memfd::{MFdFlags, memfd_create},
    socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv, recvmsg,
        send as send_bytes, sendmsg, socketpair,
    },
};
use serde::{Serialize, de::DeserializeOwned};

/// Most descriptors that one frame carries, the memory file included.
const MAX_FDS: usize = 16;

/// The datagram's own bytes, which only distinguish our frames from anything else.
const MARK: &[u8] = b"egpu1";

/// Bytes of the longest value that is sent without a memory file.
const LONGEST_QUESTION: usize = 256;

/// A frame that could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other end is gone.
    #[error("the other end has closed the socket")]
    Closed,
    /// The socket failed. `WouldBlock` on a non-blocking socket means: try again when it is ready.
    #[error("the helper's socket failed")]
    Socket(#[source] io::Error),
    /// The memory file failed, or there is no room for a descriptor.
    #[error("the frame's descriptors failed")]
    Memory(#[source] io::Error),
    /// The message received is not a frame.
    #[error("the other end sent {0}, which is no frame of this protocol")]
    Foreign(&'static str),
    /// The content is not what was expected.
    #[error("the frame's content does not decode")]
    Content(#[source] serde_json::Error),
}

impl FrameError {
    /// Returns whether the same call may succeed once the socket is ready.
    pub fn would_block(&self) -> bool {
        matches!(self, Self::Socket(e) if e.kind() == io::ErrorKind::WouldBlock)
    }
}

/// A connected pair of sockets for frames, both closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Writes a value into a memory file, ready to be [`send`] any number of times.
pub fn pack(value: &impl Serialize) -> Result<OwnedFd, FrameError> {
    let fd = memfd_create(c"egpu-frame", MFdFlags::MFD_CLOEXEC).map_err(|e| FrameError::Memory(e.into()))?;
    let mut file = File::from(fd);
    let bytes = serde_json::to_vec(value).map_err(FrameError::Content)?;
    file.write_all(&bytes).map_err(FrameError::Memory)?;
    Ok(file.into())
}

/// Sends a packed value with descriptors beside it.
pub fn send(socket: BorrowedFd<'_>, packed: &OwnedFd, beside: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
    let fds: Vec<RawFd> = std::iter::once(packed.as_raw_fd()).chain(beside.iter().map(AsRawFd::as_raw_fd)).collect();
    if fds.len() > MAX_FDS {
        return Err(FrameError::Foreign("too many descriptors"));
    }
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(MARK)],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    );
    match sent {
        Ok(_) => Ok(()),
        Err(nix::Error::EPIPE | nix::Error::ECONNRESET) => Err(FrameError::Closed),
        Err(e) => Err(FrameError::Socket(e.into())),
    }
}

/// Receives one frame: the packed value (for [`unpack`]) and the descriptors beside it.
pub fn receive(socket: BorrowedFd<'_>) -> Result<(OwnedFd, Vec<OwnedFd>), FrameError> {
    let mut mark = [0u8; 16];
    let mut iov = [IoSliceMut::new(&mut mark)];
    let mut control = nix::cmsg_space!([RawFd; MAX_FDS]);
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC) {
            Ok(message) => break message,
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::ECONNRESET) => return Err(FrameError::Closed),
            Err(e) => return Err(FrameError::Socket(e.into())),
        }
    };
    let bytes = message.bytes;
    let mut fds = Vec::new();
    // Fails only where descriptors did not fit, into this process as a rule.
    for item in message.cmsgs().map_err(|_| FrameError::Memory(io::Error::from_raw_os_error(libc::EMFILE)))? {
        if let ControlMessageOwned::ScmRights(received) = item {
            fds.extend(received.into_iter().map(crate::received_fd));
        }
    }
    if bytes == 0 && fds.is_empty() {
        return Err(FrameError::Closed);
    }
    if mark.get(..bytes) != Some(MARK) {
        return Err(FrameError::Foreign("an unknown datagram"));
    }
    if fds.is_empty() {
        return Err(FrameError::Foreign("a datagram without content"));
    }
    let packed = fds.remove(0);
    Ok((packed, fds))
}

/// Reads a packed value.
pub fn unpack<T: DeserializeOwned>(packed: OwnedFd) -> Result<T, FrameError> {
    let mut file = File::from(packed);
    file.seek(SeekFrom::Start(0)).map_err(FrameError::Memory)?;
    serde_json::from_reader(io::BufReader::new(file)).map_err(FrameError::Content)
}

/// Packs and sends one value on a blocking socket.
pub fn send_value(socket: &OwnedFd, value: &impl Serialize, beside: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
    send(socket.as_fd(), &pack(value)?, beside)
}

/// Sends a datagram without content, in place of one that cannot be sent; [`receive`] fails with
/// [`FrameError::Foreign`].
pub fn send_nothing(socket: BorrowedFd<'_>) -> Result<(), FrameError> {
    send_short(socket, MARK)
}

/// Sends a value in the datagram itself, without a descriptor: the kernel limits how many of a
/// user's are on their way, and any container of that user may have used them up. For what is
/// short.
pub fn send_question(socket: BorrowedFd<'_>, value: &impl Serialize) -> Result<(), FrameError> {
    send_short(socket, &serde_json::to_vec(value).map_err(FrameError::Content)?)
}

fn send_short(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), FrameError> {
    match send_bytes(socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
        Ok(_) => Ok(()),
        Err(nix::Error::EPIPE | nix::Error::ECONNRESET) => Err(FrameError::Closed),
        Err(error) => Err(FrameError::Socket(error.into())),
    }
}

/// Receives what [`send_question`] sends.
pub fn receive_question<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> Result<T, FrameError> {
    let mut bytes = [0; LONGEST_QUESTION];
    let length = loop {
        match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(0) | Err(nix::Error::ECONNRESET) => return Err(FrameError::Closed),
            Ok(length) => break length,
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(FrameError::Socket(error.into())),
        }
    };
    serde_json::from_slice(bytes.get(..length).unwrap_or_default()).map_err(FrameError::Content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_larger_than_a_socket_buffer_arrives_with_its_descriptors() {
        let (a, b) = pair().unwrap();
        let value = "l".repeat(3 << 20);
        let (pipe_read, pipe_write) = io::pipe().unwrap();
        send_value(&a, &value, &[pipe_read.as_fd(), pipe_write.as_fd()]).unwrap();
        let (packed, fds) = receive(b.as_fd()).unwrap();
        assert_eq!(unpack::<String>(packed).unwrap(), value);
        assert_eq!(fds.len(), 2);
    }

    #[test]
    fn a_closed_end_is_distinguished_from_a_foreign_datagram() {
        let (a, b) = pair().unwrap();
        nix::unistd::write(&a, b"hello").unwrap();
        assert!(matches!(receive(b.as_fd()), Err(FrameError::Foreign(_))));
        drop(a);
        assert!(matches!(receive(b.as_fd()), Err(FrameError::Closed)));
    }

    /// The kernel says so too when the receiver may have no more open files.
    #[test]
    fn descriptors_that_do_not_fit_are_an_error_of_one_frame() {
        let (a, b) = pair().unwrap();
        let too_many = [a.as_raw_fd(); MAX_FDS + 2];
        sendmsg::<()>(
            a.as_raw_fd(),
            &[IoSlice::new(MARK)],
            &[ControlMessage::ScmRights(&too_many)],
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        assert!(matches!(receive(b.as_fd()), Err(FrameError::Memory(_))));
        send_value(&a, &"next", &[]).unwrap();
        assert_eq!(unpack::<String>(receive(b.as_fd()).unwrap().0).unwrap(), "next");
    }
}
