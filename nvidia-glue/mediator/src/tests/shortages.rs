//! Refusals for want of something that is no card memory of the container's: none is without a
//! word, and none floods a log.

use abi::{Status, controls::NV9096_CTRL_CMD_SET_ZBC_COLOR_CLEAR};
use account::ObjectLimits;
use base::Bytes;

use super::{
    alone::OneContext,
    world::{Container, GIB, MIB, result, words},
};
use crate::{Answer, locks::lock};

/// Texts and counts that the observer was told since it was last asked.
fn told(container: &Container) -> Vec<(String, u64)> {
    let told = std::mem::take(&mut *lock(&container.observed.shortages));
    told.into_iter().map(|shortage| (shortage.text, shortage.count)).collect()
}

#[test]
fn a_bound_is_told_at_once_and_then_in_sums() {
    let OneContext { container, program, context, .. } =
        OneContext::limited(GIB, ObjectLimits { os_events: 1, ..ObjectLimits::default() });
    let event = |fd| {
        let mut args = words(&[context.client, context.device, fd, 0]);
        result(program.escape(context.control, 0xce, &mut args), &args, 12)
    };
    event(20).unwrap();
    assert_eq!(told(&container), [], "nothing was refused");
    (0..5).for_each(|_| assert_eq!(event(21), Err(Status::INSUFFICIENT_RESOURCES)));
    let text = "there are 1 events that wake files already, the most that a container may have";
    assert_eq!(told(&container), [(text.to_owned(), 1)]);
    container.session.end().unwrap();
    assert_eq!(told(&container), [(text.to_owned(), 4)], "none is left untold");
    let usage = container.session.usage();
    assert_eq!((usage.refused_by_bounds, usage.refused_by_driver, usage.denials), (5, 0, 0));
}

#[test]
fn pinned_memory_and_managed_ranges_are_told_by_name() {
    let limits = ObjectLimits { host_memory: Bytes(4 * MIB), managed_ranges: 0, ..ObjectLimits::default() };
    let OneContext { container, program, context, .. } = OneContext::limited(GIB, limits);
    let pinned = || context.host_memory(8 * MIB);
    assert_eq!((pinned(), pinned()), (Err(Status::NO_MEMORY), Err(Status::NO_MEMORY)));
    let [(text, 1)] = &told(&container)[..] else { panic!("told once") };
    assert!(text.contains("more of the host's memory") && text.contains("4MiB"), "{text}");
    let uvm = program.uvm_file();
    assert_eq!(program.mmap(uvm, 0x7f00_0000_0000, 2 * MIB, 0x7f00_0000_0000), Answer::Errno(libc::ENOMEM));
    let [(text, 1)] = &told(&container)[..] else { panic!("told once") };
    assert!(text.starts_with("there are 0 ranges of managed memory already"), "{text}");
}

#[test]
fn a_mediator_that_has_as_much_memory_as_it_may_refuses_what_it_would_have_to_remember() {
    let OneContext { container, program, context, .. } = OneContext::within(GIB);
    let session = &container.session;
    let (uvm, memory) = (program.uvm_file(), context.memory(MIB).unwrap());
    session.set_own_memory(Bytes(session.own_memory_limit().0 + 1));
    assert_eq!(context.memory(MIB), Err(Status::NO_MEMORY));
    let [(text, 1)] = &told(&container)[..] else { panic!("told once") };
    assert!(text.starts_with("the mediator itself has as much memory as it may for this container"), "{text}");
    let map = || program.mmap(uvm, 0x7f00_0000_0000, 2 * MIB, 0x7f00_0000_0000);
    assert_eq!(map(), Answer::Errno(libc::ENOMEM));
    // What makes room passes.
    context.free(memory).unwrap();
    session.set_own_memory(session.own_memory_limit());
    assert_eq!(map(), Answer::Continue);
    context.memory(MIB).unwrap();
}

#[test]
fn the_drivers_own_refusal_is_said_to_be_the_drivers() {
    // More than the card has.
    let OneContext { container, context, .. } = OneContext::within(1 << 40);
    (0..3).for_each(|_| assert_eq!(context.memory(512 * GIB), Err(Status::NO_MEMORY)));
    let [(text, 1)] = &told(&container)[..] else { panic!("told once") };
    assert!(text.starts_with("the driver itself refused NV_ESC_RM_ALLOC of NV01_MEMORY_LOCAL_USER"), "{text}");
    assert_eq!(container.session.usage().refused_by_driver, 3);
}

#[test]
fn what_is_told_otherwise_or_is_no_want_is_not_told() {
    let OneContext { container, context, .. } = OneContext::within(GIB);
    assert_eq!(context.memory(2 * GIB), Err(Status::NO_MEMORY));
    assert_eq!(lock(&container.observed.over_memory).len(), 1, "over its quota: told as that");
    // Answered as if the table were full.
    let full = context.subdevice_control(NV9096_CTRL_CMD_SET_ZBC_COLOR_CLEAR, &mut [0; 4]);
    assert_eq!(full, Err(Status::INSUFFICIENT_RESOURCES));
    assert_eq!(context.object(0xdead, &mut [0; 4]), Err(Status::INVALID_CLASS));
    assert_eq!(told(&container), []);
    let usage = container.session.usage();
    assert_eq!((usage.refused_by_bounds, usage.refused_by_driver), (0, 0));
}
