//! Output of events: lines for people, or JSON.

use std::{
    fmt,
    io::{self, Write},
};

use crate::{Header, Line};

/// Writes a trace.
pub(super) struct Sink {
    output: Box<dyn Write>,
    json: bool,
}

impl Sink {
    pub(super) fn text(output: Box<dyn Write>) -> Self {
        Self { output, json: false }
    }

    pub(super) fn json(output: Box<dyn Write>) -> Self {
        Self { output, json: true }
    }

    pub(super) fn header(&mut self, header: &Header) -> io::Result<()> {
        if self.json {
            return self.json_line(header);
        }
        let driver = header.driver.as_deref().unwrap_or("none");
        writeln!(self.output, "# driver {driver}, {}: {}", header.machine, header.command.join(" "))
    }

    /// `text` is what people read of it.
    pub(super) fn event(&mut self, line: &Line, text: &str) -> io::Result<()> {
        if self.json {
            return self.json_line(line);
        }
        let (seconds, micros) = (line.at_us / 1_000_000, line.at_us % 1_000_000);
        writeln!(self.output, "{seconds:4}.{micros:06} {}/{} {text}", line.pid, line.tid)
    }

    fn json_line(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.output, value)?;
        writeln!(self.output)
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sink").field("json", &self.json).finish_non_exhaustive()
    }
}
