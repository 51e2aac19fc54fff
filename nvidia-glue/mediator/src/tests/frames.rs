//! Little memory in many frames of 2 MiB, which nobody else can then have whole.

use abi::{
    Status,
    classes::{NV01_MEMORY_LOCAL_USER, NV50_MEMORY_VIRTUAL},
    layout::{read_u32, read_u64, write_u32, write_u64},
    memory::{FRAME, GRANULE, Layout},
};
use account::{Bound, Card, CardUsage};
use base::Bytes;

use super::{
    alone::{OneContext, OneProgram},
    world::{Container, Context, MIB, Machine, WHOLE, alloc_args, memory_params},
};
use crate::{Answer, locks::lock};

const LIMIT: u64 = 64 * MIB;
/// Frames that may be held open then: a sixty-fourth and 128 MiB more.
const MOST: u64 = (64 + 1 + 128) * MIB / FRAME;

/// `NVOS32_ATTR_PAGE_SIZE_BIG`, and each `NVOS32_ATTR_PHYSICALITY`.
const BIG_PAGES: u32 = 2 << 23;
const DEFAULT: u32 = 0;
const NONCONTIGUOUS: u32 = 1 << 27;
const CONTIGUOUS: u32 = 2 << 27;
const ALLOW_NONCONTIGUOUS: u32 = 3 << 27;

/// `ALIGNMENT_FORCE`, as libcuda has it beside other flags.
const ALIGNED: u32 = 0x1c101;

fn piece(size: u64, attr: u32, alignment: u64) -> Vec<u8> {
    let mut params = memory_params(size);
    assert!(write_u32(&mut params, 8, ALIGNED) && write_u32(&mut params, 24, BIG_PAGES | attr));
    assert!(write_u64(&mut params, 72, alignment));
    params
}

fn usage(container: &Container) -> CardUsage {
    container.accounts().card(Card(0)).unwrap()
}

/// Makes pieces until one is refused, and says how many there are and how the last was refused.
fn until_refused(mut make: impl FnMut() -> Result<u32, Status>) -> (u64, Status) {
    let mut count = 0;
    loop {
        match make() {
            Ok(_) => count += 1,
            Err(status) => return (count, status),
        }
    }
}

/// Each is the first granule of another frame.
#[test]
fn small_pieces_in_frames_of_their_own_are_refused_at_the_bound() {
    for attr in [CONTIGUOUS, DEFAULT, ALLOW_NONCONTIGUOUS] {
        let OneContext { container, context, .. } = OneContext::within(LIMIT);
        let (count, status) =
            until_refused(|| context.object(NV01_MEMORY_LOCAL_USER, &mut piece(GRANULE, attr, FRAME)));
        assert_eq!((count, status), (MOST, Status::NO_MEMORY), "{attr:#x}");
        let usage = usage(&container);
        assert_eq!((usage.used.0, usage.frames.0), (count * GRANULE, count * FRAME));
        let told = lock(&container.observed.over_memory);
        let over = &told[0];
        assert_eq!((over.bound, over.asked, over.limit), (Bound::Frames, Bytes(FRAME), Bytes(193 * MIB)));
        assert_eq!(container.session.usage().denials, 1);
        // Where nobody looks at frames, what is left of the quota is to be had.
        assert!(usage.used.0 < LIMIT / 4);
    }
}

#[test]
fn nor_does_the_old_heap_call_make_more_of_them() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let (count, status) =
        until_refused(|| heap(&context, ALLOW_NONCONTIGUOUS).map(|args| read_u32(&args, 44).unwrap()));
    assert_eq!((count, status), (MOST, Status::NO_MEMORY));
    assert_eq!(usage(&container).frames.0, count * FRAME);
}

/// 64 KiB, at the beginning of a frame.
fn heap(context: &Context, attr: u32) -> Result<Vec<u8>, Status> {
    let words = [(40, context.client), (52, ALIGNED), (56, BIG_PAGES | attr)];
    context.heap(2, &words, &[(88, GRANULE), (96, FRAME)])
}

/// Nobody can tell where each granule of it is.
#[test]
fn scattered_memory_counts_at_its_worst() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    context.object(NV01_MEMORY_LOCAL_USER, &mut piece(90 * GRANULE, NONCONTIGUOUS, GRANULE)).unwrap();
    assert_eq!(usage(&container).frames.0, 90 * FRAME);
    assert_eq!(
        context.object(NV01_MEMORY_LOCAL_USER, &mut piece(7 * GRANULE, NONCONTIGUOUS, GRANULE)),
        Err(Status::NO_MEMORY)
    );
}

/// Memory that lies close to each other, as the driver has it where nobody asks for anything else,
/// fills the quota, however small it is.
#[test]
fn small_pieces_next_to_each_other_fill_the_quota() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let (count, status) = until_refused(|| context.memory(1));
    assert_eq!((count * GRANULE, status), (LIMIT, Status::NO_MEMORY));
    assert!(usage(&container).frames.0 <= LIMIT + FRAME);
    assert_eq!(lock(&container.observed.over_memory)[0].bound, Bound::Quota);
}

