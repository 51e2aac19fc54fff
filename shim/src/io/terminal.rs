//! The master of a container's terminal.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
        socketpair,
    },
    termios::{Winsize, tcsetwinsize},
};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, unix::AsyncFd};

/// Two connected sockets: the shim's, and the one on which the container's side sends the master.
pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok(pair)
}

/// Shared by both directions and by resizing; read and written without blocking.
#[derive(Debug, Clone)]
pub(super) struct Terminal(Arc<AsyncFd<OwnedFd>>);

impl Terminal {
    /// Waits for the master to come in on `socket`.
    pub(super) async fn receive(socket: OwnedFd) -> io::Result<Self> {
        let socket = sys::nonblocking(socket)?;
        let master = socket.async_io(Interest::READABLE, receive_descriptor).await?;
        Ok(Self(Arc::new(sys::nonblocking(master)?)))
    }

    /// Sets the size, in characters.
    pub(super) fn resize(&self, width: u16, height: u16) -> io::Result<()> {
        let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(self.0.get_ref(), size)?)
    }
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    // The message is the terminal's name, of which there is no need.
    let mut name = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut name)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let master = descriptors.next().and_then(|mut descriptors| descriptors.next());
    master.ok_or_else(|| match received.bytes {
        0 => io::Error::new(io::ErrorKind::UnexpectedEof, "the container's side has closed the socket"),
        _ => io::Error::new(io::ErrorKind::InvalidData, "a message without a descriptor has come"),
    })
}

impl AsyncRead for Terminal {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            match ready.try_io(|master| Ok(rustix::io::read(master.get_ref(), &mut *unfilled)?)) {
                Ok(result) => return Poll::Ready(result.map(|count| buffer.advance(count))),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(context))?;
            match ready.try_io(|master| Ok(rustix::io::write(master.get_ref(), bytes)?)) {
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
