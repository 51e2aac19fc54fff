//! The state directory, the ledger in it, and the decision log.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nvidia_glue::{doctor::Check, ledger::Ledger};
use runtime_config::Config;

use super::{failure, ok, plural, warning};

const STATE: &str = "state directory";
const LEDGER: &str = "ledger";
const LOG: &str = "decision log";
/// Write permission for the group and for others.
const OTHERS_WRITE: u32 = 0o022;

pub(super) fn checks(config: &Config) -> Vec<Check> {
    let mut checks = vec![directory(&config.state_dir)];
    if config.state_dir.is_dir() {
        checks.push(ledger(&config.state_dir));
    }
    checks.push(log(&config.log_file));
    checks
}

fn directory(path: &Path) -> Check {
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return ok(STATE, format!("{shown} is not there yet: the first container with a GPU makes it"));
        }
        Err(error) => return failure(STATE, format!("{shown}: {error}"), "run as root"),
    };
    if !metadata.is_dir() {
        return failure(STATE, format!("{shown} is no directory"), "move it away, or set state_dir");
    }
    let writable = metadata.permissions().mode() & OTHERS_WRITE != 0;
    if metadata.uid() != 0 || writable {
        let detail = format!("{shown} can be written by others than root: whoever can, grants himself cards");
        return failure(STATE, detail, format!("`chown root:root {shown} && chmod 700 {shown}`"));
    }
    match statfs(path) {
        Ok(statistics) if statistics.filesystem_type() == TMPFS_MAGIC => ok(STATE, format!("{shown}, gone at reboot")),
        _ => warning(
            STATE,
            format!("{shown} is not on a tmpfs: files stay after a reboot, when their grants are void"),
            "set state_dir to a directory below /run",
        ),
    }
}

fn ledger(state_dir: &Path) -> Check {
    match Ledger::open(state_dir).and_then(|ledger| ledger.records()) {
        Ok(records) => ok(LEDGER, format!("{} with cards", plural(records.len(), "container"))),
        Err(error) => failure(
            LEDGER,
            crate::cli::chain(&error),
            "until it can be read nothing is granted: see the file that is named",
        ),
    }
}

/// The inits of the containers that hold cards. What keeps them from being read is reported by [`checks`].
pub(super) fn inits(state_dir: &Path) -> BTreeSet<i32> {
    if !state_dir.is_dir() {
        return BTreeSet::new();
    }
    let records = Ledger::open(state_dir).and_then(|ledger| ledger.records()).unwrap_or_default();
    records.iter().filter_map(|record| record.init).map(|init| init.pid).collect()
}

fn log(path: &Path) -> Check {
    let directory = path.parent().unwrap_or(Path::new("/"));
    if path.is_file() || directory.is_dir() {
        return ok(LOG, path.display().to_string());
    }
    let remedy = format!("`mkdir -p {}`, or set log_file", directory.display());
    warning(LOG, format!("{} cannot be made: its directory is not there", path.display()), remedy)
}

#[cfg(test)]
mod tests {
    use nvidia_glue::doctor::Level;

    use super::*;

    #[test]
    fn a_directory_that_others_write_is_a_failure() {
        let parent = tempfile::tempdir().unwrap();
        let state = parent.path().join("state");
        assert_eq!(directory(&state).level, Level::Ok);
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(directory(&state).level, Level::Failure);
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(directory(&file).level, Level::Failure);
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_a_failure() {
        let parent = tempfile::tempdir().unwrap();
        let state = parent.path().join("state");
        assert_eq!(ledger(&state).level, Level::Ok);
        fs::remove_dir(state.join("ledger")).unwrap();
        fs::write(state.join("ledger"), "no directory").unwrap();
        assert_eq!(ledger(&state).level, Level::Failure);
    }

    #[test]
    fn a_log_needs_its_directory() {
        let parent = tempfile::tempdir().unwrap();
        assert_eq!(log(&parent.path().join("egpu.log")).level, Level::Ok);
        assert_eq!(log(&parent.path().join("missing/egpu.log")).level, Level::Warning);
    }
}
