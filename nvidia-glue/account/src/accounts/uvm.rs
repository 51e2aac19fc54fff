//! UVM files: their external ranges, and what is mapped there.
//!
//! A mapping is a reference of the driver's own to the memory: it outlives the RM handle
//! (kernel-open/nvidia-uvm/uvm_map_external.c). It is per card, replaces what it overlaps on that
//! card, and may be unmapped in part: each part that is left keeps the memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use abi::memory::Layout;
use base::{Pid, units::Bytes};
use foldhash::HashMap;

use super::{Accounts, Hold, page_tables::Space, reserve::Armed};
use crate::{
    Card, Counted, Refusal, UvmFile,
    charges::ChargeId,
    intervals::{Intervals, Span},
};

#[derive(Debug)]
pub(super) struct File {
    pub(super) opener: Pid,
    /// `UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE`: managed memory outlives the process that mapped
    /// it.
    pub(super) shared: bool,
    /// Files made by `UVM_MM_INITIALIZE` that keep it.
    keepers: u32,
}

#[derive(Debug)]
struct Pool {
    charge: ChargeId,
    span: Option<Span>,
}

/// Every UVM file.
#[derive(Debug, Default)]
pub(super) struct UvmFiles {
    pub(super) files: HashMap<UvmFile, File>,
    /// By file made by `UVM_MM_INITIALIZE`: the file that it keeps.
    mm_files: HashMap<UvmFile, UvmFile>,
    /// Last address by first.
    ranges: BTreeMap<(UvmFile, u64), u64>,
    /// External mappings; `None`: something that is charged for nothing, or nothing at all. It has
    /// page tables all the same.
    maps: Intervals<(UvmFile, Card), Option<ChargeId>>,
    /// Pools of semaphores by their first address: memory of the host's, mapped on every card.
    pools: BTreeMap<(UvmFile, u64), Pool>,
}

impl UvmFiles {
    pub(super) fn references(&self) -> usize {
        self.ranges.len() + self.maps.len() + self.pools.len()
    }

    /// Files that map something, or have a pool.
    pub(super) fn holders(&self) -> BTreeSet<UvmFile> {
        let maps = self.maps.owners(..).into_iter().map(|(file, _)| file);
        maps.chain(self.pools.keys().map(|(file, _)| *file)).collect()
    }

    /// Every file of `UVM_MM_INITIALIZE`.
    pub(super) fn mm_files(&self) -> impl Iterator<Item = UvmFile> {
        self.mm_files.keys().copied()
    }

    pub(super) fn is_shared(&self, file: UvmFile) -> bool {
        self.files.get(&file).is_some_and(|file| file.shared)
    }

    pub(super) fn any_shared(&self) -> bool {
        self.files.values().any(|file| file.shared)
    }
}

impl Accounts {
    pub(super) fn references_fit(&self, more: usize) -> Result<(), Refusal> {
        let references = self.references();
        if references + more > self.limits.references as usize {
            return Err(Refusal::TooMany { counted: Counted::References, limit: self.limits.references });
        }
        Ok(())
    }

    /// `process` made a UVM address space of `file` (`UVM_INITIALIZE`); `shared`: with the flag for
    /// sharing between processes.
    pub fn uvm_file(&mut self, file: UvmFile, process: Pid, shared: bool) {
        let new = File { opener: process, shared, keepers: 0 };
        self.uvm.files.entry(file).or_insert(new).shared |= shared;
    }

    /// `process` bound `mm_file` to `file` (`UVM_MM_INITIALIZE`): until `mm_file` is reported gone
    /// itself ([`Accounts::uvm_file_gone`]), `file` lives on without a descriptor.
    pub fn uvm_mm_file(&mut self, mm_file: UvmFile, file: UvmFile, process: Pid) {
        if !self.uvm.mm_files.contains_key(&mm_file) {
            let new = File { opener: process, shared: false, keepers: 0 };
            let kept = self.uvm.files.entry(file).or_insert(new);
            kept.keepers = kept.keepers.saturating_add(1);
            self.uvm.mm_files.insert(mm_file, file);
        }
    }

    /// Returns whether one more external range may be created; ask before the driver is asked.
    ///
    /// # Errors
    /// When there are too many references.
    pub fn external_range_fits(&self) -> Result<(), Refusal> {
        self.references_fit(1)
    }

    /// Returns whether part of `file` may be unmapped on `card`; ask before the driver is asked.
    /// What is cut in two needs room for one more.
    ///
    /// # Errors
    /// When there are too many references.
    pub fn unmap_fits(&self, file: UvmFile, card: Card, base: u64, length: u64) -> Result<(), Refusal> {
        match Span::new(base, length) {
            Some(span) if self.uvm.maps.would_split((file, card), span) => self.references_fit(1),
            _ => Ok(()),
        }
    }

    /// Records an external range (`UVM_CREATE_EXTERNAL_RANGE`). One that cannot be (empty, or
    /// wrapping) is left out.
    pub fn external_range(&mut self, file: UvmFile, base: u64, length: u64) {
        if let Some(span) = Span::new(base, length) {
            self.uvm.ranges.insert((file, span.first), span.last);
        }
    }

