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
