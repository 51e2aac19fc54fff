//! containerd's FIFOs, opened without waiting for the other end and kept open on both.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

use tokio::{
    net::unix::pipe,
    time::{Instant, sleep},
};

use super::copy::{self, OutputSink};

/// A client has its end open within microseconds, or, on a machine that is busy, within some time
/// slices.
const READER_TIMEOUT: Duration = Duration::from_secs(2);
const READER_RETRY: Duration = Duration::from_millis(1);

/// The shim's own hold on the other end of a FIFO. Only ever dropped.
#[derive(Debug)]
pub(super) struct HeldEnd(#[expect(dead_code, reason = "held open, not used")] File);

/// A FIFO to read from, which does not end before the hold is dropped (and containerd has closed
/// its end).
pub(super) fn open_input(path: &Path) -> io::Result<(HeldEnd, pipe::Receiver)> {
    let fifo = pipe::OpenOptions::new().open_receiver(path)?;
    // There is a reader now, so opening for writing cannot fail for want of one.
    let hold = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    Ok((HeldEnd(hold), fifo))
}

/// A FIFO (or an existing file, to append to) that takes output, with or without containerd
/// reading.
///
/// A client opens its end while the container is being created, and gives up opening when the
/// container has ended. One that ends at once would have its output lost, so its creation waits for
/// the client, for a while, as in containerd's own shim.
pub(super) async fn open_output(path: &Path) -> io::Result<OutputSink> {
    open_output_within(path, READER_TIMEOUT).await
}

async fn open_output_within(path: &Path, patience: Duration) -> io::Result<OutputSink> {
    if !std::fs::metadata(path)?.file_type().is_fifo() {
        return copy::open_existing_file(path);
    }
    let deadline = Instant::now() + patience;
    let early = loop {
        match pipe::OpenOptions::new().open_sender(path) {
            Ok(fifo) => break Some(fifo),
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(error),
            Err(_) if Instant::now() >= deadline => break None,
            Err(_) => sleep(READER_RETRY).await,
        }
    };
    let hold = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let fifo = match early {
        Some(fifo) => fifo,
        None => pipe::OpenOptions::new().open_sender(path)?,
    };
    Ok(OutputSink::Fifo(fifo, HeldEnd(hold)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_reader_that_comes_late_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let fifo = path.clone();
        // Without an end, as far as this test goes: the thread that reads may be late, and would
        // wait for a writer for ever.
        let sink = open_output_within(&fifo, Duration::from_secs(3600));
        tokio::pin!(sink);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut sink).await.is_err(), "nobody reads");
        let reader = std::thread::spawn(move || std::io::read_to_string(File::open(path)?));
        drop(sink.await.unwrap());
        assert_eq!(reader.join().unwrap().unwrap(), "");
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn nobody_is_waited_for_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(open_output(&path).await.unwrap(), OutputSink::Fifo(..)));
    }
}
