//! Errors of `egpu install` and `egpu uninstall`.

use std::{io, path::PathBuf};

use runtime_config::ConfigError;

use crate::{error::CliError, exit::Exit};

/// A node that was left as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error("cannot read {}{}", .path.display(), advice(.source))]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}{}", .path.display(), advice(.source))]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} has changed since it was read; try again", .path.display())]
    Raced { path: PathBuf },
    #[error("{} is not TOML; correct it first", .path.display())]
    Toml {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("{} is not JSON; correct it first", .path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} is not TOML", .path.display())]
    TomlEdit {
        path: PathBuf,
        #[source]
        source: Box<toml_edit::TomlError>,
    },
    #[error("`runtimes` in {} is no object; correct it first", .path.display())]
    DockerRuntimes { path: PathBuf },
    #[error("{} has a runtime `egpu` that `egpu install` did not put there; --force replaces or removes it", .path.display())]
    ForeignDocker { path: PathBuf },
    #[error("{} makes egpu Docker's default runtime: choose another one first", .path.display())]
    DockerDefault { path: PathBuf },
    #[error("the runtime `{name}` is CRI's default in {}, and CRI would not start without it: choose another one first", .path.display())]
    Default { path: PathBuf, name: String },
    #[error("--bin-dir {} is relative: name the whole path", .path.display())]
    RelativeFolder { path: PathBuf },
    #[error("{service} could not be restarted, and goes on with the configuration that it has read: {why}")]
    NotRestarted { service: String, why: String },
    #[error("CRI's tables in {} are written within braces, which leaves no place for another one: write them as [tables]", .path.display())]
    Inline { path: PathBuf },
    #[error("k0s restarts its containerd as soon as {} is written: say --restart", .path.display())]
    RestartsItself { path: PathBuf },
    #[error("{} is imported, and does not exist: containerd cannot start; correct the imports first", .path.display())]
    MissingImport { path: PathBuf },
    #[error("cannot stage the configuration for containerd to check")]
    Stage {
        #[source]
        source: io::Error,
    },
    #[error("{} does not accept {}, so nothing was written: {why}", .program.display(), .path.display())]
    Rejected { path: PathBuf, program: PathBuf, why: String },
    #[error("cannot ask {} what it makes of its configuration", .program.display())]
    Ask {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "with egpu in {}, containerd would read its other settings otherwise; nothing was written. Add egpu by hand \
         (docs/install.md), or bring all files to one version of the format. The difference:\n{difference}",
        .path.display()
    )]
    SideEffect { path: PathBuf, difference: String },
    #[error(
        "containerd would not see the runtime `egpu` in {}; nothing was written. Bring this file and those that it \
         imports to one version of the format, one that this containerd reads",
        .path.display()
    )]
    Unseen { path: PathBuf },
    #[error("{} has a runtime `egpu` that is not egpu; rename or remove it first", .path.display())]
    Foreign { path: PathBuf },
    #[error(
        "what egpu put into {} was edited since; nothing was changed. --force replaces it. The difference:\n{difference}",
        .path.display()
    )]
    Edited { path: PathBuf, difference: String },
    #[error(
        "{} has a runtime `egpu` that `egpu install` did not put there, or no longer between its marks; nothing was \
         changed. --force takes it out:\n{difference}",
        .path.display()
    )]
    Unmarked { path: PathBuf, difference: String },
    #[error("containers use egpu, so nothing was removed. Stop these first: {}", .names.join(", "))]
    InUse { names: Vec<String> },
    #[error("cannot tell which containers use egpu, so nothing was removed")]
    Containers(#[source] Box<dyn std::error::Error>),
    #[error("there is no {} beside this program, to be installed with it", .path.display())]
    Incomplete { path: PathBuf },
    #[error("the configuration to install cannot be used")]
    Config(#[source] ConfigError),
    #[error("cannot make {} the root directory{}", .path.display(), advice(.source))]
    Root {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "neither containerd nor Docker is on this node: install one of them first, or name a file with --containerd-config"
    )]
    NothingFound,
    #[error("`{command}` failed: {output}")]
    Command { command: String, output: String },
    #[error(
        "{service} did not come up with the new configuration, so the old one was put back and it was started again: {why}"
    )]
    RolledBack { service: String, why: String },
    #[error(
        "{service} did not come up with the new configuration ({why}), nor with the old one, which was put back ({now})"
    )]
    StillDown { service: String, why: String, now: String },
}

impl From<InstallError> for CliError {
    fn from(error: InstallError) -> Self {
        Self::OfCommand { exit: error.exit(), source: Box::new(error) }
    }
}

impl InstallError {
    /// Returns the exit code.
    fn exit(&self) -> Exit {
        match self {
            Self::Config(_) => Exit::Config,
            Self::InUse { .. }
            | Self::Edited { .. }
            | Self::Unmarked { .. }
            | Self::Foreign { .. }
            | Self::ForeignDocker { .. }
            | Self::DockerDefault { .. }
            | Self::Default { .. }
            | Self::RestartsItself { .. } => Exit::Refused,
            _ => Exit::Failure,
        }
    }
}

/// Returns the fix for an error of a file, where that is known.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run egpu as root",
        io::ErrorKind::ReadOnlyFilesystem => {
            "; it is on a read-only file system: --bin-dir names another folder for the programs"
        }
        io::ErrorKind::ResourceBusy => "; it is a mount of its own: change the file that is mounted there",
        _ => "",
    }
}
