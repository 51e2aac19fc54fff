//! Managed memory: mappings of the UVM file.

use std::time::Duration;

use abi::{Handle, Node};
use account::Mm;
use base::Bytes;

use super::{
    alone::{OneContext, OneProgram},
    world::{Container, MIB, Machine, Program, range},
};
use crate::{
    Answer, Drift, DriftKind, Trapped,
    clock::tests::TestClock,
    in_flight::CallEnd,
    locks::lock,
    memory::managed::{MOST, PATIENCE},
};

const LIMIT: u64 = 64 * MIB;
const AT: u64 = 0x7f00_0000_0000;
/// Of which UVM takes a card's memory.
const BLOCK: u64 = 2 * MIB;

/// A mapping that the kernel may place where its offset says, or elsewhere.
fn anywhere(fd: i32, length: u64, offset: u64) -> Trapped {
    Trapped::Mmap { address: 0, length, flags: 1, fd, offset }
}

/// A call that is none of the driver's: what its thread did before has returned.
fn makes_another_call(program: &Program) {
    program.handle(Trapped::Ioctl { fd: program.open(Node::Control), command: 0, argument: 0 });
}

/// Says whether the container has to be ended for what it has or for who has not been looked at.
fn must_end(container: &Container, is_over: bool) -> bool {
    container.session.managed.must_end(container.session.reclaim_throttle.clock.now(), is_over).is_some()
}

#[test]
fn it_is_charged_on_every_card_before_it_is_mapped() {
    let OneProgram { container, program, .. } = OneProgram::on_cards(2, LIMIT);
    let uvm = program.uvm_file();
    assert_eq!(program.mmap(uvm, AT, 16 * MIB, AT), Answer::Continue);
    assert_eq!((container.used(0), container.used(1)), (16 * MIB, 16 * MIB));
    program.map_uvm(AT, 16 * MIB);
    program.context(0).memory(LIMIT - 16 * MIB).unwrap();
    assert_eq!(program.mmap(uvm, AT + LIMIT, BLOCK, AT + LIMIT), Answer::Errno(libc::ENOMEM), "not even page tables");
    assert_eq!(container.session.reconcile(), []);
    assert_eq!(container.used(0), LIMIT, "it is there");
    // Unmapped: found when room is needed.
    program.unmap_uvm(AT);
    assert_eq!(program.mmap(uvm, AT, 16 * MIB, AT), Answer::Continue);
    assert_eq!(container.used(0), LIMIT);
}

/// 4 KiB that are left of each 2 MiB keep all of it on the card.
#[test]
fn unmapping_all_but_crumbs_makes_no_room() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let uvm = program.uvm_file();
    assert_eq!(program.mmap(uvm, AT, LIMIT, AT), Answer::Continue);
    (AT..AT + LIMIT).step_by(2 << 20).for_each(|block| program.map_uvm(block, 4096));
    program.open(Node::Control);
    assert_eq!(program.mmap(uvm, AT + LIMIT, BLOCK, AT + LIMIT), Answer::Errno(libc::ENOMEM));
    assert_eq!((container.used(0), container.session.reconcile()), (LIMIT, vec![]));
    program.unmap_uvm(AT);
    assert_eq!(program.mmap(uvm, AT + LIMIT, BLOCK, AT + LIMIT), Answer::Continue);
    assert_eq!(container.used(0), LIMIT);
}

#[test]
fn it_goes_with_its_process() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let uvm = program.uvm_file();
    program.has_managed(uvm, AT, LIMIT);
    program.exec();
    // The thread comes back from its mmap with another call.
    program.open(Node::Control);
    program.context(0).memory(LIMIT).unwrap();
    container.session.process_ended(program.exit());
    assert_eq!(container.used(0), 0);
}

/// A file comes out of a socket and is mapped after it was looked for, and before it is given up;
/// or the other way round.
#[test]
fn a_file_is_not_given_up_and_mapped_at_once() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let session = &container.session;
    let uvm = program.uvm_file();
    assert_eq!(program.mmap(uvm, AT, BLOCK, AT), Answer::Continue);
    let kept = lock(&session.objects.files).all_uvm().remove(0);
    session.end_uvm_file(&kept, false);
    assert!(lock(&session.objects.files).knows_uvm(kept.id), "what is mapped keeps it");
    let reservation = lock(&session.objects.accounts).reserve_managed(program.pid, AT + BLOCK, Bytes(BLOCK)).unwrap();
    session.end_uvm_file(&kept, true);
    let mapped = session.commit_mapping(kept.id, reservation, (Mm(1), 7));
    assert!(matches!(mapped, Err(CallEnd::Errno(libc::EBADF))));
    assert_eq!(container.used(0), BLOCK);
}

