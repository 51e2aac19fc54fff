//! Errors of the commands.

use std::{error::Error, io, net::SocketAddr, path::PathBuf};

use base::RefusalCode;
use cards::{DiscoverError, ResolveError};
use ledger::{ChangeError, PolicyError, StoreError};
use runtime_config::ConfigError;
use trace::RecordError;

use super::exit::Exit;

/// Error that keeps a command from its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error("the configuration cannot be used")]
    Config(#[source] ConfigError),
    #[error("cannot list the cards")]
    Cards(#[source] DiscoverError),
    #[error("cannot read the grants in {state_dir}", state_dir = .state_dir.display())]
    Ledger {
        state_dir: PathBuf,
        #[source]
        source: StoreError,
    },
    #[error(
        "no container with a grant is named {wanted:?}; `egpu ps` lists them, and `egpu events --container {wanted}` tells of \
         one that waits or has ended"
    )]
    NoSuchContainer { wanted: String },
    #[error("{wanted} is ambiguous, it fits {}: give a whole id, NAMESPACE/ID or NAMESPACE/POD/CONTAINER", .candidates.join(", "))]
    Ambiguous { wanted: String, candidates: Vec<String> },
    #[error(transparent)]
    NoSuchCard(ResolveError),
    #[error("a policy belongs to a whole card: name card {index} itself")]
    MigPolicy { index: u32 },
    #[error(transparent)]
    Set(Box<ChangeError>),
    #[error(transparent)]
    Policy(Box<PolicyError>),
    #[error("cannot write to stdout")]
    Output(#[source] io::Error),
    #[error(transparent)]
    Trace(RecordError),
    #[error("cannot read the events in {}{}", .directory.display(), as_root(.source))]
    Events {
        directory: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot wait for more events")]
    Wait(#[source] io::Error),
    #[error("cannot write {}{}", .path.display(), as_root(.source))]
    Textfile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot serve at {address}; choose an address of this node and a port that is free")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error(
        "at {address}, others than this machine could read the page; give it a token with --page-token FILE, or serve it at 127.0.0.1"
    )]
    OpenPage { address: SocketAddr },
    #[error("the token of the page cannot be taken from {}", .path.display())]
    Token {
        path: PathBuf,
        #[source]
        source: Box<dyn Error>,
    },
    /// An error of one command alone, which says how the command ends.
    #[error("{source}")]
    OfCommand { exit: Exit, source: Box<dyn Error> },
    #[error("there is no column {wanted} to sort by; there are {}", .columns.join(", "))]
    NoSuchColumn { wanted: String, columns: Vec<String> },
    #[error("cannot use the terminal; `egpu top -n 1` prints a table instead")]
    Screen(#[source] io::Error),
    #[cfg(feature = "parking")]
    #[error("the container stays where it is")]
    Park(#[source] io::Error),
    #[error("cannot write as JSON")]
    Json(#[from] serde_json::Error),
}

impl CliError {
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Config(_) => Exit::Config,
            Self::NoSuchColumn { .. } | Self::OpenPage { .. } => Exit::Usage,
            Self::NoSuchContainer { .. } | Self::Ambiguous { .. } | Self::NoSuchCard(_) => Exit::NotFound,
            Self::Set(error) => match **error {
                ChangeError::NoGrant { .. } => Exit::NotFound,
                ChangeError::Store { .. } => Exit::Failure,
                _ => Exit::Refused,
            },
            Self::Policy(error) => match **error {
                PolicyError::NoSuchCard { .. } => Exit::NotFound,
                PolicyError::Store { .. } => Exit::Failure,
                _ => Exit::Refused,
            },
            Self::MigPolicy { .. } => Exit::Refused,
            Self::OfCommand { exit, .. } => *exit,
            #[cfg(feature = "parking")]
            Self::Park(_) => Exit::Failure,
            // The reader of the output has seen enough: `egpu ps | head`.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Success,
            Self::Cards(_)
            | Self::Ledger { .. }
            | Self::Output(_)
            | Self::Json(_)
            | Self::Screen(_)
            | Self::Trace(_)
            | Self::Events { .. }
            | Self::Wait(_)
            | Self::Textfile { .. }
            | Self::Token { .. }
            | Self::Listen { .. } => Exit::Failure,
        }
    }
}

impl CliError {
    /// Returns the code of the reason for which a change was refused.
    pub(super) fn refusal_code(&self) -> Option<RefusalCode> {
        match self {
            Self::Set(error) => error.code(),
            Self::Policy(error) => error.code(),
            _ => None,
        }
    }
}

/// Returns the fix for an error of a file, where that is known.
fn as_root(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run egpu as root",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_may_not_read_is_advised_to_be_root() {
        let events =
            |kind: io::ErrorKind| CliError::Events { directory: "/run/egpu/events".into(), source: kind.into() };
        assert_eq!(
            events(io::ErrorKind::PermissionDenied).to_string(),
            "cannot read the events in /run/egpu/events; run egpu as root"
        );
        assert_eq!(events(io::ErrorKind::NotADirectory).to_string(), "cannot read the events in /run/egpu/events");
    }
}
