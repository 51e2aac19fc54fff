//! Cards that have had a fatal error since boot, from the kernel's log.
//!
//! It is asked on every create, so it is kept cheap: what the log said is folded into one small
//! state, kept in `<state_dir>/kernel-log.json` together with the sequence number of the next
//! record to look at. A look costs one pass over the kernel's ring buffer, of which older records
//! are skipped by their header (the device cannot be positioned at a number), and is not repeated
//! within [`FRESH_MS`]: a burst of creates looks once. The state is a function of the log up to
//! that number, so that whoever writes it last is right, without a lock.
//!
//! What ends a fault: the driver says that no recovery is needed (Xid 154, or NVML at a later
//! discovery), the kernel module is loaded anew, or the machine starts anew.

mod kernel_log;
mod simulated;
mod xid;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use base::PciBusId;
use kernel_log::Record;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
pub use simulated::{SimulatedFault, SimulatedFaults};
use xid::{Meaning, Report};

use super::{Card, Health, Inventory, Roots, Source, kernel_module, state_file};

/// Time for which the kernel's log is not read again.
const FRESH_MS: u64 = 1000;
const STATE_FILE: &str = "kernel-log.json";
/// Log of simulated cards, written by whoever wants to see what happens: records as `/dev/kmsg`
/// gives them, `3,1,0,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.` Their driver
/// obeys them ([`SimulatedFaults`]).
const SIMULATED_LOG: &str = "simulated/kmsg";

/// The kernel's log could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the kernel's log {} for errors of cards", path.display())]
pub(super) struct HealthError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Errors of the cards in the kernel's log, up to a record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Faults {
    /// Sequence number of the first record that has not been read.
    pub(super) next: u64,
    /// Record of the kernel module's last start, if the log had one: another one means other minor
    /// numbers, perhaps.
    pub(super) driver_loaded: Option<u64>,
    /// The cards that need a reset, by PCI address.
    cards: BTreeMap<String, Fault>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fault {
    /// The first; later ones are its consequences.
    reason: String,
    /// Nothing but double bit errors so far.
    only_double_bit_error: bool,
    /// Record of the latest.
    latest: u64,
}

/// The state file.
#[derive(Debug, Serialize, Deserialize)]
struct KernelLogState {
    boot_id: String,
    /// Milliseconds of CLOCK_BOOTTIME.
    looked_at_ms: u64,
    faults: Faults,
}

impl Faults {
    fn observe(&mut self, record: Record<'_>) {
        match xid::parse(record.message) {
            None => {}
            Some(Report::DriverLoaded) => {
                self.cards.clear();
                self.driver_loaded = Some(record.sequence);
            }
            Some(Report::Xid { card, meaning }) => self.observe_xid(card, meaning, record.sequence),
        }
    }

    fn observe_xid(&mut self, card: PciBusId, meaning: Meaning, sequence: u64) {
        let card = slot(card);
        match meaning {
            Meaning::NeedsReset { xid, reason } => {
                let fault =
                    self.cards.entry(card).or_insert(Fault { reason, only_double_bit_error: true, latest: sequence });
                fault.only_double_bit_error &= xid == xid::DOUBLE_BIT_ERROR;
                fault.latest = sequence;
            }
            Meaning::Contained => {
                if self.cards.get(&card).is_some_and(|fault| fault.only_double_bit_error) {
                    self.cards.remove(&card);
                }
            }
            Meaning::Recovered => {
                self.cards.remove(&card);
            }
            Meaning::Harmless => {}
        }
    }

    /// Reason for which the card must not be used; `None` if all faults came before record
    /// `forgiven`.
    fn reason(&self, card: &Card, forgiven: u64) -> Option<&str> {
        let fault = self.cards.get(&slot(card.pci))?;
        (fault.latest >= forgiven).then_some(fault.reason.as_str())
    }

    /// Marks the cards that have had a fatal error. `forgiven`, by UUID: NVML declared the card
    /// sound when the log had come to that record.
    pub(super) fn apply(&self, inventory: &mut Inventory, forgiven: &BTreeMap<String, u64>) {
        for card in &mut inventory.cards {
            let since = forgiven.get(&card.uuid).copied().unwrap_or(0);
            if card.health == Health::Ok
                && let Some(reason) = self.reason(card, since)
            {
                card.health = Health::Unusable { reason: reason.to_owned() };
            }
        }
    }
}

/// The log names no function.
fn slot(address: PciBusId) -> String {
    PciBusId { function: 0, ..address }.to_string()
}

/// Faults of cards from `source` that the kernel's log reports now.
pub(super) fn look(roots: &Roots, state_dir: &Path, source: Source) -> Result<Faults, HealthError> {
    match source {
        Source::Nvidia => look_at_kernel(roots, state_dir, boottime_ms()),
        Source::Simulated => {
            let path = state_dir.join(SIMULATED_LOG);
            if path.exists() { read_on(&path, Faults::default()) } else { Ok(Faults::default()) }
        }
    }
}

/// [`look`] for callers that go on without an answer: some sandboxes have no kernel log, and NVML,
/// asked for the inventory, has had its say all the same.
pub(super) fn read_faults_if_possible(roots: &Roots, state_dir: &Path, source: Source) -> Faults {
    look(roots, state_dir, source).unwrap_or_else(|error| {
        tracing::warn!(%error, "card errors in the kernel's log are not seen");
        Faults::default()
    })
}

fn look_at_kernel(roots: &Roots, state_dir: &Path, now: u64) -> Result<Faults, HealthError> {
    let path = state_dir.join(STATE_FILE);
    let boot_id = kernel_module::boot_id(roots).unwrap_or_default();
    let known: Option<KernelLogState> =
        state_file::read(&path).filter(|state: &KernelLogState| state.boot_id == boot_id);
    let faults = match known {
        // A time to come is a spoilt file's: it must not count as fresh for ever.
        Some(state) if now.checked_sub(state.looked_at_ms).is_some_and(|age| age < FRESH_MS) => return Ok(state.faults),
        Some(state) => state.faults,
        None => Faults::default(),
    };
    let faults = read_on(&roots.kernel_log, faults)?;
    let state = KernelLogState { boot_id, looked_at_ms: now, faults: faults.clone() };
    if let Err(error) = state_file::replace(&path, &state) {
        // The next read starts further back; nothing is missed.
        tracing::debug!(path = %path.display(), %error, "cannot keep the position in the kernel's log");
    }
    Ok(faults)
}

fn read_on(path: &Path, mut faults: Faults) -> Result<Faults, HealthError> {
    let next = kernel_log::read(path, faults.next, |record| faults.observe(record))
        .map_err(|source| HealthError { path: path.to_owned(), source })?;
    faults.next = next;
    Ok(faults)
}

/// Milliseconds since boot, time asleep included: a clock that starts anew exactly when the
/// kernel's log does.
pub(super) fn boottime_ms() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let nanoseconds = u64::try_from(time.tv_nsec()).unwrap_or(0);
        seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
    })
}

#[cfg(test)]
mod tests;
