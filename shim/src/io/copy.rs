//! Copying between a container's end and containerd's.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    path::Path,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    fs::File,
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::unix::pipe,
};

use super::fifo::HeldEnd;

/// Size of the most that is read at once, in bytes.
const CHUNK: usize = 8192;

/// The destination of output.
#[derive(Debug)]
pub(super) enum OutputSink {
    /// containerd's FIFO, with the shim's hold on its reading end.
    Fifo(pipe::Sender, HeldEnd),
    /// A pipe whose reader the shim has started.
    Pipe(pipe::Sender),
    /// A file, appended to.
    File(File),
}

impl OutputSink {
    /// Copies until `from` ends.
    pub(super) async fn copy_from(self, stream: &'static str, from: impl AsyncRead + Unpin) {
        match self {
            Self::Fifo(fifo, _hold) => copy(stream, from, fifo).await,
            Self::Pipe(pipe) => copy(stream, from, pipe).await,
            Self::File(file) => copy(stream, from, file).await,
        }
    }
}

/// Copies until `from` ends or `to` is closed.
pub(super) async fn copy(stream: &'static str, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let copied = async {
        loop {
            let chunk = poll_fn(|context| read_chunk(&mut from, context)).await?;
            if chunk.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&chunk).await?;
        }
    };
    match copied.await {
        Ok(()) => {}
        // A terminal that hangs up (EIO), or a reader that has closed its end: how a copy normally
        // ends.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(libc::EIO) => {}
        Err(error) => tracing::warn!(stream, %error, "cannot copy a stream"),
    }
}

/// Reads what there is; nothing at the end. A stream that is silent has no buffer: a container's
/// three streams mostly are.
fn read_chunk(from: &mut (impl AsyncRead + Unpin), context: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
    let mut space = [MaybeUninit::uninit(); CHUNK];
    let mut buffer = ReadBuf::uninit(&mut space);
    ready!(Pin::new(from).poll_read(context, &mut buffer))?;
    Poll::Ready(Ok(buffer.filled().to_vec()))
}

/// A log file, made with its directories if need be.
pub(super) fn open_file(path: &Path) -> io::Result<OutputSink> {
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let file = std::fs::OpenOptions::new().append(true).create(true).mode(0o644).open(path)?;
    Ok(OutputSink::File(File::from_std(file)))
}

/// A file that must exist.
pub(super) fn open_existing_file(path: &Path) -> io::Result<OutputSink> {
    let file = std::fs::OpenOptions::new().append(true).open(path)?;
    Ok(OutputSink::File(File::from_std(file)))
}
