//! Effects of errors in the log of simulated cards on their driver, so that whoever writes one sees
//! what follows from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use base::PciBusId;

use super::{
    SIMULATED_LOG,
    kernel_log::{self, Record},
    slot,
    xid::{self, Meaning, Report, Xid},
};

/// The card does not answer on its bus any more.
const FALLEN_OFF_THE_BUS: u32 = 79;
/// The card's firmware has not answered a call, which the report names.
const FIRMWARE_TIMEOUT: u32 = 119;

/// A simulated card that has had errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimulatedFault {
    /// It has fallen off the bus (Xid 79), and not been reset.
    pub is_lost: bool,
    /// Number of resets after it had fallen off the bus.
    pub resets: u64,
    /// Controls that its firmware does not answer (the `0x...` of an Xid 119).
    pub unanswered: BTreeSet<u32>,
}

/// The simulated cards that have had errors.
#[derive(Debug, Default)]
pub struct SimulatedFaults(BTreeMap<String, SimulatedFault>);

impl SimulatedFaults {
    /// Faults that the log reports now. `None`: it cannot be read.
    pub fn look(state_dir: &Path) -> Option<Self> {
        let mut faults = Self::default();
        match kernel_log::read(&state_dir.join(SIMULATED_LOG), 0, |record| faults.observe(record)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => None,
            _ => Some(faults),
        }
    }

    /// Fault of the card at this address.
    pub fn of(&self, card: PciBusId) -> SimulatedFault {
        self.0.get(&slot(card)).cloned().unwrap_or_default()
    }

    fn observe(&mut self, record: Record<'_>) {
        match (xid::parse(record.message), xid::xid(record.message)) {
            (Some(Report::DriverLoaded), _) => self.0.values_mut().for_each(SimulatedFault::reset),
            (Some(Report::Xid { meaning: Meaning::Recovered, card }), _) => {
                self.0.entry(slot(card)).or_default().reset();
            }
            (_, Some(Xid { number: FALLEN_OFF_THE_BUS, card, .. })) => {
                self.0.entry(slot(card)).or_default().is_lost = true;
            }
            (_, Some(Xid { number: FIRMWARE_TIMEOUT, card, words })) => {
                self.0.entry(slot(card)).or_default().unanswered.extend(control(words));
            }
            _ => {}
        }
    }
}

impl SimulatedFault {
    fn reset(&mut self) {
        self.resets += u64::from(self.is_lost);
        self.is_lost = false;
        self.unanswered.clear();
    }
}

/// `... Expected function 76 (GSP_RM_CONTROL) sequence 5 (0x2080110b 0x218).`
fn control(words: &str) -> Option<u32> {
    let (_, rest) = words.split_once("(0x")?;
    let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
    u32::from_str_radix(rest.get(..digits)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(messages: &[&str]) -> SimulatedFaults {
        let state = tempfile::tempdir().unwrap();
        let log = state.path().join(SIMULATED_LOG);
        std::fs::create_dir(log.parent().unwrap()).unwrap();
        let records = (0..).zip(messages).map(|(number, message)| format!("3,{number},0,-;{message}\n"));
        std::fs::write(&log, records.collect::<String>()).unwrap();
        SimulatedFaults::look(state.path()).unwrap()
    }

    fn first(faults: &SimulatedFaults) -> SimulatedFault {
        faults.of(PciBusId { domain: 0, bus: 1, device: 0, function: 0 })
    }

    const LOST: &str = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.";
    const RECOVERED: &str =
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
    const TIMEOUT: &str = "NVRM: Xid (PCI:0000:01:00): 119, pid=1, name=a, Timeout after 6s of waiting for RPC response from \
                           GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) sequence 5 (0x2080110b 0x218).";

    #[test]
    fn a_card_is_lost_until_it_is_reset() {
        assert_eq!(first(&faults(&[])), SimulatedFault::default());
        assert_eq!(first(&faults(&[LOST, LOST])), SimulatedFault { is_lost: true, ..SimulatedFault::default() });
        let twice = faults(&[LOST, RECOVERED, RECOVERED, LOST, "NVRM: loading NVIDIA UNIX Open Kernel Module"]);
        assert_eq!(first(&twice), SimulatedFault { resets: 2, ..SimulatedFault::default() });
        assert_eq!(first(&faults(&["NVRM: Xid (PCI:0000:02:00): 79, another card"])), SimulatedFault::default());
    }

    #[test]
    fn firmware_does_not_answer_what_the_report_names() {
        let unanswered = BTreeSet::from([0x2080_110b]); // Not in the tables: as the log has it.
        assert_eq!(first(&faults(&[TIMEOUT])), SimulatedFault { unanswered, ..SimulatedFault::default() });
        assert_eq!(first(&faults(&[TIMEOUT, RECOVERED])), SimulatedFault::default());
        assert_eq!(first(&faults(&["NVRM: Xid (PCI:0000:01:00): 119, (0xzz"])), SimulatedFault::default());
    }

    #[test]
    fn without_a_log_nothing_has_happened() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(first(&SimulatedFaults::look(state.path()).unwrap()), SimulatedFault::default());
    }
}
