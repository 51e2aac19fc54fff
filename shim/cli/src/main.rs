//! The `egpu` command.

use std::process::ExitCode;

use clap::Parser;
use egpu_shim::cli::{Cli, run};

fn main() -> ExitCode {
    run(Cli::parse()).into()
}
