//! `egpu trace`: a log of a program's driver calls.
//!
//! tracer (ptrace stops) -> recorder (which open file, which bytes) -> sink (text, or JSON lines).

mod capture;
mod files;
mod recorder;
mod sink;
mod text;
mod tracer;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use abi::{Abi, DriverRelease};
use recorder::Recorder;
use sink::Sink;

use crate::Header;

/// Reason for which a program cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Its file cannot be created.
    #[error("cannot create {path}", path = .path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("cannot run {program}", program = .program.display())]
    Run {
        program: PathBuf,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// It cannot be followed.
    #[error("cannot follow the program (is ptrace allowed here, and is the kernel 5.3 or later?)")]
    Follow(#[source] io::Error),
    /// The trace cannot be written.
    #[error("cannot write the trace")]
    Write(#[source] io::Error),
}

/// Runs a program to its end, and writes its trace to `output` (standard error where there is
/// none), as JSON lines or as text for people. Returns its exit code; 128 and the signal that ended
/// it.
///
/// # Errors
/// When the program cannot be run or followed, or the trace cannot be written.
pub fn record(command: &[OsString], output: Option<&Path>, json: bool) -> Result<u8, RecordError> {
    let output: Box<dyn Write> = match output {
        Some(path) => {
            let file = File::create(path).map_err(|source| RecordError::Create { path: path.to_owned(), source })?;
            Box::new(BufWriter::new(file))
        }
        None => Box::new(io::stderr()),
    };
    let driver = std::fs::read_to_string("/sys/module/nvidia/version").ok().map(|version| version.trim().to_owned());
    let release = driver.as_deref().and_then(|version| version.parse::<DriverRelease>().ok());
    let abi = Abi::nearest(release.unwrap_or(DriverRelease::new(*Abi::KNOWN.end(), 0, 0)));
    let header = Header {
        egpu_trace: Header::FORMAT,
        driver,
        machine: std::env::consts::ARCH.to_owned(),
        command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    };
    let sink = if json { Sink::json(output) } else { Sink::text(output) };
    let mut recorder = Recorder::new(abi, sink, &header).map_err(RecordError::Write)?;
    let code = tracer::run(command, &mut recorder)?;
    recorder.finish().map_err(RecordError::Write)?;
    Ok(code)
}

#[cfg(test)]
mod tests;
