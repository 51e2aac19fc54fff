//! References that outlive a handle.

use super::*;

const FILE: UvmFile = UvmFile(1);
const OTHER: Card = Card(1);

fn map(accounts: &mut Accounts, object: u32, base: u64, length: u64, cards: &[Card]) {
    let hold = accounts.hold(name(object)).unwrap();
    accounts.map(hold, FILE, base, length, cards);
}

/// 10 MiB as object 1, with a range of 100 bytes at 1000.
fn with_range() -> Accounts {
    let mut accounts = accounts();
    allocate(&mut accounts, 1, mib(10)).unwrap();
    accounts.uvm_file(FILE, PROCESS, false);
    accounts.external_range(FILE, 1000, 100);
    accounts
}

fn free(accounts: &mut Accounts, object: u32) -> Bytes {
    accounts.free(CLIENT, Handle(object)).unwrap().released
}

#[test]
fn a_mapping_keeps_what_was_freed() {
    for release in [
        |accounts: &mut Accounts| accounts.free_range(FILE, 1000),
        |accounts: &mut Accounts| accounts.unmap(FILE, CARD, 1000, 100),
        |accounts: &mut Accounts| accounts.uvm_card_gone(FILE, CARD),
        |accounts: &mut Accounts| accounts.uvm_file_gone(FILE),
    ] {
        let mut accounts = with_range();
        map(&mut accounts, 1, 1000, 100, &[CARD]);
        assert_eq!(free(&mut accounts, 1), Bytes(0));
        assert_eq!(accounts.client_gone(CLIENT).released, Bytes(0));
        assert_eq!((used(&accounts), accounts.charged_uvm_files()), (mib(10), [FILE].into()));
        assert_eq!(release(&mut accounts), mib(10));
        assert_eq!((used(&accounts), accounts.counts().charges), (Bytes(0), 0));
    }
}

#[test]
fn only_what_is_named_is_unmapped() {
    let mut accounts = with_range();
    map(&mut accounts, 1, 1000, 100, &[CARD, OTHER]);
    free(&mut accounts, 1);
    assert_eq!(accounts.unmap(UvmFile(2), CARD, 1000, 100), Bytes(0));
    assert_eq!(accounts.free_range(FILE, 1001), Bytes(0));
    assert_eq!(accounts.unmap(FILE, CARD, 1000, 100), Bytes(0));
    assert_eq!(accounts.unmap(FILE, OTHER, 1001, 99), Bytes(0));
    assert_eq!(accounts.unmap(FILE, OTHER, 1000, 0), Bytes(0));
    assert_eq!(accounts.unmap(FILE, OTHER, 1000, u64::MAX), Bytes(0));
    assert_eq!(used(&accounts), mib(10));
    assert_eq!(accounts.unmap(FILE, OTHER, 0, 1001), mib(10));
}

#[test]
fn each_part_that_is_left_keeps_the_whole() {
    let mut accounts = with_range();
    map(&mut accounts, 1, 1000, 100, &[CARD]);
    free(&mut accounts, 1);
    assert_eq!(accounts.unmap(FILE, CARD, 1040, 20), Bytes(0));
    assert_eq!(accounts.unmap(FILE, CARD, 1000, 40), Bytes(0));
    assert_eq!(used(&accounts), mib(10));
    assert_eq!(accounts.unmap(FILE, CARD, 1060, 40), mib(10));
}

#[test]
fn a_mapping_replaces_what_it_covers() {
    let mut accounts = with_range();
    allocate(&mut accounts, 2, mib(20)).unwrap();
    map(&mut accounts, 1, 1000, 100, &[CARD]);
    map(&mut accounts, 2, 1000, 50, &[CARD]);
    free(&mut accounts, 2);
    assert_eq!(free(&mut accounts, 1), Bytes(0));
    map(&mut accounts, 77, 1050, 50, &[CARD]);
    assert_eq!(used(&accounts), mib(20));
    assert_eq!(accounts.free_range(FILE, 1000), mib(20));
}