/// Each is kept open by the mediator, for as long as somebody has it.
#[test]
fn address_spaces_are_limited_in_number() {
    let OneProgram { container, program, .. } = OneProgram::within(2 * LIMIT);
    let uvm = program.uvm_file();
    let mut children = Vec::new();
    let refused = loop {
        let child = program.fork();
        match child.mmap(uvm, AT, 4096, AT) {
            Answer::Continue => child.map_uvm(AT, 4096),
            answer => break answer,
        }
        children.push(child);
        assert!(children.len() <= MOST);
    };
    assert_eq!(refused, Answer::Errno(libc::ENOMEM));
    assert_eq!((children.len(), container.used(0)), (MOST - 1, (MOST as u64 - 1) * BLOCK), "the first has one, too");
    assert_eq!(container.session.reconcile(), []);
    // What has ended makes room.
    let gone = children.pop().unwrap().exit();
    container.session.process_ended(gone);
    assert_eq!(program.fork().mmap(uvm, AT, 4096, AT), Answer::Continue);
}

#[test]
fn what_is_mapped_without_being_charged_is_an_excess() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    program.context(0);
    // As if the descriptor had been exchanged after the look at it.
    program.map_uvm(AT, 2 * LIMIT);
    let drifts = container.session.reconcile();
    assert_eq!(drifts.len(), 1, "{drifts:?}");
    assert!(drifts[0].excess);
    assert_eq!(drifts[0].pids, [program.pid]);
    assert!(matches!(drifts[0].kind, DriftKind::Managed { mapped, .. } if mapped.0 == 2 * LIMIT));
    assert_eq!(*lock(&container.observed.drifts), drifts);
    assert_eq!(container.used(0), 2 * LIMIT, "it is charged from then on");
}

#[test]
fn what_was_not_charged_and_fits_is_told_once_and_ends_nobody() {
    let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
    let context = program.context(0);
    program.map_uvm(AT, BLOCK);
    let told: Vec<bool> = container.session.reconcile().iter().map(|drift| drift.excess).collect();
    assert_eq!((told, container.used(0)), (vec![false], BLOCK));
    clock.work(PATIENCE);
    assert_eq!(container.session.reconcile(), []);
    // More than fits, found by another look than the one that is about to end the container.
    context.memory(LIMIT - BLOCK).unwrap();
    program.map_uvm(AT + LIMIT, BLOCK);
    assert_eq!(ends(&container), 0);
    clock.work(PATIENCE);
    assert_eq!((must_end(&container, false), must_end(&container, true)), (false, true));
}

#[test]
fn what_was_mapped_is_charged_until_the_kernel_has_taken_it_away() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let other = container.program();
    let uvm = program.uvm_file();
    program.has_managed(uvm, AT, LIMIT);
    container.session.reconcile();
    program.exit_slowly();
    container.session.reconcile();
    let others = other.uvm_file();
    assert_eq!(other.mmap(others, AT, MIB, AT), Answer::Errno(libc::ENOMEM));
    // Somebody else who is on the way out has nothing to do with it.
    container.program().exit_slowly();
    assert_eq!(container.used(0), LIMIT);
    container.all_has_ended();
    container.program().exit_slowly();
    container.session.reconcile();
    assert_eq!(container.used(0), 0);
    assert_eq!(other.mmap(others, AT, MIB, AT), Answer::Continue);
}

/// Nobody may hide by using up the mediator's files.
#[test]
fn a_look_without_files_to_look_with_is_none() {
    let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
    program.open(Node::Control);
    container.has_no_files_left(true);
    assert_eq!((ends(&container), ends(&container)), (0, 0));
    // For a moment only.
    container.has_no_files_left(false);
    assert_eq!(ends_in_time(&clock, &container), 0);
    container.has_no_files_left(true);
    assert_eq!(ends(&container), 0);
    assert_eq!(ends_in_time(&clock, &container), 1);
    container.has_no_files_left(false);
    assert_eq!(ends(&container), 1, "and no more");
}

