//! Capture of libcontainer's log, so that an error can quote it.
//!
//! libcontainer's errors name the step and leave the facts (which path, which errno) to its log,
//! and what fails in the container's init reaches the worker as that one line. So the worker and
//! all that it forks log errors into one memory file, which is also the standard error of hooks; a
//! failure quotes its end.

use std::{
    fmt::{self, Debug},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::fd::AsFd,
    sync::Mutex,
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use tracing::{Level, field::Field};
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Size of the end that is quoted, in bytes.
const QUOTED: u64 = 2048;

/// The captured log of this worker.
#[derive(Debug)]
pub(crate) struct LogCapture {
    file: File,
}

impl LogCapture {
    /// Starts to capture in this process and its children: errors that are logged, standard error,
    /// and panics (which end the process at once: a forked child must not unwind into code that
    /// belongs to its parent).
    pub(crate) fn capture() -> io::Result<Self> {
        let file = File::from(memfd_create(c"egpu-details", MFdFlags::MFD_CLOEXEC)?);
        nix::unistd::dup2_stderr(file.as_fd())?;
        // The first to call wins; a worker is forked before anybody else could.
        let _ = tracing_subscriber::fmt()
            .with_writer(Mutex::new(file.try_clone()?))
            .with_max_level(Level::ERROR)
            .with_ansi(false)
            .with_level(false)
            .with_target(false)
            .without_time()
            .fmt_fields(debug_fn(write_field))
            // init closes the file before it executes its program, whose standard error is its own.
            .log_internal_errors(false)
            .try_init();
        std::panic::set_hook(Box::new(|panic| {
            tracing::error!(%panic, "the helper panicked");
            sys::exit_now(134);
        }));
        Ok(Self { file })
    }

    /// The end of what was captured, in one line; empty when there is nothing.
    pub(crate) fn quote(&self) -> String {
        self.read().unwrap_or_default()
    }

    fn read(&self) -> io::Result<String> {
        let mut file = &self.file;
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(end.saturating_sub(QUOTED)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let mut lines: Vec<&str> = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        Ok(lines.join("; "))
    }
}

/// Writes a field that says something to people. An error is in the words of the failure already,
/// and a structure is libcontainer's own.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    const ERRORS: [&str; 3] = ["e", "err", "error"];
    let text = format!("{value:?}");
    match field.name() {
        "message" if text.contains(['{', '[']) => Ok(()),
        "message" => writer.write_str(&text),
        name if ERRORS.contains(&name) || text.contains(['{', '(']) => Ok(()),
        name => write!(writer, " {name}={text}"),
    }
}
