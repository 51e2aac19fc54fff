//! Memory of each process on a card.

use std::collections::BTreeMap;

use base::Bytes;
use nvml_wrapper::{Device, enums::device::UsedGpuMemory, error::NvmlError, struct_wrappers::device::ProcessInfo};
use serde::{Deserialize, Serialize};

/// The list may grow between the question how long it is and the question for it.
const ATTEMPTS: usize = 4;

/// Memory of one process on one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// `GPU-...` of the card, or of the card that the MIG device is on.
    pub card: String,
    /// In the initial pid namespace.
    pub pid: u32,
    /// Its use; `None`: the driver does not say.
    pub bytes: Option<Bytes>,
}

/// Memory of one card that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardMemory {
    /// `GPU-...`.
    pub card: String,
    /// In all, without what the driver reserves. None of a card that is lost, which comes back by
    /// a reset, without what was there.
    pub used: Bytes,
    /// By process.
    pub processes: Vec<ProcessMemory>,
}

/// The processes with compute or graphics contexts on `device`; none where NVML does not say.
pub(super) fn of(device: &Device<'_>) -> Vec<ProcessMemory> {
    let Ok(card) = device.uuid() else { return Vec::new() };
    let compute = with_retries(|| device.running_compute_processes());
    let graphics = with_retries(|| device.running_graphics_processes());
    merge(&card, compute.into_iter().chain(graphics).map(|process| (used(&process), process.pid)))
}

fn with_retries(mut ask: impl FnMut() -> Result<Vec<ProcessInfo>, NvmlError>) -> Vec<ProcessInfo> {
    for _ in 0..ATTEMPTS {
        match ask() {
            Ok(processes) => return processes,
            Err(NvmlError::InsufficientSize(_)) => {}
            Err(_) => break,
        }
    }
    Vec::new()
}

fn used(process: &ProcessInfo) -> Option<u64> {
    match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    }
}

/// Merges both lists of processes: one with compute and graphics contexts is in both, each time
/// with all that it uses, and the larger counts.
fn merge(card: &str, processes: impl Iterator<Item = (Option<u64>, u32)>) -> Vec<ProcessMemory> {
    let mut by_pid: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for (bytes, pid) in processes {
        let entry = by_pid.entry(pid).or_default();
        *entry = (*entry).max(bytes);
    }
    let memory =
        |(pid, bytes): (u32, Option<u64>)| ProcessMemory { card: card.to_owned(), pid, bytes: bytes.map(Bytes) };
    by_pid.into_iter().map(memory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_both_lists_counts_once() {
        let merged = merge("GPU-1", [(Some(5), 10), (None, 11), (Some(9), 10), (Some(3), 11), (None, 12)].into_iter());
        let summary: Vec<_> = merged.iter().map(|process| (process.pid, process.bytes.map(|bytes| bytes.0))).collect();
        assert_eq!(summary, [(10, Some(9)), (11, Some(3)), (12, None)]);
    }

    #[test]
    fn a_list_that_keeps_growing_is_given_up() {
        let mut asked = 0;
        let processes = with_retries(|| {
            asked += 1;
            Err(NvmlError::InsufficientSize(Some(99)))
        });
        assert_eq!((asked, processes.len()), (ATTEMPTS, 0));
    }
}
