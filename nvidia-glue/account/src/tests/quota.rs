//! Limits: of bytes, of numbers, live changes, and races for the last bytes.

use super::*;

#[test]
fn limits_are_floored_to_kib_and_kept_per_card() {
    let mut accounts = Accounts::new(&[Bytes(10_000), Bytes(0)], ObjectLimits::default());
    add_client(&mut accounts, CLIENT, PROCESS);
    assert_eq!(accounts.card(CARD).unwrap().limit, Bytes(9 * 1024));
    assert!(allocate(&mut accounts, 1, Bytes(9 * 1024 + 1)).is_err());
    allocate(&mut accounts, 1, Bytes(9 * 1024)).unwrap();
    let other = AllocRequest { memory: Some((Card(1), Bytes(1))), ..memory(Bytes(1)) };
    assert!(matches!(accounts.reserve(other).unwrap_err(), Refusal::OverQuota(over) if over.card == Card(1)));
    let none = AllocRequest { memory: Some((Card(2), Bytes(1))), ..memory(Bytes(1)) };
    assert_eq!(accounts.reserve(none).unwrap_err(), Refusal::UnknownCard(Card(2)));
    assert_eq!(accounts.reserve(memory(Bytes(u64::MAX))).unwrap_err().status(), Status::NO_MEMORY);
}

#[test]
fn what_the_driver_returned_is_what_counts() {
    let mut accounts = accounts();
    let reservation = accounts.reserve(memory(mib(5))).unwrap();
    accounts.commit(reservation, Placement::under(CLIENT, Handle(1)), Some(mib(6))).unwrap();
    assert_eq!(used(&accounts), mib(6));
    let reservation = accounts.reserve(memory(mib(90))).unwrap();
    accounts.commit(reservation, Placement::under(CLIENT, Handle(2)), Some(mib(80))).unwrap();
    assert_eq!(used(&accounts), mib(86));
    let reservation = accounts.reserve(memory(mib(14))).unwrap();
    let refused = accounts.commit(reservation, Placement::under(CLIENT, Handle(3)), Some(mib(15))).unwrap_err();
    let over = OverQuota { card: CARD, asked: mib(15), used: mib(86), limit: mib(100), bound: Bound::Quota };
    assert_eq!((refused.why, used(&accounts)), (CommitError::OverQuota(over), mib(101)));
    assert_eq!(accounts.object(name(3)), None);
    accounts.cancel(refused.reservation);
    assert_eq!(used(&accounts), mib(86));
}

#[test]
fn what_cannot_be_freed_again_stays_charged() {
    let mut accounts = accounts();
    let reservation = accounts.reserve(memory(mib(99))).unwrap();
    let placement = Placement::under(CLIENT, Handle(1));
    let refused = accounts.commit(reservation, placement, Some(mib(120))).unwrap_err();
    accounts.commit_anyway(refused.reservation, placement).unwrap();
    assert_eq!(used(&accounts), mib(120));
    assert_eq!(accounts.object(name(1)).unwrap().charge, Some((CARD, mib(120))));
    assert_eq!(accounts.free(CLIENT, Handle(1)).unwrap().released, mib(120));
    assert_eq!(used(&accounts), Bytes(0));
}

#[test]
fn of_two_that_race_for_the_last_bytes_one_gets_them() {
    for finish in [[0, 1], [1, 0]] {
        let mut accounts = accounts();
        let mut racing: Vec<_> = (0..2).map(|_| accounts.reserve(memory(mib(60)))).collect();
        assert!(racing[0].is_ok() && racing[1].is_err());
        for index in finish {
            if let Ok(reservation) = std::mem::replace(&mut racing[index], Err(Refusal::UnknownCard(CARD))) {
                accounts.commit(reservation, Placement::under(CLIENT, Handle(1)), None).unwrap();
            }
            assert!(used(&accounts) <= mib(100));
        }
        assert_eq!(used(&accounts), mib(60));
    }
}

#[test]
fn a_lowered_limit_refuses_only_what_is_new() {
    let mut accounts = accounts();
    allocate(&mut accounts, 1, mib(80)).unwrap();
    let flying = accounts.reserve(memory(mib(10))).unwrap();
    accounts.set_limit(CARD, mib(50)).unwrap();
    accounts.commit(flying, Placement::under(CLIENT, Handle(2)), Some(mib(10))).unwrap();
    assert_eq!(used(&accounts), mib(90));
    assert!(allocate(&mut accounts, 3, Bytes(1)).is_err());
    accounts.free(CLIENT, Handle(1)).unwrap();
    allocate(&mut accounts, 3, mib(40)).unwrap();
    assert_eq!(accounts.set_limit(Card(7), mib(1)), Err(Refusal::UnknownCard(Card(7))));
}

