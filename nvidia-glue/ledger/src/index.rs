//! The records' sums, card by card, so that an admission reads what is on the cards that it chooses
//! and not all records.
//!
//! Derived from the records and never trusted further than that: see [`super::store`] for when it
//! is rebuilt.

use std::collections::{BTreeMap, BTreeSet};

use base::Priority;
use runtime_config::request::PodContainer;
use serde::{Deserialize, Serialize};

use super::{
    CardGrant, ContainerKey, ContainerName, ProcessId, Record,
    card_sums::CardSums,
    claim::Gang,
    formats::INDEX,
    record::Owner,
    store::{FileStamp, Locked, READABLE, StoreError, hash, readable},
};

const SUMMARY: &str = "summary.json";
/// Containers that a message names at most.
const MAX_NAMED: usize = 8;

/// One grant on one card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Holding {
    pub(super) container: ContainerKey,
    /// Its names in Kubernetes. An earlier version of egpu, which may have written the index,
    /// leaves them out.
    #[serde(default)]
    pub(super) pod: Option<PodContainer>,
    pub(super) grant_id: String,
    pub(super) order: u64,
    pub(super) pid_namespace: u64,
    pub(super) shim: ProcessId,
    /// Hash of the container's group.
    pub(super) group: Option<u64>,
    /// It is of a claim.
    pub(super) is_claim: bool,
    /// See [`Gang`].
    pub(super) gang: Option<Gang>,
    /// UUIDs of all cards of the container: what has its windows at the same instant as here.
    pub(super) cards: Vec<String>,
    /// Order in which it runs, as of now.
    pub(super) priority: Priority,
    /// See [`Record::present`].
    pub(super) present: bool,
    /// See [`Record::is_unlimited`].
    pub(super) unlimited: bool,
    pub(super) grant: CardGrant,
}

impl<'a> From<&'a Holding> for ContainerName<'a> {
    fn from(holding: &'a Holding) -> Self {
        Self { key: &holding.container, pod: holding.pod.as_ref() }
    }
}

/// Cards with their grants, in ledger order.
pub(super) type Cards<'a> = BTreeMap<&'a str, &'a [Holding]>;

#[derive(Debug, Serialize, Deserialize)]
struct Summary {
    version: u32,
    boot_id: String,
    /// Of the directory of records, as this index last saw it: a record that somebody removed by
    /// hand shows.
    stamp: (i64, i64),
    next_order: u64,
    /// By card that anybody shares: which file is the timetable that was made from these records.
    /// `None`: it is not known of all.
    timetables: Option<BTreeMap<String, FileStamp>>,
    /// Sums of the cards that have any, by UUID.
    cards: BTreeMap<String, CardSums>,
}

/// The index in memory, as of the lock's being held.
#[derive(Debug)]
pub(super) struct Index {
    summary: Summary,
    holdings: BTreeMap<String, Vec<Holding>>,
    /// Cards whose file is not up to date.
    changed: BTreeSet<String>,
    /// It is not to be written.
    is_left_absent: bool,
}

/// Name of a card's file. Unlike the summary, which says so, it is not for other builds.
fn card_file(uuid: &str) -> String {
    format!("card-{}.postcard", readable(uuid, READABLE))
}

/// Hash of a group, for [`Holding::group`].
pub(super) fn group_hash(group: &str) -> u64 {
    u64::from_str_radix(&hash(&[group])[..16], 16).unwrap_or_default()
}

/// Hash of an owner, for [`CardSums::owners`].
pub(super) fn owner_hash(owner: Owner<'_>) -> u64 {
    let (kind, name) = match owner {
        Owner::Pods(namespace) => ("pods", namespace),
        Owner::Containerd(namespace) => ("containerd", namespace),
    };
    u64::from_str_radix(&hash(&[kind, name])[..16], 16).unwrap_or_default()
}

impl Index {
    /// The index as it is written down if that is up to date, else made from the records.
    pub(super) fn load(locked: &Locked<'_>) -> Result<Self, StoreError> {
        match Self::current_summary(locked)? {
            Some(summary) => Ok(Self::with(summary)),
            None => Self::rebuild(locked),
        }
    }

    fn with(summary: Summary) -> Self {
        Self { summary, holdings: BTreeMap::new(), changed: BTreeSet::new(), is_left_absent: false }
    }

    /// Returns whether the index that is written down is this build's, and of the records that
    /// there are.
    pub(super) fn is_current(locked: &Locked<'_>) -> Result<bool, StoreError> {
        Ok(Self::current_summary(locked)?.is_some())
    }

