//! Whole frames of 2 MiB that a container holds open of a card.
//!
//! A card's memory comes in granules of 64 KiB, and nearly everything that programs allocate needs
//! whole frames. So little memory in many frames keeps much of a card from everybody else: 64 KiB
//! in each frame are a thirty-second of the card. What is held is therefore counted in frames, too,
//! and of these there may be a sixty-fourth of the quota and 128 MiB beyond the quota.
//!
//! The driver says where memory begins that is one run of granules, so its frames are counted as
//! they are, each once, however many pieces lie in it. Of all other memory, until the driver has
//! answered, and where its answer cannot be, the worst is counted.

use abi::memory::{FRAME, GRANULE, Layout};
use base::Bytes;
use foldhash::HashMap;

/// Most bytes of frames that may be held open with this quota.
pub(super) const fn most(quota: u64) -> u64 {
    quota.saturating_add(quota / 64).saturating_add(128 * Bytes::MIB)
}

/// The frames of one charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Bytes of frames, wherever they are.
    Unplaced(u128),
    /// Those of these granules, by their numbers.
    Run {
        /// The first one.
        first: u64,
        /// The last one.
        last: u64,
    },
}

/// Granules of a frame.
const GRANULES: u64 = FRAME / GRANULE;
/// Address beyond the memory of any card.
const CARD_END: u64 = 1 << 52;

impl Extent {
    /// Frames of memory whose address is unknown.
    pub(super) fn unplaced(layout: Layout, bytes: u64) -> Self {
        Self::Unplaced(layout.frames(bytes).into())
    }

    /// Frames of memory that begins at an address of the card; never more than the worst case.
    pub(super) fn at(layout: Layout, address: u64, bytes: u64) -> Self {
        let address = address - address % GRANULE;
        match (layout, bytes.checked_sub(1).and_then(|more| address.checked_add(more))) {
            (Layout::Contiguous, Some(end)) if end < CARD_END => {
                Self::Run { first: address / GRANULE, last: end / GRANULE }
            }
            _ => Self::unplaced(layout, bytes),
        }
    }
}

/// The frames of a run, and how many of its granules lie in each.
fn frames_of(first: u64, last: u64) -> impl Iterator<Item = (u64, u64)> {
    (first / GRANULES..=last / GRANULES).map(move |frame| {
        let begin = frame * GRANULES;
        (frame, last.min(begin + GRANULES - 1) - first.max(begin) + 1)
    })
}

/// The frames that a container holds open of one card.
#[derive(Debug, Default)]
pub(super) struct Frames {
    unplaced: u128,
    /// Bytes of frames of the resource manager's page tables, beside all that is charged.
    tables: u128,
    /// Number of granules that are taken, by frame.
    placed: HashMap<u64, u64>,
}

impl Frames {
    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u128 {
        self.unplaced + self.tables + self.placed.len() as u128 * u128::from(FRAME)
    }

    /// Sets the bytes of page tables in granules of their own.
    pub(super) fn set_tables(&mut self, bytes: u64) {
        self.tables = Layout::Scattered.frames(bytes).into();
    }

    /// Bytes of all of them, if the page tables had `bytes`.
    pub(super) fn bytes_with_tables(&self, bytes: u64) -> u128 {
        self.bytes() - self.tables + u128::from(Layout::Scattered.frames(bytes))
    }

    /// Returns whether no frame would have more than it holds: else the driver has not said where
    /// it really is.
    pub(super) fn has_room(&self, extent: Extent) -> bool {
        let Extent::Run { first, last } = extent else { return true };
        let taken = |frame| self.placed.get(&frame).copied().unwrap_or(0);
        frames_of(first, last).all(|(frame, granules)| taken(frame) + granules <= GRANULES)
    }

    pub(super) fn add(&mut self, extent: Extent) {
        match extent {
            Extent::Unplaced(bytes) => self.unplaced += bytes,
            Extent::Run { first, last } => {
                for (frame, granules) in frames_of(first, last) {
                    *self.placed.entry(frame).or_default() += granules;
                }
            }
        }
    }

    /// Removes an extent that was added before.
    pub(super) fn subtract(&mut self, extent: Extent) {
        match extent {
            Extent::Unplaced(bytes) => {
                debug_assert!(self.unplaced >= bytes, "more frames go than there are");
                self.unplaced = self.unplaced.saturating_sub(bytes);
            }
            Extent::Run { first, last } => {
                for (frame, granules) in frames_of(first, last) {
                    let taken = self.placed.get_mut(&frame);
                    debug_assert!(taken.is_some(), "a piece goes from a frame that has none");
                    if let Some(taken) = taken {
                        *taken = taken.saturating_sub(granules);
                        if *taken == 0 {
                            self.placed.remove(&frame);
                        }
                    }
                }
            }
        }
    }
}