    /// Records that the memory of `hold` was mapped at `base` of `file` on `cards`
    /// (`UVM_MAP_EXTERNAL_ALLOCATION`; one that is not of the grant counts too), in place of what
    /// was mapped there; with no cards, only for others than cards (`UVM_ALLOC_DEVICE_P2P`), until
    /// the range or the file is gone. Returns the bytes that this released.
    pub fn map(&mut self, hold: Hold, file: UvmFile, base: u64, length: u64, cards: &[Card]) -> Bytes {
        let cards = if cards.is_empty() { &[Card::HOST] } else { cards };
        // The driver maps nothing of no length, and nothing that wraps; should it have, it is as
        // long as can be.
        let span = Span::new(base, length).unwrap_or(Span { first: base, last: u64::MAX });
        let mut released = 0_u64;
        for &card in cards {
            released = released.saturating_add(self.cut_map(file, card, span).0);
            if let Some(charge) = hold.charge {
                self.charges.hold(charge);
            }
            self.uvm.maps.insert((file, card), span, hold.charge);
            self.page_tables.mapped(Space::Uvm(file), card, span);
        }
        self.release(hold);
        Bytes(released)
    }

    /// Records a sparse mapping at `base` of `file` on `card`, in place of what was there
    /// (`UVM_MAP_EXTERNAL_SPARSE`, `UVM_MAP_DYNAMIC_PARALLELISM_REGION`): that has page tables too.
    /// Returns the bytes that this released.
    pub fn map_nothing(&mut self, file: UvmFile, base: u64, length: u64, card: Card) -> Bytes {
        let Some(span) = Span::new(base, length) else { return Bytes(0) };
        let released = self.cut_map(file, card, span);
        self.uvm.maps.insert((file, card), span, None);
        self.page_tables.mapped(Space::Uvm(file), card, span);
        released
    }

    /// Removes the mappings in part of `file` on `card` (`UVM_UNMAP_EXTERNAL`). Returns the bytes
    /// that this released.
    pub fn unmap(&mut self, file: UvmFile, card: Card, base: u64, length: u64) -> Bytes {
        Span::new(base, length).map_or(Bytes(0), |span| self.cut_map(file, card, span))
    }

    fn cut_map(&mut self, file: UvmFile, card: Card, span: Span) -> Bytes {
        let mut released = 0_u64;
        for cut in self.uvm.maps.cut((file, card), span) {
            self.page_tables.unmapped(Space::Uvm(file), card, cut.span);
            match (cut.value, cut.remain) {
                (Some(charge), 0) => {
                    released = released.saturating_add(self.charges.release(&mut self.cards, charge).0);
                }
                (None, _) | (_, 1) => {}
                (Some(charge), _) => self.charges.hold(charge),
            }
        }
        Bytes(released)
    }

    /// Removes the range that begins at `base` of `file` (`UVM_FREE`), with all mappings in it. One
    /// that is not known changes nothing. Returns the bytes that this released.
    pub fn free_range(&mut self, file: UvmFile, base: u64) -> Bytes {
        self.drop_pools(file, base..=base);
        let Some(last) = self.uvm.ranges.remove(&(file, base)) else { return Bytes(0) };
        self.cut_maps(file, Span { first: base, last })
    }

    /// Reserves the host's memory for a pool of semaphores (`UVM_ALLOC_SEMAPHORE_POOL`), to be
    /// given to [`Accounts::pool`] or [`Accounts::release`].
    ///
    /// # Errors
    /// When that is too much.
    pub fn reserve_pool(&mut self, process: Pid, length: Bytes) -> Result<Hold, Refusal> {
        self.references_fit(1)?;
        self.fits(Card::HOST, length)?;
        let charge = self.charges.add(&mut self.cards, process, (Card::HOST, length), Layout::OwnFrames);
        let charge = charge.ok_or(self.too_many_objects())?;
        Ok(Hold { charge: Some(charge), armed: Armed::new(&self.abandoned) })
    }

    /// The pool exists, `length` bytes at `base` of `file`.
    pub fn pool(&mut self, hold: Hold, file: UvmFile, base: u64, length: u64) {
        if let Some(charge) = hold.charge {
            self.drop_pools(file, base..=base);
            self.charges.hold(charge);
            let span = Span::new(base, length);
            for (card, span) in self.cards.all().zip(std::iter::repeat(span)) {
                span.into_iter().for_each(|span| self.page_tables.mapped(Space::Uvm(file), card, span));
            }
            self.uvm.pools.insert((file, base), Pool { charge, span });
        }
        self.release(hold);
    }

    fn drop_pools(&mut self, file: UvmFile, bases: RangeInclusive<u64>) {
        while let Some((&key, _)) = self.uvm.pools.range((file, *bases.start())..=(file, *bases.end())).next() {
            let Some(pool) = self.uvm.pools.remove(&key) else { break };
            for (card, span) in self.cards.all().zip(std::iter::repeat(pool.span)) {
                span.into_iter().for_each(|span| self.page_tables.unmapped(Space::Uvm(file), card, span));
            }
            self.charges.release(&mut self.cards, pool.charge);
        }
    }

