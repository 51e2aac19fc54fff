//! What is used of each card, by whom, and how much may be.

use foldhash::HashMap;
use runtime_config::units::Bytes;

use super::{Card, OverQuota, Refusal};
use crate::mediate::Pid;

/// One card's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CardUsage {
    /// Used now, reservations included.
    pub used: Bytes,
    /// The limit.
    pub limit: Bytes,
    /// The most that was ever used.
    pub high_water: Bytes,
    /// How many allocations were refused for good ([`Accounts::count_denial`](super::Accounts::count_denial)).
    pub denials: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    /// Wider than any sum of what there can be charges for: it never wraps, so what goes in comes out.
    used: u128,
    limit: u64,
    high_water: u128,
    denials: u64,
    /// Most channels of it.
    channels: u32,
}

/// All cards of the grant.
#[derive(Debug)]
pub(super) struct Cards {
    cards: Vec<State>,
    host: State,
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
        let limited = |limit: &Bytes| State { limit: limit.floor_to_kib().0, channels, ..State::default() };
        Self { cards: cards.map(limited).collect(), host: limited(&host), kept: 0, by_process: HashMap::default() }
    }

    /// Every card.
    pub(super) fn all(&self) -> impl Iterator<Item = Card> + use<> {
        (0..=u8::MAX).take(self.cards.len()).map(Card)
    }

    fn state(&self, card: Card) -> Result<&State, Refusal> {
        if card == Card::HOST {
            return Ok(&self.host);
        }
        self.cards.get(usize::from(card.0)).ok_or(Refusal::UnknownCard(card))
    }

    fn state_mut(&mut self, card: Card) -> Option<&mut State> {
        if card == Card::HOST { Some(&mut self.host) } else { self.cards.get_mut(usize::from(card.0)) }
    }

    pub(super) fn usage(&self, card: Card) -> Result<CardUsage, Refusal> {
        let state = self.state(card)?;
        Ok(CardUsage {
            used: saturated(state.used),
            limit: Bytes(state.limit),
            high_water: saturated(state.high_water),
            denials: state.denials,
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

    /// So much is kept of the host beside what is used.
    pub(super) const fn set_kept(&mut self, bytes: u64) {
        self.kept = bytes;
    }

    /// Whether something is kept so.
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

    /// Whether `bytes` more would fit.
    pub(super) fn fits(&self, card: Card, bytes: Bytes) -> Result<(), Refusal> {
        let state = self.state(card)?;
        let used = state.used + u128::from(if card == Card::HOST { self.kept } else { 0 });
        if used + u128::from(bytes.0) > u128::from(state.limit) {
            return Err(OverQuota { card, asked: bytes, used: saturated(used), limit: Bytes(state.limit) }.into());
        }
        Ok(())
    }

    /// Whether the limit is exceeded as it is; `asked`, of which the cause is told, is already counted.
    pub(super) fn excess(&self, card: Card, asked: Bytes) -> Option<OverQuota> {
        let state = self.state(card).ok()?;
        let used = saturated(state.used.saturating_sub(u128::from(asked.0)));
        (state.used > u128::from(state.limit)).then_some(OverQuota { card, asked, used, limit: Bytes(state.limit) })
    }

    /// Counts `bytes` more, whether or not they fit.
    pub(super) fn add(&mut self, process: Pid, card: Card, bytes: u128) {
        let Some(state) = self.state_mut(card) else { return };
        if bytes == 0 {
            return;
        }
        state.used += bytes;
        state.high_water = state.high_water.max(state.used);
        *self.by_process.entry((process, card)).or_default() += bytes;
    }

    /// Counts `bytes` less; they were added before, for the same process.
    pub(super) fn subtract(&mut self, process: Pid, card: Card, bytes: u128) {
        let Some(state) = self.state_mut(card) else { return };
        debug_assert!(state.used >= bytes, "more released than was charged");
        state.used = state.used.saturating_sub(bytes);
        if let Some(used) = self.by_process.get_mut(&(process, card)) {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                self.by_process.remove(&(process, card));
            }
        }
    }
}
