//! The `egpu-scorer` command.

use std::process::ExitCode;

use clap::Parser as _;
use egpu_scorer::{Options, main_of};

fn main() -> ExitCode {
    main_of(&Options::parse())
}