    /// Removes the mappings of a span on every card.
    fn cut_maps(&mut self, file: UvmFile, span: Span) -> Bytes {
        let mut released = 0_u64;
        for (file, card) in self.uvm.maps.owners((file, Card(0))..=(file, Card(u8::MAX))) {
            released = released.saturating_add(self.cut_map(file, card, span).0);
        }
        Bytes(released)
    }

    /// The external ranges of `file`: where each begins, and its bytes.
    pub fn external_ranges(&self, file: UvmFile) -> Vec<(u64, u64)> {
        let ranges = self.uvm.ranges.range((file, 0)..=(file, u64::MAX));
        // None wraps, so none has 2^64 bytes but one that begins at 0, which no driver makes.
        ranges.map(|(&(_, base), &last)| (base, (last - base).saturating_add(1))).collect()
    }

    /// The pools of semaphores of `file`: where each begins, and its bytes.
    pub fn pools(&self, file: UvmFile) -> Vec<(u64, u64)> {
        let pools = self.uvm.pools.range((file, 0)..=(file, u64::MAX));
        pools.filter_map(|(&(_, base), pool)| Some((base, pool.span?.length().try_into().ok()?))).collect()
    }

    /// Returns whether something lives until `file` is given up: managed memory that is still
    /// mapped, or a file of `UVM_MM_INITIALIZE`. What is left of those then is only to be ended
    /// through `file`.
    pub fn is_uvm_file_kept(&self, file: UvmFile) -> bool {
        self.managed.keeps(file) || self.uvm.files.get(&file).is_some_and(|file| file.keepers > 0)
    }

    /// Returns whether `file` was made by `UVM_MM_INITIALIZE`, and may keep another one.
    pub fn is_uvm_mm_file(&self, file: UvmFile) -> bool {
        self.uvm.mm_files.contains_key(&file)
    }

    /// Returns whether `file` has ranges, pools, channels, or managed memory that has outlived its
    /// process.
    pub fn uvm_file_holds(&self, file: UvmFile) -> bool {
        let all = (file, 0)..=(file, u64::MAX);
        self.uvm.ranges.range(all.clone()).next().is_some()
            || self.uvm.pools.range(all).next().is_some()
            || self.managed.has_zombies(file)
            || !self.registered_channels(file).is_empty()
    }

    /// Removes all mappings and channels of `file` on `card` (`UVM_UNREGISTER_GPU_VASPACE`,
    /// `UVM_UNREGISTER_GPU`). Returns the bytes that this released.
    pub fn uvm_card_gone(&mut self, file: UvmFile, card: Card) -> Bytes {
        let channels = self.unregister_channels(file, Some(card));
        Bytes(self.cut_map(file, card, Span { first: 0, last: u64::MAX }).0.saturating_add(channels.0))
    }

    /// Removes a `file` that was given up, with its mappings and channels, and managed memory that
    /// has outlived its process: whoever says so has asked whether something lives until then
    /// ([`Accounts::is_uvm_file_kept`]). Returns the bytes of the mappings' charges that this
    /// released.
    pub fn uvm_file_gone(&mut self, file: UvmFile) -> Bytes {
        if let Some(kept) = self.uvm.mm_files.remove(&file).and_then(|kept| self.uvm.files.get_mut(&kept)) {
            kept.keepers = kept.keepers.saturating_sub(1);
        }
        let channels = self.unregister_channels(file, None);
        let released = Bytes(self.cut_maps(file, Span { first: 0, last: u64::MAX }).0.saturating_add(channels.0));
        self.drop_pools(file, 0..=u64::MAX);
        while let Some((&key, _)) = self.uvm.ranges.range((file, 0)..=(file, u64::MAX)).next() {
            self.uvm.ranges.remove(&key);
        }
        self.uvm.files.remove(&file);
        self.range_groups.remove(&file);
        self.drop_zombies(file);
        released
    }

    /// Returns whether one more group of ranges of managed memory may be made; ask before the
    /// driver is asked.
    ///
    /// # Errors
    /// When there are too many.
    pub fn range_group_fits(&self) -> Result<(), Refusal> {
        let limit = self.limits.range_groups;
        if self.range_groups() < limit {
            return Ok(());
        }
        Err(Refusal::TooMany { counted: Counted::RangeGroups, limit })
    }

    /// Counts a range group (`UVM_CREATE_RANGE_GROUP`): it goes with its file, if not before.
    pub fn range_group(&mut self, file: UvmFile) {
        let count = self.range_groups.entry(file).or_default();
        *count = count.saturating_add(1);
    }

    /// Removes a range group (`UVM_DESTROY_RANGE_GROUP`).
    pub fn range_group_gone(&mut self, file: UvmFile) {
        if let Some(count) = self.range_groups.get_mut(&file) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.range_groups.remove(&file);
            }
        }
    }

    pub(super) fn range_groups(&self) -> u32 {
        self.range_groups.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}
