//! `egpu install` and `egpu uninstall`: egpu on this node, and away again.
//!
//! Everything is planned first, and shown with `--dry-run`. Files are replaced one by one, each
//! whole, in an order in which containerd starts after each step: programs before what names them,
//! a drop-in before its import.

mod backup;
mod block;
mod changes;
mod config_files;
mod containerd;
mod docker;
mod error;
mod in_use;
mod plan;
mod programs;
mod restart;
mod runtime_table;
mod uninstall;

use std::{
    env,
    fs::File,
    path::{Path, PathBuf},
};

use changes::{Change, Draft};
use error::InstallError;
use nix::{
    fcntl::{Flock, FlockArg},
    unistd::{chdir, chroot},
};
use plan::Plan;
use programs::{InstallRecord, Programs};
use runtime_config::{
    Config,
    config::{DEFAULT_PATH, DEFAULT_TOML},
};
pub(super) use uninstall::{UninstallArguments, uninstall};

use super::{doctor, error::CliError, exit::Exit, output, output::say, screen::Screen};

/// Directory that is locked: it is on every node, and nobody else locks it.
const LOCKED: &str = "/var/lib";

/// Arguments of `egpu install`.
#[derive(Debug, clap::Args)]
pub(super) struct InstallArguments {
    #[command(flatten)]
    common: CommonArguments,
    /// egpu's configuration, to be copied to /etc/egpu/config.toml [default: the commented
    /// defaults, unless there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for the programs, unless they are in a folder of the system already
    #[arg(long, value_name = "FOLDER", default_value = "/usr/local/bin")]
    bin_dir: PathBuf,
}

/// Arguments of both commands.
#[derive(Debug, clap::Args)]
struct CommonArguments {
    /// Show what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Restart containerd and reload Docker, if they have not read the configuration yet
    #[arg(long)]
    restart: bool,
    /// Replace or remove egpu's own part also where it was edited by hand
    #[arg(long)]
    force: bool,
    /// The node's root directory, when this runs in a container
    #[arg(long, value_name = "FOLDER")]
    host_root: Option<PathBuf>,
    /// containerd's own configuration file [default: that of the running containerd, or
    /// /etc/containerd/config.toml]
    #[arg(long, value_name = "FILE")]
    containerd_config: Option<PathBuf>,
    /// Only these: containerd, k3s, rke2, microk8s, k0s, docker [default: all that are here]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = plan::NAMES)]
    only: Vec<String>,
}

impl CommonArguments {
    /// Goes to the node's root directory.
    fn enter_root(&self) -> Result<(), InstallError> {
        if let Some(root) = &self.host_root {
            let failed = |errno: nix::Error| InstallError::Root { path: root.clone(), source: errno.into() };
            chroot(root).map_err(failed)?;
            chdir("/").map_err(failed)?;
        }
        Ok(())
    }
}

/// Waits until no other install or uninstall runs on this node.
fn lock() -> Result<Flock<File>, InstallError> {
    let failed = |source| InstallError::Read { path: LOCKED.into(), source };
    let directory = File::open(LOCKED).map_err(failed)?;
    Flock::lock(directory, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))
}

/// Runs `egpu install`.
pub(super) fn install(arguments: &InstallArguments) -> Result<Exit, CliError> {
    install_node(arguments)?;
    if arguments.common.dry_run {
        return Ok(Exit::Success);
    }
    let checks = doctor::examine(arguments.common.containerd_config.as_deref());
    let exit = doctor::exit_code(&checks);
    output::print(&doctor::listing(checks).table(false, true, Screen::of_stdout()))?;
    Ok(exit)
}

fn install_node(arguments: &InstallArguments) -> Result<(), InstallError> {
    let common = &arguments.common;
    let mut programs = Programs::open()?;
    let config = arguments.config.as_deref().map(checked_config).transpose()?;
    if !arguments.bin_dir.is_absolute() {
        return Err(InstallError::RelativeFolder { path: arguments.bin_dir.clone() });
    }
    common.enter_root()?;
    let _lock = lock()?;
    let other_root = common.host_root.is_some();
    let folder = programs.destination(&arguments.bin_dir, other_root);
    let missing = programs.missing(&folder, other_root)?;
    let mut plan = Plan::of_this_node(common);
    plan.install(&folder.join(egpu_shim::info::BINARY), common.force)?;
    let config = config_change(config)?;
    if common.dry_run {
        for (path, _) in &missing {
            say(&format!("would install {}", path.display()));
        }
        // The defaults are long, and change nothing.
        if config.as_ref().is_some_and(|change| change.after.as_deref() == Some(DEFAULT_TOML)) {
            say(&format!("would write {}: the commented defaults", DEFAULT_PATH));
        }
        let config = config.iter().filter(|change| change.after.as_deref() != Some(DEFAULT_TOML));
        show(config.chain(plan.changes()));
        return Ok(());
    }
    plan.refuse_own_restarts(common.restart)?;
    let mut record = InstallRecord::read()?;
    let files = missing.iter().map(|(path, _)| path.as_path());
    let changed = config.iter().chain(plan.changes()).map(|change| change.path.as_path());
    record.remember_new_folders(files.chain(changed).chain([InstallRecord::path().as_path()]));
    InstallRecord::remember(&mut record.programs, missing.iter().map(|(path, _)| path.clone()));
    InstallRecord::remember(&mut record.files, plan.changes().map(|change| change.path.clone()));
    if let Some(config) = &config {
        record.config.clone_from(&config.after);
    }
    if !record.is_empty() {
        record.write()?;
    }
    for (path, bytes) in &missing {
        programs::copy(path, bytes)?;
        say(&format!("installed {}", path.display()));
    }
    for change in config.iter().chain(plan.changes()) {
        // The drop-in is nobody else's.
        let theirs = change.before.as_deref().filter(|_| !change.path.ends_with(containerd::DROP_IN));
        let backup = theirs.map(|text| backup::keep(&change.path, text)).transpose()?;
        change.write()?;
        let before = backup.map(|path| format!(", before: {}", path.display())).unwrap_or_default();
        say(&format!("wrote {}{before}", change.path.display()));
    }
    plan.restart(common.restart)
}

/// Reads the configuration that the node is to have.
fn checked_config(file: &Path) -> Result<String, InstallError> {
    Config::load(Some(file)).map_err(InstallError::Config)?;
    Ok(changes::read(file)?.unwrap_or_default())
}

/// Plans egpu's own configuration file.
fn config_change(text: Option<String>) -> Result<Option<Change>, InstallError> {
    let mut draft = Draft::default();
    let current = draft.text(Path::new(DEFAULT_PATH))?;
    match text {
        Some(text) => *current = Some(text),
        // Another is named.
        None if env::var_os(runtime_config::config::PATH_VARIABLE).is_some() => {}
        None if current.is_none() => *current = Some(DEFAULT_TOML.to_owned()),
        None => {}
    }
    Ok(draft.finish().pop())
}

/// Prints changes as a diff.
fn show<'a>(changes: impl Iterator<Item = &'a Change>) {
    let text: String = changes.map(Change::diff).collect();
    // A closed stdout has nobody who reads it.
    let _ = output::print(if text.is_empty() { "nothing to change\n" } else { &text });
}
