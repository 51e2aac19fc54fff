//! A process's standard streams: who owns them, and its terminal.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    sys::{
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg,
            socketpair,
        },
        stat::{SFlag, fstat, makedev},
    },
    unistd::{Gid, Uid, fchown},
};

use super::protocol::StdioKind;

/// Streams that could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StdioError {
    /// The shim sent the wrong number of descriptors.
    #[error("{kind:?} wants {wanted} stdio descriptors, got {got}")]
    Count { kind: StdioKind, wanted: usize, got: usize },
    /// The owner could not be set.
    #[error("cannot give stream {stream} to uid {uid}")]
    Owner {
        stream: usize,
        uid: u32,
        #[source]
        source: io::Error,
    },
    /// The socket between init and the worker, or that to the shim.
    #[error("cannot pass the terminal on")]
    Terminal(#[source] io::Error),
    /// The terminal's size.
    #[error("cannot set the terminal to {rows} rows and {columns} columns")]
    Size {
        rows: u16,
        columns: u16,
        #[source]
        source: io::Error,
    },
}

/// The owner of pipes and terminal, in host ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamOwner {
    pub(crate) uid: u32,
    /// `None` keeps the group, as runc does.
    pub(crate) gid: Option<u32>,
}

/// Opens init's streams that are the container's `/dev/null` anew, to read and write as under runc:
/// libcontainer opens them to read alone. They stay so for a user who may not write it.
pub(crate) fn make_null_writable() {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return };
    let is_null = |file: BorrowedFd<'_>| {
        fstat(file).is_ok_and(|file| {
            SFlag::from_bits_truncate(file.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFCHR
                && file.st_rdev == makedev(1, 3)
        })
    };
    if !is_null(null.as_fd()) || fcntl(&null, FcntlArg::F_GETFD).is_err() {
        return;
    }
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        if is_null(stream) {
            // As the lowest number that is free. A seccomp profile need not allow dup2(2) here.
            let number = stream.as_raw_fd();
            sys::close_each(std::iter::once(number));
            let _ = fcntl(&null, FcntlArg::F_DUPFD(number));
        }
    }
}

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WindowSize {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

/// The streams of a process that is about to be made.
#[derive(Debug)]
pub(crate) enum ChildStdio {
    /// stdin, stdout, stderr.
    Streams([OwnedFd; 3]),
    /// A pty that init makes and sends over `init_end`; it is handed on to the shim.
    Terminal { init_end: OwnedFd, own_end: OwnedFd, shim: OwnedFd },
}

impl ChildStdio {
    /// Takes the descriptors that came with the operation.
    pub(crate) fn new(kind: StdioKind, fds: Vec<OwnedFd>) -> Result<Self, StdioError> {
        let got = fds.len();
        match kind {
            StdioKind::Streams => {
                <[OwnedFd; 3]>::try_from(fds).map(Self::Streams).map_err(|_| StdioError::Count { kind, wanted: 3, got })
            }
            StdioKind::Terminal => {
                let [shim] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| StdioError::Count { kind, wanted: 1, got })?;
                let (own_end, init_end) =
                    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
                        .map_err(|e| StdioError::Terminal(e.into()))?;
                Ok(Self::Terminal { init_end, own_end, shim })
            }
        }
    }

    /// Gives pipes and files to the process's user, so that it can open /dev/stdout and the like
    /// again.
    pub(crate) fn give_to(&self, owner: StreamOwner) -> Result<(), StdioError> {
        if let Self::Streams(streams) = self {
            for (stream, fd) in streams.iter().enumerate() {
                give(fd.as_fd(), owner).map_err(|e| StdioError::Owner { stream, uid: owner.uid, source: e.into() })?;
            }
        }
        Ok(())
    }

    /// stdin, stdout and stderr as libcontainer wants them.
    pub(crate) fn raw_streams(&self) -> [Option<RawFd>; 3] {
        match self {
            Self::Streams(streams) => streams.each_ref().map(|fd| Some(fd.as_raw_fd())),
            Self::Terminal { .. } => [None; 3],
        }
    }

    /// The socket that libcontainer sends the pty's master over.
    pub(crate) fn raw_console(&self) -> Option<RawFd> {
        match self {
            Self::Streams(_) => None,
            Self::Terminal { init_end, .. } => Some(init_end.as_raw_fd()),
        }
    }

    /// Descriptors that the process must not inherit.
    pub(crate) fn private(&self) -> Vec<&OwnedFd> {
        match self {
            Self::Streams(_) => vec![],
            Self::Terminal { own_end, shim, .. } => vec![own_end, shim],
        }
    }

    /// Sizes the terminal that init has made, gives it to the user, and hands the master to the
    /// shim.
    pub(crate) fn finish(self, owner: StreamOwner, size: Option<WindowSize>) -> Result<(), StdioError> {
        let Self::Terminal { init_end, own_end, shim } = self else { return Ok(()) };
        drop(init_end);
        let master = receive_master(own_end.as_fd()).map_err(StdioError::Terminal)?;
        if let Some(WindowSize { rows, columns }) = size {
            sys::set_window_size(master.as_fd(), rows, columns).map_err(|source| StdioError::Size {
                rows,
                columns,
                source,
            })?;
        }
        let slave = sys::open_pty_peer(master.as_fd()).map_err(StdioError::Terminal)?;
        give(slave.as_fd(), owner).map_err(|e| StdioError::Owner { stream: 0, uid: owner.uid, source: e.into() })?;
        let sent = sendmsg::<()>(
            shim.as_raw_fd(),
            &[IoSlice::new(b"/dev/ptmx")],
            &[ControlMessage::ScmRights(&[master.as_raw_fd()])],
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        sent.map(drop).map_err(|e| StdioError::Terminal(e.into()))
    }
}

/// Changes the owner of a descriptor's file, unless it is one of the host's devices.
fn give(fd: BorrowedFd<'_>, owner: StreamOwner) -> Result<(), Errno> {
    let status = fstat(fd)?;
    let kind = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT;
    let is_terminal = nix::unistd::isatty(fd).unwrap_or(false);
    if kind == SFlag::S_IFCHR && !is_terminal {
        return Ok(());
    }
    if status.st_uid == owner.uid && owner.gid.is_none_or(|gid| gid == status.st_gid) {
        return Ok(());
    }
    match fchown(fd, Some(Uid::from_raw(owner.uid)), owner.gid.map(Gid::from_raw)) {
        // A read-only file system, or one without owners.
        Ok(()) | Err(Errno::EROFS | Errno::EINVAL | Errno::EPERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn receive_master(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut name = [0u8; 64];
    let mut iov = [IoSliceMut::new(&mut name)];
    let mut control = nix::cmsg_space!([RawFd; 1]);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for item in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = item {
            fds.extend(received.into_iter().map(sys::received_fd));
        }
    }
    fds.pop().ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the container sent no terminal"))
}
