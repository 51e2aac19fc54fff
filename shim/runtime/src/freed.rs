//! `Freed`: looks whether the memory of a grant whose mediator was killed is free again.
//!
//! The driver frees what a process had when the last descriptor of its files is closed; another
//! container may have one. So the grant goes back only when no more of its cards is in use than
//! others account for: mediators of other grants, processes that the driver names, and
//! [`TOLERANCE`].

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use base::usage::UsageFile;
use cards::{CardMemory, DiscoverError};
use ledger::{Ledger, ProcessId, Record, StoreError};
use nvidia_glue::inject;
use runtime_config::{
    Bytes,
    config::{Config, ConfigError},
};

use super::protocol::{FailureKind, Freed};

/// Memory in use that no account has: the driver's own for each context, in sum.
const TOLERANCE: Bytes = Bytes(256 << 20);
/// The driver is given so long to free what a killed process had.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(100);

/// The grant is to be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FreedError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cards.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The records of the others.
    #[error(transparent)]
    Ledger(#[from] StoreError),
    /// The simulated driver.
    #[cfg(feature = "simulated")]
    #[error("the simulated cards cannot be asked")]
    Simulated(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A card did not say how much of it is used.
    #[error("card {card} does not say how much of its memory is in use")]
    Unknown { card: String },
    /// It is in use.
    #[error(
        "{} MiB of card {card} are in use that no container and no process accounts for, and the container's mediator \
         was killed: another container has files of the driver from it; end that (a sidecar of the same pod, as a rule)",
        .bytes.0 >> 20
    )]
    InUse { card: String, bytes: Bytes },
    /// The mark cannot be written.
    #[error(transparent)]
    Mark(#[from] inject::GrantFilesError),
}

impl FreedError {
    pub(crate) fn kind(&self) -> FailureKind {
        FailureKind::FailedPrecondition
    }
}

/// Waits for a moment until the memory is free, and notes it.
pub(crate) fn look(asked: &Freed) -> Result<(), FreedError> {
    let config = Config { state_dir: asked.state_dir.clone(), ..Config::load(None)? };
    let ledger = Ledger::open(&asked.state_dir)?;
    let mark = inject::HeldMark::open(&asked.state_dir, &asked.grant)?;
    let until = Instant::now() + PATIENCE;
    let mut was_free = false;
    loop {
        let records = ledger.records()?;
        let mut accounts = Accounts::read(&records, asked);
        let used = used(&config, &cards_of(&records, asked))?;
        accounts.lower(&Accounts::read(&records, asked));
        match compare(&records, &used, &accounts, asked) {
            // What a neighbour has freed is in its account a moment later.
            Ok(()) if was_free => break,
            Ok(()) => was_free = true,
            Err(FreedError::InUse { .. }) if Instant::now() < until => was_free = false,
            Err(error) => return Err(error),
        }
        thread::sleep(LOOK);
    }
    Ok(mark.clear()?)
}

/// Cards of the grant, by UUID.
fn cards_of<'r>(records: &'r [Record], asked: &Freed) -> Vec<&'r str> {
    let own = records.iter().filter(|record| record.schedule_id() == asked.grant);
    own.flat_map(|record| &record.cards).map(|grant| grant.uuid.as_str()).collect()
}

fn used(config: &Config, asked: &[&str]) -> Result<Vec<CardMemory>, FreedError> {
    #[cfg(feature = "simulated")]
    if let Some(inventory) = cards::cached(config).filter(|inventory| inventory.source == cards::Source::Simulated) {
        let driver = simulator::SimulatedDriver::new(&config.state_dir, &inventory);
        let used = driver.map_err(|error| FreedError::Simulated(error.into()))?.memory_used();
        return used.map_err(|error| FreedError::Simulated(error.into()));
    }
    Ok(cards::memory(config, asked)?)
}

fn compare(records: &[Record], used: &[CardMemory], accounts: &Accounts<'_>, asked: &Freed) -> Result<(), FreedError> {
    let mediators: HashSet<i32> = records.iter().filter_map(|record| Some(record.mediator?.pid)).collect();
    for card in cards_of(records, asked) {
        let card = card.to_owned();
        let Some(of_card) = used.iter().find(|memory| memory.card == card) else {
            return Err(FreedError::Unknown { card });
        };
        let granted = accounts.of(&card);
        // A process that is gone is what is looked for.
        let is_other =
            |pid: u32| !mediators.contains(&pid.cast_signed()) && Path::new(&format!("/proc/{pid}")).exists();
        let outside = of_card.processes.iter().filter(|process| is_other(process.pid));
        let outside: u64 = outside.filter_map(|process| Some(process.bytes?.0)).sum();
        let left = of_card.used.0.saturating_sub(granted.saturating_add(outside));
        if left > TOLERANCE.0 {
            return Err(FreedError::InUse { card, bytes: Bytes(left) });
        }
    }
    Ok(())
}

