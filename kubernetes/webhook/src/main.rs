//! The `egpu-webhook` command.

use std::process::ExitCode;

use clap::Parser as _;
use egpu_webhook::{Options, main_of};

fn main() -> ExitCode {
    main_of(Options::parse())
}
