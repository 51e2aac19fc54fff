//! Demands on each card, in bytes and shares.

use base::{Bytes, ComputeShare, Enforcement};
use cards::{Card, CardOrMig, Inventory};
use runtime_config::request::{GpuRequest, Isolation, MemoryLimit, PerCard, Share};

use super::{Planned, SelectError, needed_policy};
use crate::CardDemand;

/// Demands of `request` on the cards that it names.
pub(super) fn named(
    inventory: &Inventory,
    request: &GpuRequest,
    targets: &[CardOrMig<'_>],
) -> Result<Vec<Planned>, SelectError> {
    match &request.share {
        Share::Exclusive => Ok(whole(inventory, targets)),
        Share::Monitor => Ok(planned(inventory, targets.iter().map(|target| (target.card(), monitor(*target))))),
        Share::Part { memory, compute, isolation } => {
            let parts = Parts::new(memory, compute, *isolation, targets.len())?;
            let mut demands = Vec::with_capacity(targets.len());
            for (position, target) in targets.iter().enumerate() {
                demands.push((target.card(), parts.demand(request, position, target.card())?));
            }
            Ok(planned(inventory, demands.into_iter()))
        }
    }
}

/// Demands of `request` on each of the cards in `from`, for each of the `count` cards to be chosen.
pub(super) fn choices(
    inventory: &Inventory,
    request: &GpuRequest,
    count: u32,
    from: &[&Card],
) -> Result<Vec<Vec<Planned>>, SelectError> {
    let too_few = SelectError::TooFewCards { asked: count, offered: from.len() };
    let count = match usize::try_from(count) {
        Ok(count) if count <= from.len() => count,
        _ => return Err(too_few),
    };
    let demands_of_all = |demand: &dyn Fn(&Card) -> CardDemand| {
        vec![planned(inventory, from.iter().map(|card| (*card, demand(card)))); count]
    };
    match &request.share {
        Share::Exclusive => Ok(demands_of_all(&|card| whole_demand(CardOrMig::Card(card)))),
        Share::Monitor => Ok(demands_of_all(&|card| monitor(CardOrMig::Card(card)))),
        Share::Part { memory, compute, isolation } => {
            let parts = Parts::new(memory, compute, *isolation, count)?;
            (0..count).map(|position| parts.choices(inventory, request, position, from)).collect()
        }
    }
}

/// Cards and MIG devices as wholes.
pub(super) fn whole(inventory: &Inventory, targets: &[CardOrMig<'_>]) -> Vec<Planned> {
    planned(inventory, targets.iter().map(|target| (target.card(), whole_demand(*target))))
}

fn planned<'a>(inventory: &Inventory, demands: impl Iterator<Item = (&'a Card, CardDemand)>) -> Vec<Planned> {
    let position = |card: &Card| inventory.cards.iter().position(|other| other.uuid == card.uuid);
    demands.filter_map(|(card, demand)| Some(Planned { card: position(card)?, demand })).collect()
}

/// The shares of the first, second, ... card.
struct Parts<'a> {
    memory: Vec<&'a Vec<MemoryLimit>>,
    compute: Vec<&'a ComputeShare>,
    isolation: Isolation,
}

impl<'a> Parts<'a> {
    fn new(
        memory: &'a PerCard<Vec<MemoryLimit>>,
        compute: &'a PerCard<ComputeShare>,
        isolation: Isolation,
        cards: usize,
    ) -> Result<Self, SelectError> {
        let memory =
            memory.for_cards(cards).map_err(|source| SelectError::ListLength { quantity: "memory", source })?;
        let compute =
            compute.for_cards(cards).map_err(|source| SelectError::ListLength { quantity: "compute", source })?;
        Ok(Self { memory, compute, isolation })
    }

    fn demand(&self, request: &GpuRequest, position: usize, card: &Card) -> Result<CardDemand, SelectError> {
        let limits = self.memory.get(position).map_or(&[][..], |limits| limits.as_slice());
        let memory = MemoryLimit::tightest(limits, card.memory)
            .ok_or(SelectError::Memory { index: card.index, memory: card.memory })?;
        // Without isolation of compute nothing holds a share, so none is promised to the
        // neighbours.
        let compute = match self.isolation {
            Isolation::Full => self.compute.get(position).copied().copied().unwrap_or(ComputeShare::Unlimited),
            Isolation::Memory | Isolation::None => ComputeShare::Unlimited,
        };
        Ok(CardDemand {
            memory,
            compute,
            policy: needed_policy(request, compute)?,
            exclusive: false,
            mig_uuid: None,
            enforcement: Enforcement::Mediated,
            unlimited: self.isolation == Isolation::None,
        })
    }

    /// Cards on which a ratio or an amount leaves nothing are no choice; where none is left the
    /// last one's error is returned.
    fn choices(
        &self,
        inventory: &Inventory,
        request: &GpuRequest,
        position: usize,
        from: &[&Card],
    ) -> Result<Vec<Planned>, SelectError> {
        let demands: Vec<_> = from.iter().map(|card| (*card, self.demand(request, position, card))).collect();
        if let Some((_, Err(error))) = demands.iter().find(|(_, demand)| demand.is_err())
            && demands.iter().all(|(_, demand)| demand.is_err())
        {
            return Err(error.clone());
        }
        Ok(planned(inventory, demands.into_iter().filter_map(|(card, demand)| Some((card, demand.ok()?)))))
    }
}

fn whole_demand(target: CardOrMig<'_>) -> CardDemand {
    let (memory, mig_uuid, enforcement) = match target {
        // Only a spec that carries MIG capability nodes gets here with a card in MIG mode: which of
        // its devices are meant is known to the driver, which also holds them apart.
        CardOrMig::Card(card) if card.mig_enabled => (Bytes(0), None, Enforcement::Mig),
        CardOrMig::Card(card) => (card.memory, None, Enforcement::WholeCard),
        CardOrMig::Mig { device, .. } => (device.memory, Some(device.uuid.clone()), Enforcement::Mig),
    };
    CardDemand {
        memory,
        compute: ComputeShare::Unlimited,
        policy: None,
        exclusive: memory.0 > 0,
        mig_uuid,
        enforcement,
        unlimited: false,
    }
}

fn monitor(target: CardOrMig<'_>) -> CardDemand {
    let mig_uuid = match target {
        CardOrMig::Card(_) => None,
        CardOrMig::Mig { device, .. } => Some(device.uuid.clone()),
    };
    CardDemand {
        memory: Bytes(0),
        compute: ComputeShare::Unlimited,
        policy: None,
        exclusive: false,
        mig_uuid,
        enforcement: Enforcement::Monitor,
        unlimited: false,
    }
}