#[test]
fn numbers_are_limited_reservations_included() {
    let limits = ObjectLimits {
        clients: 1,
        channel_groups: 1,
        channels: 2,
        address_spaces: 3,
        devices: 4,
        events: 6,
        others: 5,
        objects: 17,
        references: 2,
        managed_ranges: 1,
        ..ObjectLimits::default()
    };
    let mut accounts = accounts_with(limits);
    let too_many = |counted, limit| Refusal::TooMany { counted, limit };
    assert_eq!(accounts.reserve_client(PROCESS).unwrap_err(), too_many(Counted::Clients, 1));
    for (kind, counted, limit) in [
        (GROUP, Counted::ChannelGroups, 1),
        (CHANNEL, Counted::Channels, 2),
        (Kind::AddressSpace, Counted::AddressSpaces, 3),
        (Kind::Device(CARD), Counted::Devices, 4),
        (Kind::Event, Counted::Events, 6),
        (Kind::Other, Counted::Others, 5),
        (Kind::Memory, Counted::Objects, 17),
    ] {
        let mut reserved = Vec::new();
        let refusal = loop {
            match accounts.reserve(plain(kind)) {
                Ok(reservation) => reserved.push(reservation),
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(refusal, too_many(counted, limit));
        assert_eq!(refusal.status(), Status::INSUFFICIENT_RESOURCES);
        for reservation in reserved {
            accounts.cancel(reservation);
        }
        make(&mut accounts, CLIENT, 100 + limit, kind);
        assert_eq!(accounts.reserve_duplicate(name(100 + limit), CLIENT).is_err(), limit == 1);
    }
}

/// A card has so many numbers for channels, and as many for groups, of which a channel without one
/// takes one, too.
#[test]
fn channels_are_limited_on_each_card_and_so_are_groups() {
    let mut accounts = accounts_with(ObjectLimits { channels: 3, ..ObjectLimits::default() });
    accounts.set_channel_limit(Card(1), 2).unwrap();
    let bare = |card| Kind::Channel { card, is_bare: true };
    let grouped = |card| Kind::Channel { card, is_bare: false };
    let full = |accounts: &mut Accounts, kind, counted, limit| {
        assert_eq!(accounts.reserve(plain(kind)).unwrap_err(), Refusal::TooMany { counted, limit });
    };
    make(&mut accounts, CLIENT, 1, Kind::ChannelGroup(CARD));
    make(&mut accounts, CLIENT, 2, bare(CARD));
    make(&mut accounts, CLIENT, 3, bare(CARD));
    full(&mut accounts, Kind::ChannelGroup(CARD), Counted::ChannelGroups, 3);
    full(&mut accounts, bare(CARD), Counted::ChannelGroups, 3);
    make(&mut accounts, CLIENT, 4, grouped(CARD));
    full(&mut accounts, grouped(CARD), Counted::Channels, 3);
    assert_eq!([CARD, Card(1), Card(7)].map(|card| accounts.channels(card)), [(3, 3), (0, 2), (0, 0)]);
    // The other card has its own, and one that is not granted none.
    make(&mut accounts, CLIENT, 5, grouped(Card(1)));
    make(&mut accounts, CLIENT, 6, bare(Card(1)));
    full(&mut accounts, grouped(Card(1)), Counted::Channels, 2);
    full(&mut accounts, grouped(Card(7)), Counted::Channels, 0);
    accounts.free(CLIENT, Handle(2)).unwrap();
    make(&mut accounts, CLIENT, 2, bare(CARD));
    assert_eq!(accounts.set_channel_limit(Card(7), 1), Err(Refusal::UnknownCard(Card(7))));
}

/// Objects that the card's firmware keeps are bounded on each card; memory, which it does not, is
/// not bounded with it.
#[test]
fn devices_are_limited_on_each_card_and_memory_by_its_size() {
    let mut accounts = accounts_with(ObjectLimits { devices: 2, others: 1, ..ObjectLimits::default() });
    for card in [CARD, Card(1)] {
        for object in [1, 2] {
            make(&mut accounts, CLIENT, object + 10 * u32::from(card.0), Kind::Device(card));
        }
        let refusal = accounts.reserve(plain(Kind::Device(card))).unwrap_err();
        assert_eq!(refusal, Refusal::TooMany { counted: Counted::Devices, limit: 2 });
    }
    accounts.free(CLIENT, Handle(1)).unwrap();
    make(&mut accounts, CLIENT, 1, Kind::Device(CARD));
    for object in 100..50_000 {
        allocate(&mut accounts, object, Bytes(1 << 10)).unwrap();
    }
}

#[test]
fn references_are_limited() {
    let mut accounts = accounts_with(ObjectLimits { references: 2, ..ObjectLimits::default() });
    allocate(&mut accounts, 1, mib(1)).unwrap();
    accounts.external_range(UvmFile(1), 0, 100);
    let hold = accounts.hold(name(1)).unwrap();
    accounts.map(hold, UvmFile(1), 0, 30, &[CARD]);
    let refusal = Refusal::TooMany { counted: Counted::References, limit: 2 };
    assert_eq!(accounts.hold(name(1)).unwrap_err(), refusal);
    assert_eq!(accounts.external_range_fits(), Err(refusal));
    assert_eq!(accounts.unmap_fits(UvmFile(1), CARD, 10, 10), Err(refusal));
    assert_eq!(accounts.unmap_fits(UvmFile(1), CARD, 0, 10), Ok(()));
    accounts.free_range(UvmFile(1), 0);
    assert_eq!(accounts.external_range_fits(), Ok(()));
}

#[test]
fn context_buffers_are_charged_to_their_group() {
    let mut accounts = accounts();
    make(&mut accounts, CLIENT, 1, GROUP);
    accounts.charge_context(name(1), CARD, mib(10)).unwrap();
    accounts.charge_context(name(1), CARD, mib(14)).unwrap();
    assert_eq!((used(&accounts), accounts.charged_clients()), (mib(14), vec![CLIENT]));
    allocate(&mut accounts, 2, mib(80)).unwrap();
    let over = OverQuota { card: CARD, asked: mib(30), used: mib(80), limit: mib(100), bound: Bound::Quota };
    assert_eq!(accounts.charge_context(name(1), CARD, mib(30)), Err(Refusal::OverQuota(over)));
    assert_eq!(used(&accounts), mib(110));
    assert_eq!(accounts.free(CLIENT, Handle(1)).unwrap().released, mib(30));
    for (object, card, refusal) in [
        (9, CARD, Refusal::UnknownObject(name(9))),
        (2, CARD, Refusal::UnknownObject(name(2))),
        (3, Card(5), Refusal::UnknownCard(Card(5))),
    ] {
        if object == 3 {
            make(&mut accounts, CLIENT, 3, GROUP);
        }
        assert_eq!(accounts.charge_context(name(object), card, mib(1)), Err(refusal));
    }
    assert_eq!(used(&accounts), mib(80));
    assert_eq!(accounts.counts().charges, 1);
}

#[test]
fn use_is_reported_per_process_with_its_peak() {
    let mut accounts = accounts();
    allocate(&mut accounts, 1, mib(10)).unwrap();
    let other = AllocRequest { process: Pid(7), ..memory(mib(20)) };
    let reservation = accounts.reserve(other).unwrap();
    accounts.commit(reservation, Placement::under(CLIENT, Handle(2)), None).unwrap();
    assert_eq!((accounts.used_by(PROCESS, CARD), accounts.used_by(Pid(7), CARD)), (mib(10), mib(20)));
    assert_eq!(accounts.used_by(Pid(7), Card(1)), Bytes(0));
    accounts.free(CLIENT, Handle(2)).unwrap();
    assert_eq!(accounts.users().collect::<Vec<_>>(), vec![(PROCESS, CARD, mib(10))]);
    accounts.count_denial(CARD);
    let usage = accounts.card(CARD).unwrap();
    assert_eq!((usage.used, usage.high_water, usage.denials), (mib(10), mib(30), 1));
    assert_eq!(accounts.cards().count(), 2);
}

#[test]
fn what_is_forgotten_stays_charged_and_is_counted() {
    let mut accounts = accounts();
    drop(accounts.reserve(memory(mib(10))).unwrap());
    drop(accounts.reserve_client(PROCESS).unwrap());
    drop(accounts.reserve_managed(PROCESS, 0, mib(5)).unwrap());
    allocate(&mut accounts, 1, mib(1)).unwrap();
    drop(accounts.hold(name(1)).unwrap());
    accounts.client_gone(CLIENT);
    assert_eq!((accounts.abandoned(), used(&accounts)), (4, mib(16)));
}