    fn current_summary(locked: &Locked<'_>) -> Result<Option<Summary>, StoreError> {
        let summary = locked.read_index(SUMMARY).and_then(|bytes| serde_json::from_slice::<Summary>(&bytes).ok());
        let stamp = locked.records_stamp()?;
        let is_current = |summary: &Summary| {
            summary.version == INDEX && summary.boot_id == locked.store().boot_id() && summary.stamp == stamp
        };
        Ok(summary.filter(is_current))
    }

    /// Creates the index from the records, and writes it down if that is possible.
    pub(super) fn rebuild(locked: &Locked<'_>) -> Result<Self, StoreError> {
        locked.remove_index(SUMMARY)?;
        let records = locked.store().records()?;
        locked.remove_leftovers(&records)?;
        let mut index = Self::of(locked, &records);
        index.save(locked);
        Ok(index)
    }

    /// The index of these records, in memory alone.
    pub(super) fn of<'r>(locked: &Locked<'_>, records: impl IntoIterator<Item = &'r Record>) -> Self {
        let summary = Summary {
            version: INDEX,
            boot_id: locked.store().boot_id().to_owned(),
            stamp: (0, 0),
            next_order: 0,
            timetables: None,
            cards: BTreeMap::new(),
        };
        let mut index = Self::with(summary);
        for record in records {
            index.summary.next_order = index.summary.next_order.max(record.order + 1);
            index.add_holdings(record);
        }
        index.sum_up();
        index
    }

    /// Takes a record in as the next one, in memory alone.
    pub(super) fn add_hypothetical(&mut self, record: Record) {
        let record = Record { order: self.summary.next_order, ..record };
        self.summary.next_order += 1;
        self.add_holdings(&record);
        self.sum_up();
    }

    /// Order of the next record.
    pub(super) fn next_order(&self) -> u64 {
        self.summary.next_order
    }

    /// Returns whether the timetables that are there are those that were made from these records.
    pub(super) fn has_current_timetables(&self, locked: &Locked<'_>) -> bool {
        let is_it = |(uuid, stamp): (&String, &FileStamp)| locked.timetable_stamp(uuid) == Some(*stamp);
        self.summary.timetables.as_ref().is_some_and(|written| written.iter().all(is_it))
    }

    /// Takes the timetables' stamps, which are unknown until [`Index::set_timetables`].
    pub(super) fn take_timetables(&mut self) -> Option<BTreeMap<String, FileStamp>> {
        self.summary.timetables.take()
    }

    /// Records the stamps of the timetables' files.
    pub(super) fn set_timetables(&mut self, timetables: BTreeMap<String, FileStamp>) {
        self.summary.timetables = Some(timetables);
    }

    /// The cards that anybody has a grant on, and those that somebody had one on.
    pub(super) fn uuids(&self) -> BTreeSet<String> {
        self.summary.cards.keys().chain(self.holdings.keys()).cloned().collect()
    }

    /// Sums of all grants on a card.
    pub(super) fn sums(&self, uuid: &str) -> CardSums {
        self.summary.cards.get(uuid).cloned().unwrap_or_default()
    }

    /// The grants on a card, in ledger order.
    pub(super) fn holdings(&mut self, locked: &Locked<'_>, uuid: &str) -> Result<&[Holding], StoreError> {
        if !self.holdings.contains_key(uuid) {
            let found = match self.summary.cards.get(uuid) {
                None => Vec::new(),
                Some(sums) => match read_holdings(locked, uuid) {
                    Some(holdings) if sums_of(&holdings) == *sums => holdings,
                    // Not what the summary was made from.
                    _ => {
                        *self = Self::rebuild(locked)?;
                        return Ok(self.holdings.entry(uuid.to_owned()).or_default());
                    }
                },
            };
            self.holdings.insert(uuid.to_owned(), found);
        }
        Ok(self.holdings.entry(uuid.to_owned()).or_default())
    }

    /// Cards with their grants, once [`Index::holdings`] has been asked for each.
    pub(super) fn cards<'a>(&'a self, uuids: &'a BTreeSet<String>) -> Cards<'a> {
        let holdings = |uuid: &'a String| (uuid.as_str(), self.holdings.get(uuid).map_or(&[][..], Vec::as_slice));
        uuids.iter().map(holdings).collect()
    }

    /// Marks the written index as out of date: to be done before a record comes, changes or goes.
    pub(super) fn begin_change(&mut self, locked: &Locked<'_>) -> Result<(), StoreError> {
        Self::forget(locked)
    }

    /// Removes the written index: whoever can make it anew does.
    pub(super) fn forget(locked: &Locked<'_>) -> Result<(), StoreError> {
        locked.remove_index(SUMMARY)
    }

    /// Leaves the written index absent, whatever is saved: whoever comes next makes it anew, and
    /// removes what was left.
    pub(super) fn leave_absent(&mut self) {
        self.is_left_absent = true;
    }

    /// Takes a new record in.
    pub(super) fn add(&mut self, locked: &Locked<'_>, record: &Record) -> Result<(), StoreError> {
        for grant in &record.cards {
            self.holdings(locked, &grant.uuid)?;
        }
        // A rebuild on the way has it already.
        self.drop_holdings(&record.container);
        self.summary.next_order = self.summary.next_order.max(record.order + 1);
        self.add_holdings(record);
        Ok(())
    }

    /// Takes a record out.
    pub(super) fn remove(&mut self, locked: &Locked<'_>, record: &Record) -> Result<(), StoreError> {
        for grant in &record.cards {
            self.holdings(locked, &grant.uuid)?;
        }
        self.drop_holdings(&record.container);
        Ok(())
    }

    fn drop_holdings(&mut self, container: &ContainerKey) {
        for (uuid, holdings) in &mut self.holdings {
            let before = holdings.len();
            holdings.retain(|holding| holding.container != *container);
            if holdings.len() != before {
                self.changed.insert(uuid.clone());
            }
        }
    }

    fn add_holdings(&mut self, record: &Record) {
        let gang = record.claim.as_ref().and_then(|grant| grant.gang.clone());
        let own = || record.cards.iter().map(|grant| grant.uuid.clone()).collect();
        let cards: Vec<String> = gang.as_ref().map_or_else(own, |gang| gang.cards.clone());
        let group = record.request.group.as_deref().map(group_hash);
        for grant in &record.cards {
            self.changed.insert(grant.uuid.clone());
            let holdings = self.holdings.entry(grant.uuid.clone()).or_default();
            let position = holdings.partition_point(|holding| holding.order <= record.order);
            let holding = Holding {
                container: record.container.clone(),
                pod: record.request.pod.clone(),
                grant_id: record.grant_id.clone(),
                order: record.order,
                pid_namespace: record.pid_namespace,
                shim: record.shim,
                group,
                is_claim: record.claim.is_some(),
                gang: gang.clone(),
                cards: cards.clone(),
                priority: record.priority(),
                present: record.present,
                unlimited: record.is_unlimited(),
                grant: grant.clone(),
            };
            holdings.insert(position, holding);
        }
    }

    /// Brings the sums up to date, and the written index if that is possible: where it is not (a
    /// full disk), it stays absent, and whoever comes next makes it anew.
    pub(super) fn save(&mut self, locked: &Locked<'_>) {
        self.sum_up();
        if self.is_left_absent {
            return;
        }
        if let Err(error) = self.write(locked) {
            tracing::warn!(error = &error as &dyn std::error::Error, "the ledger's index is not written down");
        }
    }

    fn sum_up(&mut self) {
        for uuid in &self.changed {
            let holdings = self.holdings.get(uuid).map_or(&[][..], Vec::as_slice);
            if holdings.is_empty() {
                self.summary.cards.remove(uuid);
            } else {
                self.summary.cards.insert(uuid.clone(), sums_of(holdings));
            }
        }
    }

    fn write(&mut self, locked: &Locked<'_>) -> Result<(), StoreError> {
        for uuid in &self.changed {
            match self.holdings.get(uuid) {
                Some(holdings) if !holdings.is_empty() => {
                    locked.write_index(&card_file(uuid), postcard::to_stdvec(holdings))?;
                }
                _ => locked.remove_index(&card_file(uuid))?,
            }
        }
        self.changed.clear();
        self.summary.stamp = locked.records_stamp()?;
        locked.write_index(SUMMARY, serde_json::to_vec(&self.summary))
    }
}

/// The holdings in a card's file; `None` when it is not there or not understood.
fn read_holdings(locked: &Locked<'_>, uuid: &str) -> Option<Vec<Holding>> {
    postcard::from_bytes(&locked.read_index(&card_file(uuid))?).ok()
}

fn sums_of(holdings: &[Holding]) -> CardSums {
    let counted = holdings.iter().filter(|holding| holding.grant.is_counted());
    CardSums::of(holdings.iter().map(|holding| (&holding.grant, holding.group)))
        .with_owners(counted.map(|holding| owner_hash(ContainerName::from(holding).owner())))
}

/// Names those that hold something, for messages; `None`: nobody does.
pub(super) fn holders(holdings: &[Holding]) -> Option<String> {
    let holding: Vec<_> = holdings.iter().filter(|holding| holding.grant.holds()).collect();
    if holding.is_empty() {
        return None;
    }
    let named = holding.iter().take(MAX_NAMED);
    let mut names: Vec<String> =
        named.map(|holding| format!("{} ({})", ContainerName::from(*holding), holding.grant.describe())).collect();
    if holding.len() > MAX_NAMED {
        names.push(format!("{} more", holding.len() - MAX_NAMED));
    }
    Some(names.join(", "))
}
