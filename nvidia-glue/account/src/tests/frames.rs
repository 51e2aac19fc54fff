//! Frames of 2 MiB: whatever a container allocates and frees, and wherever the driver puts it, it
//! holds no more of them open than its quota, a sixty-fourth of that and 128 MiB.

use std::collections::{BTreeMap, BTreeSet};

use abi::memory::{FRAME, GRANULE};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;

const QUOTA: Bytes = mib(64);
/// A sixty-fourth of it, and 128 MiB.
const MOST: u64 = (64 + 1 + 128) << 20;
const GRANULES_OF_FRAME: u64 = FRAME / GRANULE;
/// Granules of the card.
const CARD_SIZE: u64 = 256 * GRANULES_OF_FRAME;

/// A card's granules as the driver's allocator (PMA) has them, and what a container has made of
/// them.
struct World {
    accounts: Accounts,
    /// By granule: whose memory it is.
    taken: BTreeMap<u64, u32>,
    /// Objects of the container's: which memory each is.
    objects: BTreeMap<u32, u32>,
    exports: BTreeSet<u32>,
    next: u32,
}

impl World {
    fn new() -> Self {
        let mut accounts = Accounts::new(&[QUOTA], ObjectLimits::default());
        add_client(&mut accounts, CLIENT, PROCESS);
        Self { accounts, taken: BTreeMap::new(), objects: BTreeMap::new(), exports: BTreeSet::new(), next: 1 }
    }

    fn is_free(&self, first: u64, granules: u64) -> bool {
        first + granules <= CARD_SIZE && self.taken.range(first..first + granules).next().is_none()
    }

    /// Addresses at which memory of `granules` granules may begin, among the multiples of `unit`.
    fn places(&self, granules: u64, unit: u64) -> Vec<u64> {
        (0..CARD_SIZE / unit).map(|at| at * unit).filter(|first| self.is_free(*first, granules)).collect()
    }

    /// The granules that the driver gives for so many of them: any that `choice` likes of those
    /// that it may give.
    fn granted(&self, layout: Layout, granules: u64, choice: &mut dyn FnMut(&[u64]) -> u64) -> Option<Vec<u64>> {
        let mut given = Vec::new();
        let (count, each, unit) = match layout {
            Layout::OwnFrames => (granules / GRANULES_OF_FRAME, GRANULES_OF_FRAME, GRANULES_OF_FRAME),
            Layout::Contiguous => (1, granules, 1),
            Layout::Scattered => (granules, 1, 1),
        };
        let mut places = self.places(each, unit);
        for _ in 0..count {
            let first = (!places.is_empty()).then(|| choice(&places))?;
            places.retain(|place| *place != first);
            given.extend(first..first + each);
        }
        Some(given)
    }

    fn allocate(
        &mut self,
        layout: Layout,
        granules: u64,
        choice: &mut dyn FnMut(&[u64]) -> u64,
    ) -> Result<u32, Refusal> {
        let bytes = Bytes(granules * GRANULE);
        let reservation = self.accounts.reserve(AllocRequest { layout, ..memory(bytes) })?;
        let object = self.next;
        self.next += 1;
        let Some(given) = self.granted(layout, granules, choice) else {
            self.accounts.cancel(reservation);
            return Ok(object);
        };
        let address = given.first().map(|first| first * GRANULE);
        let placement = Placement::under(CLIENT, Handle(object)).at(address);
        self.accounts.commit(reservation, placement, Some(bytes)).unwrap();
        self.taken.extend(given.into_iter().map(|granule| (granule, object)));
        self.objects.insert(object, object);
        self.check();
        Ok(object)
    }

    fn duplicate(&mut self, source: u32) {
        let object = self.next;
        self.next += 1;
        let reservation = self.accounts.reserve_duplicate(name(source), CLIENT).unwrap();
        self.accounts.commit(reservation, Placement::under(CLIENT, Handle(object)), None).unwrap();
        self.objects.insert(object, self.objects[&source]);
    }

    /// To a file of its own.
    fn export(&mut self, source: u32) {
        let memory = self.objects[&source];
        let hold = self.accounts.hold(name(source)).unwrap();
        self.accounts.export(hold, ExportFile(memory.into()), 0);
        self.exports.insert(memory);
    }

    fn close_export(&mut self, memory: u32) {
        self.accounts.export_file_gone(ExportFile(memory.into()));
        self.exports.remove(&memory);
        self.give_back(memory);
    }

    fn free(&mut self, object: u32) {
        self.accounts.free(CLIENT, Handle(object)).unwrap();
        let memory = self.objects.remove(&object).unwrap();
        self.give_back(memory);
    }

