//! Reading a trace.

use std::io::{self, BufRead};

use super::{Header, Line};

/// Reason for which a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("line {number} of the trace cannot be read")]
    Read {
        /// Counted from 1.
        number: usize,
        #[source]
        source: io::Error,
    },
    /// There is no line at all.
    #[error("the trace is empty")]
    Empty,
    /// It is of another format.
    #[error("the trace has format {found}, and {expected} is known; record it again with this egpu")]
    Format {
        /// Its own.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// A line is not what a trace consists of.
    #[error("line {number} is none of a trace")]
    Line {
        /// Counted from 1.
        number: usize,
        #[source]
        source: serde_json::Error,
    },
}

/// The header, and the events as they are asked for.
///
/// # Errors
/// When there is no header, or it is of another format.
pub fn read(trace: impl BufRead) -> Result<(Header, impl Iterator<Item = Result<Line, TraceError>>), TraceError> {
    let mut lines = trace.lines().enumerate().map(|(at, line)| (at + 1, line));
    let (number, first) = lines.next().ok_or(TraceError::Empty)?;
    let header: Header = parse(number, first)?;
    if header.egpu_trace != Header::FORMAT {
        return Err(TraceError::Format { found: header.egpu_trace, expected: Header::FORMAT });
    }
    Ok((header, lines.map(|(number, line)| parse(number, line))))
}

fn parse<T: serde::de::DeserializeOwned>(number: usize, line: io::Result<String>) -> Result<T, TraceError> {
    let line = line.map_err(|source| TraceError::Read { number, source })?;
    serde_json::from_str(&line).map_err(|source| TraceError::Line { number, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Ioctl, Traced, TracedBuffer, TracedFile};

    const HEADER: &str = r#"{"egpu_trace":1,"driver":"580.159.04","machine":"x86_64","command":["nvidia-smi"]}"#;

    fn call() -> Line {
        Line {
            at_us: 7,
            pid: 10,
            tid: 11,
            event: Event::Ioctl(Ioctl {
                file: 1,
                command: abi::escapes::command(abi::escapes::NV_ESC_RM_ALLOC, 48),
                name: Some("NV_ESC_RM_ALLOC".into()),
                subject: Some("NV01_DEVICE_0".into()),
                args: Traced::new(vec![1, 2], Some(vec![1, 3])),
                buffers: vec![TracedBuffer {
                    holder: None,
                    offset: 16,
                    bytes: Traced::new(vec![0; 4], Some(vec![0; 4])),
                }],
                files: vec![TracedFile { holder: Some(0), offset: 0, file: None }],
                result: 0,
                status: Some(0x51),
                took_us: 3,
            }),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let events = [
            call(),
            Line { at_us: 8, pid: 10, tid: 10, event: Event::Open { file: 2, node: "nvidia-uvm".into() } },
            Line { at_us: 9, pid: 10, tid: 10, event: Event::Exit },
        ];
        let mut text = format!("{HEADER}\n");
        for event in &events {
            text += &serde_json::to_string(event).unwrap();
            text.push('\n');
        }
        let (header, read) = read(text.as_bytes()).unwrap();
        assert_eq!(header.driver.as_deref(), Some("580.159.04"));
        assert_eq!(read.map(Result::unwrap).collect::<Vec<_>>(), events);
    }

    #[test]
    fn unchanged_bytes_are_written_once() {
        let Event::Ioctl(call) = call().event else { unreachable!() };
        assert_eq!(call.args.after(), [1, 3]);
        assert_eq!(call.buffers[0].bytes.after, None);
        assert_eq!(call.buffers[0].bytes.after(), [0; 4]);
    }

    #[test]
    fn broken_traces_are_refused_with_their_line() {
        assert!(matches!(read("".as_bytes()).err(), Some(TraceError::Empty)));
        let newer = HEADER.replace(":1,", ":2,");
        assert!(matches!(read(newer.as_bytes()).err(), Some(TraceError::Format { found: 2, expected: 1 })));
        let (_, mut lines) = read(HEADER.as_bytes()).unwrap();
        assert!(lines.next().is_none());
        let broken = format!("{HEADER}\n{{}}\n");
        let (_, mut lines) = read(broken.as_bytes()).unwrap();
        assert!(matches!(lines.next(), Some(Err(TraceError::Line { number: 2, .. }))));
    }
}