/// A frame is held open as long as anything in it is, by whatever name.
#[test]
fn a_frame_counts_until_the_last_piece_in_it_is_gone() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let pieces: Vec<u32> = (0..64).map(|_| context.memory(1).unwrap()).collect();
    let full = usage(&container).frames.0;
    let duplicate = context.dup(&context, pieces[0]).unwrap();
    for piece in &pieces[..63] {
        context.free(*piece).unwrap();
    }
    assert!((2 * FRAME..=3 * FRAME).contains(&full));
    assert_eq!((usage(&container).used.0, usage(&container).frames.0), (2 * GRANULE, 2 * FRAME));
    context.free(duplicate).unwrap();
    context.free(pieces[63]).unwrap();
    assert_eq!(usage(&container).frames.0, 0);
}

/// Small pages: the driver is left no choice that cannot be counted; where they are whole frames,
/// it may put each anywhere.
#[test]
fn memory_in_small_pages_is_contiguous_and_in_large_ones_what_was_asked() {
    const HUGE_PAGES: u32 = 3 << 23;
    let OneContext { spy, context, .. } = OneContext::new();
    for (attr, reaches) in [
        (BIG_PAGES, BIG_PAGES | CONTIGUOUS),
        (BIG_PAGES | ALLOW_NONCONTIGUOUS, BIG_PAGES | CONTIGUOUS),
        (BIG_PAGES | NONCONTIGUOUS, BIG_PAGES | NONCONTIGUOUS),
        (HUGE_PAGES | ALLOW_NONCONTIGUOUS, HUGE_PAGES | ALLOW_NONCONTIGUOUS),
        (ALLOW_NONCONTIGUOUS, ALLOW_NONCONTIGUOUS),
    ] {
        let mut params = memory_params(4 * MIB);
        assert!(write_u32(&mut params, 24, attr));
        context.object(NV01_MEMORY_LOCAL_USER, &mut params).unwrap();
        let seen = spy.last_params(0x40).unwrap();
        assert_eq!(read_u32(&seen, 24), Some(reaches), "{attr:#x}");
        assert_eq!(read_u64(&params, 64), Some(4 * MIB));
    }
    spy.escapes(0);
    heap(&context, ALLOW_NONCONTIGUOUS).unwrap();
    assert_eq!(read_u32(&spy.escapes(0x4a)[0], 56), Some(BIG_PAGES | CONTIGUOUS));
}

/// The driver would keep 64 MiB of the card for such memory alone.
#[test]
fn localized_memory_is_refused() {
    let OneContext { context, .. } = OneContext::within(LIMIT);
    for half in [1, 2] {
        let mut params = memory_params(GRANULE);
        assert!(write_u32(&mut params, 28, half << 29));
        assert_eq!(context.object(NV01_MEMORY_LOCAL_USER, &mut params), Err(Status::INVALID_ARGUMENT));
    }
}

/// A quota that is killed for is killed for at this bound, too.
#[test]
fn who_is_killed_at_the_quota_is_killed_at_this_bound() {
    let OneContext { container, program, context, .. } = OneProgram::killed_beyond(LIMIT).with_context();
    for _ in 0..MOST {
        context.object(NV01_MEMORY_LOCAL_USER, &mut piece(GRANULE, CONTIGUOUS, FRAME)).unwrap();
    }
    let params = program.put(&piece(GRANULE, CONTIGUOUS, FRAME));
    let mut args = alloc_args((context.client, context.device, 0), 0x40, params);
    assert_eq!(program.escape(context.control, 0x2b, &mut args), Answer::KillCaller);
    assert_eq!(lock(&container.observed.over_memory)[0].bound, Bound::Frames);
}

/// Page tables of addresses that are not reserved lazily, and the buffers of channel groups.
#[test]
fn what_the_driver_makes_for_itself_is_in_frames_too() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    context.object(NV50_MEMORY_VIRTUAL, &mut memory_params(512 * MIB)).unwrap();
    let tables = usage(&container);
    assert!(tables.used.0 > 2 * MIB);
    assert_eq!(tables.frames.0, Layout::Scattered.frames(tables.used.0));
    // Of copy engine 0.
    context.group(9);
    let both = usage(&container);
    assert_eq!((both.used.0 - tables.used.0, both.frames.0 - tables.frames.0), (256 << 10, 2 * FRAME));
}

/// A container that has a card alone keeps it from nobody.
#[test]
fn a_whole_card_has_no_such_bound() {
    let machine = Machine::new(1);
    assert_eq!(usage(&machine.container(&[0], WHOLE)).frames_limit, Bytes(u64::MAX));
    assert_eq!(usage(&machine.container(&[0], LIMIT)).frames_limit, Bytes(193 * MIB));
}
