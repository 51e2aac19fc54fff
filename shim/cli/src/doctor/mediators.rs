//! A check for mediators without a record: their containers use cards that the ledger takes for
//! free, as after somebody has emptied the state directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ledger::{GrantState, Record};
use nvidia_glue::inject;
use procfs_core::{FromRead, process::Stat};
use runtime_config::Config;

use super::{Check, state};

const MEDIATORS: &str = "mediators";
/// Name of their processes.
const NAME: &str = "egpu-mediator";

pub(super) fn check(config: &Config) -> Option<Check> {
    let running = running(Path::new("/proc"), &inject::directory(&config.state_dir));
    // Read later: a grant is bound to its mediator once that runs.
    unrecorded(&running, &state::records(&config.state_dir))
}

/// A mediator's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Running {
    pid: i32,
    shim: i32,
}

/// Finds the mediators that have files of this state directory.
fn running(proc: &Path, grant_files: &Path) -> Vec<Running> {
    let of = |directory: PathBuf| {
        let stat = Stat::from_file(directory.join("stat")).ok().filter(|stat| stat.comm == NAME)?;
        let mut files = fs::read_dir(directory.join("fd")).ok()?.flatten();
        let has_ours = files.any(|file| fs::read_link(file.path()).is_ok_and(|path| path.starts_with(grant_files)));
        has_ours.then_some(Running { pid: stat.pid, shim: stat.ppid })
    };
    fs::read_dir(proc).into_iter().flatten().flatten().filter_map(|entry| of(entry.path())).collect()
}

fn unrecorded(running: &[Running], records: &[Record]) -> Option<Check> {
    let is_recorded = |running: &&Running| {
        records.iter().any(|record| match record.state {
            GrantState::Bound => record.mediator.is_some_and(|mediator| mediator.pid == running.pid),
            // It becomes known when its container exists.
            GrantState::Pending => record.shim.pid == running.shim,
            GrantState::Prepared => false,
        })
    };
    let pids: Vec<String> =
        running.iter().filter(|running| !is_recorded(running)).map(|running| running.pid.to_string()).collect();
    let detail = format!(
        "no record of the containers of the mediators {}: what they have of the cards may be granted to others",
        pids.join(", ")
    );
    (!pids.is_empty()).then(|| {
        Check::failure(
            MEDIATORS,
            detail,
            "their shims end them within seconds; if one stays, `kill -9` its parent process",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::test_support;

    #[test]
    fn those_of_this_state_directory_are_found() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: i32, name: &str, file: &str| {
            let directory = proc.path().join(pid.to_string());
            fs::create_dir_all(directory.join("fd")).unwrap();
            let own = fs::read_to_string("/proc/self/stat").unwrap();
            let (_, rest) = own.rsplit_once(") S ").or_else(|| own.rsplit_once(") R ")).unwrap();
            let rest = rest.split_once(' ').unwrap().1;
            fs::write(directory.join("stat"), format!("{pid} ({name}) S 7 {rest}")).unwrap();
            symlink(file, directory.join("fd/3")).unwrap();
        };
        process(11, NAME, "/s/inject/g/usage");
        process(12, NAME, "/s/inject/g/usage (deleted)");
        process(13, NAME, "/other/inject/g/usage");
        process(14, "egpu-broker", "/s/inject/g/usage");
        let mut found: Vec<i32> =
            running(proc.path(), Path::new("/s/inject")).into_iter().map(|running| running.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [11, 12]);
    }

    #[test]
    fn one_without_a_record_is_named() {
        let mut record = test_support::node().records.remove(0);
        let running = [Running { pid: 11, shim: record.shim.pid }, Running { pid: 12, shim: record.shim.pid + 1 }];
        record.state = GrantState::Pending;
        let named = |record: &Record| unrecorded(&running, std::slice::from_ref(record)).map(|check| check.detail);
        assert!(named(&record).unwrap().contains("mediators 12:"), "the other may be about to be bound");
        record.state = GrantState::Bound;
        record.mediator = None;
        assert!(named(&record).unwrap().contains("mediators 11, 12:"));
        assert_eq!(unrecorded(&[], &[record]), None);
    }
}
