//! Memory of the host's that is gone but for pages that a program may have pinned.
//!
//! A program may pin (class `0071`) whatever it has mapped, memory that the driver made for it
//! included. The pages then stay when that is freed, unmapped and its file closed, until the last
//! object is gone that pins them. Where the pages lie that an object pins, the driver does not say,
//! and the program's own word is worth nothing (`accounts/pinned.rs`). So memory that was mapped
//! for the processor counts for as long as objects live that were made meanwhile, and for as much
//! as those pin.
//!
//! It counts in what the container may have of the host's memory, like what is in use: the host has
//! to have both. Programs that do no such thing have objects as well that were made meanwhile:
//! pools of pinned memory are never freed, and processes with contexts come and go beside them,
//! each with some 70 MiB that it had mapped. Of each such life no more counts than was pinned
//! meanwhile, and lives on.

use std::collections::{BTreeMap, BTreeSet};

/// While pages could be pinned: after `from`, and up to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    from: u64,
    /// `None`: they still can.
    to: Option<u64>,
}

impl Window {
    /// Reopens the window: pages can be pinned again.
    pub(super) const fn reopen(&mut self) {
        self.to = None;
    }
}

/// Memory that is gone but for what is pinned of it.
#[derive(Debug, Clone, Copy)]
struct Kept {
    bytes: u64,
    from: u64,
    to: u64,
}

/// Most entries that are kept apart; more are merged, and then count for longer than they would.
const MOST_KEPT: usize = 1024;

/// Pinned memory, in the order in which it was asked for.
#[derive(Debug, Default)]
pub(super) struct Pins {
    last: u64,
    /// Each with how many bytes it pins; `u64::MAX` while nobody knows.
    living: BTreeMap<u64, u64>,
    /// Pins of calls in flight: the driver may not have looked up the pages yet.
    under_way: BTreeSet<u64>,
    kept: Vec<Kept>,
}

impl Pins {
    /// Registers a call that is about to pin something, and returns its name.
    pub(super) fn pinned(&mut self) -> u64 {
        self.last += 1;
        self.living.insert(self.last, u64::MAX);
        self.under_way.insert(self.last);
        self.last
    }

    /// Records the bytes that a call has pinned, once it is over.
    pub(super) fn over(&mut self, pin: u64, length: u64) {
        self.under_way.remove(&pin);
        if let Some(known) = self.living.get_mut(&pin) {
            *known = length;
        }
    }

    /// Removes a pin.
    pub(super) fn unpinned(&mut self, pin: u64) {
        self.under_way.remove(&pin);
        self.living.remove(&pin);
    }

    /// Opens a window in which pages can be pinned, also by calls in flight.
    pub(super) fn open_window(&self) -> Window {
        let from = self.under_way.first().map_or(self.last, |first| first.saturating_sub(1));
        Window { from, to: None }
    }

    /// Closes a window: no more pages can be pinned.
    pub(super) const fn close(&self, window: &mut Window) {
        window.to = Some(self.last);
    }

    /// Keeps the bytes of freed memory that could be pinned in `window`.
    pub(super) fn keep(&mut self, window: Window, bytes: u64) {
        let kept = Kept { bytes, from: window.from, to: window.to.unwrap_or(self.last) };
        if self.covered(&kept) == 0 {
            return;
        }
        if self.kept.len() >= MOST_KEPT {
            self.prune();
        }
        let is_full = self.kept.len() >= MOST_KEPT;
        match self.kept.last_mut() {
            Some(last) if is_full => {
                last.bytes = last.bytes.saturating_add(kept.bytes);
                (last.from, last.to) = (last.from.min(kept.from), last.to.max(kept.to));
            }
            _ => self.kept.push(kept),
        }
    }

    /// Bytes of it that may still be pinned.
    fn covered(&self, kept: &Kept) -> u64 {
        let mut covered = 0_u64;
        if kept.to <= kept.from {
            return covered;
        }
        for length in self.living.range(kept.from + 1..=kept.to).map(|(_, length)| length) {
            covered = covered.saturating_add(*length);
            if covered >= kept.bytes {
                return kept.bytes;
            }
        }
        covered
    }

