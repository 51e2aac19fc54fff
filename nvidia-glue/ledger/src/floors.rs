//! Channels and pinned host memory: what a grant gets of them, beside memory and time. Pure.
//!
//! Every mediated grant gets a number of channels on its card, and bytes of host memory that the
//! driver may pin, at admission, so that mediators need to share nothing. A card has so many
//! *places* as `device_split_count` allows containers, and each has a floor of both. A grant gets
//! the most that one container may have, but leaves the floors of the places that are free. So
//! whoever finds a place finds its floors, too, whatever the others do, as long as the
//! configuration stays the same.
//!
//! A place that is taken counts as what its grant has, and never as less than the floor: when it is
//! free again, the floor is there.

use base::Bytes;
use runtime_config::config::WholeCards;

use crate::{CardGrant, Enforcement, Limits, card_sums::CardSums, refusal::Refusal};

/// Channels of a card, for all engines and containers together: `NV_CHRAM_CHANNEL__SIZE_1`
/// (src/common/inc/swref/published/ampere/ga100/dev_runlist.h), of which there is one set up to
/// Hopper (`kfifoChidMgrConstruct`, src/nvidia/src/kernel/gpu/fifo/kernel_fifo.c). Blackwell has
/// one for each run list, and is treated as if it had not. Groups have as many numbers
/// (`_kfifoChidMgrInitChannelGroupMgr`), of which a channel without a group takes one, too.
const CARD_CHANNELS: u32 = 2048;
/// Channels that are never granted. The kernel's own: two for each copy engine that UVM uses
/// (`channel_manager_num_channels`, kernel-open/nvidia-uvm/uvm_channel.c; 40 on 20 engines, and 33
/// more with confidential computing), one each to scrub memory, to clear and copy it, and for the
/// watchdog (`scrubberConstruct`, `memmgrInitCeUtils`, kernel_rc_watchdog.c). The rest is for two
/// programs outside of egpu: a display server, a monitor with a context.
const RESERVED_CHANNELS: u32 = 128;
/// Channels that a container may have of a card at the most: 25 CUDA contexts.
const MOST_CHANNELS: u32 = 512;
/// Channels of a place, where there are as many: five CUDA contexts.
const FLOOR_CHANNELS: u32 = 100;
/// Channels without which a container is of no use: a CUDA context takes 20.
const LEAST_CHANNELS: u32 = 24;
/// Pinned memory of a place, where there is as much: a CUDA context has 70 MiB.
const FLOOR_PINNED_MEMORY: Bytes = Bytes(Bytes::GIB);

impl Limits {
    /// Places of a card: no more than have channels.
    fn places(&self) -> u32 {
        self.device_split_count.clamp(1, (CARD_CHANNELS - RESERVED_CHANNELS) / LEAST_CHANNELS)
    }

    fn channel_floor(&self) -> u32 {
        ((CARD_CHANNELS - RESERVED_CHANNELS) / self.places()).min(FLOOR_CHANNELS)
    }

    /// Floor of pinned memory for each place of a node with `cards` cards that can be shared.
    fn pinned_floor(&self, cards: usize) -> Bytes {
        let places = u64::try_from(cards).unwrap_or(u64::MAX).saturating_mul(self.places().into()).max(1);
        Bytes(self.pinned_memory.0 / places).floor_to_kib().min(FLOOR_PINNED_MEMORY)
    }

    fn free_places(&self, sums: &CardSums) -> u32 {
        if sums.exclusive { 0 } else { self.places().saturating_sub(sums.containers) }
    }
}

/// The most that a newcomer may have of `total`, of which others hold `held`: what leaves `others`,
/// the floors of the places that are free besides its own. Never less than its own floor, if that
/// is there: a change of the configuration may have made the floors larger.
fn most(total: u64, held: u64, own: u64, others: u64) -> u64 {
    let free = total.saturating_sub(held);
    free.saturating_sub(others).max(free.min(own))
}

