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
    path::PathBuf,
};

use nvidia_glue::{
    rm::{Abi, DriverRelease},
    trace::Header,
};

use super::exit::Exit;
use recorder::Recorder;
use sink::Sink;

/// What to trace, and where to.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Write to this file [default: stderr]
    #[arg(short, long = "to", value_name = "FILE")]
    output: Option<PathBuf>,
    /// One JSON object a line, with all bytes: see docs/driver-traces.md
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Why a program cannot be traced.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceError {
    #[error("cannot create {path}", path = .path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot run {program}", program = .program.display())]
    Run {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot follow the program (is ptrace allowed here, and is the kernel 5.3 or later?)")]
    Follow(#[source] io::Error),
    #[error("cannot write the trace")]
    Write(#[source] io::Error),
}

/// Runs the program to its end; what it exits with is ours.
pub(super) fn run(arguments: &Arguments) -> Result<Exit, TraceError> {
    let output: Box<dyn Write> = match &arguments.output {
        Some(path) => {
            let file = File::create(path).map_err(|source| TraceError::Create { path: path.clone(), source })?;
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
        command: arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    };
    let sink = if arguments.json { Sink::json(output) } else { Sink::text(output) };
    let mut recorder = Recorder::new(abi, sink, &header).map_err(TraceError::Write)?;
    let code = tracer::run(&arguments.command, &mut recorder)?;
    recorder.finish().map_err(TraceError::Write)?;
    Ok(Exit::Command(code))
}

#[cfg(test)]
mod tests;
