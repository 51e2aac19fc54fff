//! Objects that were exported to open files.
//!
//! An export is a reference of the file's own: it outlives the exporting client, and travels with
//! the file (src/nvidia/arch/nvalloc/unix/src/rmobjexportimport.c).

use std::{collections::BTreeMap, ops::Bound};

use base::Bytes;

use super::{Accounts, Hold};
use crate::{ExportFile, charges::ChargeId};

/// Exported objects by file.
#[derive(Debug, Default)]
pub(super) struct Exports {
    slots: BTreeMap<(ExportFile, u32), Option<ChargeId>>,
}

impl Exports {
    pub(super) fn get(&self, file: ExportFile, index: u32) -> Option<Option<ChargeId>> {
        self.slots.get(&(file, index)).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Files that something is exported to, found without a visit to every export.
    pub(super) fn files(&self) -> Vec<ExportFile> {
        let mut files = Vec::new();
        let mut next = self.slots.keys().next().copied();
        while let Some((file, _)) = next {
            files.push(file);
            let after = (Bound::Excluded((file, u32::MAX)), Bound::Unbounded);
            next = self.slots.range(after).next().map(|(&key, _)| key);
        }
        files
    }
}

impl Accounts {
    /// Records that the memory of `hold` was exported to `file` at `index` (0 for an export of a
    /// single object), in place of what was there.
    pub fn export(&mut self, hold: Hold, file: ExportFile, index: u32) {
        let old = self.exports.slots.insert((file, index), hold.charge).flatten();
        if let Some(charge) = hold.charge {
            self.charges.exported(charge);
        }
        hold.armed.disarm();
        if let Some(old) = old {
            self.charges.release_export(&mut self.cards, old);
        }
    }

    /// Removes the export to `file` at `index`.
    pub fn unexport(&mut self, file: ExportFile, index: u32) {
        if let Some(charge) = self.exports.slots.remove(&(file, index)).flatten() {
            self.charges.release_export(&mut self.cards, charge);
        }
    }

    /// Bytes, and addresses on the fabric, exported to `file` that nothing but exports, to this
    /// file or others, hold.
    pub fn held_by_exports_alone(&self, file: ExportFile) -> Bytes {
        let charges = self.exports.slots.range((file, 0)..=(file, u32::MAX)).filter_map(|(_, charge)| *charge);
        Bytes(charges.fold(0, |sum: u64, charge| sum.saturating_add(self.charges.held_by_exports(charge).0)))
    }

    /// Drops the exports of `file`, whose last descriptor is closed. Returns the bytes that this
    /// released.
    pub fn export_file_gone(&mut self, file: ExportFile) -> Bytes {
        let mut released = 0_u64;
        while let Some((&key, _)) = self.exports.slots.range((file, 0)..=(file, u32::MAX)).next() {
            if let Some(charge) = self.exports.slots.remove(&key).flatten() {
                released = released.saturating_add(self.charges.release_export(&mut self.cards, charge).0);
            }
        }
        Bytes(released)
    }
}