#[test]
fn other_files_are_mapped_as_ever_unless_they_could_become_managed_memory() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let file = program.give(tempfile::tempfile().unwrap());
    assert_eq!(program.mmap(file, AT, MIB, 4096), Answer::Continue);
    assert_eq!(program.mmap(file, AT, MIB, AT), Answer::Errno(libc::EINVAL));
    assert_eq!(program.mmap(99, AT, MIB, AT), Answer::Errno(libc::EBADF));
    assert_eq!(program.mmap(99, AT, MIB, 4096), Answer::Continue, "the kernel finds no file either");
    let uvm = program.uvm_file();
    assert_eq!(program.mmap(uvm, AT, MIB, AT + 4096), Answer::Errno(libc::EINVAL));
    assert_eq!(program.handle(anywhere(file, MIB, AT)), Answer::Continue);
    assert_eq!(container.used(0), 0);
    assert_eq!(program.handle(anywhere(uvm, BLOCK, AT)), Answer::Continue);
    assert_eq!(container.used(0), BLOCK, "the kernel may place it where its offset says");
    let endless = Trapped::Mmap { address: AT, length: u64::MAX, flags: 0x11, fd: uvm, offset: AT };
    assert_eq!(program.handle(endless), Answer::Errno(libc::ENOMEM));
}

#[test]
fn a_mapping_is_charged_until_its_mmap_is_known_to_have_returned() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let uvm = program.uvm_file();
    assert_eq!(program.mmap(uvm, AT, LIMIT, AT), Answer::Continue);
    // The thread has not got round to mapping it.
    container.session.reconcile();
    assert_eq!(container.used(0), LIMIT);
    // It makes another call, so its mmap has returned: with nothing, it turns out.
    program.open(Node::Control);
    makes_another_call(&program);
    container.session.reconcile();
    assert_eq!(container.used(0), 0);
}

#[test]
fn a_file_that_is_kept_by_another_one_keeps_what_outlives_its_process() {
    let OneProgram { container, program: one, .. } = OneProgram::within(LIMIT);
    let other = container.program();
    let uvm = one.uvm_file();
    one.has_managed(uvm, AT, LIMIT);
    one.open(Node::Control);
    let handed = other.give(one.file_of(uvm));
    let keeper = other.open(Node::Uvm);
    let mut bind = [handed.to_le_bytes(), [0; 4]].concat();
    other.uvm(keeper, 75, &mut bind, 4).unwrap();
    let stranger = other.give(tempfile::tempfile().unwrap());
    let mut wrong = [stranger.to_le_bytes(), [0; 4]].concat();
    assert_eq!(other.uvm(keeper, 75, &mut wrong, 4), Err(abi::Status::INVALID_ARGUMENT));
    other.close(handed);
    container.session.process_ended(one.exit());
    container.session.reconcile();
    assert_eq!(container.used(0), LIMIT, "no descriptor of it is left, but it is there");
    other.close_and_reconcile(keeper);
    assert_eq!(container.used(0), 0);
}

/// `UVM_ENABLE_READ_DUPLICATION` copies managed pages to every card that the process has
/// registered. That may be let through because a page is charged to every card of the grant from
/// the start, whichever it is on.
#[test]
fn copies_on_every_card_are_charged_before_they_are_made() {
    let machine = Machine::new(3);
    let container = machine.container(&[0, 2], LIMIT);
    let program = container.program();
    let uvm = program.uvm_file();
    program.has_managed(uvm, AT, LIMIT);
    let used = || (container.used(0), container.used(1));
    assert_eq!(used(), (LIMIT, LIMIT));
    assert!(
        !matches!(program.ioctl(uvm, 44, &mut range(AT, LIMIT)), Answer::Errno(_)),
        "the call itself is let through"
    );
    container.session.reconcile();
    assert_eq!(used(), (LIMIT, LIMIT));
    // No card has room for a second range, though on neither need there be a page of the first.
    let next = AT + LIMIT;
    assert_eq!(program.mmap(uvm, next, MIB, next), Answer::Errno(libc::ENOMEM));
}