/// Bytes that the mediators of other grants say they hold, by grant and card. One that is gone
/// vouches for nothing: two that were killed would for each other. Nor does a grant that has none,
/// which may be unused.
struct Accounts<'r>(HashMap<&'r str, HashMap<String, u64>>);

impl<'r> Accounts<'r> {
    fn read(records: &'r [Record], asked: &Freed) -> Self {
        let lives = |record: &&Record| {
            record.mediator.is_some_and(|mediator| ProcessId::of(mediator.pid).ok() == Some(mediator))
        };
        let grants = records.iter().filter(lives).map(Record::schedule_id).filter(|grant| *grant != asked.grant);
        let of = |grant: &str| {
            let path = inject::usage_file(&asked.state_dir, grant).ok();
            let usage = path.and_then(|path| UsageFile::read(&path).ok()).unwrap_or_default();
            usage.cards.into_iter().map(|card| (card.uuid, card.used.0)).collect()
        };
        Self(grants.map(|grant| (grant, of(grant))).collect())
    }

    /// Leaves of each what it was all the time: a neighbour that allocates and frees says less
    /// before the card is asked, or more after it.
    fn lower(&mut self, later: &Self) {
        for (grant, cards) in &mut self.0 {
            for (card, bytes) in cards {
                *bytes = (*bytes).min(later.0.get(grant).and_then(|cards| cards.get(card)).copied().unwrap_or(0));
            }
        }
    }

    fn of(&self, card: &str) -> u64 {
        self.0.values().filter_map(|cards| cards.get(card)).sum()
    }
}

#[cfg(test)]
mod tests {
    use base::usage::Usage;
    use cards::ProcessMemory;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn record(grant: &str, mib: u64, mediator: ProcessId) -> Record {
        let mut record: Record = serde_json::from_slice(&testing::fixture(
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../nvidia-glue/ledger"),
            "record-6.json",
        ))
        .unwrap();
        grant.clone_into(&mut record.grant_id);
        record.claim = None;
        record.mediator = Some(mediator);
        record.cards.truncate(1);
        "GPU-1".clone_into(&mut record.cards[0].uuid);
        record.cards[0].memory = Bytes(mib * MIB);
        record
    }

    #[test]
    fn what_others_account_for_is_no_reason_to_keep_a_grant() {
        let state = tempfile::tempdir().unwrap();
        let asked = Freed { state_dir: state.path().to_owned(), grant: "own".into() };
        let usage_file = inject::usage_file(state.path(), "other").unwrap();
        std::fs::create_dir_all(usage_file.parent().unwrap()).unwrap();
        let of_other = serde_json::json!({ "uuid": "GPU-1", "used": 1024 * MIB, "limit": 0, "peak": 0 });
        let mut usage = Usage { cards: vec![serde_json::from_value(of_other).unwrap()], ..Usage::default() };
        let usage_file = UsageFile::create(&usage_file).unwrap();
        usage_file.write(&usage).unwrap();
        let gone = ProcessId { pid: i32::MAX, start_time: 1 };
        let living = ProcessId::current().unwrap();
        // A claim of two requests has two records, and one mediator.
        let records = [record("own", 1024, gone), record("other", 1024, living), record("other", 1024, living)];
        let compare = |records: &[Record], used: &[CardMemory]| {
            super::compare(records, used, &Accounts::read(records, &asked), &asked)
        };
        let process = |pid, mib| ProcessMemory { card: "GPU-1".into(), pid, bytes: Some(Bytes(mib * MIB)) };
        let outside = process(std::os::unix::process::parent_id(), 100);
        // The dead mediator, whom the driver still names; the other one says what it holds.
        let mediators = [process(i32::MAX.cast_unsigned(), 384), process(std::process::id(), 1024)];
        for (used, is_free) in [(0, true), (1024 + 256 + 100, true), (1024 + 256 + 101, false)] {
            let processes = mediators.iter().cloned().chain([outside.clone()]).collect();
            let used = CardMemory { card: "GPU-1".into(), used: Bytes(used * MIB), processes };
            let compared = compare(&records, &[used]);
            assert_eq!(compared.is_ok(), is_free, "{compared:?}");
        }
        let also_killed = [record("own", 1024, gone), record("other", 1024, gone)];
        let used = CardMemory { card: "GPU-1".into(), used: Bytes(1024 * MIB), processes: Vec::new() };
        let compared = compare(&also_killed, &[used]);
        assert!(matches!(compared, Err(FreedError::InUse { .. })), "{compared:?}");
        let unknown = compare(&records, &[]);
        assert!(matches!(unknown, Err(FreedError::Unknown { .. })), "{unknown:?}");
        let mut accounts = Accounts::read(&records, &asked);
        usage.cards[0].used = Bytes(512 * MIB);
        usage_file.write(&usage).unwrap();
        accounts.lower(&Accounts::read(&records, &asked));
        assert_eq!(accounts.of("GPU-1"), 512 * MIB);
    }
}
