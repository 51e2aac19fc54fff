//! `egpu top`: each container's use of card time and memory, refreshed at an interval.
//!
//! Data flows one way: [`gather`] looks at the node's files, [`state`] keeps what was seen and what
//! the keys ([`input`]) have chosen, [`view`] paints it. Where nobody looks at a screen, [`plain`]
//! prints a table or JSON of the same [`frame`].

mod changes;
mod frame;
mod gather;
mod history;
mod input;
mod plain;
mod rows;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod view;

use std::{
    env,
    io::{self, IsTerminal},
    time::Duration,
};

pub(super) use frame::Frame;
use view::Theme;

use super::{
    error::CliError,
    exit::Exit,
    output::{Format, Output},
    value_parsers,
};

/// Arguments of `egpu top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "On a terminal this is a screen, which `?` explains and `q` leaves; otherwise, and with `-n`, tables. \
                  NO_COLOR=1 turns colours off."
)]
pub(super) struct TopArguments {
    /// Time between two frames, 100ms or more
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = value_parsers::interval)]
    interval: Duration,
    /// Print as many tables instead of a screen [default where there is no terminal: one]
    #[arg(long, short = 'n', value_name = "N", value_parser = value_parsers::repetitions)]
    count: Option<u64>,
    /// Draw the screen with ASCII alone [default: where the locale is not UTF-8]
    #[arg(long)]
    ascii: bool,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &TopArguments) -> Result<Exit, CliError> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let is_screen = is_terminal && variable("TERM").is_some_and(|name| name != "dumb");
    if !is_screen || arguments.count.is_some() || arguments.output.output == Format::Json {
        return plain::run(arguments);
    }
    screen::run(arguments.interval, &Theme::new(arguments.ascii, variable))
}
