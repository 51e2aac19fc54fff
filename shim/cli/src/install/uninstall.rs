//! `egpu uninstall`: takes out what `egpu install` has put in, and nothing else.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use egpu_shim::info::BINARY;
use runtime_config::{Config, config::DEFAULT_PATH};

use super::{
    CommonArguments, backup, changes,
    error::InstallError,
    in_use, lock,
    plan::Plan,
    programs::{self, InstallRecord, STATE},
    show,
};
use crate::{error::CliError, exit::Exit, output::say};

/// Arguments of `egpu uninstall`.
#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArguments {
    #[command(flatten)]
    common: CommonArguments,
}

/// Runs `egpu uninstall`.
pub(crate) fn uninstall(arguments: &UninstallArguments) -> Result<Exit, CliError> {
    uninstall_node(&arguments.common)?;
    Ok(Exit::Success)
}

fn uninstall_node(arguments: &CommonArguments) -> Result<(), InstallError> {
    arguments.enter_root()?;
    let _lock = lock()?;
    in_use::refuse()?;
    let record = InstallRecord::read()?;
    let mut plan = Plan::of_this_node(arguments);
    plan.uninstall(&shim(&record), &record.files, arguments.force)?;
    plan.refuse_own_restarts(arguments.restart || arguments.dry_run)?;
    if arguments.dry_run {
        show(plan.changes());
        for path in record.programs.iter().filter(|_| arguments.only.is_empty()) {
            say(&format!("would remove {}", path.display()));
        }
        return Ok(());
    }
    for change in plan.changes() {
        change.write()?;
        say(&format!("took egpu out of {}", change.path.display()));
    }
    // Those of a run that was killed, too.
    let mut written = record.files.clone();
    InstallRecord::remember(&mut written, plan.changes().map(|change| change.path.clone()));
    for path in &written {
        changes::remove_stray(path)?;
        for copy in backup::remove(path)? {
            say(&format!("{} has changed since; what it was before egpu: {}", path.display(), copy.display()));
        }
    }
    plan.restart(arguments.restart)?;
    // What is left alone needs the programs.
    if !arguments.only.is_empty() {
        return Ok(());
    }
    let log = Config::load(None).ok().map(|config| config.log_file);
    remove_installed(&record)?;
    // A package's purge removes it.
    if let Some(log) = log.filter(|log| !record.programs.is_empty() && log.exists()) {
        say(&format!("kept {}, the log of decisions", log.display()));
    }
    Ok(())
}

/// The shim that the runtime's table names.
fn shim(record: &InstallRecord) -> PathBuf {
    let own = || env::current_exe().ok().and_then(|path| Some(path.parent()?.join(BINARY)));
    record.programs.iter().find(|path| path.ends_with(BINARY)).cloned().or_else(own).unwrap_or_else(|| BINARY.into())
}

/// Removes the programs, the configuration unless it was edited, and the record of both, last.
fn remove_installed(record: &InstallRecord) -> Result<(), InstallError> {
    for path in &record.programs {
        changes::remove_stray(path)?;
        if programs::remove(path)? {
            say(&format!("removed {}", path.display()));
        }
    }
    let config = Path::new(DEFAULT_PATH);
    changes::remove_stray(config)?;
    if let Some(written) = &record.config {
        match changes::read(config)? {
            Some(current) if current == *written => {
                changes::replace(config, None)?;
                backup::remove(config)?;
                say(&format!("removed {}", config.display()));
            }
            Some(_) => say(&format!("kept {}, which was edited", config.display())),
            None => {}
        }
    }
    for folder in record.folders.iter().rev() {
        // One that is not empty has something of somebody else, or the record.
        let _ = fs::remove_dir(folder);
    }
    let record = InstallRecord::path();
    changes::remove_stray(&record)?;
    changes::replace(&record, None)?;
    backup::remove_empty_folders();
    let _ = fs::remove_dir(STATE);
    Ok(())
}
