//! Memory use of containers: as their mediators report it, and for containers with whole cards as
//! the driver does.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::Path,
};

use base::{
    block_file::ReadBlockError,
    cgroup_tree,
    usage::{self, UsageFile},
};
use cards::{ProcessMemory, Source};
use ledger::Record;
use nvidia_glue::inject;
use runtime_config::Bytes;

use super::node::Node;

/// Memory use of the containers of a node.
#[derive(Debug)]
pub(super) struct MemoryUsage {
    /// Use by process, as the driver reports it; `None`: it could not be asked.
    processes: Option<Vec<ProcessMemory>>,
    /// Use by grant, as mediators report it.
    mediated: HashMap<String, usage::Usage>,
}

/// Reads the usage that the mediator of the container reports; `None`: it has none.
pub(super) fn mediated(state_dir: &Path, record: &Record) -> Result<Option<usage::Usage>, ReadBlockError> {
    // An invalid grant id has no file.
    let Ok(path) = inject::usage_file(state_dir, record.schedule_id()) else { return Ok(None) };
    match UsageFile::read(&path) {
        Ok(usage) => Ok(Some(usage)),
        Err(ReadBlockError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Measures the use, and returns warnings of what failed. Nothing computes on simulated cards, so
/// nothing uses their memory.
pub(super) fn measure(node: &Node) -> (MemoryUsage, Vec<String>) {
    measure_with(node, || cards::processes(&node.config).map_err(|error| base::error_chain(&error)))
}

/// [`measure`] that asks the driver in its own way, where it has to be asked.
pub(super) fn measure_with(
    node: &Node,
    processes: impl FnOnce() -> Result<Vec<ProcessMemory>, String>,
) -> (MemoryUsage, Vec<String>) {
    let (mut reported, mut warnings) = (HashMap::new(), Vec::new());
    for record in &node.records {
        match mediated(&node.config.state_dir, record) {
            Ok(Some(usage)) => drop(reported.insert(record.schedule_id().to_owned(), usage)),
            Ok(None) => {}
            Err(error) => warnings.push(base::error_chain(&error)),
        }
    }
    // If every container has a mediator, the driver need not be asked.
    let is_told = node.records.iter().all(|record| reported.contains_key(record.schedule_id()));
    if node.inventory.source == Source::Simulated || is_told {
        return (MemoryUsage { processes: Some(Vec::new()), mediated: reported }, warnings);
    }
    let processes = match processes() {
        Ok(processes) => Some(processes),
        Err(error) => {
            warnings.push(format!("cannot read the used memory: {error}"));
            None
        }
    };
    (MemoryUsage { processes, mediated: reported }, warnings)
}

impl MemoryUsage {
    /// Returns the memory that the container's processes use on the card; `None`: the driver does
    /// not report it.
    pub(super) fn of(&self, record: &Record, card: &str) -> Option<Bytes> {
        if let Some(reported) = self.mediated(record) {
            return reported
                .cards
                .iter()
                .find(|reported| reported.uuid == card)
                .map_or(Some(Bytes(0)), |reported| Some(reported.used));
        }
        let processes = self.processes.as_ref()?;
        let on_card: Vec<&ProcessMemory> = processes.iter().filter(|process| process.card == card).collect();
        if on_card.is_empty() {
            return Some(Bytes(0));
        }
        let pids = pids(record.cgroups.iter().map(Path::new));
        let own = on_card.into_iter().filter(|process| pids.contains(&process.pid));
        own.map(|process| process.bytes).try_fold(Bytes(0), |sum, bytes| Some(Bytes(sum.0.saturating_add(bytes?.0))))
    }

    /// Returns the usage that its mediator reports; `None`: it has none.
    pub(super) fn mediated(&self, record: &Record) -> Option<&usage::Usage> {
        self.mediated.get(record.schedule_id())
    }

    #[cfg(test)]
    pub(super) fn nothing_runs() -> Self {
        Self { processes: Some(Vec::new()), mediated: HashMap::new() }
    }

    #[cfg(test)]
    pub(super) fn reported(record: &Record, usage: usage::Usage) -> Self {
        let mediated = HashMap::from([(record.schedule_id().to_owned(), usage)]);
        Self { processes: Some(Vec::new()), mediated }
    }

    #[cfg(test)]
    pub(super) fn unknown() -> Self {
        Self { processes: None, mediated: HashMap::new() }
    }
}

/// Lists the processes in the cgroups and in those below them. A cgroup that is gone has none.
fn pids<'a>(cgroups: impl Iterator<Item = &'a Path>) -> BTreeSet<u32> {
    let found = cgroups.filter_map(|cgroup| cgroup_tree::pids(cgroup).ok().flatten()).flatten();
    found.filter_map(|pid| u32::try_from(pid).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_support;

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
        let usage = |processes| MemoryUsage { processes: Some(processes), mediated: HashMap::new() };
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
        assert_eq!(MemoryUsage::unknown().of(&record, "GPU-a"), None);
    }
}
