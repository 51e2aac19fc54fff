//! Use of each card, its users, and its limit.

use abi::memory::Layout;
use base::{Pid, units::Bytes};
use foldhash::HashMap;

use super::{
    Bound, Card, Counted, OverQuota, Refusal,
    frames::{self, Extent, Frames},
};

/// Most addresses on the NVLink fabric: as a multiple of a block's size for as long as it lives,
/// and of a container's limit for each card. A card has few: 512 GiB on Hopper
/// (`gpuGetFlaVasSize_GH100`), for all who use it, and mappings keep them when the object is freed
/// that they came with.
pub(super) const FABRIC: u32 = 2;

/// One card's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CardUsage {
    /// Used now, reservations included.
    pub used: Bytes,
    /// The limit.
    pub limit: Bytes,
    /// Held open in frames of 2 MiB, reservations at their worst included.
    pub frames: Bytes,
    /// The most that may be held open so.
    pub frames_limit: Bytes,
    /// The most that was ever used.
    pub high_water: Bytes,
    /// Number of allocations that were refused for good
    /// ([`Accounts::count_denial`](super::Accounts::count_denial)).
    pub denials: u64,
    /// Addresses on the NVLink fabric, reserved ones included.
    pub fabric: Bytes,
}

#[derive(Debug, Default)]
struct CardAccount {
    /// Wider than any sum of what there can be charges for: it never wraps, so what goes in comes
    /// out.
    used: u128,
    limit: u64,
    high_water: u128,
    denials: u64,
    frames: Frames,
    /// Bytes of addresses on the NVLink fabric.
    fabric: u128,
    /// Nobody else has the card.
    has_sole_holder: bool,
    /// Most channels of it.
    channels: u32,
}

impl CardAccount {
    fn frames_limit(&self) -> u64 {
        if self.has_sole_holder { u64::MAX } else { frames::most(self.limit) }
    }
}

/// All cards of the grant.
#[derive(Debug)]
pub(super) struct Cards {
    cards: Vec<CardAccount>,
    host: CardAccount,
    /// Beside what is used of the host: what pinned pages keep, at the most.
    kept: u64,
    by_process: HashMap<(Pid, Card), u128>,
}

pub(super) fn saturated(bytes: u128) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

impl Cards {
    pub(super) fn new(limits: &[Bytes], host: Bytes, channels: u32) -> Self {
        // More cards than an index can name cannot be asked for.
        let cards = limits.iter().take(usize::from(Card::HOST.0));
        let limited = |limit: &Bytes| CardAccount { limit: limit.floor_to_kib().0, channels, ..CardAccount::default() };
        // It has no frames that somebody needs whole.
        let host = CardAccount { has_sole_holder: true, ..limited(&host) };
        Self { cards: cards.map(limited).collect(), host, kept: 0, by_process: HashMap::default() }
    }

    /// Every card.
    pub(super) fn all(&self) -> impl Iterator<Item = Card> + use<> {
        (0..=u8::MAX).take(self.cards.len()).map(Card)
    }

    fn state(&self, card: Card) -> Result<&CardAccount, Refusal> {
        if card == Card::HOST {
            return Ok(&self.host);
        }
        self.cards.get(usize::from(card.0)).ok_or(Refusal::UnknownCard(card))
    }

    fn state_mut(&mut self, card: Card) -> Option<&mut CardAccount> {
        if card == Card::HOST { Some(&mut self.host) } else { self.cards.get_mut(usize::from(card.0)) }
    }

    pub(super) fn usage(&self, card: Card) -> Result<CardUsage, Refusal> {
        let state = self.state(card)?;
        Ok(CardUsage {
            used: saturated(state.used),
            limit: Bytes(state.limit),
            frames: saturated(state.frames.bytes()),
            frames_limit: Bytes(state.frames_limit()),
            high_water: saturated(state.high_water),
            denials: state.denials,
            fabric: saturated(state.fabric),
        })
    }