    fn prune(&mut self) {
        let mut kept = std::mem::take(&mut self.kept);
        kept.retain(|kept| self.covered(kept) > 0);
        self.kept = kept;
    }

    /// Bytes that may be kept so: of each memory what may be pinned of it, and of all together no
    /// more than is pinned at all.
    pub(super) fn kept(&mut self) -> base::Bytes {
        self.prune();
        let sum = self.kept.iter().fold(0_u64, |sum, kept| sum.saturating_add(self.covered(kept)));
        let pinned = self.living.values().fold(0_u64, |sum, length| sum.saturating_add(*length));
        base::Bytes(sum.min(pinned))
    }

    /// Upper bound of [`Pins::kept`], computed without a visit to each pin.
    pub(super) fn kept_at_most(&self) -> u64 {
        self.kept.iter().fold(0_u64, |sum, kept| sum.saturating_add(kept.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(pins: &mut Pins, length: u64) -> u64 {
        let pin = pins.pinned();
        pins.over(pin, length);
        pin
    }

    #[test]
    fn what_is_made_in_a_window_keeps_what_was_mapped_then() {
        let mut pins = Pins::default();
        known(&mut pins, 1000);
        let mut window = pins.open_window();
        let within = known(&mut pins, 10);
        let also = known(&mut pins, 20);
        pins.close(&mut window);
        known(&mut pins, 1000);
        pins.keep(window, 100);
        assert_eq!(pins.kept().0, 30);
        pins.unpinned(within);
        assert_eq!(pins.kept().0, 20);
        pins.unpinned(also);
        assert_eq!(pins.kept().0, 0);
        assert!(pins.kept.is_empty());
    }

    #[test]
    fn what_is_under_way_may_look_at_the_pages_later() {
        let mut pins = Pins::default();
        let early = pins.pinned();
        let mut window = pins.open_window();
        pins.close(&mut window);
        pins.keep(window, 100);
        assert_eq!(pins.kept().0, 100, "as nobody knows how much it pins");
        pins.over(early, 7);
        assert_eq!(pins.kept().0, 7);
        // It is none that is under way any more.
        let mut later = pins.open_window();
        pins.close(&mut later);
        pins.keep(later, 100);
        assert_eq!(pins.kept().0, 7);
    }

    #[test]
    fn it_is_no_more_than_is_said_without_a_look() {
        let mut pins = Pins::default();
        let mut window = pins.open_window();
        let pin = known(&mut pins, 50);
        pins.close(&mut window);
        pins.keep(window, 60);
        pins.keep(window, 40);
        assert_eq!((pins.kept_at_most(), pins.kept().0), (100, 50));
        pins.unpinned(pin);
        assert_eq!((pins.kept_at_most(), pins.kept().0, pins.kept_at_most()), (100, 0, 0));
    }

    #[test]
    fn all_together_it_is_no_more_than_is_pinned() {
        let mut pins = Pins::default();
        let mut windows = [pins.open_window(); 3];
        let pin = known(&mut pins, 50);
        for window in &mut windows {
            pins.close(window);
            pins.keep(*window, 40);
        }
        assert_eq!(pins.kept().0, 50, "the same pages cannot be of all three");
        let under_way = pins.pinned();
        assert_eq!(pins.kept().0, 120, "nobody knows how much that pins");
        pins.over(under_way, 7);
        assert_eq!(pins.kept().0, 57);
        pins.unpinned(pin);
        assert_eq!(pins.kept().0, 0);
    }

    #[test]
    fn a_great_many_are_taken_together() {
        let mut pins = Pins::default();
        let all: Vec<u64> = (0..2 * MOST_KEPT)
            .map(|_| {
                let window = pins.open_window();
                let pin = known(&mut pins, 1);
                pins.keep(window, 1);
                pin
            })
            .collect();
        assert_eq!((pins.kept.len(), pins.kept().0), (MOST_KEPT, 2 * MOST_KEPT as u64));
        let (last, others) = all.split_last().unwrap();
        others.iter().for_each(|pin| pins.unpinned(*pin));
        assert_eq!(pins.kept().0, 1);
        pins.unpinned(*last);
        assert_eq!(pins.kept().0, 0);
    }
}