    fn give_back(&mut self, memory: u32) {
        if !self.exports.contains(&memory) && !self.objects.values().any(|of| *of == memory) {
            self.taken.retain(|_, of| *of != memory);
        }
        self.check();
    }

    /// Bytes of the frames that are held open.
    fn open(&self) -> u64 {
        let frames: BTreeSet<u64> = self.taken.keys().map(|granule| granule / GRANULES_OF_FRAME).collect();
        frames.len() as u64 * FRAME
    }

    fn check(&self) {
        let usage = self.accounts.card(CARD).unwrap();
        assert_eq!(usage.used.0, self.taken.len() as u64 * GRANULE);
        assert!(self.open() <= usage.frames.0, "{} of frames are open, {} counted", self.open(), usage.frames.0);
        assert!(usage.frames.0 <= MOST, "{} of frames are counted", usage.frames.0);
    }
}

/// The last one that there is, in a frame that has none yet where there is such a one.
fn in_a_new_frame(world: &World) -> impl FnMut(&[u64]) -> u64 + use<> {
    let open: BTreeSet<u64> = world.taken.keys().map(|granule| granule / GRANULES_OF_FRAME).collect();
    move |places| *places.iter().find(|place| !open.contains(&(*place / GRANULES_OF_FRAME))).unwrap_or(&places[0])
}

fn first_fit(places: &[u64]) -> u64 {
    places[0]
}

fn is_over_frames(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::OverQuota(OverQuota { bound: Bound::Frames, .. }))
        && refusal.status() == Status::NO_MEMORY
}

#[test]
fn pieces_in_frames_of_their_own_are_refused_at_the_bound() {
    let mut world = World::new();
    let refused = loop {
        let mut choice = in_a_new_frame(&world);
        if let Err(refused) = world.allocate(Layout::Contiguous, 1, &mut choice) {
            break refused;
        }
    };
    assert!(is_over_frames(refused), "{refused}");
    // The last one may have been anywhere when it was asked for.
    assert_eq!((world.open(), world.objects.len() as u64), (MOST / FRAME * FRAME, MOST / FRAME));
    let first = *world.objects.keys().next().unwrap();
    world.free(first);
    world.allocate(Layout::Contiguous, 1, &mut first_fit).unwrap();
}

#[test]
fn frames_that_were_filled_and_emptied_but_for_one_piece_count() {
    let mut world = World::new();
    for frame in 0..MOST / FRAME {
        let mut here = |places: &[u64]| *places.iter().find(|place| **place >= frame * GRANULES_OF_FRAME).unwrap();
        // Into the last frame goes one alone: the next might need another one.
        let filled = (0..GRANULES_OF_FRAME).map_while(|_| world.allocate(Layout::Contiguous, 1, &mut here).ok());
        for piece in filled.collect::<Vec<_>>().into_iter().skip(1) {
            world.free(piece);
        }
    }
    assert_eq!(world.accounts.card(CARD).unwrap().used.0, MOST / FRAME * GRANULE);
    let refused = world.allocate(Layout::Contiguous, 1, &mut first_fit).unwrap_err();
    assert!(is_over_frames(refused), "{refused}");
}

#[test]
fn pieces_that_lie_close_to_each_other_fill_the_quota() {
    let mut world = World::new();
    let mut chunks = 0;
    let refused = loop {
        match world.allocate(Layout::Contiguous, 1, &mut first_fit) {
            Ok(_) => chunks += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Refusal::OverQuota(OverQuota { bound: Bound::Quota, .. })), "{refused}");
    assert_eq!((chunks * GRANULE, world.open()), (QUOTA.0, QUOTA.0));
}

#[test]
fn scattered_memory_counts_a_frame_for_each_granule() {
    let mut world = World::new();
    let scattered = |world: &mut World, granules| world.allocate(Layout::Scattered, granules, &mut first_fit);
    scattered(&mut world, 96).unwrap();
    assert_eq!(world.accounts.card(CARD).unwrap().frames.0, 96 * FRAME);
    assert!(is_over_frames(scattered(&mut world, 1).unwrap_err()));
}

/// As a driver would say of everything that leaves the address alone, or fills it with ones.
#[test]
fn memory_that_cannot_be_where_it_is_said_to_be_counts_at_its_worst() {
    for (address, first) in [(0, 1), (u64::MAX, 2), (1 << 60, 2)] {
        let mut accounts = Accounts::new(&[mib(6400)], ObjectLimits::default());
        add_client(&mut accounts, CLIENT, PROCESS);
        let bytes = Bytes(FRAME);
        for object in 1..=10 {
            let reservation = accounts.reserve(AllocRequest { layout: Layout::Contiguous, ..memory(bytes) }).unwrap();
            let placement = Placement::under(CLIENT, Handle(object)).at(Some(address));
            accounts.commit(reservation, placement, Some(bytes)).unwrap();
            assert_eq!(
                accounts.card(CARD).unwrap().frames.0 / FRAME,
                first + u64::from(object - 1) * 2,
                "{address:#x}"
            );
        }
        // Whichever of them goes first.
        for object in 1..=10 {
            accounts.free(CLIENT, Handle(object)).unwrap();
        }
        assert_eq!(accounts.card(CARD).unwrap().frames.0, 0);
    }
}

