//! Managed memory that a program has freed, when it asks what is free.

use std::{sync::Arc, time::Duration};

use abi::{controls::NV2080_CTRL_CMD_FB_GET_INFO_V2, layout::read_u32};

use super::world::{Container, Context, MIB, Machine, words};
use crate::{Answer, clock::tests::TestClock};

const LIMIT: u64 = 64 * MIB;
const AT: u64 = 0x7f00_0000_0000;

/// A container whose clock the test moves.
fn container(machine: &Machine) -> (Arc<Container>, TestClock) {
    let (mut container, clock) = (machine.container(&[0], LIMIT), TestClock::default());
    container.looks_cost(&clock, Duration::ZERO);
    (container, clock)
}

/// Bytes that the driver says are free (`NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE`), as `cudaMemGetInfo`
/// asks.
fn free(context: &Context) -> u64 {
    let mut params = words(&[1, 0x16]);
    params.resize(1028, 0);
    context.subdevice_control(NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut params).unwrap();
    u64::from(read_u32(&params, 8).unwrap()) << 10
}

#[test]
fn what_was_freed_is_told_as_free_at_once() {
    let machine = Machine::new(1);
    let (container, clock) = container(&machine);
    let (program, other) = (container.program(), container.program());
    let context = program.context(0);
    let total = free(&context);
    for (whose, at) in [(&program, AT), (&program, AT + LIMIT), (&other, AT)] {
        let uvm = whose.uvm_file();
        assert_eq!(whose.mmap(uvm, at, 16 * MIB, at), Answer::Continue);
        whose.map_uvm(at, 16 * MIB);
    }
    assert_eq!(free(&context), total - 48 * MIB);
    clock.work(Duration::from_millis(5));
    program.unmap_uvm(AT);
    other.unmap_uvm(AT);
    assert_eq!(free(&context), total - 32 * MIB, "its own; what others have stays until the next scan");
    // One that asks all the time is looked at now and then.
    program.unmap_uvm(AT + LIMIT);
    assert_eq!(free(&context), total - 32 * MIB);
    clock.work(Duration::from_millis(5));
    assert_eq!(free(&context), total - 16 * MIB);
    // The thread comes back from its mmap with another call.
    other.context(0);
    assert_eq!(container.session.reconcile(), []);
    assert_eq!(free(&context), total);
}

/// A process can make the kernel wait with what it has mapped.
#[test]
fn who_asks_waits_for_no_scan() {
    let machine = Machine::new(1);
    let (container, _) = container(&machine);
    let program = container.program();
    let context = program.context(0);
    let uvm = program.uvm_file();
    let total = free(&context);
    assert_eq!(program.mmap(uvm, AT, 16 * MIB, AT), Answer::Continue);
    program.map_uvm(AT, 16 * MIB);
    free(&context);
    program.unmap_uvm(AT);
    container.session.managed.while_scanning(|| assert_eq!(free(&context), total - 16 * MIB));
}
