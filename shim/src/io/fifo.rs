//! containerd's FIFOs, opened without waiting for the other end and kept open on both.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use tokio::net::unix::pipe;

use super::copy::{self, Sink};

/// The shim's own hold on the other end of a FIFO. Only ever dropped.
#[derive(Debug)]
pub(super) struct Hold(#[expect(dead_code, reason = "held open, not used")] File);

/// A FIFO to read from, which does not end before the hold is dropped (and containerd has closed its end).
pub(super) fn open_input(path: &Path) -> io::Result<(Hold, pipe::Receiver)> {
    let fifo = pipe::OpenOptions::new().open_receiver(path)?;
    // There is a reader now, so opening for writing cannot fail for want of one.
    let hold = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    Ok((Hold(hold), fifo))
}

/// A FIFO (or an existing file, to append to) that takes output, with or without containerd reading.
pub(super) fn open_output(path: &Path) -> io::Result<Sink> {
    if !std::fs::metadata(path)?.file_type().is_fifo() {
        return copy::open_existing_file(path);
    }
    let hold = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let fifo = pipe::OpenOptions::new().open_sender(path)?;
    Ok(Sink::Fifo(fifo, Hold(hold)))
}
