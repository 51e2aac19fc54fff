//! Managed memory: what is mapped, what may be, and what is gone.

use super::*;

const FILE: UvmFile = UvmFile(1);
const SPACE: Mm = Mm(1);
const THREAD: i32 = 100;
const MIB: u64 = 1 << 20;

fn mmap(accounts: &mut Accounts, start: u64, length: u64) -> Result<(), Refusal> {
    let reservation = accounts.reserve_managed(PROCESS, start * MIB, mib(length))?;
    accounts.commit_managed(reservation, SPACE, FILE, THREAD).unwrap();
    Ok(())
}

const fn shown(start: u64, length: u64) -> Mapping {
    Mapping { start: start * MIB, length: length * MIB }
}

/// A whole comparison with the only process.
fn look(accounts: &mut Accounts, seen: &[Mapping]) -> ManagedDrift {
    let mut sync = accounts.begin_sync();
    let drift = accounts.set_managed(&mut sync, SPACE, PROCESS, seen);
    accounts.finish_sync(sync);
    drift
}

#[test]
fn it_is_charged_in_full_on_every_card() {
    let mut accounts = accounts();
    accounts.set_limit(Card(1), mib(50)).unwrap();
    let refusal = accounts.reserve_managed(PROCESS, 0, mib(60)).unwrap_err();
    assert!(matches!(refusal, Refusal::OverQuota(over) if over.card == Card(1)));
    assert_eq!(used(&accounts), Bytes(0));
    mmap(&mut accounts, 10, 50).unwrap();
    assert_eq!((used(&accounts), accounts.card(Card(1)).unwrap().used), (mib(50), mib(50)));
    assert_eq!(accounts.used_by(PROCESS, Card(1)), mib(50));
    let reservation = accounts.reserve_managed(PROCESS, 0, Bytes(0)).unwrap();
    accounts.cancel_managed(reservation);
    assert!(mmap(&mut accounts, 100, 1).is_err());
}

#[test]
fn what_may_still_come_is_not_missed() {
    let mut accounts = accounts();
    mmap(&mut accounts, 10, 50).unwrap();
    assert_eq!(look(&mut accounts, &[]), ManagedDrift::default());
    assert_eq!(accounts.pending_threads(), vec![THREAD]);
    let mut sync = accounts.begin_sync();
    accounts.thread_called(THREAD);
    // Read before the thread came back, for all that is known.
    assert_eq!(accounts.set_managed(&mut sync, SPACE, PROCESS, &[]).released, Bytes(0));
    accounts.finish_sync(sync);
    assert_eq!(used(&accounts), mib(50));
    assert_eq!(look(&mut accounts, &[]).released, mib(50));
    assert_eq!((used(&accounts), accounts.counts().managed_ranges), (Bytes(0), 0));
}

#[test]
fn parts_that_were_unmapped_are_released() {
    let mut accounts = accounts();
    mmap(&mut accounts, 10, 50).unwrap();
    accounts.thread_called(THREAD);
    assert_eq!(look(&mut accounts, &[shown(40, 20), shown(10, 10)]).released, mib(20));
    assert_eq!(used(&accounts), mib(30));
    assert_eq!(look(&mut accounts, &[shown(40, 20), shown(10, 10)]), ManagedDrift::default());
    assert_eq!(look(&mut accounts, &[shown(46, 4)]).released, mib(26));
    assert_eq!(used(&accounts), mib(4));
}

#[test]
fn a_mapping_at_the_same_address_needs_no_room_of_its_own() {
    let mut accounts = accounts();
    mmap(&mut accounts, 10, 50).unwrap();
    mmap(&mut accounts, 30, 50).unwrap();
    assert_eq!(used(&accounts), mib(70));
    accounts.thread_called(THREAD);
    assert_eq!(look(&mut accounts, &[shown(30, 50)]).released, mib(20));
}

#[test]
fn what_was_never_charged_is_found_and_charged() {
    let mut accounts = accounts();
    mmap(&mut accounts, 10, 50).unwrap();
    let drift = look(&mut accounts, &[shown(0, 20), shown(15, 100)]);
    assert_eq!(drift.found, vec![shown(0, 10), shown(60, 55)]);
    assert_eq!(used(&accounts), mib(115));
    accounts.thread_called(THREAD);
    assert_eq!(look(&mut accounts, &[]).released, mib(115));
    assert_eq!(used(&accounts), Bytes(0));
}