/// Channels for one more container of a card.
///
/// # Errors
/// When there are too few for a CUDA context.
pub(super) fn channels(sums: &CardSums, limits: &Limits) -> Result<u32, Refusal> {
    let (floor, granted) = (limits.channel_floor(), CARD_CHANNELS - RESERVED_CHANNELS);
    let held: u64 = sums.allotments.iter().map(|allotment| u64::from(allotment.channels.max(floor))).sum();
    let others = u64::from(floor) * u64::from(limits.free_places(sums).saturating_sub(1));
    let free = u32::try_from(most(granted.into(), held, floor.into(), others)).unwrap_or(u32::MAX);
    if free < LEAST_CHANNELS {
        return Err(Refusal::Channels {
            free,
            least: LEAST_CHANNELS,
            most: granted / LEAST_CHANNELS,
            split: limits.device_split_count,
        });
    }
    Ok(free.min(MOST_CHANNELS))
}

/// Gives the cards of a container that nobody shares with it their channels, if it is mediated.
pub(super) fn give_channels_of_whole_cards(grants: &mut [CardGrant], limits: &Limits) {
    let is_mediated = |grant: &CardGrant| match grant.enforcement {
        Enforcement::Mediated => true,
        Enforcement::WholeCard => limits.whole_cards == WholeCards::Mediated,
        Enforcement::Mig | Enforcement::Admission | Enforcement::Monitor => false,
    };
    if grants.iter().any(is_mediated) {
        for grant in grants.iter_mut().filter(|grant| grant.channels.is_none()) {
            grant.channels = Some(MOST_CHANNELS);
        }
    }
}

/// The node's pinned memory, as it is before a container comes.
#[derive(Debug)]
pub(super) struct PinnedMemory<'a> {
    limits: &'a Limits,
    floor: Bytes,
    /// Held by others; of each no less than its floors.
    held: u64,
    /// The floors of the places that are free.
    free_floors: u64,
}

impl<'a> PinnedMemory<'a> {
    /// `shareable`: the sums of every card that can be shared; `others`: of those of which somebody
    /// has a grant all the same.
    pub(super) fn new(limits: &'a Limits, shareable: &[CardSums], others: &[CardSums]) -> Self {
        let mut memory = Self { limits, floor: limits.pinned_floor(shareable.len()), held: 0, free_floors: 0 };
        for sums in shareable.iter().chain(others) {
            let least = memory.own_floor(sums.exclusive);
            let held = sums.allotments.iter().map(|allotment| allotment.pinned_memory.0.max(least));
            memory.held = held.fold(memory.held, u64::saturating_add);
        }
        let free = shareable.iter().map(|sums| memory.floor.0.saturating_mul(limits.free_places(sums).into()));
        Self { free_floors: free.fold(0, u64::saturating_add), ..memory }
    }

    /// Floor of a grant; an exclusive one has all places of its card.
    fn own_floor(&self, exclusive: bool) -> u64 {
        self.floor.0.saturating_mul(if exclusive { self.limits.places().into() } else { 1 })
    }

    /// Divides what a container gets among its mediated `grants`, by their floors; nothing where
    /// there are none.
    ///
    /// # Errors
    /// When more is asked than is free for one container, or not even its floors are.
    pub(super) fn allot(&self, grants: &mut [CardGrant], asked: Option<Bytes>) -> Result<(), Refusal> {
        let mut mediated: Vec<_> =
            grants.iter_mut().filter(|grant| grant.channels.is_some() && grant.is_counted()).collect();
        if mediated.is_empty() {
            return Ok(());
        }
        let floors: Vec<u64> = mediated.iter().map(|grant| self.own_floor(grant.exclusive)).collect();
        let own = floors.iter().copied().fold(0, u64::saturating_add);
        let Limits { pinned_memory: node, pinned_memory_unasked: unasked, .. } = *self.limits;
        let free = Bytes(most(node.0, self.held, own, self.free_floors.saturating_sub(own))).floor_to_kib();
        let needed = asked.unwrap_or(Bytes(own).min(unasked));
        if needed > free || free.0 == 0 {
            return Err(Refusal::PinnedMemory { needed, free, node });
        }
        let limit = asked.unwrap_or(free.min(unasked));
        let mut left = limit.0;
        for (grant, floor) in mediated.iter_mut().zip(floors).skip(1) {
            let part = u128::from(limit.0) * u128::from(floor) / u128::from(own.max(1));
            let part = Bytes(u64::try_from(part).unwrap_or(u64::MAX));
            left = left.saturating_sub(part.0);
            grant.pinned_memory = Some(part);
        }
        if let Some(first) = mediated.first_mut() {
            first.pinned_memory = Some(Bytes(left));
        }
        Ok(())
    }
}