#[test]
fn an_excess_is_told_whoever_finds_it() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    program.map_uvm(AT, 2 * LIMIT);
    // Looked for because there is no room, and charged from then on.
    assert_eq!(context.memory(2 * LIMIT), Err(abi::Status::NO_MEMORY));
    assert_eq!(container.used(0), 0, "no look is needed to know that this will never fit");
    context.memory(LIMIT).unwrap();
    assert_eq!(context.memory(MIB), Err(abi::Status::NO_MEMORY));
    assert_eq!(container.used(0), 3 * LIMIT);
    let drifts = container.session.reconcile();
    assert_eq!(
        drifts.iter().map(|drift| (drift.excess, drift.pids.clone())).collect::<Vec<_>>(),
        [(true, vec![program.pid])]
    );
    assert_eq!(container.session.reconcile(), drifts, "again, until it is gone");
    assert_eq!(*lock(&container.observed.ends), [""; 0]);
    program.exit();
    assert_eq!(container.session.reconcile(), [], "those who were killed have it no more");
}

fn ends(container: &Container) -> usize {
    container.session.reconcile();
    lock(&container.observed.ends).len()
}

/// The same once it has had its time to get rid of what it has too much.
fn ends_in_time(clock: &TestClock, container: &Container) -> usize {
    clock.work(PATIENCE);
    ends(container)
}

#[test]
fn who_shares_the_memory_is_named_whether_he_called_or_not() {
    // Of the lower number, and without a call.
    let (clock, OneProgram { container, program: sharer, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
    let (program, other) = (container.program(), container.program());
    program.uvm_file();
    sharer.share_memory_of(&program);
    program.map_uvm(AT, 2 * LIMIT);
    let named = [sharer.pid, program.pid];
    let pids = |drifts: Vec<Drift>| drifts.into_iter().map(|drift| drift.pids).collect::<Vec<_>>();
    assert_eq!(pids(container.session.reconcile()), [named.to_vec()]);
    assert!(!named.contains(&other.pid));
    assert_eq!(ends(&container), 0);
    // One was killed, and the other has it all the same.
    clock.work(PATIENCE / 2);
    program.exit();
    assert_eq!(pids(container.session.reconcile()), [[sharer.pid]]);
    assert_eq!(container.used(0), 2 * LIMIT, "it is there once");
    assert_eq!(lock(&container.observed.ends).len(), 0);
    assert_eq!(ends_in_time(&clock, &container), 1);
    sharer.exit();
    assert_eq!(ends(&container), 1, "it is gone");
    assert_eq!(container.used(0), 0);
}

/// The address space goes from one process to the next, faster than anybody looks; or the kernel
/// has it still, for a process that is slow to die.
#[test]
fn what_lives_where_nobody_is_found_stays_charged_and_ends_nobody() {
    let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
    let uvm = program.uvm_file();
    program.has_managed(uvm, AT, LIMIT);
    let memory = program.memory_now();
    container.session.process_ended(program.exit());
    assert_eq!(ends(&container), 0);
    assert_eq!(container.used(0), LIMIT);
    assert_eq!(ends_in_time(&clock, &container), 0);
    assert_eq!(container.used(0), LIMIT);
    drop(memory);
    assert_eq!(ends(&container), 0);
    assert_eq!(container.used(0), 0);
}

/// A child that shares its parent's memory until it executes a program, as of `vfork`, when the
/// parent is killed, or executes another program itself.
#[test]
fn a_child_that_executes_its_program_late_ends_nobody() {
    for parent_lives in [false, true] {
        let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
        let child = container.program();
        let uvm = program.uvm_file();
        child.share_memory_of(&program);
        program.has_managed(uvm, AT, LIMIT);
        container.session.reconcile();
        program.exec();
        if !parent_lives {
            program.exit();
        }
        container.session.reconcile();
        assert_eq!(container.used(0), LIMIT);
        assert_eq!(ends_in_time(&clock, &container), 0);
        child.exec();
        assert_eq!(container.session.reconcile(), []);
        assert_eq!(ends_in_time(&clock, &container), 0);
        assert_eq!(container.used(0), 0);
        assert_eq!(*lock(&container.observed.drifts), []);
    }
}

/// A process that has mapped executes another program, and makes a call from there: what he had
/// mapped is still there if somebody else has his memory.
#[test]
fn a_program_does_not_have_the_memory_of_the_one_before() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let uvm = program.uvm_file();
    program.has_managed(uvm, AT, LIMIT / 2);
    let kept = program.memory_now();
    program.exec();
    let uvm = program.uvm_file();
    container.session.reconcile();
    assert_eq!(container.used(0), LIMIT / 2);
    // At the same address, in the program's own memory.
    program.has_managed(uvm, AT, LIMIT / 2);
    assert_eq!(container.used(0), LIMIT);
    assert_eq!(program.mmap(uvm, AT + LIMIT, MIB, AT + LIMIT), Answer::Errno(libc::ENOMEM));
    drop(kept);
    container.session.reconcile();
    assert_eq!(container.used(0), LIMIT / 2);
}

#[test]
fn an_address_that_the_kernel_rounds_is_the_rounded_one() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let file = program.give(tempfile::tempfile().unwrap());
    let hint = |fd, address| Trapped::Mmap { address, length: BLOCK, flags: 1, fd, offset: AT };
    assert_eq!(program.handle(hint(file, AT + 1)), Answer::Errno(libc::EINVAL));
    assert_eq!(program.handle(hint(99, AT + 4095)), Answer::Errno(libc::EBADF));
    let uvm = program.uvm_file();
    assert_eq!(program.handle(hint(uvm, AT + 1)), Answer::Continue);
    assert_eq!(container.used(0), BLOCK);
}