#[test]
fn a_mapping_on_a_card_outside_the_grant_counts_too() {
    let mut accounts = with_range();
    map(&mut accounts, 1, 1000, 100, &[Card(40)]);
    assert_eq!(free(&mut accounts, 1), Bytes(0));
    allocate(&mut accounts, 2, mib(1)).unwrap();
    map(&mut accounts, 2, 1000, 100, &[Card(41)]);
    assert_eq!(used(&accounts), mib(11));
    assert_eq!(accounts.free_range(FILE, 1000), mib(10));
}

#[test]
fn one_hold_is_enough_while_a_call_is_executed() {
    let mut accounts = with_range();
    let hold = accounts.hold(name(1)).unwrap();
    assert_eq!(free(&mut accounts, 1), Bytes(0));
    assert_eq!(used(&accounts), mib(10));
    accounts.release(hold);
    assert_eq!(used(&accounts), Bytes(0));
}

#[test]
fn a_file_lives_as_long_as_something_keeps_it() {
    let mut accounts = with_range();
    accounts.uvm_mm_file(UvmFile(2), FILE, PROCESS);
    map(&mut accounts, 1, 1000, 100, &[CARD]);
    accounts.client_gone(CLIENT);
    assert!(accounts.is_uvm_file_kept(FILE) && !accounts.is_uvm_file_kept(UvmFile(2)));
    assert_eq!((accounts.uvm_file_gone(UvmFile(2)), used(&accounts)), (Bytes(0), mib(10)));
    assert!(!accounts.is_uvm_file_kept(FILE));
    assert_eq!(accounts.uvm_file_gone(FILE), mib(10));
    assert_eq!((used(&accounts), accounts.counts().references), (Bytes(0), 0));
}

#[test]
fn an_export_travels_and_an_import_is_not_charged_again() {
    let mut accounts = with_range();
    let file = ExportFile(5);
    assert_eq!(accounts.reserve_import(file, 0, CLIENT).unwrap_err(), Refusal::NothingExported { index: 0 });
    let hold = accounts.hold(name(1)).unwrap();
    accounts.export(hold, file, 3);
    assert_eq!(accounts.client_gone(CLIENT).released, Bytes(0));
    let importer = Handle(0xc1d0_0007);
    add_client(&mut accounts, importer, Pid(300));
    let import = accounts.reserve_import(file, 3, importer).unwrap();
    accounts.commit(import, Placement::under(importer, Handle(9)), Some(mib(50))).unwrap();
    assert_eq!((used(&accounts), accounts.used_by(PROCESS, CARD)), (mib(10), mib(10)));
    assert_eq!(accounts.export_files(), vec![file]);
    assert_eq!(accounts.export_file_gone(file), Bytes(0));
    assert_eq!(accounts.client_gone(importer).released, mib(10));
}

#[test]
fn an_export_replaces_what_was_there() {
    let mut accounts = with_range();
    allocate(&mut accounts, 2, mib(20)).unwrap();
    for object in [1, 2] {
        let hold = accounts.hold(name(object)).unwrap();
        accounts.export(hold, ExportFile(5), 0);
        free(&mut accounts, object);
    }
    assert_eq!(used(&accounts), mib(20));
    accounts.unexport(ExportFile(5), 0);
    assert_eq!((used(&accounts), accounts.export_files()), (Bytes(0), vec![]));
}

