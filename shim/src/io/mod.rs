//! A process's standard streams, between the container and where containerd wants them.
//!
//! The container never gets containerd's own FIFOs but pipes (or a terminal), and tasks copy. So
//! containerd may go away and come back without the container noticing: the shim keeps the other
//! end of each FIFO open itself, which spares a writer EPIPE and a reader EOF. Nothing here ever
//! blocks the shim: every descriptor is non-blocking and waits in the reactor.

mod binary;
mod copy;
mod fifo;
mod target;
mod terminal;

use std::{io, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};

use runtime::{protocol::StdioKind, reaper::Reaper};
use tokio::{net::unix::pipe, task::JoinSet, time::timeout};

pub use self::{binary::LogDriverError, target::TargetError};
use self::{
    binary::{LogDriver, LogDriverEnd},
    copy::copy,
    target::StreamTarget,
    terminal::Terminal,
};
use crate::bundle::ConsoleSize;

/// Time for the output of a process that has ended to be delivered.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// The terminal is there before the helper answers.
const TERMINAL_LIMIT: Duration = Duration::from_secs(10);

/// The streams that containerd asked for. Empty: none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StdioPaths {
    /// Path of a FIFO.
    pub stdin: String,
    /// Path of a FIFO or file, or a URI of scheme fifo, file, binary or binary-v2.
    pub stdout: String,
    /// The same for standard error. Unused with a terminal.
    pub stderr: String,
    /// One terminal instead of three streams.
    pub terminal: bool,
}

/// The container and the reaper that the streams belong to.
#[derive(Debug)]
pub struct StreamContext<'o> {
    /// The container's id.
    pub id: &'o str,
    /// containerd's namespace.
    pub namespace: &'o str,
    /// Told of log drivers.
    pub reaper: &'o Arc<Reaper>,
}

