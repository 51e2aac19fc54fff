//! Managed memory for which a quota has no room: it is kept on the host.

use abi::{
    Node, Status,
    decode::HOST_UUID,
    layout::{read_u64, write_u32},
};

use super::{
    alone::OneProgram,
    spy::Spy,
    world::{GIB, MIB, Program, range, uuid_bytes},
};
use crate::{
    Answer,
    clock::{Clock, tests::TestClock},
};
use std::{sync::Arc, time::Duration};

const LIMIT: u64 = 8 * GIB;
const AT: u64 = 0x7f00_0000_0000;
const LENGTH: u64 = 3 * LIMIT;
/// Page tables of so much: 4 KiB for each 2 MiB, and some.
const TABLES: u64 = 64 * MIB;
const SET: u32 = 42;
const UNSET: u32 = 43;
const DUPLICATE: u32 = 44;
const DO_NOT_DUPLICATE: u32 = 45;
const MIGRATE: u32 = 51;
const MIGRATE_GROUP: u32 = 53;

/// A program with a UVM file, in a container of a time of its own: it passes as the test says,
/// however busy this machine is.
fn with_program(test: impl FnOnce(&Spy, &TestClock, &Arc<Program>, i32)) {
    let (clock, OneProgram { spy, program, .. }) = OneProgram::by_a_clock(8 * GIB, Duration::ZERO);
    let uvm = program.uvm_file();
    test(&spy, &clock, &program, uvm);
}

/// A range of three times the quota that is there, and that the driver was told of.
fn with_range_on_host(test: impl FnOnce(&Spy, &Arc<Program>, i32)) {
    with_program(|spy, _, program, uvm| {
        map_on_host(spy, program, uvm);
        test(spy, program, uvm);
    });
}

fn map_on_host(spy: &Spy, program: &Program, uvm: i32) {
    let (answer, sequel) = program.mmap_with_sequel(uvm, AT, LENGTH);
    assert_eq!(answer, Answer::Continue);
    program.map_uvm(AT, LENGTH);
    spy.uvm_calls();
    program.container.session.answered(sequel.unwrap(), true);
    let told = spy.uvm_calls();
    assert_eq!(ranges(&told), [(SET, AT, LENGTH)]);
    assert_eq!(told[0].1[16..32], HOST_UUID);
}

/// The commands, each with the range that its struct begins with.
fn ranges(calls: &[(u32, Vec<u8>)]) -> Vec<(u32, u64, u64)> {
    let word = |args: &[u8], at| read_u64(args, at).unwrap();
    calls.iter().map(|(command, args)| (*command, word(args, 0), word(args, 8))).collect()
}

fn used(program: &Program) -> u64 {
    program.container.used(0)
}

/// `UVM_SET_PREFERRED_LOCATION` and the like.
fn advise(program: &Program, uvm: i32, command: u32, (base, length): (u64, u64)) -> Result<(), Status> {
    let mut args = [range(base, length)[..16].to_vec(), vec![0; if command == SET { 24 } else { 8 }]].concat();
    if command == SET {
        args[16..32].copy_from_slice(&uuid_bytes(&program.container.machine.inventory.cards[0].uuid));
    }
    let status_at = args.len() - if command == SET { 4 } else { 8 };
    program.uvm(uvm, command, &mut args, status_at)
}

/// `UVM_MIGRATE`, with a semaphore to be released at the end.
fn migrate(program: &Program, uvm: i32, (base, length): (u64, u64), to: [u8; 16]) -> Result<(), Status> {
    let mut args = vec![0; 80];
    args[..16].copy_from_slice(&range(base, length)[..16]);
    args[16..32].copy_from_slice(&to);
    for (at, value) in [(32, 1), (40, 0x1000), (48, 77)] {
        assert!(write_u32(&mut args, at, value));
    }
    program.uvm(uvm, MIGRATE, &mut args, 72)
}

#[test]
fn it_costs_page_tables_alone_and_is_gone_with_its_mapping() {
    with_range_on_host(|_, program, uvm| {
        assert!(used(program) <= TABLES, "{}", used(program));
        assert_eq!(program.container.session.reconcile(), []);
        program.context(0).memory(LIMIT - TABLES).unwrap();
        program.unmap_uvm(AT);
        program.ioctl(uvm, 72, &mut range(AT, LENGTH));
        program.container.session.reconcile();
        assert_eq!(used(program), LIMIT - TABLES);
    });
}