#[test]
fn a_look_that_was_overtaken_finds_nothing() {
    let mut accounts = accounts();
    mmap(&mut accounts, 10, 50).unwrap();
    accounts.thread_called(THREAD);
    let mut slow = accounts.begin_sync();
    // The slow one has read that it is mapped; then it is unmapped, and another comparison shows
    // it.
    assert_eq!(look(&mut accounts, &[]).released, mib(50));
    assert_eq!(accounts.set_managed(&mut slow, SPACE, PROCESS, &[shown(10, 50)]).found, vec![]);
    assert_eq!(used(&accounts), Bytes(0));
}

#[test]
fn it_goes_with_its_address_space() {
    let mut accounts = accounts();
    mmap(&mut accounts, 10, 50).unwrap();
    assert!(accounts.process_ended(PROCESS).managed);
    let mut sync = accounts.begin_sync();
    accounts.set_managed(&mut sync, Mm(2), Pid(7), &[]);
    // Dropped: one could not be read.
    drop(sync);
    assert_eq!(used(&accounts), mib(50));
    let mut sync = accounts.begin_sync();
    accounts.set_managed(&mut sync, Mm(2), Pid(7), &[]);
    let reservation = accounts.reserve_managed(Pid(8), 0, mib(10)).unwrap();
    accounts.commit_managed(reservation, Mm(3), FILE, 8).unwrap();
    assert_eq!(accounts.finish_sync(sync), mib(50));
    // An address space made since is not gone.
    assert_eq!(used(&accounts), mib(10));
}

#[test]
fn a_file_that_is_mapped_keeps_its_external_mappings() {
    let mut accounts = accounts();
    allocate(&mut accounts, 1, mib(10)).unwrap();
    accounts.uvm_file(FILE, PROCESS, false);
    let hold = accounts.hold(name(1)).unwrap();
    accounts.map(hold, FILE, 0, 10, &[CARD]);
    mmap(&mut accounts, 10, 2).unwrap();
    accounts.client_gone(CLIENT);
    assert_eq!((used(&accounts), accounts.is_uvm_file_kept(FILE)), (mib(12), true));
    // Another file's range at its address may never come to be.
    let reservation = accounts.reserve_managed(PROCESS, 10 * MIB, mib(2)).unwrap();
    accounts.commit_managed(reservation, SPACE, UvmFile(2), THREAD).unwrap();
    assert_eq!((used(&accounts), accounts.is_uvm_file_kept(FILE)), (mib(12), true));
    accounts.thread_called(THREAD);
    look(&mut accounts, &[]);
    assert_eq!((used(&accounts), accounts.is_uvm_file_kept(FILE)), (mib(10), false));
    assert_eq!((accounts.uvm_file_gone(FILE), used(&accounts)), (mib(10), Bytes(0)));
}

#[test]
fn a_shared_file_keeps_what_its_processes_leave() {
    for (end, expected) in
        [(Accounts::drop_zombies as fn(&mut Accounts, UvmFile) -> Bytes, mib(50)), (Accounts::uvm_file_gone, Bytes(0))]
    {
        let mut accounts = accounts();
        accounts.uvm_file(FILE, PROCESS, true);
        mmap(&mut accounts, 10, 50).unwrap();
        let sync = accounts.begin_sync();
        assert_eq!(accounts.finish_sync(sync), Bytes(0));
        assert_eq!(used(&accounts), mib(50));
        assert_eq!(end(&mut accounts, FILE), expected);
        assert_eq!(used(&accounts), Bytes(0));
    }
}

