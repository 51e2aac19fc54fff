//! Gangs: requests of claims that one container uses together.

use std::collections::{BTreeMap, BTreeSet};

use base::Priority;
use schedule::{Member, can_be_laid_out};

use crate::{
    AdmitError, Ledger, Record, Refusal, StoreError,
    claim::{Gang, merged},
    index::Index,
    members::{connected_cards, members},
    store::Locked,
};

impl Ledger {
    /// Makes a gang of the records, if they are several.
    pub(super) fn form_gang(&self, records: &[Record]) -> Result<Vec<Record>, AdmitError> {
        let Some(first) = records.first() else { return Ok(Vec::new()) };
        let container = || Box::new(first.container.clone());
        let failed = |source| AdmitError::Store { container: container(), source };
        if is_gang(records) {
            return Ok(records.to_vec());
        }
        let locked = self.store.lock().map_err(failed)?;
        let mut index = self.open_index(&locked).map_err(failed)?;
        let mut records = records.to_vec();
        self.regroup(&locked, &mut index, &mut records)
            .map_err(failed)?
            .map_err(|refusal| AdmitError::Gang { container: container(), source: Box::new(refusal) })?;
        Ok(records)
    }

    /// Makes one gang of the records, and leaves those that they were a gang with to themselves.
    /// Writes all that changes but the timetables of cards that stay as they were.
    pub(super) fn regroup(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        records: &mut [Record],
    ) -> Result<Result<(), Refusal>, StoreError> {
        if is_gang(records) {
            return Ok(Ok(()));
        }
        if let Err(refusal) = check_gang(locked, index, records)? {
            return Ok(Err(refusal));
        }
        let ids: BTreeSet<String> = records.iter().map(|record| record.grant_id.clone()).collect();
        let leaders: BTreeSet<String> = records.iter().filter_map(gang_of).map(|gang| gang.leader.clone()).collect();
        let mut rest: BTreeMap<String, Vec<Record>> = BTreeMap::new();
        for record in self.store.records()? {
            let Some(leader) = gang_of(&record).map(|gang| gang.leader.clone()) else { continue };
            if leaders.contains(&leader) && !ids.contains(&record.grant_id) {
                rest.entry(leader).or_default().push(record);
            }
        }
        for left in rest.values_mut() {
            self.write_gang(locked, index, left)?;
        }
        self.write_gang(locked, index, records)?;
        Ok(Ok(()))
    }

    fn write_gang(&self, locked: &Locked<'_>, index: &mut Index, records: &mut [Record]) -> Result<(), StoreError> {
        let gang = gang(records);
        for record in records {
            if let Some(grant) = &mut record.claim {
                grant.gang.clone_from(&gang);
            }
            self.replace(locked, index, record)?;
        }
        Ok(())
    }
}

fn gang_of(record: &Record) -> Option<&Gang> {
    record.claim.as_ref()?.gang.as_ref()
}

/// The gang that the records are to be; `None`: there is only one.
fn gang(records: &[Record]) -> Option<Gang> {
    let leader = records.iter().min_by_key(|record| record.order)?;
    let cards: BTreeSet<&str> = records.iter().flat_map(Record::uuids).collect();
    (records.len() > 1).then(|| Gang {
        leader: leader.grant_id.clone(),
        order: leader.order,
        cards: cards.into_iter().map(str::to_owned).collect(),
    })
}

/// Returns whether all records of a gang are these, as far as they say.
fn is_gang(records: &[Record]) -> bool {
    let gang = gang(records);
    records.iter().all(|record| record.claim.as_ref().is_some_and(|grant| grant.gang == gang))
}

/// Returns whether a layout exists once the records have their windows at the same instants.
fn check_gang(locked: &Locked<'_>, index: &mut Index, records: &[Record]) -> Result<Result<(), Refusal>, StoreError> {
    let Some(gang) = gang(records) else { return Ok(Ok(())) };
    let uuids = connected_cards(locked, index, gang.cards.iter().map(String::as_str))?;
    let orders: BTreeSet<u64> = records.iter().map(|record| record.order).collect();
    // What they were a gang with before stays laid out with them, which may refuse what fits.
    let mut members = members(&index.cards(&uuids));
    members.retain(|member| !orders.contains(&member.order));
    members.push(Member {
        grant_id: "",
        order: gang.order,
        priority: Priority::High,
        is_present: true,
        is_unlimited: records.iter().any(Record::is_unlimited),
        grants: merged(records.iter().flat_map(|record| &record.cards).filter(|grant| grant.is_shared())),
    });
    members.sort_by_key(|member| member.order);
    let settings = locked.settings()?;
    Ok(can_be_laid_out(&members, &settings.plan()).map_err(|reason| Refusal::Layout { reason: reason.to_string() }))
}
