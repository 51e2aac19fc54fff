//! Managed memory that a program has freed, when it asks what is free.

use std::time::Duration;

use abi::{controls::NV2080_CTRL_CMD_FB_GET_INFO_V2, layout::read_u32};

use super::{
    alone::OneProgram,
    world::{Context, MIB, words},
};

const LIMIT: u64 = 64 * MIB;
const AT: u64 = 0x7f00_0000_0000;

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
    let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
    let other = container.program();
    let context = program.context(0);
    let total = free(&context);
    for (whose, at) in [(&program, AT), (&program, AT + LIMIT), (&other, AT)] {
        let uvm = whose.uvm_file();
        whose.has_managed(uvm, at, 16 * MIB);
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
    let (_, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::ZERO);
    let context = program.context(0);
    let uvm = program.uvm_file();
    let total = free(&context);
    program.has_managed(uvm, AT, 16 * MIB);
    free(&context);
    program.unmap_uvm(AT);
    container.session.managed.while_scanning(|| assert_eq!(free(&context), total - 16 * MIB));
}