#[test]
fn the_bound_goes_with_the_quota_and_is_none_where_nobody_else_is() {
    let mut accounts = accounts();
    accounts.set_limit(CARD, mib(6400)).unwrap();
    assert_eq!(accounts.card(CARD).unwrap().frames_limit, mib(6400 + 100 + 128));
    accounts.set_limit(CARD, QUOTA).unwrap();
    let scattered = |granules| AllocRequest { layout: Layout::Scattered, ..memory(Bytes(granules * GRANULE)) };
    assert!(is_over_frames(accounts.reserve(scattered(97)).unwrap_err()));
    accounts.set_sole_holder(CARD);
    let alone = accounts.reserve(scattered(97)).unwrap();
    accounts.cancel(alone);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The driver puts each piece wherever it may, at random or where it opens a frame more.
    #[test]
    fn no_program_holds_more_open(steps in vec((0_u8..12, 1_u64..40, any::<Index>(), any::<Index>()), 1..160)) {
        let mut world = World::new();
        for (deed, size, which, place) in steps {
            let objects: Vec<u32> = world.objects.keys().copied().collect();
            let one = (!objects.is_empty()).then(|| *which.get(&objects));
            let mut at_random = |places: &[u64]| *place.get(places);
            let verdict = match (deed, one) {
                (0..=2, _) => world.allocate(Layout::Contiguous, 1, &mut in_a_new_frame(&world)),
                (3, _) => world.allocate(Layout::Contiguous, size, &mut at_random),
                (4, _) => world.allocate(Layout::Contiguous, 1, &mut at_random),
                (5, _) => world.allocate(Layout::Scattered, size, &mut in_a_new_frame(&world)),
                (6, _) => world.allocate(Layout::OwnFrames, size % 4 * GRANULES_OF_FRAME + GRANULES_OF_FRAME, &mut at_random),
                (7..=9, Some(one)) => { world.free(one); continue }
                (10, Some(one)) => { world.duplicate(one); continue }
                (11, Some(one)) if !world.exports.contains(&world.objects[&one]) => { world.export(one); continue }
                _ => {
                    let exports: Vec<u32> = world.exports.iter().copied().collect();
                    if !exports.is_empty() { world.close_export(*which.get(&exports)) }
                    continue
                }
            };
            let is_expected = verdict.err().is_none_or(|refused| matches!(refused, Refusal::OverQuota(_)));
            prop_assert!(is_expected);
        }
    }
}

/// The driver takes a granule wherever there is one for sixteen of its page tables, and gives it
/// back when all of them are gone.
#[test]
fn page_tables_of_the_resource_managers_count_a_frame_for_each_granule() {
    /// Each takes a table on every level.
    const APART: u64 = 1 << 29;
    let mut accounts = accounts();
    make(&mut accounts, CLIENT, 2, Kind::Other);
    let device = Handle(0xd0);
    let map = |accounts: &mut Accounts, place: u64| {
        let tables = accounts.reserve_virtual_page_tables(CARD, 4096)?;
        accounts.dma_mapped(name(2), device, CARD, place * APART, 4096);
        accounts.release_page_tables(tables);
        Ok::<(), Refusal>(())
    };
    let places = (0..).find(|place| map(&mut accounts, *place).is_err()).unwrap();
    assert!(is_over_frames(map(&mut accounts, places).unwrap_err()));
    // 229.5 MiB of frames, sixteen tables of 4 KiB in each: five of them for each place, and ten
    // asked for.
    assert_eq!(places, 114 * 16 / 5 - 1);
    let full = accounts.card(CARD).unwrap().frames;
    assert_eq!(full.0, 114 * FRAME);
    assert!(is_over_frames(accounts.reserve(memory(mib(2))).unwrap_err()), "nor is there room for memory");
    // Fifteen of sixteen may be gone, and the granules still be there.
    accounts.dma_unmapped(name(2), device, APART, u64::MAX - APART);
    assert_eq!(accounts.card(CARD).unwrap().frames, full);
    accounts.dma_unmapped(name(2), device, 0, APART);
    let room = accounts.reserve(memory(mib(100))).unwrap();
    accounts.cancel(room);
}