    pub(super) fn used_by(&self, process: Pid, card: Card) -> Bytes {
        saturated(self.by_process.get(&(process, card)).copied().unwrap_or(0))
    }

    pub(super) fn users(&self) -> impl Iterator<Item = (Pid, Card, Bytes)> {
        let of_cards = self.by_process.iter().filter(|((_, card), _)| *card != Card::HOST);
        of_cards.map(|(&(process, card), &used)| (process, card, saturated(used)))
    }

    pub(super) fn set_limit(&mut self, card: Card, limit: Bytes) -> Result<(), Refusal> {
        let state = self.state_mut(card).ok_or(Refusal::UnknownCard(card))?;
        state.limit = limit.floor_to_kib().0;
        Ok(())
    }

    /// Lifts the limit on frames held open of `card`, as no other container has it.
    pub(super) fn set_sole_holder(&mut self, card: Card) {
        if let Some(state) = self.state_mut(card) {
            state.has_sole_holder = true;
        }
    }

    /// Returns whether memory of the card can lie there, beside what lies in its frames.
    pub(super) fn has_room_in_frames(&self, card: Card, extent: Extent) -> bool {
        self.state(card).is_ok_and(|state| state.frames.has_room(extent))
    }

    /// Sets the bytes of the host that only pinned pages keep, beside those in use.
    pub(super) const fn set_kept(&mut self, bytes: u64) {
        self.kept = bytes;
    }

    /// Returns whether only pinned pages keep some of the host's memory.
    pub(super) const fn has_kept(&self) -> bool {
        self.kept > 0
    }

    /// Most channels of a card.
    pub(super) fn channel_limit(&self, card: Card) -> u32 {
        self.state(card).map_or(0, |state| state.channels)
    }

    pub(super) fn set_channel_limit(&mut self, card: Card, channels: u32) -> Result<(), Refusal> {
        self.state_mut(card).ok_or(Refusal::UnknownCard(card))?.channels = channels;
        Ok(())
    }

    pub(super) fn count_denial(&mut self, card: Card) {
        if let Some(state) = self.state_mut(card) {
            state.denials = state.denials.saturating_add(1);
        }
    }

    /// Returns whether `bytes` more would fit, in frames of their own.
    pub(super) fn fits(&self, card: Card, bytes: Bytes) -> Result<(), Refusal> {
        self.fits_laid_out(card, bytes, Layout::OwnFrames)
    }

    /// Returns whether `bytes` more would fit, wherever they come to lie.
    pub(super) fn fits_laid_out(&self, card: Card, bytes: Bytes, layout: Layout) -> Result<(), Refusal> {
        let state = self.state(card)?;
        let used = state.used + u128::from(if card == Card::HOST { self.kept } else { 0 });
        let asked = (bytes, Bytes(layout.frames(bytes.0)));
        Self::exceeded(card, state, (used, state.frames.bytes()), asked).map_or(Ok(()), |over| Err(over.into()))
    }

    /// Returns whether there may be so many bytes of page tables in granules of their own.
    pub(super) fn fits_tables(&self, card: Card, bytes: Bytes) -> Result<(), Refusal> {
        let state = self.state(card)?;
        let (now, then) = (state.frames.bytes(), state.frames.bytes_with_tables(bytes.0));
        let asked = saturated(then.saturating_sub(now));
        Self::exceeded(card, state, (0, now.min(then)), (Bytes(0), asked)).map_or(Ok(()), |over| Err(over.into()))
    }

    /// Sets the bytes of page tables in granules of their own.
    pub(super) fn set_tables(&mut self, card: Card, bytes: Bytes) {
        if let Some(state) = self.state_mut(card) {
            state.frames.set_tables(bytes.0);
        }
    }