#[test]
fn what_fits_is_on_the_card_as_ever() {
    with_program(|_, _, program, uvm| {
        let (answer, sequel) = program.mmap_with_sequel(uvm, AT, LIMIT);
        assert_eq!((answer, sequel.is_none(), used(program)), (Answer::Continue, true, LIMIT));
    });
}

#[test]
fn advice_reaches_what_is_on_the_card_and_nothing_else() {
    with_range_on_host(|spy, program, uvm| {
        // Before, behind and beside it is memory on the card.
        for base in [AT - GIB, AT + LENGTH] {
            program.has_managed(uvm, base, GIB);
        }
        for command in [SET, UNSET, DUPLICATE] {
            spy.uvm_calls();
            assert_eq!(advise(program, uvm, command, (AT - GIB, LENGTH + 2 * GIB)), Ok(()));
            let seen = spy.uvm_calls();
            assert_eq!(ranges(&seen), [(command, AT - GIB, GIB), (command, AT + LENGTH, GIB)]);
            assert_eq!(advise(program, uvm, command, (AT + MIB, MIB)), Ok(()));
            assert_eq!(ranges(&spy.uvm_calls()), []);
        }
        let mut group =
            [vec![1; 8], uuid_bytes(&program.container.machine.inventory.cards[0].uuid).to_vec(), vec![9; 8]].concat();
        assert_eq!(program.uvm(uvm, MIGRATE_GROUP, &mut group, 24), Ok(()));
        assert_eq!(ranges(&spy.uvm_calls()), []);
    });
}

#[test]
fn a_part_that_is_about_to_be_used_comes_onto_the_card_if_it_fits() {
    with_range_on_host(|spy, program, uvm| {
        let before = used(program);
        assert_eq!(advise(program, uvm, DO_NOT_DUPLICATE, (AT, LENGTH)), Ok(()));
        assert_eq!((ranges(&spy.uvm_calls()), used(program)), (vec![], before), "not the whole");
        let piece = (AT + 32 * MIB, 32 * MIB);
        assert_eq!(advise(program, uvm, DO_NOT_DUPLICATE, piece), Ok(()));
        assert_eq!(ranges(&spy.uvm_calls()), [(UNSET, piece.0, piece.1)]);
        // Its page tables are not charged beside it.
        assert!((before + 31 * MIB..before + 33 * MIB).contains(&used(program)));
        // Once is enough; and from then on advice reaches it.
        assert_eq!(advise(program, uvm, DO_NOT_DUPLICATE, piece), Ok(()));
        assert_eq!(advise(program, uvm, SET, (AT, 128 * MIB)), Ok(()));
        assert_eq!(ranges(&spy.uvm_calls()), [(SET, piece.0, piece.1)]);
        assert_eq!(program.container.session.reconcile(), []);
    });
}

#[test]
fn as_much_is_moved_to_the_card_as_fits() {
    with_range_on_host(|spy, program, uvm| {
        let card = uuid_bytes(&program.container.machine.inventory.cards[0].uuid);
        program.context(0).memory(LIMIT - GIB).unwrap();
        spy.uvm_calls();
        assert_eq!(migrate(program, uvm, (AT, LENGTH), card), Ok(()));
        let seen = spy.uvm_calls();
        let [(UNSET, AT, fits), (MIGRATE, AT, moved)] = ranges(&seen)[..] else { panic!("{:?}", ranges(&seen)) };
        assert!(fits == moved && fits % (2 * MIB) == 0 && (GIB - TABLES..GIB).contains(&fits), "{fits}");
        assert!(used(program) <= LIMIT);
        assert_eq!(seen[1].1[40..56], [&0x1000_u64.to_le_bytes()[..], &77_u64.to_le_bytes()].concat());
        // The rest stays, and who waits is woken.
        migrate(program, uvm, (AT + 4 * GIB, GIB), card).unwrap();
        spy.uvm_calls();
        assert_eq!(migrate(program, uvm, (AT + 2 * GIB, GIB), card), Ok(()));
        let seen = spy.uvm_calls();
        assert_eq!((ranges(&seen), read_u64(&seen[0].1, 40)), (vec![(MIGRATE, 0, 0)], Some(0x1000)));
        // To the host everything goes.
        assert_eq!(migrate(program, uvm, (AT, LENGTH), HOST_UUID), Ok(()));
        assert_eq!(ranges(&spy.uvm_calls()), [(MIGRATE, AT, LENGTH)]);
    });
}

