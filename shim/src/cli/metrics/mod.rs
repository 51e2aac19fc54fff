//! `egpu metrics`: the node's metrics in Prometheus' text format: once, into a file, or over HTTP.
//!
//! It only reads: nothing depends on its being run.

mod exposition;
mod families;
mod server;
mod textfile;

use std::{net::SocketAddr, path::PathBuf};

use nvidia_glue::event_log;

use super::{Exit, error::CliError, node::Node, output, usage, value_parsers};
use families::Snapshot;

/// Arguments of `egpu metrics`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prometheus' text format, version 0.0.4. What is not known is left out. For node_exporter's textfile collector, run it from a timer with \
--textfile; to be scraped itself, run it as a service with --listen, on an address that only Prometheus reaches: the metrics name \
containers and pods, and there is no authentication.")]
pub(super) struct MetricsArguments {
    /// Write to this file instead of stdout, all at once (mode 0644)
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    textfile: Option<PathBuf>,
    /// Serve GET /metrics over HTTP until interrupted, such as 127.0.0.1:9402
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = value_parsers::address)]
    listen: Option<SocketAddr>,
}

pub(super) fn run(arguments: &MetricsArguments) -> Result<Exit, CliError> {
    match (&arguments.textfile, arguments.listen) {
        (Some(path), _) => textfile::write(path, &snapshot()?)
            .map_err(|source| CliError::Textfile { path: path.clone(), source })
            .map(|()| Exit::Success),
        (None, Some(address)) => server::serve(address).map(|()| Exit::Success),
        (None, None) => output::print(&snapshot()?).map(|()| Exit::Success),
    }
}

/// Returns one exposition.
fn snapshot() -> Result<String, CliError> {
    let node = Node::read()?;
    let (usage, warnings) = usage::measure(&node);
    for warning in warnings {
        super::say(&format!("egpu: {warning}"));
    }
    let events = match event_log::totals(&node.config.state_dir) {
        Ok(events) => Some(events),
        Err(error) => {
            super::say(&format!("egpu: cannot count the events: {error}"));
            None
        }
    };
    Ok(families::exposition(&Snapshot { node: &node, usage: &usage, events: events.as_ref() }))
}

#[cfg(test)]
mod tests;
