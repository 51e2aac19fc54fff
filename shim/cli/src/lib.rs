//! The `egpu` command, for the operator of a node.
//!
//! Data goes to stdout, everything else to stderr. Every listing is there as JSON, too. [`Exit`]
//! has the exit codes.
#![forbid(unsafe_code)]

mod cards;
mod completions;
mod config;
mod container_name;
mod containerd;
mod doctor;
mod error;
mod events;
mod exit;
mod explain;
mod in_force;
mod inspect;
mod install;
mod listing;
mod metrics;
mod node;
mod output;
#[cfg(feature = "parking")]
mod park;
mod policy;
mod ps;
mod schedules;
mod screen;
mod set;
mod table;
mod template;
#[cfg(test)]
mod test_support;
mod top;
mod trace;
mod usage;
mod value_parsers;
mod without_gpu;

use std::path::PathBuf;

use base::error_chain;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
pub use completions::completions;
use error::CliError;
pub use exit::Exit;
use listing::ListingOptions;
use node::Node;
pub use output::Format;
use output::say;

/// Shares of NVIDIA cards for containers, on this node.
#[derive(Debug, Parser)]
#[command(name = "egpu", version = egpu_shim::version::text(), after_help = exit::HELP, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the cards and what is granted of them
    Cards {
        #[command(flatten)]
        listing: ListingOptions,
    },
    /// List the containers that hold cards, and what they hold, and those that wait for room
    Ps {
        #[command(flatten)]
        listing: ListingOptions,
    },
    /// Show each container's use of card time and memory, refreshed at an interval
    Top(top::TopArguments),
    /// Show everything that is recorded about one container's grant
    Inspect(inspect::InspectArguments),
    /// Change a container's limits while it runs
    Set(set::SetArguments),
    /// Show or change how cards are shared
    Policy(policy::PolicyArguments),
    /// Show the events of this node: admissions, refusals, denials, kills, changes
    Events(events::EventsArguments),
    /// Print the node's metrics for Prometheus, write them to a file, or serve them
    Metrics(metrics::MetricsArguments),
    /// Show or check the configuration
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Check this node and suggest fixes
    Doctor {
        /// containerd's configuration file [default: that of the containerd at CONTAINERD_ADDRESS
        /// or at its usual socket]
        #[arg(long, value_name = "FILE")]
        containerd_config: Option<PathBuf>,
        #[command(flatten)]
        listing: ListingOptions,
    },
    /// Explain the code of a refusal, and what to do
    Explain(explain::ExplainArguments),
    /// Put egpu on this node: programs, containerd's and Docker's configuration
    Install(install::InstallArguments),
    /// Take egpu away from this node again, unless a container uses it
    Uninstall(install::UninstallArguments),
    /// Run a program and log its driver calls
    Trace(trace::Arguments),
    /// Take a container's memory off its card, to the host: a prototype
    #[cfg(feature = "parking")]
    Park(park::ParkArguments),
    /// Bring a parked container's memory back
    #[cfg(feature = "parking")]
    Unpark(park::ParkArguments),
    /// Print completions for a shell
    Completions {
        /// Name of the shell
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the commented default file: every key with its default
    Default,
    /// Check a configuration file
    Check {
        /// The file [default: the node's]
        file: Option<PathBuf>,
    },
}

/// Runs a command to its end.
pub fn run(cli: Cli) -> Exit {
    match execute(cli.command) {
        Ok(exit) => exit,
        Err(error) => {
            let exit = error.exit();
            if exit != Exit::Success {
                say(&format!("egpu: {}", error_chain(&error)));
                if let Some(code) = error.refusal_code() {
                    say(&format!("egpu: `egpu explain {code}` says more"));
                }
            }
            exit
        }
    }
}

