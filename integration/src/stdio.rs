//! The client's ends of a task's FIFOs.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::Mode,
    unistd::mkfifo,
};

use crate::wait::{DEADLINE, eventually};

/// Streams of a task.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streams {
    /// Standard input.
    pub stdin: bool,
    /// A terminal: one stream out, none for errors.
    pub terminal: bool,
    /// None at all.
    pub absent: bool,
}

/// FIFOs of one process, their client ends open.
#[derive(Debug)]
pub struct Stdio {
    directory: PathBuf,
    streams: Streams,
    stdin: Option<File>,
    stdout: Collector,
    stderr: Option<Collector>,
}

impl Stdio {
    /// Creates the FIFOs in `directory`, which must not exist.
    pub fn create(directory: &Path, streams: Streams) -> Self {
        std::fs::create_dir_all(directory).expect("create the directory of the FIFOs");
        let stdin = streams.stdin.then(|| {
            let path = make_fifo(directory, "stdin");
            // Read and write: an open for writing alone would wait for the shim.
            OpenOptions::new().read(true).write(true).open(path).expect("open stdin")
        });
        let stdout = Collector::start(&make_fifo(directory, "stdout"));
        let stderr = (!streams.terminal).then(|| Collector::start(&make_fifo(directory, "stderr")));
        Self { directory: directory.to_owned(), streams, stdin, stdout, stderr }
    }

    /// Path of a stream as the requests want it: empty for one that does not exist.
    pub fn path(&self, stream: &str) -> String {
        let present = match stream {
            "stdin" => self.streams.stdin,
            "stderr" => !self.streams.terminal,
            _ => true,
        };
        if present && !self.streams.absent { self.directory.join(stream).display().to_string() } else { String::new() }
    }

    /// Writes to standard input.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().expect("the task has stdin").write_all(bytes).expect("write to stdin");
    }

    /// Closes this side of standard input; the shim still holds its own until CloseIO.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Standard output so far.
    pub fn stdout_so_far(&self) -> String {
        self.stdout.text()
    }

    /// Waits until `text` has come.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let what = format!("{text:?} in the output");
        eventually(&what, || self.stdout.text().contains(text).then_some(()));
    }

    /// Everything, after the shim has closed its end.
    #[track_caller]
    pub fn finish(&mut self) -> Output {
        let stderr = self.stderr.as_mut().map_or_else(Vec::new, |stderr| stderr.finish("stderr"));
        Output { stdout: self.stdout.finish("stdout"), stderr }
    }
}

/// Output of a process.
#[derive(Debug)]
pub struct Output {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    /// Standard output.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

fn make_fifo(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    mkfifo(&path, Mode::from_bits_truncate(0o700)).expect("make a FIFO");
    path
}

#[derive(Debug)]
struct Collector {
    bytes: Arc<Mutex<Vec<u8>>>,
    give_up: Arc<Mutex<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    fn start(path: &Path) -> Self {
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).expect("open a FIFO for reading");
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let give_up = Arc::new(Mutex::new(false));
        let thread = std::thread::spawn({
            let (bytes, give_up) = (Arc::clone(&bytes), Arc::clone(&give_up));
            move || collect(file, &bytes, &give_up)
        });
        Self { bytes, give_up, thread: Some(thread) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn finish(&mut self, name: &str) -> Vec<u8> {
        if let Some(thread) = self.thread.take() {
            let deadline = std::time::Instant::now() + DEADLINE;
            while !thread.is_finished() {
                assert!(std::time::Instant::now() < deadline, "the shim never closed {name}");
                std::thread::sleep(Duration::from_millis(5));
            }
            thread.join().expect("collector");
        }
        self.bytes.lock().unwrap().clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        *self.give_up.lock().unwrap() = true;
    }
}

/// Reads until a writer has come and the last one has gone.
fn collect(mut file: File, bytes: &Mutex<Vec<u8>>, give_up: &Mutex<bool>) {
    let mut buffer = vec![0; 1 << 16];
    while !*give_up.lock().unwrap() {
        let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::from(50_u8));
        let ready = polled[0].revents().unwrap_or(PollFlags::empty());
        if ready.contains(PollFlags::POLLIN) {
            let count = file.read(&mut buffer).unwrap_or(0);
            bytes.lock().unwrap().extend_from_slice(&buffer[..count]);
        } else if ready.contains(PollFlags::POLLHUP) {
            return;
        }
    }
}