#[test]
fn a_file_that_maps_the_hosts_memory_keeps_it_beside_whatever_else_does() {
    let mut accounts = accounts_with(ObjectLimits { host_mappings: 2, ..ObjectLimits::default() });
    let (file, export) = ([MappedFile(1), MappedFile(2)], ExportFile(5));
    let host = |accounts: &Accounts| accounts.card(Card::HOST).unwrap().used;
    allocate(&mut accounts, 1, mib(1)).unwrap();
    assert!(accounts.hold_host_memory(name(1)).unwrap().is_none(), "a card's");
    assert!(accounts.hold_host_memory(name(9)).unwrap().is_none(), "nobody's");
    let reservation =
        accounts.reserve(AllocRequest { memory: Some((Card::HOST, mib(10))), ..memory(mib(10)) }).unwrap();
    accounts.commit(reservation, Placement::under(CLIENT, Handle(2)), None).unwrap();
    let refused = accounts.hold_host_memory(name(2)).unwrap().unwrap();
    accounts.release(refused);
    for file in file {
        let hold = accounts.hold_host_memory(name(2)).unwrap().unwrap();
        accounts.host_memory_mapped(hold, file);
    }
    let full = Refusal::TooMany { counted: Counted::HostMappings, limit: 2 };
    assert_eq!(accounts.hold_host_memory(name(2)).unwrap_err(), full);
    assert_eq!((full.status(), full.may_pass()), (Status::INSUFFICIENT_RESOURCES, true));
    let hold = accounts.hold(name(2)).unwrap();
    accounts.export(hold, export, 0);
    assert_eq!(accounts.held_by_exports_alone(export), Bytes(0), "the handle has it, too");
    assert_eq!(accounts.mapped_file_gone(file[0]), Bytes(0));
    assert_eq!(free(&mut accounts, 2), Bytes(0));
    assert_eq!((accounts.held_by_exports_alone(export), accounts.has_freed_while_mapped()), (mib(10), false));
    assert_eq!(accounts.export_file_gone(export), Bytes(0));
    assert_eq!((accounts.has_freed_while_mapped(), host(&accounts)), (true, mib(10)));
    assert_eq!(accounts.mapped_files(), [file[1]]);
    assert_eq!((accounts.mapped_file_gone(file[1]), accounts.mapped_file_gone(file[1])), (mib(10), Bytes(0)));
    assert_eq!((host(&accounts), accounts.counts().host_mappings, accounts.abandoned()), (Bytes(0), 0, 0));
}

#[test]
fn an_attachment_goes_with_its_holder() {
    let mut accounts = with_range();
    make(&mut accounts, CLIENT, 7, Kind::Other);
    let hold = accounts.hold(name(1)).unwrap();
    let hold = accounts.attach(hold, name(70)).unwrap_err();
    accounts.attach(hold, name(7)).unwrap();
    assert_eq!(free(&mut accounts, 1), Bytes(0));
    assert_eq!(free(&mut accounts, 7), mib(10));
}

#[test]
fn an_attachment_is_its_holders_duplicates_too() {
    let mut accounts = with_range();
    make(&mut accounts, CLIENT, 7, Kind::Other);
    let hold = accounts.hold(name(1)).unwrap();
    accounts.attach(hold, name(7)).unwrap();
    free(&mut accounts, 1);
    let references = accounts.counts().references;
    let cancelled = accounts.reserve_duplicate(name(7), CLIENT).unwrap();
    accounts.cancel(cancelled);
    let duplicate = accounts.reserve_duplicate(name(7), CLIENT).unwrap();
    accounts.commit(duplicate, Placement::under(CLIENT, Handle(8)), None).unwrap();
    assert_eq!(accounts.counts().references, references + 1);
    assert_eq!((free(&mut accounts, 7), used(&accounts)), (Bytes(0), mib(10)));
    assert_eq!((free(&mut accounts, 8), used(&accounts)), (mib(10), Bytes(0)));
    assert_eq!(accounts.abandoned(), 0);
}

/// Addresses on the fabric behind which there is no memory, as object `object`.
fn take_addresses(accounts: &mut Accounts, object: u32, size: Bytes) -> Result<(), Refusal> {
    let reservation = accounts.reserve_addresses(CLIENT, (CARD, size), PROCESS)?;
    accounts.commit(reservation, Placement::under(CLIENT, Handle(object)), None).unwrap();
    Ok(())
}

fn addresses(accounts: &Accounts) -> Bytes {
    accounts.card(CARD).unwrap().fabric
}

const NO_ADDRESSES: Refusal = Refusal::TooMany { counted: Counted::CardFabric, limit: 2 };

