//! Page tables: what lies apart, what is unmapped, and what is charged for nothing.

use super::*;

const UVM: UvmFile = UvmFile(1);
const TABLE: u64 = 4096;
const DEVICE: Handle = Handle(0xd0);
const PLACES: u64 = 256;

fn tables(accounts: &Accounts) -> u64 {
    accounts.page_tables(CARD).0
}

fn with_memory() -> Accounts {
    let mut accounts = accounts();
    accounts.uvm_file(UVM, PROCESS, false);
    allocate(&mut accounts, 1, mib(2)).unwrap();
    make(&mut accounts, CLIENT, 2, Kind::Other);
    accounts
}

/// 64 KiB, mapped again and again, each time where it takes a table of its own.
#[test]
fn little_memory_at_many_places() {
    let mut accounts = with_memory();
    for object in [1, 2] {
        for place in 0..PLACES {
            let hold = accounts.hold(name(object)).unwrap();
            accounts.map(hold, UVM, place * mib(2).0, 64 << 10, &[CARD]);
        }
        assert_eq!(tables(&accounts), (PLACES + 4) * TABLE, "object {object}");
    }
    accounts.unmap(UVM, CARD, mib(2).0, mib(2).0);
    assert_eq!(tables(&accounts), (PLACES + 3) * TABLE);
    accounts.uvm_file_gone(UVM);
    assert_eq!((tables(&accounts), accounts.counts().references), (0, 0));
}

#[test]
fn addresses_without_memory() {
    let mut accounts = with_memory();
    accounts.external_range(UVM, 0, 1 << 40);
    accounts.map_nothing(UVM, 0, 1 << 40, CARD);
    assert_eq!(tables(&accounts), ((1 << 19) + 4 * (1 << 11)) * TABLE);
    accounts.unmap(UVM, CARD, mib(3).0, 1 << 39);
    assert_eq!(tables(&accounts), ((1 << 18) + 1 + 4 * ((1 << 10) + 1)) * TABLE);
    accounts.free_range(UVM, 0);
    assert_eq!(tables(&accounts), 0);
}

#[test]
fn pools_are_mapped_on_every_card() {
    let mut accounts = with_memory();
    let pool = accounts.reserve_pool(PROCESS, mib(4)).unwrap();
    accounts.pool(pool, UVM, mib(1).0, mib(4).0);
    for card in [Card(0), Card(1)] {
        assert_eq!(accounts.page_tables(card).0, (3 + 4) * TABLE);
    }
    accounts.free_range(UVM, mib(1).0);
    assert_eq!((tables(&accounts), accounts.card(Card::HOST).unwrap().used), (0, Bytes(0)));
}

/// The driver answers "done" to the end of a range in which nothing is mapped: for all that it
/// leaves, it may not be counted less.
#[test]
fn the_end_of_nothing_ends_nothing() {
    let mut accounts = with_memory();
    let space = name(2);
    accounts.dma_mapped(space, DEVICE, CARD, mib(4).0, mib(2).0);
    let before = tables(&accounts);
    for (device, offset, length) in [
        (DEVICE, mib(6).0, 1),
        (DEVICE, mib(2).0, mib(2).0),
        (DEVICE, mib(5).0, 0),
        (DEVICE, mib(5).0, u64::MAX),
        (Handle(0xd1), mib(4).0, mib(2).0),
        (Handle(0xd1), mib(4).0, 0),
    ] {
        accounts.dma_unmapped(space, device, offset, length);
        assert_eq!(tables(&accounts), before, "{device:?} {offset:#x} {length:#x}");
    }
    accounts.dma_unmapped(space, DEVICE, mib(4).0, 0);
    assert_eq!(tables(&accounts), 0);
}

#[test]
fn one_call_may_end_many_mappings_and_parts_of_them() {
    let mut accounts = with_memory();
    let space = name(2);
    for place in 0..4 {
        accounts.dma_mapped(space, DEVICE, CARD, mib(4 * place).0, mib(2).0);
    }
    accounts.dma_unmapped(space, DEVICE, mib(1).0, mib(12).0);
    assert_eq!((tables(&accounts), accounts.counts().references), ((2 + 4) * TABLE, 2));
    accounts.dma_unmapped(space, DEVICE, 64 << 10, 64 << 10);
    assert_eq!((tables(&accounts), accounts.counts().references), ((2 + 4) * TABLE, 3));
    accounts.free(CLIENT, Handle(2)).unwrap();
    assert_eq!((tables(&accounts), accounts.counts().references), (0, 0));
}

/// Each is a record of the driver's too, in memory that nobody counts.
#[test]
fn mappings_in_virtual_memory_are_limited_in_number() {
    let mut accounts = accounts_with(ObjectLimits { references: 2, ..ObjectLimits::default() });
    make(&mut accounts, CLIENT, 2, Kind::Other);
    for place in 0..2 {
        accounts.dma_fits().unwrap();
        accounts.dma_mapped(name(2), DEVICE, CARD, place * 4096, 4096);
    }
    let refused = Refusal::TooMany { counted: Counted::References, limit: 2 };
    assert_eq!(accounts.dma_fits(), Err(refused));
    assert_eq!(tables(&accounts), 5 * TABLE);
}

/// 4 KiB at every 512 MiB: five tables each.
#[test]
fn managed_memory_that_lies_far_apart() {
    const STRETCH: u64 = 512 << 20;
    let mut accounts = with_memory();
    accounts.uvm_file(UVM, PROCESS, true);
    // Each is charged 2 MiB; only where that is little, tables are what runs out.
    let limit = mib(32 << 10);
    [CARD, Card(1)].into_iter().for_each(|card| accounts.set_limit(card, limit).unwrap());
    let most = 32 * mib(1).0 + limit.0 / 128;
    let map = |accounts: &mut Accounts, place: u64| -> Result<(), Refusal> {
        let reservation = accounts.reserve_managed(PROCESS, place * STRETCH, Bytes(4096))?;
        accounts.commit_managed(reservation, Mm(1), UVM, 7).unwrap();
        Ok(())
    };
    let mapped = (0..1 << 14).take_while(|place| map(&mut accounts, *place).is_ok()).count() as u64;
    assert!((14000..=most / (5 * TABLE)).contains(&mapped), "{mapped}");
    let refused = map(&mut accounts, mapped).unwrap_err();
    assert!(matches!(refused, Refusal::TooMany { counted: Counted::PageTableKib, .. }), "{refused}");
    // Its process has ended; the file keeps it, and its tables, until it is closed.
    accounts.thread_called(7);
    let sync = accounts.begin_sync();
    accounts.finish_sync(sync);
    assert_eq!(accounts.counts().managed_ranges, 0);
    assert!(map(&mut accounts, 0).is_err());
    accounts.uvm_file_gone(UVM);
    map(&mut accounts, 0).unwrap();
}

/// Neighbouring managed memory shares its tables.
#[test]
fn managed_memory_side_by_side() {
    let mut accounts = with_memory();
    [CARD, Card(1)].into_iter().for_each(|card| accounts.set_limit(card, mib(16 << 10)).unwrap());
    for place in 0..4096 {
        let reservation = accounts.reserve_managed(PROCESS, place * 4096, Bytes(4096)).unwrap();
        accounts.commit_managed(reservation, Mm(1), UVM, 7).unwrap();
    }
}