/// Streams that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// A stream goes nowhere that the shim knows.
    #[error("cannot use the {stream} that containerd asks for")]
    Target {
        stream: &'static str,
        #[source]
        source: TargetError,
    },
    /// A FIFO or file could not be opened.
    #[error("cannot open {} for {stream}", path.display())]
    Open {
        stream: &'static str,
        /// The file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel gave no pipe or socket.
    #[error("cannot make a pipe for {stream}")]
    Pipe {
        stream: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the log driver of {stream} cannot be used")]
    LogDriver {
        stream: &'static str,
        #[source]
        source: LogDriverError,
    },
    /// No terminal came from the container.
    #[error("the container's terminal could not be taken over")]
    Terminal(#[source] io::Error),
}

/// The container's ends, for the helper.
#[derive(Debug)]
pub struct ChildEnds {
    /// The kind of `descriptors`.
    pub kind: StdioKind,
    /// The descriptors, in the order that the helper wants.
    pub descriptors: Vec<OwnedFd>,
}

/// The shim's ends of one process's streams, and the tasks that copy. Dropping it ends them at
/// once.
#[derive(Debug)]
pub struct ProcessIo {
    outputs: JoinSet<()>,
    input: JoinSet<()>,
    /// Keeps the stdin FIFO from reporting EOF.
    stdin_hold: Option<fifo::HeldEnd>,
    log_driver: Option<LogDriver>,
    terminal: Option<Terminal>,
    /// The terminal's socket, and the streams that wait for it.
    console: Option<Console>,
}

#[derive(Debug)]
struct Console {
    socket: OwnedFd,
    input: Option<pipe::Receiver>,
    output: Option<copy::OutputSink>,
}

impl ProcessIo {
    /// Opens everything and starts copying; a terminal still has to come, see
    /// [`ProcessIo::take_terminal`].
    pub async fn open(stdio: &StdioPaths, owner: &StreamContext<'_>) -> Result<(Self, ChildEnds), IoError> {
        let mut io = Self {
            outputs: JoinSet::new(),
            input: JoinSet::new(),
            stdin_hold: None,
            log_driver: None,
            terminal: None,
            console: None,
        };
        let descriptors =
            if stdio.terminal { io.open_terminal(stdio, owner).await? } else { io.open_streams(stdio, owner).await? };
        let kind = if stdio.terminal { StdioKind::Terminal } else { StdioKind::Streams };
        Ok((io, ChildEnds { kind, descriptors }))
    }

    async fn open_streams(&mut self, stdio: &StdioPaths, owner: &StreamContext<'_>) -> Result<Vec<OwnedFd>, IoError> {
        let stdin = self.open_stdin(&stdio.stdin)?;
        let stdout =
            StreamTarget::parse(&stdio.stdout).map_err(|source| IoError::Target { stream: "stdout", source })?;
        if let StreamTarget::Binary(binary) = stdout {
            let (driver, ends) = LogDriver::spawn(&binary, owner)
                .await
                .map_err(|source| IoError::LogDriver { stream: "stdout", source })?;
            self.log_driver = Some(driver);
            return Ok(vec![stdin, ends.stdout, ends.stderr]);
        }
        let stdout = self.open_output("stdout", stdout).await?;
        let stderr =
            StreamTarget::parse(&stdio.stderr).map_err(|source| IoError::Target { stream: "stderr", source })?;
        let stderr = self.open_output("stderr", stderr).await?;
        Ok(vec![stdin, stdout, stderr])
    }

    fn open_stdin(&mut self, path: &str) -> Result<OwnedFd, IoError> {
        const STREAM: &str = "stdin";
        if path.is_empty() {
            return null(STREAM);
        }
        let (hold, fifo) = open_input(path)?;
        let (theirs, ours) = io::pipe().map_err(|source| IoError::Pipe { stream: STREAM, source })?;
        let ours =
            pipe::Sender::from_owned_fd(ours.into()).map_err(|source| IoError::Pipe { stream: STREAM, source })?;
        self.stdin_hold = Some(hold);
        self.input.spawn(copy(STREAM, fifo, ours));
        Ok(theirs.into())
    }

    async fn open_output(&mut self, stream: &'static str, target: StreamTarget) -> Result<OwnedFd, IoError> {
        let Some(sink) = open_sink(stream, target).await? else { return null(stream) };
        let (ours, theirs) = io::pipe().map_err(|source| IoError::Pipe { stream, source })?;
        let ours = pipe::Receiver::from_owned_fd(ours.into()).map_err(|source| IoError::Pipe { stream, source })?;
        self.outputs.spawn(sink.copy_from(stream, ours));
        Ok(theirs.into())
    }

    async fn open_terminal(&mut self, stdio: &StdioPaths, owner: &StreamContext<'_>) -> Result<Vec<OwnedFd>, IoError> {
        let input = if stdio.stdin.is_empty() {
            None
        } else {
            let (hold, fifo) = open_input(&stdio.stdin)?;
            self.stdin_hold = Some(hold);
            Some(fifo)
        };
        let stream = "terminal";
        let target = StreamTarget::parse(&stdio.stdout).map_err(|source| IoError::Target { stream, source })?;
        let output = match target {
            StreamTarget::Binary(binary) => {
                let (driver, LogDriverEnd { stdout, .. }) =
                    LogDriver::spawn(&binary, owner).await.map_err(|source| IoError::LogDriver { stream, source })?;
                self.log_driver = Some(driver);
                let sender = pipe::Sender::from_owned_fd(stdout).map_err(|source| IoError::Pipe { stream, source })?;
                Some(copy::OutputSink::Pipe(sender))
            }
            target => open_sink(stream, target).await?,
        };
        let (socket, theirs) = terminal::socket_pair().map_err(|source| IoError::Pipe { stream, source })?;
        self.console = Some(Console { socket, input, output });
        Ok(vec![theirs])
    }

    /// Takes over the terminal that the helper has made, and starts to copy. Without a terminal it
    /// does nothing.
    pub async fn take_terminal(&mut self, size: Option<ConsoleSize>) -> Result<(), IoError> {
        let Some(Console { socket, input, output }) = self.console.take() else { return Ok(()) };
        let terminal = timeout(TERMINAL_LIMIT, Terminal::receive(socket))
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))
            .map_err(IoError::Terminal)?;
        if let Some(ConsoleSize { height, width }) = size.filter(|size| *size != ConsoleSize::default()) {
            terminal.resize(width, height).map_err(IoError::Terminal)?;
        }
        match output {
            Some(sink) => drop(self.outputs.spawn(sink.copy_from("terminal", terminal.clone()))),
            // Somebody must read, or the container stops when the terminal's buffer is full.
            None => drop(self.outputs.spawn(copy("terminal", terminal.clone(), tokio::io::sink()))),
        }
        if let Some(fifo) = input {
            self.input.spawn(copy("stdin", fifo, terminal.clone()));
        }
        self.terminal = Some(terminal);
        Ok(())
    }

    /// Sets the terminal's size; without one it does nothing.
    pub fn resize(&self, width: u16, height: u16) -> io::Result<()> {
        self.terminal.as_ref().map_or(Ok(()), |terminal| terminal.resize(width, height))
    }

    /// Closes stdin once containerd has closed its end, and everything written before is delivered.
    pub fn close_stdin(&mut self) {
        self.stdin_hold = None;
    }

    /// Delivers what is left of the output of a process that has ended, for a while, and lets go of
    /// everything.
    pub async fn finish(mut self) {
        self.stdin_hold = None;
        let drained = timeout(DRAIN_LIMIT, async { while self.outputs.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!("output was not taken within {DRAIN_LIMIT:?}; the rest is lost");
        }
        self.outputs.shutdown().await;
        self.input.shutdown().await;
        self.terminal = None;
        if let Some(driver) = self.log_driver.take() {
            driver.finish().await;
        }
    }
}

fn open_input(path: &str) -> Result<(fifo::HeldEnd, pipe::Receiver), IoError> {
    let path = path.strip_prefix("fifo://").unwrap_or(path);
    fifo::open_input(path.as_ref()).map_err(|source| IoError::Open { stream: "stdin", path: path.into(), source })
}

async fn open_sink(stream: &'static str, target: StreamTarget) -> Result<Option<copy::OutputSink>, IoError> {
    let opened = match &target {
        StreamTarget::None => return Ok(None),
        StreamTarget::Path(path) => fifo::open_output(path).await,
        StreamTarget::File(path) => copy::open_file(path),
        StreamTarget::Binary(_) => Err(io::Error::from(io::ErrorKind::Unsupported)),
    };
    opened.map(Some).map_err(|source| IoError::Open { stream, path: target.into_path(), source })
}

/// `/dev/null`, for a stream that nobody wants.
fn null(stream: &'static str) -> Result<OwnedFd, IoError> {
    let path = PathBuf::from("/dev/null");
    match std::fs::OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => Ok(file.into()),
        Err(source) => Err(IoError::Open { stream, path, source }),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{File, OpenOptions},
        io::{Read, Write},
        path::Path,
    };

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn fifo(directory: &Path, name: &str) -> String {
        let path = directory.join(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        path.to_str().unwrap().to_owned()
    }

    async fn open(stdio: &StdioPaths) -> (ProcessIo, Vec<OwnedFd>) {
        let reaper = Arc::new(Reaper::default());
        let owner = StreamContext { id: "c1", namespace: "ns", reaper: &reaper };
        let (io, ends) = ProcessIo::open(stdio, &owner).await.unwrap();
        assert_eq!(ends.kind, StdioKind::Streams);
        (io, ends.descriptors)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn stdin_ends_with_close_io_and_not_with_a_writer() {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(directory.path(), "in");
        let (mut io, mut ends) = open(&StdioPaths { stdin: path.clone(), ..StdioPaths::default() }).await;
        let mut container = pipe::Receiver::from_owned_fd(ends.remove(0)).unwrap();
        for text in [b"one", b"two"] {
            // containerd comes, writes, and goes away.
            OpenOptions::new().write(true).open(&path).unwrap().write_all(text).unwrap();
            let mut read = [0; 3];
            container.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, text);
        }
        OpenOptions::new().write(true).open(&path).unwrap().write_all(b"end").unwrap();
        io.close_stdin();
        let mut rest = Vec::new();
        container.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"end", "what was written before is delivered");
    }

    /// The clock does not tick: nobody reads at first.
    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn output_survives_its_reader() {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(directory.path(), "out");
        let (io, ends) = open(&StdioPaths { stdout: path.clone(), ..StdioPaths::default() }).await;
        let mut ends = ends.into_iter().skip(1);
        let mut container = pipe::Sender::from_owned_fd(ends.next().unwrap()).unwrap();
        for text in [b"one", b"two"] {
            container.write_all(text).await.unwrap();
            let mut containerd = pipe::OpenOptions::new().open_receiver(&path).unwrap();
            let mut read = [0; 3];
            containerd.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, text);
        }
        let mut containerd = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        container.write_all(b"end").await.unwrap();
        drop(container);
        let mut rest = Vec::new();
        let (_, ended) = tokio::join!(io.finish(), containerd.read_to_end(&mut rest));
        ended.unwrap();
        assert_eq!(rest, b"end", "the FIFO is let go of when all is delivered");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn files_are_made_and_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("logs/c.log");
        let uri = format!("file://{}", log.display());
        for _ in 0..2 {
            let (io, ends) =
                open(&StdioPaths { stdout: uri.clone(), stderr: uri.clone(), ..StdioPaths::default() }).await;
            for end in ends.into_iter().skip(1) {
                File::from(end).write_all(b"line\n").unwrap();
            }
            io.finish().await;
        }
        let mut text = String::new();
        File::open(log).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "line\n".repeat(4));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_cannot_be_opened_is_named() {
        let reaper = Arc::new(Reaper::default());
        let owner = StreamContext { id: "c1", namespace: "ns", reaper: &reaper };
        let missing = StdioPaths { stdout: "/no/such/fifo".into(), ..StdioPaths::default() };
        let error = ProcessIo::open(&missing, &owner).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot open /no/such/fifo for stdout");
        let unknown = StdioPaths { stderr: "ftp:///x".into(), ..StdioPaths::default() };
        assert!(matches!(ProcessIo::open(&unknown, &owner).await, Err(IoError::Target { stream: "stderr", .. })));
    }
}
