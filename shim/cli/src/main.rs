//! The `egpu` command.

use std::process::ExitCode;

use clap::Parser;
use egpu_cli::{Cli, run};

fn main() -> ExitCode {
    run(Cli::parse()).into()
}
