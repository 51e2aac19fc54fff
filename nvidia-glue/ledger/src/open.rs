//! Opening of the index: what an earlier holder of the lock left undone is done first, and the
//! configuration followed.

use schedule::can_be_laid_out;

use super::{
    Ledger, Limits, StoreError,
    card_demand::{compute_by, keep_degraded},
    index::Index,
    members::{connected_cards, members},
    store::Locked,
};
use crate::decision_log::{Event, Line};

impl Ledger {
    /// The index, after what an earlier holder of the lock left undone has been made up for.
    pub(super) fn open_index(&self, locked: &Locked<'_>) -> Result<Index, StoreError> {
        let mut index = Index::load(locked)?;
        if self.finish_policy(locked, &mut index)? {
            return Ok(index);
        }
        if !index.has_current_timetables(locked) {
            index.begin_change(locked)?;
            self.refresh_all_timetables(locked, &mut index);
            index.save(locked);
        }
        Ok(index)
    }

    /// Finishes a change of a card's policy that was begun. Returns whether there was one.
    pub(super) fn finish_policy(&self, locked: &Locked<'_>, index: &mut Index) -> Result<bool, StoreError> {
        let mut settings = locked.settings()?;
        let Some(changing) = settings.changing.take() else { return Ok(false) };
        index.begin_change(locked)?;
        for mut record in self.store.records()? {
            let unlimited = record.is_unlimited();
            let mut is_changed = false;
            for grant in record.cards.iter_mut().filter(|grant| grant.uuid == changing.uuid && grant.is_shared()) {
                let before = (grant.policy, grant.compute_by);
                grant.policy = changing.policy;
                let now = compute_by(grant.enforcement, unlimited, changing.policy, changing.hard_caps);
                grant.compute_by = keep_degraded(grant.compute_by, now);
                is_changed |= before != (grant.policy, grant.compute_by);
            }
            if is_changed {
                locked.write_record(&record)?;
            }
        }
        locked.write_settings(&settings)?;
        *index = Index::rebuild(locked)?;
        index.begin_change(locked)?;
        self.refresh_all_timetables(locked, index);
        index.save(locked);
        Ok(true)
    }

    /// Brings what is written down of the configuration up to date, and the timetable with it. What
    /// would take from running containers what they were promised waits until they have ended.
    pub(super) fn follow_configuration(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        limits: &Limits,
        lines: &mut Vec<Line>,
    ) -> Result<(), StoreError> {
        let settings = locked.settings()?;
        let now = settings.with(limits);
        if now == settings {
            return Ok(());
        }
        let uuids = index.uuids();
        let uuids = connected_cards(locked, index, uuids.iter().map(String::as_str))?;
        let members = members(&index.cards(&uuids));
        if let Err(reason) = can_be_laid_out(&members, &now.plan())
            && can_be_laid_out(&members, &settings.plan()).is_ok()
        {
            lines.push(
                Line::about_node(Event::Warn)
                    .field("warning", "the configuration is followed once containers have ended that would lose by it")
                    .field("max_inst", format_args!("{} -> {}", settings.max_inst, now.max_inst))
                    .field("period", format_args!("{} -> {}", settings.period, now.period))
                    .field("why", reason),
            );
            return Ok(());
        }
        index.begin_change(locked)?;
        locked.write_settings(&now)?;
        self.refresh_all_timetables(locked, index);
        index.save(locked);
        Ok(())
    }
}