    /// Returns whether a limit is exceeded as it is; `asked`, whose cause is reported, is
    /// already counted.
    pub(super) fn excess(&self, card: Card, asked: Bytes, layout: Layout) -> Option<OverQuota> {
        let state = self.state(card).ok()?;
        let frames = Bytes(layout.frames(asked.0));
        let before = |now: u128, asked: Bytes| now.saturating_sub(asked.0.into());
        let used = (before(state.used, asked), before(state.frames.bytes(), frames));
        Self::exceeded(card, state, used, (asked, frames))
    }

    /// Limit that `used` and `asked` together would exceed, each in bytes and in bytes of frames.
    fn exceeded(card: Card, state: &CardAccount, used: (u128, u128), asked: (Bytes, Bytes)) -> Option<OverQuota> {
        let of = |bound, used: u128, asked: Bytes, limit: u64| {
            let is_over = used + u128::from(asked.0) > u128::from(limit);
            is_over.then_some(OverQuota { card, asked, used: saturated(used), limit: Bytes(limit), bound })
        };
        let quota = of(Bound::Quota, used.0, asked.0, state.limit);
        quota.or_else(|| of(Bound::Frames, used.1, asked.1, state.frames_limit()))
    }

    /// Returns whether as many bytes of addresses on the fabric fit beside those that are there.
    pub(super) fn fabric_fits(&self, card: Card, bytes: u64) -> Result<(), Refusal> {
        let state = self.state(card).ok().filter(|_| card != Card::HOST).ok_or(Refusal::UnknownCard(card))?;
        let most = u128::from(state.limit) * u128::from(FABRIC);
        let fits = state.has_sole_holder || state.fabric + u128::from(bytes) <= most;
        if fits { Ok(()) } else { Err(Refusal::TooMany { counted: Counted::CardFabric, limit: FABRIC }) }
    }

    /// Counts bytes of addresses on the fabric.
    pub(super) fn add_fabric(&mut self, card: Card, bytes: u64) {
        if let Some(state) = self.state_mut(card) {
            state.fabric += u128::from(bytes);
        }
    }

    /// Counts bytes of addresses less; they were added before.
    pub(super) fn subtract_fabric(&mut self, card: Card, bytes: u64) {
        if let Some(state) = self.state_mut(card) {
            debug_assert!(state.fabric >= u128::from(bytes), "more addresses released than were counted");
            state.fabric = state.fabric.saturating_sub(bytes.into());
        }
    }

    /// Counts `bytes` more, in frames of their own, whether or not they fit.
    pub(super) fn add(&mut self, process: Pid, card: Card, bytes: u128) {
        self.add_in(process, card, bytes, Extent::Unplaced(bytes));
    }

    /// Counts `bytes` more, and the frames that they are in.
    pub(super) fn add_in(&mut self, process: Pid, card: Card, bytes: u128, extent: Extent) {
        let Some(state) = self.state_mut(card) else { return };
        if bytes == 0 {
            return;
        }
        state.used += bytes;
        state.frames.add(extent);
        state.high_water = state.high_water.max(state.used);
        *self.by_process.entry((process, card)).or_default() += bytes;
    }

    /// Counts `bytes` less; they were added before, for the same process.
    pub(super) fn subtract(&mut self, process: Pid, card: Card, bytes: u128) {
        self.subtract_in(process, card, bytes, Extent::Unplaced(bytes));
    }

    /// Counts `bytes` less, and the frames that they are in, as they were added.
    pub(super) fn subtract_in(&mut self, process: Pid, card: Card, bytes: u128, extent: Extent) {
        let Some(state) = self.state_mut(card) else { return };
        if bytes == 0 {
            return;
        }
        debug_assert!(state.used >= bytes, "more released than was charged");
        state.frames.subtract(extent);
        state.used = state.used.saturating_sub(bytes);
        if let Some(used) = self.by_process.get_mut(&(process, card)) {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                self.by_process.remove(&(process, card));
            }
        }
    }
}
