//! The `egpu-kubelet-plugin` command.

use std::process::ExitCode;

use clap::Parser as _;
use egpu_kubelet_plugin::{Options, main_of};

fn main() -> ExitCode {
    main_of(Options::parse())
}
