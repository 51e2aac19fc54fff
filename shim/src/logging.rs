//! The shim's log: the FIFO `log` in the bundle, which containerd reads into its own log.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
};

use tracing::level_filters::LevelFilter;

/// Sends what is traced to the FIFO in `bundle`. Does nothing when there is none: a shim without a
/// log runs on.
pub fn to_bundle(bundle: &Path, debug: bool) {
    if let Ok(log) = LogFifo::open(&bundle.join("log")) {
        install(move || log.clone(), debug);
    }
}

/// Sends what is traced to stderr, for the short-lived commands whose stderr containerd shows.
pub fn to_stderr(debug: bool) {
    install(io::stderr, debug);
}

fn install<W: Write>(writer: impl Fn() -> W + Send + Sync + 'static, debug: bool) {
    let level = if debug { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let subscriber = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(writer).finish();
    // Fails only when one is installed already.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// FIFO of the log. Never blocks and never fails: what does not fit while nobody reads is lost.
#[derive(Debug, Clone)]
struct LogFifo(Arc<File>);

impl LogFifo {
    /// Opened for reading as well: a FIFO without a reader could not be opened without blocking,
    /// and one whose reader has gone away (containerd restarts) would answer with EPIPE.
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        Ok(Self(Arc::new(file)))
    }
}

impl Write for LogFifo {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match (&*self.0).write(line) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(line.len()),
            result => result,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_log_that_nobody_reads_loses_lines_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut log = LogFifo::open(&path).unwrap();
        log.write_all(b"first\n").unwrap();
        let line = [b'x'; 4096];
        for _ in 0..100 {
            log.write_all(&line).unwrap();
        }
        // containerd comes late, or again.
        let mut reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let mut first = [0; 6];
        reader.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"first\n");
        drop(reader);
        log.write_all(b"after the reader has gone\n").unwrap();
    }
}
