//! `egpu metrics`: the node's metrics in Prometheus' text format: once, into a file, or over HTTP.
//!
//! It only reads: nothing depends on its being run.

mod exposition;
mod families;
mod page;
mod server;
mod textfile;

use std::{net::SocketAddr, path::PathBuf};

use families::Snapshot;
use ledger::event_log;
use page::Token;
use server::Site;

use super::{error::CliError, exit::Exit, node::Node, output, usage, value_parsers};

/// Arguments of `egpu metrics`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prometheus' text format, version 0.0.4. What is not known is left out. For node_exporter's textfile collector, run it from a timer with \
--textfile; to be scraped itself, run it as a service with --listen, on an address that only Prometheus reaches: the metrics name \
containers and pods, and there is no authentication. The page of --page has its token, but no encryption: let others reach it through ssh \
or a proxy with TLS.")]
pub(super) struct MetricsArguments {
    /// Write to this file instead of stdout, all at once (mode 0644)
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    textfile: Option<PathBuf>,
    /// Serve GET /metrics over HTTP until interrupted, such as 127.0.0.1:9402
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = value_parsers::address)]
    listen: Option<SocketAddr>,
    /// Serve a page for browsers at /, too: what `egpu top` shows, read only. Without a token, only
    /// at a loopback address
    #[arg(long, requires = "listen")]
    page: bool,
    /// File with the token of the page: bearer token of programs, password (with any name) in
    /// browsers. Nobody but its owner and group may read it
    #[arg(long, value_name = "FILE", requires = "page")]
    page_token: Option<PathBuf>,
}

pub(super) fn run(arguments: &MetricsArguments) -> Result<Exit, CliError> {
    match (&arguments.textfile, arguments.listen) {
        (Some(path), _) => textfile::write(path, &snapshot()?)
            .map_err(|source| CliError::Textfile { path: path.clone(), source })
            .map(|()| Exit::Success),
        (None, Some(address)) => server::serve(address, site(arguments, address)?).map(|()| Exit::Success),
        (None, None) => output::print(&snapshot()?).map(|()| Exit::Success),
    }
}

/// Returns what is to be served, unless that would be a page for everybody.
fn site(arguments: &MetricsArguments, address: SocketAddr) -> Result<Site, CliError> {
    let read = |path: &PathBuf| {
        Token::read(path).map_err(|source| CliError::Token { path: path.clone(), source: source.into() })
    };
    match (arguments.page, &arguments.page_token) {
        (false, _) => Ok(Site::new()),
        (true, Some(path)) => Ok(Site::new().with_page(Some(read(path)?))),
        (true, None) if address.ip().is_loopback() => Ok(Site::new().with_page(None)),
        (true, None) => Err(CliError::OpenPage { address }),
    }
}

/// Returns one exposition.
fn snapshot() -> Result<String, CliError> {
    let node = Node::read()?;
    let (usage, warnings) = usage::measure(&node);
    for warning in warnings {
        crate::output::say(&format!("egpu: {warning}"));
    }
    let events = match event_log::totals(&node.config.state_dir) {
        Ok(events) => Some(events),
        Err(error) => {
            crate::output::say(&format!("egpu: cannot count the events: {error}"));
            None
        }
    };
    Ok(families::exposition(&Snapshot { node: &node, usage: &usage, events: events.as_ref() }))
}

#[cfg(test)]
mod tests;
