//! How much memory the containers' processes use, as the driver says.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use nvidia_glue::{
    cards::{self, ProcessMemory, Source},
    ledger::Record,
};
use runtime_config::Bytes;

use super::node::Node;

/// What the driver said.
#[derive(Debug)]
pub(super) struct Usage {
    /// `None`: the driver could not be asked.
    processes: Option<Vec<ProcessMemory>>,
}

/// Asks the driver, and says what to warn about when that fails. Nothing computes on simulated cards, so nothing uses
/// their memory.
pub(super) fn measure(node: &Node) -> (Usage, Option<String>) {
    if node.inventory.source == Source::Simulated || node.records.is_empty() {
        return (Usage { processes: Some(Vec::new()) }, None);
    }
    match cards::processes(&node.config) {
        Ok(processes) => (Usage { processes: Some(processes) }, None),
        Err(error) => {
            let warning = format!("used memory is not known: {}", super::chain(&error));
            (Usage { processes: None }, Some(warning))
        }
    }
}

impl Usage {
    /// Bytes that the container's processes have on the card; `None` where the driver does not say.
    pub(super) fn of(&self, record: &Record, card: &str) -> Option<Bytes> {
        let processes = self.processes.as_ref()?;
        let on_card: Vec<&ProcessMemory> = processes.iter().filter(|process| process.card == card).collect();
        if on_card.is_empty() {
            return Some(Bytes(0));
        }
        let pids = pids(record.cgroups.iter().map(Path::new));
        let own = on_card.into_iter().filter(|process| pids.contains(&process.pid));
        own.map(|process| process.bytes).try_fold(Bytes(0), |sum, bytes| Some(Bytes(sum.0.saturating_add(bytes?.0))))
    }

    #[cfg(test)]
    pub(super) fn nothing_runs() -> Self {
        Self { processes: Some(Vec::new()) }
    }

    #[cfg(test)]
    pub(super) fn unknown() -> Self {
        Self { processes: None }
    }
}

/// Every process in the cgroups and in those below them. A cgroup that is gone has none.
fn pids<'a>(cgroups: impl Iterator<Item = &'a Path>) -> BTreeSet<u32> {
    let mut pids = BTreeSet::new();
    let mut left: Vec<PathBuf> = cgroups.map(Path::to_owned).collect();
    while let Some(directory) = left.pop() {
        if let Ok(procs) = fs::read_to_string(directory.join("cgroup.procs")) {
            pids.extend(procs.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(directories.map(|entry| entry.path()));
    }
    pids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::test_support;

    #[test]
    fn memory_is_that_of_the_containers_own_processes_on_the_card() {
        let directory = tempfile::tempdir().unwrap();
        let nested = directory.path().join("inner");
        fs::create_dir(&nested).unwrap();
        fs::write(directory.path().join("cgroup.procs"), "10\n11\n").unwrap();
        fs::write(nested.join("cgroup.procs"), "12\n").unwrap();
        let mut record = test_support::node().records.remove(0);
        record.cgroups = vec![directory.path().display().to_string(), "/gone".to_owned()];
        let memory =
            |card: &str, pid, bytes: Option<u64>| ProcessMemory { card: card.into(), pid, bytes: bytes.map(Bytes) };
        let usage = |processes| Usage { processes: Some(processes) };
        let some = usage(vec![
            memory("GPU-a", 10, Some(1)),
            memory("GPU-a", 12, Some(2)),
            memory("GPU-a", 99, Some(4)),
            memory("GPU-b", 11, Some(8)),
        ]);
        assert_eq!(some.of(&record, "GPU-a"), Some(Bytes(3)));
        assert_eq!(some.of(&record, "GPU-b"), Some(Bytes(8)));
        assert_eq!(some.of(&record, "GPU-c"), Some(Bytes(0)));
        let silent = usage(vec![memory("GPU-a", 10, Some(1)), memory("GPU-a", 11, None)]);
        assert_eq!(silent.of(&record, "GPU-a"), None);
        assert_eq!(Usage::unknown().of(&record, "GPU-a"), None);
    }
}