#[test]
fn ranges_are_limited_in_number() {
    let mut accounts = accounts_with(ObjectLimits { managed_ranges: 2, ..ObjectLimits::default() });
    let first = accounts.reserve_managed(PROCESS, 0, mib(1)).unwrap();
    mmap(&mut accounts, 10, 1).unwrap();
    let refusal = Refusal::TooMany { counted: Counted::ManagedRanges, limit: 2 };
    assert_eq!(accounts.reserve_managed(PROCESS, 0, mib(1)).unwrap_err(), refusal);
    accounts.cancel_managed(first);
    // What replaces another range is none more, but who made it is remembered until it has come
    // back.
    mmap(&mut accounts, 10, 1).unwrap();
    assert_eq!(mmap(&mut accounts, 10, 1), Err(refusal));
    accounts.thread_called(THREAD);
    mmap(&mut accounts, 10, 1).unwrap();
}

#[test]
fn what_the_kernel_refuses_is_not_charged() {
    let mut accounts = accounts();
    mmap(&mut accounts, u64::MAX / MIB, 2).unwrap();
    let reservation = accounts.reserve_managed(PROCESS, 0, Bytes(0)).unwrap();
    accounts.commit_managed(reservation, SPACE, FILE, THREAD).unwrap();
    assert_eq!((used(&accounts), accounts.counts().managed_ranges, accounts.abandoned()), (Bytes(0), 0, 0));
}

#[test]
fn two_threads_at_one_address_are_charged_for_both_until_both_are_back() {
    const OTHER: i32 = THREAD + 1;
    let both = || {
        let mut accounts = accounts();
        mmap(&mut accounts, 10, 20).unwrap();
        let reservation = accounts.reserve_managed(PROCESS, 16 * MIB, mib(10)).unwrap();
        accounts.commit_managed(reservation, SPACE, FILE, OTHER).unwrap();
        assert_eq!(used(&accounts), mib(30), "either may fail");
        accounts
    };
    // The later one fails, and is back first: the other one's is not released with it.
    let mut accounts = both();
    accounts.thread_called(OTHER);
    assert_eq!(look(&mut accounts, &[]).released, mib(10));
    assert_eq!(used(&accounts), mib(20));
    assert_eq!(look(&mut accounts, &[shown(10, 20)]), ManagedDrift::default(), "it was charged all the time");
    accounts.thread_called(THREAD);
    assert_eq!(look(&mut accounts, &[shown(10, 20)]), ManagedDrift::default());
    assert_eq!(look(&mut accounts, &[]).released, mib(20));
    assert_eq!(used(&accounts), Bytes(0));
    // Both are there, and back in any order.
    for order in [[THREAD, OTHER], [OTHER, THREAD]] {
        let mut accounts = both();
        order.into_iter().for_each(|thread| accounts.thread_called(thread));
        assert_eq!(used(&accounts), mib(20));
        assert_eq!(look(&mut accounts, &[shown(10, 20)]), ManagedDrift::default());
        assert_eq!(accounts.counts().managed_ranges, 3);
    }
}

/// UVM takes a card's memory by 2 MiB: 4 KiB that are left of each keep all of it.
#[test]
fn what_is_cut_is_charged_by_whole_blocks() {
    let crumbs = |block: u64| Mapping { start: (10 + 2 * block) * MIB, length: 4096 };
    let mut accounts = accounts();
    mmap(&mut accounts, 10, 50).unwrap();
    accounts.thread_called(THREAD);
    let seen: Vec<_> = (0..25).map(crumbs).collect();
    assert_eq!(look(&mut accounts, &seen).released, Bytes(25 * (2 * MIB - 4096)));
    assert_eq!((used(&accounts), accounts.used_by(PROCESS, CARD)), (mib(50), mib(50)));
    assert_eq!(look(&mut accounts, &seen), ManagedDrift::default());
    assert!(mmap(&mut accounts, 100, 51).is_err());
    // Block by block it goes as well.
    assert_eq!(look(&mut accounts, &seen[5..]).released, Bytes(5 * 4096));
    assert_eq!(used(&accounts), mib(40));
    look(&mut accounts, &[]);
    assert_eq!((used(&accounts), accounts.users().count()), (Bytes(0), 0));
}

