//! `egpu trace`: a log of a program's driver calls.

use std::{ffi::OsString, path::PathBuf};

use trace::{RecordError, record};

use super::exit::Exit;

/// Program and output of `egpu trace`.
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

/// Runs the program to its end and exits with its code.
pub(super) fn run(arguments: &Arguments) -> Result<Exit, RecordError> {
    record(&arguments.command, arguments.output.as_deref(), arguments.json).map(Exit::Command)
}