/// The kernel executes advice about ordinary memory, and reads what it is about again.
#[test]
fn advice_about_ordinary_memory_is_the_kernel_s_as_long_as_nothing_is_on_the_host() {
    with_program(|spy, _, program, uvm| {
        let other = program.container.program();
        let others = other.uvm_file();
        let ordinary = (0x5500_0000_0000, MIB);
        spy.uvm_calls();
        assert_eq!(advise(program, uvm, SET, ordinary), Ok(()));
        assert_eq!(ranges(&spy.uvm_calls()), [], "not the mediator's");
        // By the time at which the kernel looks, it may be about this one.
        assert_eq!(other.mmap(others, AT, LENGTH, AT), Answer::Errno(libc::ENOMEM));
        program.ioctl(uvm, 72, &mut range(AT, MIB));
        map_on_host(spy, &other, others);
        spy.refuse_uvm(SET, 36, Status::NOT_SUPPORTED);
        assert_eq!(advise(program, uvm, SET, ordinary), Ok(()), "what the driver does for nobody else is left out");
        assert_eq!(ranges(&spy.uvm_calls()), [(SET, ordinary.0, ordinary.1)]);
    });
}

#[test]
fn a_range_that_is_cut_as_soon_as_it_is_there_is_kept_there_too() {
    with_program(|spy, clock, program, uvm| {
        let parts = [(AT, LIMIT), (AT + LIMIT + GIB, LIMIT)];
        let (_, sequel) = program.mmap_with_sequel(uvm, AT, LENGTH);
        parts.iter().for_each(|part| program.map_uvm(part.0, part.1));
        spy.has_managed(&parts);
        spy.uvm_calls();
        program.container.session.answered(sequel.unwrap(), true);
        let told = ranges(&spy.uvm_calls());
        assert!(clock.now() < Duration::from_millis(1), "before anybody has looked at what is mapped");
        assert!(told.ends_with(&parts.map(|(base, length)| (SET, base, length))), "{:?}", told.last());
        assert!(used(program) <= TABLES);
        assert_eq!(program.container.session.reconcile(), []);
    });
}

/// Another thread has exchanged the file, or UVM does not take the advice.
#[test]
fn what_the_driver_cannot_be_told_of_is_charged_and_is_an_excess() {
    with_program(|spy, _, program, uvm| {
        let (_, sequel) = program.mmap_with_sequel(uvm, AT, LENGTH);
        program.map_uvm(AT, LENGTH);
        spy.has_managed(&[]);
        program.container.session.answered(sequel.unwrap(), true);
        assert_eq!(used(program), LENGTH);
        let drifts = program.container.session.reconcile();
        assert_eq!(
            drifts.iter().map(|drift| (drift.excess, drift.pids.clone())).collect::<Vec<_>>(),
            [(true, vec![program.pid])]
        );
    });
}

#[test]
fn a_thread_that_is_long_in_mapping_is_told_of_in_the_end_and_charged_for_what_came_meanwhile() {
    with_program(|spy, clock, program, uvm| {
        let (_, sequel) = program.mmap_with_sequel(uvm, AT, LENGTH);
        spy.has_managed(&[]);
        program.container.session.answered(sequel.unwrap(), true);
        let before = used(program);
        clock.work(Duration::from_millis(3));
        program.map_uvm(AT, LENGTH);
        spy.has_managed(&[(AT, LENGTH)]);
        assert_eq!(program.container.session.reconcile(), []);
        let stray = used(program) - before;
        assert!((2 * 128 * MIB..3 * 128 * MIB).contains(&stray), "{} MiB in 3 ms", stray / MIB);
        // It stays with what is left of the range.
        program.ioctl(uvm, 72, &mut range(AT, LENGTH));
        program.unmap_uvm(AT);
        program.container.session.reconcile();
        assert_eq!(used(program), 0);
    });
}

