//! Checks of the state directory, the ledger in it, and the log of decisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use base::amounts::human;
use egpu_shim::{registry::Registry, state_group, version};
use ledger::{ContainerName, Enforcement, GrantState, Ledger, Record};
use nix::sys::statfs::{Statfs, TMPFS_MAGIC, statfs};
use runtime_config::{Bytes, Config};

use super::{Check, plural};
use crate::output::printable;

const STATE: &str = "state directory";
const LEDGER: &str = "ledger";
const MONITORS: &str = "monitoring";
const LOG: &str = "decision log";
const NOTES: &str = "notes";
const VERSIONS: &str = "versions";
/// Write permission for the group and for others.
const OTHERS_WRITE: u32 = 0o022;

pub(super) fn checks(config: &Config) -> Vec<Check> {
    let mut checks = vec![directory(&config.state_dir)];
    checks.extend(group(config));
    if config.state_dir.is_dir() {
        checks.extend(ledger(&config.state_dir));
        checks.extend(notes(&config.state_dir));
        checks.extend(versions(&config.state_dir, version::text()));
    }
    checks.push(log(&config.log_file));
    checks
}

fn directory(path: &Path) -> Check {
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Check::ok(STATE, format!("{shown} does not exist yet: the first container with a GPU makes it"));
        }
        Err(error) => return Check::failure(STATE, format!("{shown}: {error}"), "run as root"),
    };
    if !metadata.is_dir() {
        return Check::failure(STATE, format!("{shown} is not a directory"), "move it away, or set state_dir");
    }
    let writable = metadata.permissions().mode() & OTHERS_WRITE != 0;
    if metadata.uid() != 0 || writable {
        let detail = format!("{shown} can be written by other users than root, who could grant themselves cards");
        return Check::failure(STATE, detail, format!("`chown root {shown} && chmod 711 {shown}`"));
    }
    match statfs(path) {
        Ok(statistics) if is_full(free_bytes(&statistics), statistics.files(), statistics.files_free()) => {
            Check::failure(
                STATE,
                format!(
                    "{shown} is nearly full: {} and {} files are free; no container with a GPU can be made",
                    human(free_bytes(&statistics)),
                    statistics.files_free()
                ),
                format!("`df {shown}`, `df -i {shown}`: remove what is not egpu's, or make its file system larger"),
            )
        }
        Ok(statistics) if statistics.filesystem_type() == TMPFS_MAGIC => {
            Check::ok(STATE, format!("{shown}, gone at reboot"))
        }
        _ => Check::warning(
            STATE,
            format!("{shown} is not on a tmpfs: files stay after a reboot, when their grants are void"),
            "set state_dir to a directory on a tmpfs (/run is one on most systems), or mount a tmpfs there",
        ),
    }
}

/// Room that one more container needs, with its files of a few KiB each.
const LEAST_FREE: Bytes = Bytes(1 << 20);
const LEAST_FILES: u64 = 64;

fn is_full(free: Bytes, files: u64, files_free: u64) -> bool {
    // A file system without a number of files has no bound of them.
    free < LEAST_FREE || (files > 0 && files_free < LEAST_FILES)
}

fn free_bytes(statistics: &Statfs) -> Bytes {
    let block = u64::try_from(statistics.block_size()).unwrap_or(0);
    Bytes(statistics.blocks_available().saturating_mul(block))
}

fn group(config: &Config) -> Option<Check> {
    let error = state_group::gid(config).err()?;
    Some(Check::warning(STATE, error.to_string(), "until then, whoever could read the state can"))
}

fn ledger(state_dir: &Path) -> Vec<Check> {
    match Ledger::open(state_dir).and_then(|ledger| ledger.records()) {
        Ok(records) => {
            let count = Check::ok(LEDGER, format!("{} with cards", plural(records.len(), "container")));
            std::iter::once(count).chain(unmediated_monitors(&records)).collect()
        }
        Err(error) => vec![Check::failure(
            LEDGER,
            base::error_chain(&error),
            "nothing is granted until it can be read: see the file that is named",
        )],
    }
}

/// Names the notes that cannot be read.
fn notes(state_dir: &Path) -> Vec<Check> {
    let remedy = "its container is cleaned up after by the copy in its bundle; once it has ended, remove the file";
    let unreadable = Registry::at(state_dir.to_owned()).unreadable();
    unreadable.iter().map(|error| Check::warning(NOTES, base::error_chain(error), remedy)).collect()
}

/// Counts the containers by the version of egpu that runs them, with and without cards.
fn versions(state_dir: &Path, own: &str) -> Option<Check> {
    let mut containers: BTreeMap<Option<String>, usize> = BTreeMap::new();
    for note in Registry::at(state_dir.to_owned()).notes().filter(|note| !note.is_abandoned()) {
        *containers.entry(note.egpu_version).or_default() += 1;
    }
    let mut text = String::new();
    // The newest first; who did not say is older than all.
    for (version, &count) in containers.iter().rev() {
        let version = printable(version.as_deref().unwrap_or("an older one, which did not say"));
        match text.as_str() {
            "" => text = format!("{} on {version}", plural(count, "container")),
            _ => text.push_str(&format!(", {count} on {version}")),
        }
    }
    if containers.keys().any(|version| version.as_deref() != Some(own)) {
        text.push_str(": they keep it until they end");
    }
    (!containers.is_empty()).then(|| Check::ok(VERSIONS, text))
}