/// Another thread may make managed memory of a harmless mapping. Where that cannot be looked at, it
/// counts; only what is over the quota ends anything.
#[test]
fn what_a_mapping_could_become_is_charged_where_it_cannot_be_looked_at() {
    for (length, expected) in [(BLOCK, 0), (LIMIT + BLOCK, 1)] {
        let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
        let file = program.give(tempfile::tempfile().unwrap());
        assert_eq!(program.handle(anywhere(file, 2 * LIMIT, AT)), Answer::Continue);
        // Its thread makes another call: the mmap has returned, with nothing of the kind.
        makes_another_call(&program);
        assert_eq!((ends(&container), ends(&container)), (0, 0));
        assert_eq!(program.handle(anywhere(file, length, AT)), Answer::Continue);
        let memory = program.memory_now();
        program.exit();
        assert_eq!((ends(&container), container.used(0)), (0, 0), "it may have been looked at too early");
        assert_eq!(ends_in_time(&clock, &container), expected);
        assert_eq!(container.used(0), length);
        drop(memory);
        container.session.reconcile();
        assert_eq!(container.used(0), 0);
    }
}

#[test]
fn mappings_of_other_files_are_looked_at_until_they_have_come_to_nothing() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let file = program.give(tempfile::tempfile().unwrap());
    for number in 1..10_000 {
        assert_eq!(program.handle(anywhere(file, MIB, number * MIB)), Answer::Continue, "{number}");
    }
    assert!(container.session.holds_anything());
    container.session.process_ended(program.exit());
    container.session.reconcile();
    assert_eq!((container.used(0), container.session.holds_anything()), (0, false));
}

#[test]
fn looks_that_come_to_no_end_end_the_container() {
    let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
    program.context(0);
    container.looks_cost_now(&clock, Duration::from_secs(1));
    assert_eq!(ends(&container), 0);
    let must_end_after_a_look = || {
        container.session.managed.scan(&container.session.scan_env());
        must_end(&container, false)
    };
    container.looks_cost_now(&clock, Duration::from_secs(6));
    assert!(!must_end_after_a_look(), "the host may have been busy");
    assert!(must_end_after_a_look());
    container.looks_cost_now(&clock, Duration::ZERO);
    assert!(!must_end_after_a_look());
}

/// The driver does not say whose it is, and those who have the files need not have made a call.
#[test]
fn what_a_card_has_too_much_for_long_ends_the_container() {
    let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
    let context = program.context(0);
    context.memory(LIMIT).unwrap();
    container.accounts().client_gone(Handle(context.client));
    container.session.reconcile();
    program.context(0).memory(MIB).unwrap();
    assert_eq!(ends(&container), 0);
    assert_eq!(ends_in_time(&clock, &container), 1);
}

/// A process has as many open files as it likes, each of which is looked at for each that is kept.
#[test]
fn what_nobody_charged_is_found_while_files_are_looked_for() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let _context = program.context(0);
    program.map_uvm(AT, BLOCK);
    std::thread::scope(|scope| {
        let looking = program.while_nobody_sees_its_files(|| {
            let looking = scope.spawn(|| container.session.look_for_closed_files());
            let drifts = container.session.compare();
            assert!(matches!(drifts.as_slice(), [Drift { kind: DriftKind::Managed { .. }, .. }]), "{drifts:?}");
            assert_eq!(container.used(0), BLOCK);
            looking
        });
        looking.join().unwrap();
    });
}