fn execute(command: Command) -> Result<Exit, CliError> {
    match command {
        Command::Cards { listing } => {
            listing.view.print(|screen| {
                let cards = cards::list(&Node::read()?);
                if let Some(remark) = cards::remark(&cards) {
                    say(remark);
                }
                cards::listing(cards).text(&listing, screen)
            })?;
            Ok(Exit::Success)
        }
        Command::Ps { listing } => {
            listing.view.print(|screen| {
                let node = Node::read()?;
                let (usage, warnings) = usage::measure(&node);
                for warning in warnings {
                    say(&format!("egpu: {warning}"));
                }
                ps::listing(ps::list(&node, &usage)).text(&listing, screen)
            })?;
            Ok(Exit::Success)
        }
        Command::Top(arguments) => top::run(&arguments),
        Command::Set(arguments) => set::run(&arguments),
        Command::Policy(arguments) => policy::run(&arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Config { command: ConfigCommand::Default } => {
            output::print(runtime_config::config::DEFAULT_TOML)?;
            Ok(Exit::Success)
        }
        Command::Config { command: ConfigCommand::Check { file } } => {
            output::print(&config::check(file.as_deref())?)?;
            Ok(Exit::Success)
        }
        Command::Doctor { containerd_config, listing } => {
            let mut exit = Exit::Success;
            listing.view.print(|screen| {
                let checks = doctor::examine(containerd_config.as_deref());
                exit = doctor::exit_code(&checks);
                doctor::listing(checks).text(&listing, screen)
            })?;
            Ok(exit)
        }
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Install(arguments) => install::install(&arguments),
        Command::Uninstall(arguments) => install::uninstall(&arguments),
        Command::Trace(arguments) => trace::run(&arguments).map_err(CliError::Trace),
        #[cfg(feature = "parking")]
        Command::Park(arguments) => park::run(&arguments, mediator_process::parking::Request::Park),
        #[cfg(feature = "parking")]
        Command::Unpark(arguments) => park::run(&arguments, mediator_process::parking::Request::Unpark),
        Command::Completions { shell } => {
            output::print(&completions::completions(shell, Cli::command()))?;
            Ok(Exit::Success)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_values_are_named_with_what_is_accepted() {
        for (arguments, value, accepted) in [
            ("set c --memory -1GiB", "'-1GiB' for '--memory <LIMIT>'", "6GiB (or MiB, KiB, B)"),
            ("set c --memory 150%", "'150%' for '--memory <LIMIT>'", "a percentage up to 100%"),
            ("set c --compute -5%", "'-5%' for '--compute <PERCENT>'", "1% to 100% or `none`"),
            ("set c --weight -1", "'-1' for '--weight <N>'", "1 to 1000"),
            ("top --count 0", "'0' for '--count <N>'", "a whole number above 0"),
            ("metrics --listen node:9402", "'node:9402' for '--listen <ADDRESS:PORT>'", "such as 127.0.0.1:9402"),
            ("policy 0 fairest", "'fairest' for '[POLICY]'", "fair, preemptive"),
            ("cards --output yaml", "'yaml' for '--output <FORMAT>'", "table, json, wide"),
            ("set c --weight 1 --output yaml", "'yaml' for '--output <OUTPUT>'", "table, json"),
        ] {
            let error = Cli::try_parse_from(["egpu"].into_iter().chain(arguments.split(' '))).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(value) && text.contains(accepted), "{arguments}: {text}");
        }
    }

    #[test]
    fn a_watch_takes_no_other_argument_as_its_interval() {
        for line in ["inspect -w c", "policy --watch 0", "explain -w no-memory"] {
            let parsed = Cli::try_parse_from(std::iter::once("egpu").chain(line.split(' ')));
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn only_commands_that_work_are_listed() {
        let names: Vec<_> = Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert_eq!(
            names,
            [
                "cards",
                "ps",
                "top",
                "inspect",
                "set",
                "policy",
                "events",
                "metrics",
                "config",
                "doctor",
                "explain",
                "install",
                "uninstall",
                "trace",
                #[cfg(feature = "parking")]
                "park",
                #[cfg(feature = "parking")]
                "unpark",
                "completions"
            ]
        );
    }

    #[test]
    fn every_listing_is_there_as_json() {
        for line in
            ["cards", "ps", "top", "inspect x", "set x --weight 2", "policy", "policy 0 soft", "events", "doctor"]
        {
            let arguments = std::iter::once("egpu").chain(line.split(' ')).chain(["--output", "json"]);
            assert!(Cli::try_parse_from(arguments).is_ok(), "{line}");
        }
    }
}
