//! kubectl's plugin `egpu`: the cards of a cluster, and why a pod waits for them.
//!
//! It reads Kubernetes' objects alone, those that the scheduler decides by; it asks no node.
#![forbid(unsafe_code)]

mod allocation;
mod cards;
mod cluster;
mod drain;
mod exit;
#[cfg(test)]
mod fixtures;
mod inventory;
mod node_match;
mod output;
mod placement;
mod quantity;
mod request;
mod selector;
mod top;
mod why;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use cluster::{Cluster, Connection};
use drain::Target;
use exit::CommandError;
use inventory::Inventory;
use output::{Format, print, say};

/// Cards that egpu shares in this cluster.
#[derive(Debug, Parser)]
#[command(name = "kubectl-egpu", bin_name = "kubectl egpu", version, after_help = exit::HELP, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    /// Output format
    #[arg(long, short, value_enum, default_value_t, global = true)]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the cards: what claims hold, what is free, which pods use them
    Cards {
        /// Only this node's
        node: Option<String>,
    },
    /// Explain what a pod asks for, and what each card lacks for it
    Why {
        /// Name of the pod
        pod: String,
    },
    /// List the shares of each card, the largest first
    Top {
        /// Only this node's
        node: Option<String>,
    },
    /// Keep new pods from a card, or from all cards of a node
    Drain {
        /// NODE or NODE/CARD
        target: Target,
        /// Evict the pods that are there, too, as `kubectl drain` does
        #[arg(long)]
        evict: bool,
    },
    /// Open cards to pods again
    Undrain {
        /// NODE, which opens all of its cards, or NODE/CARD
        target: Target,
    },
}

/// Runs the command that the program was started with.
pub fn main() -> ExitCode {
    let done = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandError::Start);
    match done.and_then(|runtime| runtime.block_on(run(Cli::parse()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if error.code() != ExitCode::SUCCESS {
                say(&format!("kubectl egpu: {}", output::printable(&error.to_string())));
            }
            error.code()
        }
    }
}

async fn run(Cli { connection, output, command }: Cli) -> Result<(), CommandError> {
    let cluster = Cluster::connect(connection).await?;
    match command {
        Command::Cards { node } => {
            let inventory = cluster.inventory().await?;
            check_node(&inventory, node.as_deref())?;
            let listings = cards::list(&inventory, node.as_deref());
            print(output, &listings, || cards::text(&listings))
        }
        Command::Top { node } => {
            let inventory = cluster.inventory().await?;
            check_node(&inventory, node.as_deref())?;
            let listings = top::list(&inventory, node.as_deref());
            say(top::REMARK);
            print(output, &listings, || top::text(&listings))
        }
        Command::Why { pod } => {
            let report = why::report(&why::gather(&cluster, &pod).await?);
            print(output, &report, || why::text(&report))
        }
        Command::Drain { target, evict } => {
            let outcome = drain::drain(&cluster, &target, evict).await?;
            print(output, &outcome, || drain::text(&outcome))
        }
        Command::Undrain { target } => {
            let outcome = drain::undrain(&cluster, &target).await?;
            print(output, &outcome, || drain::text(&outcome))
        }
    }
}

/// Refuses a node without cards; says so where there are none at all, and about incomplete nodes.
fn check_node(inventory: &Inventory, node: Option<&str>) -> Result<(), CommandError> {
    let nodes = inventory.nodes();
    for node in &inventory.incomplete {
        say(&format!("kubectl egpu: node {node} has not published all of its cards yet"));
    }
    match node {
        Some(node) if !nodes.contains(node) => {
            Err(CommandError::NoNode { name: node.to_owned(), known: nodes.into_iter().map(str::to_owned).collect() })
        }
        None if nodes.is_empty() => {
            say(
                "kubectl egpu: no node publishes cards; is egpu-kubelet-plugin running? `kubectl get pods -n egpu -o wide`",
            );
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_may_stand_anywhere() {
        for line in
            ["cards -o json", "-o json cards n1", "why train-0 -n team", "drain n1/gpu-0 --evict", "undrain n1", "top"]
        {
            let arguments = std::iter::once("kubectl-egpu").chain(line.split(' '));
            assert!(Cli::try_parse_from(arguments).is_ok(), "{line}");
        }
        assert!(Cli::try_parse_from(["kubectl-egpu", "drain", "n1/"]).is_err());
    }
}