/// Other memory in the block's addresses need not be of the same block of the card.
#[test]
fn what_is_mapped_in_crumbs_is_charged_by_a_block_for_each() {
    let mut accounts = accounts();
    let page = |at: u64| 10 * MIB + at * 4096;
    for at in 0..50 {
        let reservation = accounts.reserve_managed(PROCESS, page(at), Bytes(4096)).unwrap();
        accounts.commit_managed(reservation, SPACE, FILE, THREAD).unwrap();
        assert_eq!(used(&accounts), mib(2 * (at + 1)));
    }
    assert!(matches!(accounts.reserve_managed(PROCESS, page(50), Bytes(4096)), Err(Refusal::OverQuota(_))));
    // As one range they would be no more than they are.
    mmap(&mut accounts, 10, 2).unwrap_err();
    accounts.set_limit(CARD, mib(102)).unwrap();
    accounts.set_limit(Card(1), mib(102)).unwrap();
    mmap(&mut accounts, 10, 2).unwrap();
    assert_eq!(used(&accounts), mib(2));
}

/// Also where nobody has it any more but a file that several processes share.
#[test]
fn crumbs_that_outlive_their_process_stay_whole_blocks() {
    let mut accounts = accounts();
    accounts.uvm_file(FILE, PROCESS, true);
    mmap(&mut accounts, 10, 50).unwrap();
    accounts.thread_called(THREAD);
    look(&mut accounts, &[Mapping { start: 12 * MIB, length: 4096 }]);
    let sync = accounts.begin_sync();
    accounts.finish_sync(sync);
    assert_eq!(used(&accounts), mib(2));
    assert_eq!((accounts.drop_zombies(FILE), used(&accounts)), (mib(2), Bytes(0)));
}

/// A range on the host that is there; `stray` of it may be on a card.
fn on_host(accounts: &mut Accounts, start: u64, length: u64, stray: u64) {
    let reservation = accounts.reserve_managed_on_host(PROCESS, start * MIB, mib(length)).unwrap();
    accounts.commit_managed(reservation, SPACE, FILE, THREAD).unwrap();
    accounts.managed_was_told(SPACE, FILE, shown(start, length), mib(stray));
    accounts.thread_called(THREAD);
}

/// Page tables of 1000 MiB are less than that.
fn is_about(accounts: &Accounts, expected: u64) -> bool {
    (expected * MIB..(expected + 3) * MIB).contains(&used(accounts).0)
}

#[test]
fn what_strays_is_counted_once_however_a_range_is_cut_and_stays_when_it_is_mapped_over() {
    let mut accounts = accounts();
    on_host(&mut accounts, 0, 1000, 20);
    assert!(is_about(&accounts, 20), "{}", used(&accounts));
    // In its middle 10 MiB come onto the card.
    assert_eq!(accounts.move_managed_to_cards(FILE, 100 * MIB, 10 * MIB), Ok(vec![shown(100, 10)]));
    assert!(is_about(&accounts, 30), "{}", used(&accounts));
    assert_eq!(accounts.managed_beside_host(FILE, 90 * MIB, 30 * MIB), [shown(100, 10)]);
    // Should the mapping fail, what was there is there.
    on_host(&mut accounts, 0, 1000, 5);
    assert!(used(&accounts) >= mib(35), "{}", used(&accounts));
    look(&mut accounts, &[]);
    assert_eq!((used(&accounts), accounts.counts().managed_ranges), (Bytes(0), 0));
}

#[test]
fn what_the_driver_does_not_know_when_its_process_ends_counts_in_full() {
    for (is_told, expected) in [(true, 0), (false, 1000)] {
        let mut accounts = accounts();
        accounts.uvm_file(FILE, PROCESS, true);
        let reservation = accounts.reserve_managed_on_host(PROCESS, 0, mib(1000)).unwrap();
        accounts.commit_managed(reservation, SPACE, FILE, THREAD).unwrap();
        if is_told {
            accounts.managed_was_told(SPACE, FILE, shown(0, 1000), Bytes(0));
        }
        let sync = accounts.begin_sync();
        accounts.finish_sync(sync);
        assert!(is_about(&accounts, expected), "{}", used(&accounts));
        assert_eq!(accounts.managed_on_host(FILE, 0, MIB).is_empty(), !is_told, "nothing is moved of it");
        accounts.uvm_file_gone(FILE);
        assert_eq!(used(&accounts), Bytes(0));
    }
}
