//! State of each card as the ledger sees it, for people and listings.

use base::{Bytes, CardPolicy, Period};
use cards::Inventory;
use serde::Serialize;

use super::{CardGrant, CardSetting, ContainerKey, Ledger, Limits, Record, StoreError, card_sums::CardSums};

/// One card and what is granted of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CardState {
    /// NVML's index.
    pub index: u32,
    /// `GPU-...`.
    pub uuid: String,
    /// Memory of the card.
    pub memory_total: Bytes,
    /// Memory that may be granted of it in all: with `memory_scaling`.
    pub memory_grantable: Bytes,
    /// Memory that is granted of it.
    pub memory_granted: Bytes,
    /// Percent of its time that is promised, rounded up; 100 where one container has the whole
    /// card.
    pub compute_granted_percent: u32,
    /// Sum of the weights on it.
    pub weights: u32,
    /// Weight that can still be asked for.
    pub free_weight: u32,
    /// Slices that it is cut into.
    pub max_inst: u32,
    /// Its policy; `None` while nobody shares it: the next container decides.
    pub policy: Option<CardPolicy>,
    /// An administrator's setting of it.
    pub setting: CardSetting,
    /// Its periods, if no share on it needs longer ones.
    pub period: Period,
    /// One container has all of it.
    pub exclusive: bool,
    /// Holders of a part of it, in ledger order.
    pub containers: Vec<ContainerKey>,
    /// Containers that only monitor it.
    pub monitors: Vec<ContainerKey>,
    /// MIG devices of it that are held.
    pub mig_held: Vec<String>,
}

impl Ledger {
    /// The state of every card of `inventory`, in its order. Takes no lock; may be a moment old.
    ///
    /// # Errors
    /// When the records cannot be read, or one is not understood.
    pub fn card_states(&self, inventory: &Inventory, limits: &Limits) -> Result<Vec<CardState>, StoreError> {
        self.card_states_with(&self.records()?, inventory, limits)
    }

    /// [`Ledger::card_states`] with records that have just been read.
    ///
    /// # Errors
    /// When the cards' settings are of another version.
    pub fn card_states_with(
        &self,
        records: &[Record],
        inventory: &Inventory,
        limits: &Limits,
    ) -> Result<Vec<CardState>, StoreError> {
        let settings = self.store.settings()?.with(limits);
        let state = |card: &cards::Card| {
            let on_card = |grant: &&CardGrant| grant.uuid == card.uuid;
            let grants = || {
                records.iter().flat_map(|record| record.cards.iter().filter(on_card).map(move |grant| (record, grant)))
            };
            let sums = CardSums::of(grants().map(|(_, grant)| (grant, None)));
            let who = |holds: bool| {
                let mut names: Vec<ContainerKey> = grants()
                    .filter(|(_, grant)| grant.holds() == holds)
                    .map(|(record, _)| record.container.clone())
                    .collect();
                names.dedup();
                names
            };
            CardState {
                index: card.index,
                uuid: card.uuid.clone(),
                memory_total: card.memory,
                memory_grantable: limits.grantable(card.memory),
                memory_granted: sums.memory,
                compute_granted_percent: sums.compute_percent(limits),
                weights: sums.weights,
                free_weight: sums.free_weight(limits),
                max_inst: limits.max_inst,
                policy: sums.policy,
                setting: settings.card(&card.uuid),
                period: settings.plan().period(&card.uuid),
                exclusive: sums.exclusive,
                containers: who(true),
                monitors: who(false),
                mig_held: sums.mig,
            }
        };
        Ok(inventory.cards.iter().map(state).collect())
    }
}