#[test]
fn addresses_without_memory_are_bounded_by_the_limit_and_charged_nothing() {
    let mut accounts = with_range();
    assert_eq!(
        accounts.reserve_addresses(CLIENT, (Card(9), mib(1)), PROCESS).unwrap_err(),
        Refusal::UnknownCard(Card(9))
    );
    let of_host = accounts.reserve_addresses(CLIENT, (Card::HOST, mib(1)), PROCESS);
    assert_eq!(of_host.unwrap_err(), Refusal::UnknownCard(Card::HOST));
    let stranger = Handle(0xc1d0_0099);
    let of_nobody = accounts.reserve_addresses(stranger, (CARD, mib(1)), PROCESS);
    assert_eq!(of_nobody.unwrap_err(), Refusal::UnknownClient(stranger));
    assert_eq!(take_addresses(&mut accounts, 2, mib(201)), Err(NO_ADDRESSES));
    assert_eq!(take_addresses(&mut accounts, 2, Bytes(u64::MAX)), Err(NO_ADDRESSES));
    assert_eq!((NO_ADDRESSES.status(), NO_ADDRESSES.may_pass()), (Status::INSUFFICIENT_RESOURCES, true));
    let cancelled = accounts.reserve_addresses(CLIENT, (CARD, mib(200)), PROCESS).unwrap();
    assert_eq!(addresses(&accounts), mib(200));
    accounts.cancel(cancelled);
    take_addresses(&mut accounts, 2, mib(190)).unwrap();
    assert_eq!((used(&accounts), addresses(&accounts), accounts.used_by(PROCESS, CARD)), (mib(10), mib(190), mib(10)));
    // Those that memory keeps count, too.
    let both = accounts.reserve_fabric(name(1), mib(10).0).unwrap();
    accounts.commit(both, Placement::under(CLIENT, Handle(3)), None).unwrap();
    assert_eq!(accounts.reserve_fabric(name(1), mib(10).0).unwrap_err(), NO_ADDRESSES);
    assert_eq!(take_addresses(&mut accounts, 4, mib(1)), Err(NO_ADDRESSES));
    free(&mut accounts, 3);
    assert_eq!(addresses(&accounts), mib(200), "the memory has them as long as it lives");
    free(&mut accounts, 1);
    assert_eq!(addresses(&accounts), mib(190));
    accounts.set_limit(CARD, mib(50)).unwrap();
    assert_eq!(take_addresses(&mut accounts, 4, mib(1)), Err(NO_ADDRESSES), "a lower limit refuses what is new");
    accounts.set_sole_holder(CARD);
    take_addresses(&mut accounts, 4, mib(1000)).unwrap();
    assert_eq!(accounts.client_gone(CLIENT).released, Bytes(0));
    assert_eq!((addresses(&accounts), accounts.counts().charges, accounts.abandoned()), (Bytes(0), 0, 0));
}

#[test]
fn whatever_is_left_of_an_object_keeps_its_addresses() {
    let (file, importer) = (ExportFile(5), Handle(0xc1d0_0007));
    let mut accounts = with_range();
    add_client(&mut accounts, importer, Pid(300));
    take_addresses(&mut accounts, 2, mib(200)).unwrap();
    let duplicate = accounts.reserve_duplicate(name(2), importer).unwrap();
    accounts.commit(duplicate, Placement::under(importer, Handle(9)), None).unwrap();
    let hold = accounts.hold(name(2)).unwrap();
    accounts.export(hold, file, 0);
    map(&mut accounts, 2, 1000, 100, &[OTHER]);
    free(&mut accounts, 2);
    accounts.client_gone(importer);
    assert_eq!(accounts.held_by_exports_alone(file), Bytes(0), "mapped, too");
    accounts.unmap(FILE, OTHER, 1000, 100);
    assert_eq!((addresses(&accounts), accounts.held_by_exports_alone(file)), (mib(200), mib(200)));
    assert_eq!(take_addresses(&mut accounts, 2, mib(1)), Err(NO_ADDRESSES));
    accounts.export_file_gone(file);
    assert_eq!(addresses(&accounts), Bytes(0));
    take_addresses(&mut accounts, 2, mib(200)).unwrap();
}
