//! Allocations, frees and their order.

use super::*;

#[test]
fn what_is_reserved_counts_until_it_is_cancelled() {
    let mut accounts = accounts();
    let first = accounts.reserve(memory(mib(60))).unwrap();
    let refused = accounts.reserve(memory(mib(60))).unwrap_err();
    assert!(matches!(refused, Refusal::OverQuota(over) if over.used == mib(60) && over.limit == mib(100)));
    accounts.cancel(first);
    assert_eq!(used(&accounts), Bytes(0));
    allocate(&mut accounts, 1, mib(100)).unwrap();
    assert!(allocate(&mut accounts, 2, Bytes(1)).is_err());
    assert_eq!(accounts.free(CLIENT, Handle(1)).unwrap().released, mib(100));
    assert_eq!(used(&accounts), Bytes(0));
}

#[test]
fn the_last_handle_releases_the_charge() {
    let mut accounts = accounts();
    let other = Handle(0xc1d0_0002);
    add_client(&mut accounts, other, Pid(101));
    allocate(&mut accounts, 1, mib(60)).unwrap();
    let duplicate = accounts.reserve_duplicate(name(1), other).unwrap();
    accounts.commit(duplicate, Placement::under(other, Handle(7)), None).unwrap();
    assert_eq!(used(&accounts), mib(60));
    assert_eq!(accounts.client_gone(CLIENT).released, Bytes(0));
    assert_eq!(used(&accounts), mib(60));
    assert_eq!(accounts.free(other, Handle(7)).unwrap().released, mib(60));
    assert_eq!(used(&accounts), Bytes(0));
}

#[test]
fn a_subtree_goes_whole() {
    let mut accounts = accounts();
    make(&mut accounts, CLIENT, 10, Kind::Other);
    make(&mut accounts, Handle(10), 11, Kind::Other);
    allocate_under(&mut accounts, Handle(11), 12, mib(40)).unwrap();
    allocate_under(&mut accounts, Handle(10), 13, mib(40)).unwrap();
    let freed = accounts.free(CLIENT, Handle(10)).unwrap();
    assert_eq!((freed.objects, freed.released), (4, mib(80)));
    assert_eq!((accounts.counts().objects, used(&accounts)), (0, Bytes(0)));
}

#[test]
fn a_client_that_is_not_registered_is_refused_everything() {
    let mut accounts = accounts();
    let stranger = Handle(0xc1d0_0099);
    let refusal = Refusal::UnknownClient(stranger);
    allocate(&mut accounts, 1, mib(1)).unwrap();
    assert_eq!(accounts.reserve(AllocRequest { client: stranger, ..memory(mib(1)) }).unwrap_err(), refusal);
    assert_eq!(accounts.reserve_duplicate(ObjectName::new(stranger, Handle(1)), CLIENT).unwrap_err(), refusal);
    assert_eq!(accounts.reserve_duplicate(name(1), stranger).unwrap_err(), refusal);
    assert_eq!(accounts.reserve_import(ExportFile(1), 0, stranger).unwrap_err(), refusal);
    assert_eq!(accounts.hold(ObjectName::new(stranger, Handle(1))).unwrap_err(), refusal);
    assert_eq!(accounts.free(stranger, stranger).unwrap_err(), refusal);
    assert_eq!(accounts.charge_context(ObjectName::new(stranger, Handle(1)), CARD, mib(1)).unwrap_err(), refusal);
    assert_eq!(refusal.status(), Status::INVALID_CLIENT);
    assert_eq!(accounts.client_gone(stranger), Freed::default());
    assert_eq!(used(&accounts), mib(1));
}

#[test]
fn freeing_what_is_not_known_changes_nothing() {
    let mut accounts = accounts();
    allocate(&mut accounts, 1, mib(1)).unwrap();
    assert_eq!(accounts.free(CLIENT, Handle(77)), Ok(Freed::default()));
    assert_eq!((used(&accounts), accounts.counts().objects), (mib(1), 1));
}

#[test]
fn dependants_go_too_but_memory_only_with_its_parents() {
    let mut accounts = accounts();
    make(&mut accounts, CLIENT, 1, Kind::AddressSpace);
    make(&mut accounts, CLIENT, 2, GROUP);
    let channel = accounts.reserve(plain(CHANNEL)).unwrap();
    let on = [Handle(1), Handle(2), Handle(2), Handle(99)];
    accounts.commit(channel, Placement::under(CLIENT, Handle(3)).going_with(&on), None).unwrap();
    let memory = accounts.reserve(memory(mib(5))).unwrap();
    accounts.commit(memory, Placement::under(CLIENT, Handle(4)).going_with(&on), None).unwrap();
    assert_eq!(accounts.channels_freed_with(name(1)), [name(3)]);
    let freed = accounts.free(CLIENT, Handle(1)).unwrap();
    assert_eq!((freed.objects, freed.released), (2, Bytes(0)));
    assert_eq!(used(&accounts), mib(5));
    assert_eq!(accounts.channels_freed_with(name(2)), [name(2)]);
    assert_eq!(accounts.free(CLIENT, Handle(2)).unwrap().objects, 1);
    assert_eq!(accounts.counts().objects, 1);
}

