//! Traces of a program's driver calls: what `egpu trace --json` writes, and what tests replay.
//!
//! A trace is JSON lines: one [`Header`], then one [`Line`] for each event in the order in which
//! the program's calls returned. `docs/driver-traces.md` describes it for people.

mod bytes;
mod read;
mod record;
mod sys;

pub use bytes::TracedBytes;
pub use read::{TraceError, read};
pub use record::{RecordError, record};

use serde::{Deserialize, Serialize};

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`Header::FORMAT`]. A reader refuses others.
    pub egpu_trace: u32,
    /// The driver's version, `580.159.04`; `None` where there was none.
    pub driver: Option<String>,
    /// The program's machine, `x86_64` or `aarch64`.
    pub machine: String,
    /// The command that was run.
    pub command: Vec<String>,
}

impl Header {
    /// The format that this crate writes and reads.
    pub const FORMAT: u32 = 1;
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Microseconds since the program was started, at the event's beginning.
    pub at_us: u64,
    /// The process.
    pub pid: i32,
    /// Its thread.
    pub tid: i32,
    #[serde(flatten)]
    pub event: Event,
}

/// One event. Open files are numbered from 1 in the order in which they are seen: two numbers are
/// two open file descriptions, whatever their descriptors are called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A node of the driver's was opened, or an open one was received from elsewhere.
    Open {
        /// The open file's number in this trace.
        file: u32,
        /// `nvidiactl`, `nvidia0`, `nvidia-uvm`: the node's file name.
        node: String,
    },
    /// The last descriptor of an open file is gone.
    Close {
        /// The open file's number.
        file: u32,
    },
    /// A call on one of them.
    Ioctl(Ioctl),
    /// A mapping of one of them.
    Mmap {
        /// The open file's number.
        file: u32,
        /// The address asked for.
        address: u64,
        /// Bytes.
        length: u64,
        /// `PROT_*`.
        protection: u32,
        /// `MAP_*`.
        flags: u32,
        /// Offset in bytes.
        offset: u64,
        /// Its address, or a negative errno.
        result: i64,
    },
    /// A mapping of `/dev/nvidia-uvm`, or a part of one, ends.
    Munmap {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// A process is made. It has its maker's open files.
    Fork {
        /// The new process.
        child: i32,
    },
    /// A process executes another program.
    Exec,
    /// A process ends.
    Exit,
}

/// A call of the driver's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ioctl {
    /// The open file that it is made on.
    pub file: u32,
    /// The whole command, `_IOWR('F', 0x2b, 48)`, or UVM's bare number.
    pub command: u32,
    /// Its name in the tables; `None`: they do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The control's or the class's name or number, where the call has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The bytes that its argument points to.
    pub args: Traced,
    /// Buffers that pointers in there, and in one another, point to; one comes after the one that
    /// it hangs from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<TracedBuffer>,
    /// Open files that the call names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<TracedFile>,
    /// Result of the system call, or a negative errno.
    pub result: i64,
    /// The driver's status, where the tables know its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u32>,
    /// Microseconds between its beginning and its return, tracing included.
    pub took_us: u64,
}

/// Bytes before and after a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traced {
    /// As the program made them.
    pub before: TracedBytes,
    /// As the driver left them; `None`: as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<TracedBytes>,
}

/// A buffer that a pointer points to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedBuffer {
    /// Place of the pointer: `None` in the argument struct, else in the buffer of this index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<usize>,
    /// Offset of the 8-byte pointer in there.
    pub offset: usize,
    #[serde(flatten)]
    pub bytes: Traced,
}

/// A descriptor that a call names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedFile {
    /// Place of its number: `None` in the argument struct, else in the buffer of this index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<usize>,
    /// Offset of the 4-byte number in there.
    pub offset: usize,
    /// The open file; `None`: the number names none of the driver's.
    pub file: Option<u32>,
}

impl Traced {
    /// Bytes that `after` is left out of when it is the same.
    pub fn new(before: Vec<u8>, after: Option<Vec<u8>>) -> Self {
        let after = after.filter(|after| *after != before).map(TracedBytes);
        Self { before: TracedBytes(before), after }
    }

    /// Bytes as the driver left them.
    pub fn after(&self) -> &[u8] {
        &self.after.as_ref().unwrap_or(&self.before).0
    }
}