/// Finds monitors whose privileges defeat mediation: they could take memory of a card.
fn unmediated_monitors(records: &[Record]) -> Option<Check> {
    let is_unmediated = |record: &&Record| {
        let is_monitor = record.cards.iter().any(|grant| grant.enforcement == Enforcement::Monitor);
        is_monitor && record.state == GrantState::Bound && record.mediator.is_none()
    };
    let names: Vec<String> =
        records.iter().filter(is_unmediated).map(|record| ContainerName::from(record).to_string()).collect();
    let detail = format!("{} monitor cards unmediated, and could take memory of them", names.join(", "));
    let remedy = "leave them CAP_SYS_ADMIN, CAP_SYS_MODULE, CAP_SYS_RAWIO, every device and the host's process ids only if they need them";
    (!names.is_empty()).then(|| Check::warning(MONITORS, detail, remedy))
}

/// Lists the inits of the containers that hold cards. [`checks`] reports errors of reading them.
pub(super) fn inits(state_dir: &Path) -> BTreeSet<i32> {
    records(state_dir).iter().filter_map(|record| record.init).map(|init| init.pid).collect()
}

/// Lists all grants. [`checks`] reports errors of reading them.
pub(super) fn records(state_dir: &Path) -> Vec<Record> {
    if !state_dir.is_dir() {
        return Vec::new();
    }
    Ledger::open(state_dir).and_then(|ledger| ledger.records()).unwrap_or_default()
}

fn log(path: &Path) -> Check {
    let directory = path.parent().unwrap_or(Path::new("/"));
    if path.exists() && !path.is_file() {
        let detail = format!("{} is no regular file: lines that it does not take at once are lost", path.display());
        return Check::warning(LOG, detail, "set log_file to another path");
    }
    if path.is_file() || directory.is_dir() {
        return Check::ok(LOG, path.display().to_string());
    }
    let remedy = format!("`mkdir -p {}`, or set log_file", directory.display());
    Check::warning(LOG, format!("{} cannot be made: its directory does not exist", path.display()), remedy)
}

#[cfg(test)]
mod tests {
    use egpu_shim::bundle::Note;

    use super::*;
    use crate::{doctor::Level, test_support};

    #[test]
    fn a_directory_is_full_without_bytes_or_without_files() {
        let mib = 1 << 20;
        for (free, files, files_free, expected) in [
            (64 * mib, 1000, 900, false),
            (64 * mib, 0, 0, false),
            (mib / 2, 1000, 900, true),
            (64 * mib, 1000, 10, true),
        ] {
            assert_eq!(is_full(Bytes(free), files, files_free), expected, "{free} {files} {files_free}");
        }
    }

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

    fn levels(state_dir: &Path) -> Vec<Level> {
        ledger(state_dir).into_iter().map(|check| check.level).collect()
    }

    #[test]
    fn containers_are_counted_by_version() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(versions(state.path(), "2"), None);
        let registry = Registry::at(state.path().to_owned());
        let mut note: Note = serde_json::from_str(include_str!("../../../fixtures/note-1.json")).unwrap();
        note.shim = None;
        for (id, version) in [("a", Some("2")), ("b", Some("2")), ("c", Some("1 (abc)")), ("d", None)] {
            (note.id, note.egpu_version) = (id.to_owned(), version.map(str::to_owned));
            registry.save_note(&note).unwrap();
        }
        let shown = versions(state.path(), "2").unwrap().detail;
        assert_eq!(
            shown,
            "2 containers on 2, 1 on 1 (abc), 1 on an older one, which did not say: they keep it until they end"
        );
    }

    #[test]
    fn a_note_that_cannot_be_read_is_named() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(notes(state.path()), []);
        fs::create_dir(state.path().join("containers")).unwrap();
        fs::write(state.path().join("containers/ab.json"), "{").unwrap();
        let [check] = notes(state.path()).try_into().unwrap();
        assert!(check.level == Level::Warning && check.detail.contains("containers/ab.json"), "{check:?}");
    }

    #[test]
    fn unmediated_monitors_are_named() {
        let mut records = test_support::node().records;
        assert_eq!(unmediated_monitors(&records), None, "whoever has a share, or all");
        let record = &mut records[0];
        record.cards.truncate(1);
        record.cards[0].enforcement = Enforcement::Monitor;
        record.state = GrantState::Bound;
        record.mediator = record.init;
        assert_eq!(unmediated_monitors(&records), None);
        records[0].mediator = None;
        let reported = unmediated_monitors(&records).unwrap();
        assert_eq!(reported.level, Level::Warning);
        assert!(reported.detail.contains(&records[0].container.to_string()), "{reported:?}");
    }

    #[test]
    fn a_ledger_that_cannot_be_read_is_a_failure() {
        let parent = tempfile::tempdir().unwrap();
        let state = parent.path().join("state");
        assert_eq!(levels(&state), [Level::Ok]);
        fs::remove_dir(state.join("ledger")).unwrap();
        fs::write(state.join("ledger"), "no directory").unwrap();
        assert_eq!(levels(&state), [Level::Failure]);
    }

    #[test]
    fn a_log_needs_its_directory() {
        let parent = tempfile::tempdir().unwrap();
        assert_eq!(log(&parent.path().join("egpu.log")).level, Level::Ok);
        assert_eq!(log(&parent.path().join("missing/egpu.log")).level, Level::Warning);
        assert_eq!(log(Path::new("/dev/null")).level, Level::Warning);
    }
}