#[test]
fn a_handle_that_comes_again_loses_no_charge() {
    let mut accounts = accounts();
    make(&mut accounts, CLIENT, 10, Kind::Other);
    allocate_under(&mut accounts, Handle(10), 1, mib(30)).unwrap();
    let again = accounts.reserve(memory(mib(20))).unwrap();
    let placed = accounts.commit(again, Placement::under(CLIENT, Handle(1)), None).unwrap();
    assert!(placed.conflict);
    assert_eq!((used(&accounts), accounts.counts().conflicts), (mib(50), 1));
    assert_eq!(accounts.free(CLIENT, Handle(1)).unwrap().released, mib(20));
    assert_eq!(accounts.free(CLIENT, Handle(1)).unwrap().released, Bytes(0));
    assert_eq!(accounts.free(CLIENT, Handle(10)).unwrap().released, mib(30));
    assert_eq!(used(&accounts), Bytes(0));
}

#[test]
fn the_end_of_what_lost_its_name_does_not_take_the_new_ones() {
    let mut accounts = accounts();
    make(&mut accounts, CLIENT, 10, Kind::Other);
    allocate_under(&mut accounts, Handle(10), 1, mib(30)).unwrap();
    let again = accounts.reserve(memory(mib(20))).unwrap();
    assert!(accounts.commit(again, Placement::under(CLIENT, Handle(1)), None).unwrap().conflict);
    accounts.free(CLIENT, Handle(10)).unwrap();
    assert_eq!(accounts.free(CLIENT, Handle(1)).unwrap().released, mib(20));
}

#[test]
fn a_client_that_comes_again_loses_no_charge() {
    let mut accounts = accounts();
    allocate(&mut accounts, 1, mib(30)).unwrap();
    let again = accounts.reserve_client(Pid(200)).unwrap();
    assert!(accounts.commit_client(again, CLIENT).conflict);
    assert_eq!((used(&accounts), accounts.owner(CLIENT)), (mib(30), Some(Pid(200))));
    assert_eq!(accounts.client_gone(CLIENT).released, mib(30));
    assert_eq!((accounts.counts().clients, accounts.counts().objects), (0, 0));
}

#[test]
fn an_object_of_an_unknown_parent_goes_with_its_client() {
    let mut accounts = accounts();
    allocate_under(&mut accounts, Handle(55), 1, mib(1)).unwrap();
    assert_eq!(accounts.client_gone(CLIENT).released, mib(1));
}

#[test]
fn a_client_that_has_gone_meanwhile_takes_no_object() {
    let mut accounts = accounts();
    let reservation = accounts.reserve(memory(mib(10))).unwrap();
    accounts.client_gone(CLIENT);
    let refused = accounts.commit(reservation, Placement::under(CLIENT, Handle(1)), None).unwrap_err();
    assert_eq!(refused.why, CommitError::ClientGone);
    assert_eq!(used(&accounts), mib(10));
    accounts.cancel(refused.reservation);
    assert_eq!((used(&accounts), accounts.counts().objects), (Bytes(0), 0));
}

#[test]
fn a_tree_may_be_as_deep_as_there_are_objects() {
    let mut accounts = accounts_with(ObjectLimits { others: u32::MAX, objects: u32::MAX, ..ObjectLimits::default() });
    let mut parent = CLIENT;
    for object in 1..200_000 {
        make(&mut accounts, parent, object, Kind::Other);
        parent = Handle(object);
    }
    assert_eq!(accounts.free(CLIENT, Handle(1)).unwrap().objects, 199_999);
    assert_eq!(accounts.counts().objects, 0);
}

#[test]
fn an_end_only_names_what_may_be_gone() {
    let mut accounts = accounts();
    add_client(&mut accounts, Handle(0xc1d0_0002), Pid(101));
    accounts.uvm_file(UvmFile(1), PROCESS, false);
    accounts.uvm_file(UvmFile(2), Pid(101), false);
    allocate(&mut accounts, 1, mib(1)).unwrap();
    let expected = ProcessEnd { clients: vec![CLIENT], uvm_files: vec![UvmFile(1)], managed: false };
    assert_eq!(accounts.process_ended(PROCESS), expected);
    assert_eq!(accounts.process_ended(Pid(5)), ProcessEnd::default());
    assert_eq!((used(&accounts), accounts.charged_clients()), (mib(1), vec![CLIENT]));
}