#[test]
fn a_mapping_that_fails_leaves_nothing() {
    with_program(|spy, _, program, uvm| {
        let (_, sequel) = program.mmap_with_sequel(uvm, AT, LENGTH);
        spy.has_managed(&[]);
        program.open(Node::Control);
        program.ioctl(uvm, 72, &mut range(AT, LENGTH));
        program.container.session.answered(sequel.unwrap(), true);
        program.container.session.reconcile();
        assert_eq!(used(program), 0);
    });
}

/// Nobody can tell which of two comes to stand there, nor where it is kept.
#[test]
fn two_threads_do_not_map_the_same_addresses_where_one_is_kept_on_the_host() {
    with_program(|_, _, program, uvm| {
        let sibling = program.container.program();
        sibling.share_memory_of(program);
        let siblings = sibling.uvm_file();
        for (first, second) in [(LENGTH, GIB), (GIB, LENGTH)] {
            assert_eq!(program.mmap(uvm, AT, first, AT), Answer::Continue);
            assert_eq!(sibling.mmap(siblings, AT, second, AT), Answer::Errno(libc::EAGAIN));
            program.ioctl(uvm, 72, &mut range(AT, MIB));
            program.container.session.reconcile();
        }
        assert_eq!(used(program), 0);
    });
}

/// The driver's answer about an older range, or another process's, is none about the one that is
/// about to be mapped; and the memory of files that processes share is in nobody's cgroup.
#[test]
fn a_range_is_kept_on_the_host_only_where_it_cannot_be_taken_for_another() {
    with_range_on_host(|_, program, uvm| {
        assert_eq!(program.mmap(uvm, AT, LENGTH, AT), Answer::Errno(libc::ENOMEM), "it is there still");
        let other = program.container.program();
        let handed = other.give(program.file_of(uvm));
        assert_eq!(other.mmap(handed, AT, LENGTH, AT), Answer::Errno(libc::ENOMEM), "another's file");
        let shared = other.open(Node::Uvm);
        let mut flags = [vec![2], vec![0; 15]].concat();
        other.uvm(shared, 0x3000_0001, &mut flags, 8).unwrap();
        assert_eq!(other.mmap(shared, AT, LENGTH, AT), Answer::Errno(libc::ENOMEM), "shared by processes");
        let own = other.uvm_file();
        assert_eq!(other.mmap(own, AT, LENGTH, AT), Answer::Continue);
        let high = 0_u64.wrapping_sub(LIMIT);
        assert_eq!(other.mmap(own, high, LENGTH, high), Answer::Errno(libc::ENOMEM), "it wraps");
        let pool = AT + 2 * LENGTH;
        other.pool(own, pool, 2 * MIB).unwrap();
        let context = other.context(0);
        [LIMIT / 2, LIMIT / 4, GIB, 2 * MIB].into_iter().for_each(|size| while context.memory(size).is_ok() {});
        assert_eq!(other.mmap(own, pool, 2 * MIB, pool), Answer::Errno(libc::ENOMEM), "the host's already");
    });
}

/// It is executed by the mediator, on its copy, and nobody has to wait for the kernel.
#[test]
fn advice_about_managed_memory_keeps_no_range_from_the_host() {
    with_program(|spy, _, program, uvm| {
        program.has_managed(uvm, AT - GIB, GIB);
        assert_eq!(advise(program, uvm, SET, (AT - GIB, MIB)), Ok(()));
        let other = program.container.program();
        map_on_host(spy, &other, other.uvm_file());
    });
}

#[test]
fn so_many_ranges_may_be_long_in_coming() {
    with_program(|spy, _, program, uvm| {
        spy.has_managed(&[]);
        let mut come = Vec::new();
        while used(program) < LIMIT {
            let at = AT + u64::try_from(come.len()).unwrap() * LENGTH;
            let (answer, sequel) = program.mmap_with_sequel(uvm, at, LENGTH);
            assert_eq!(answer, Answer::Continue);
            program.container.session.answered(sequel.unwrap(), true);
            come.push(at);
            assert!(come.len() < 100, "nothing ends it");
        }
        assert_eq!(come.len(), 65, "the last counts as if it were on the card");
    });
}
