//! Open files through which memory of the host's was mapped for the processor.
//!
//! The driver keeps the pages for as long as somebody has them mapped, and even longer when the
//! memory was freed meanwhile: until the file is closed that the mapping was prepared on
//! (`nvidia_vma_release`, `nvidia_ctl_close`; kernel-open/nvidia). That a program has ended its
//! mapping, or has told the driver so, proves nothing. So each such file holds the charge until it
//! is gone.

use std::collections::BTreeMap;

use base::Bytes;

use super::{Accounts, Hold, reserve::Armed};
use crate::{Card, Counted, MappedFile, ObjectName, Refusal, charges::ChargeId};

/// Memory of the host's that is mapped, by the file through which it was.
#[derive(Debug, Default)]
pub(super) struct HostMappings(BTreeMap<MappedFile, ChargeId>);

impl HostMappings {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Accounts {
    /// Holds the charge of `object` while a call is executed that may map it for the processor; to
    /// be given to [`Accounts::host_memory_mapped`] or [`Accounts::release`]. `None`: it is no
    /// memory of the host's that is charged.
    ///
    /// # Errors
    /// When there are too many such mappings.
    pub fn hold_host_memory(&mut self, object: ObjectName) -> Result<Option<Hold>, Refusal> {
        let charge = self.tree.find(object).and_then(|index| self.tree.get(index)).and_then(|object| object.charge);
        let is_host = |charge: &ChargeId| matches!(self.charges.amount(*charge), Some((Card::HOST, _)));
        let Some(charge) = charge.filter(is_host) else { return Ok(None) };
        let limit = self.limits.host_mappings;
        if self.host_mappings.len() >= limit as usize {
            return Err(Refusal::TooMany { counted: Counted::HostMappings, limit });
        }
        self.charges.hold(charge);
        Ok(Some(Hold { charge: Some(charge), armed: Armed::new(&self.abandoned) }))
    }

    /// Records that the memory of `hold` was mapped through `file`, which holds it from now on.
    pub fn host_memory_mapped(&mut self, hold: Hold, file: MappedFile) {
        if let Some(charge) = hold.charge {
            self.charges.mapped(charge);
            let before = self.host_mappings.0.insert(file, charge);
            debug_assert!(before.is_none(), "the number of a file was used twice");
        }
        hold.armed.disarm();
    }

    /// Files that may map such memory.
    pub fn mapped_files(&self) -> Vec<MappedFile> {
        self.host_mappings.0.keys().copied().collect()
    }

    /// Drops the mapping of a file that nobody has open or mapped any more. Returns the bytes that
    /// this released.
    pub fn mapped_file_gone(&mut self, file: MappedFile) -> Bytes {
        let charge = self.host_mappings.0.remove(&file);
        charge.map_or(Bytes(0), |charge| self.charges.release_mapping(&mut self.cards, charge))
    }

    /// Returns whether some memory is charged only because a file may still map it.
    pub fn has_freed_while_mapped(&self) -> bool {
        self.host_mappings.0.values().any(|charge| self.charges.is_held_by_mappings(*charge))
    }
}
