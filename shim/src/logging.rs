//! The shim's log: the FIFO `log` in the bundle, which containerd reads into its own log.

use std::{
    error::Error,
    fmt::{Debug, Write as _},
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
};

use base::error_chain;
use runtime_config::request::is_control_or_format;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

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
    // Fails only when one is installed already.
    let _ = tracing::subscriber::set_global_default(Lines { level, writer });
}

/// Writes each event in one line, without characters that would make it another.
/// tracing-subscriber's would do nearly the same, and keeps a table of spans of 32 KiB in each
/// shim, which has none.
struct Lines<F> {
    level: LevelFilter,
    writer: F,
}

impl<W: Write, F: Fn() -> W + 'static> Subscriber for Lines<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let (now, metadata) = (jiff::Timestamp::now(), event.metadata());
        let mut line = Line(format!("{now:.6} {:>5} {}:", metadata.level(), metadata.target()));
        event.record(&mut line);
        let escaped = |character: char| match is_control_or_format(character) {
            true => character.escape_default().to_string(),
            false => character.to_string(),
        };
        let mut line: String = line.0.chars().map(escaped).collect();
        line.push('\n');
        // A log that cannot be written has no place where that could be said.
        let _ = (self.writer)().write_all(line.as_bytes());
    }

    // No span is enabled.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// A line, to which an event's fields are added: its message, then `name=value`.
struct Line(String);

impl Visit for Line {
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let _ = write!(self.0, " {}={}", field.name(), error_chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
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
    fn an_event_is_a_line_with_its_message_and_fields_and_below_the_level_none() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines { level: LevelFilter::INFO, writer: move || writer.try_clone().unwrap() };
        tracing::subscriber::with_default(lines, || {
            let _span = tracing::info_span!("span", of = "a library").entered();
            tracing::debug!("too much");
            let error = io::Error::other(std::fmt::Error);
            let error = &runtime::MountError::Table(error) as &dyn Error;
            tracing::warn!(error, of = %"none", name = "a b", "took\n\u{1b}{}", 3);
        });
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let (time, rest) = text.split_once(' ').unwrap();
        assert_eq!(time.len(), "2026-11-24T10:00:00.000000Z".len(), "{time}");
        assert_eq!(
            rest,
            " WARN egpu_shim::logging::tests: took\\n\\u{1b}3 error=cannot read /proc/self/mountinfo: an error occurred when formatting an argument of=none name=\"a b\"\n"
        );
    }

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
