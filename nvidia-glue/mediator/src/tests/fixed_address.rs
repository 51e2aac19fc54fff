//! Memory of a card at an address that the program chooses
//! (`NVOS32_ALLOC_FLAGS_FIXED_ADDRESS_ALLOCATE`): the driver takes whole multiples of the alignment
//! that is asked for, and says the size that was asked for. In a range that it chooses
//! (`_USE_BEGIN_END`): any frame can be held open.

use abi::{
    Status,
    classes::NV01_MEMORY_LOCAL_USER,
    layout::{write_u32, write_u64},
};

use super::{
    alone::OneContext,
    world::{Context, MIB, memory_params},
};

/// `FIXED_ADDRESS_ALLOCATE`, the same with `ALIGNMENT_FORCE`, with which a piece takes as much as
/// its alignment, and `USE_BEGIN_END`.
const FIXED: [u32; 3] = [0x10, 0x110, 0x2_0000];
const VIRTUAL: u32 = 0x8_0000;
/// `NVOS32_ATTR_LOCATION`; with this call, `ANY` is host memory.
const CARD: u32 = 0;
const HOST: u32 = 1 << 25;
const ANYWHERE: u32 = 3 << 25;

/// A function of `NV_ESC_RM_VID_HEAP_CONTROL` that allocates: its number, where its attributes are,
/// and its size.
type Function = (u32, usize, usize);
/// `NVOS32_FUNCTION_ALLOC_SIZE`, `_ALLOC_SIZE_RANGE`.
const FUNCTIONS: [Function; 2] = [(2, 56, 88), (14, 56, 80)];

fn heap(context: &Context, (function, attr_at, size_at): Function, flags: u32, attr: u32) -> Result<(), Status> {
    context.heap(function, &[(40, context.client), (52, flags), (attr_at, attr)], &[(size_at, 64 << 10)]).map(drop)
}

#[test]
fn memory_at_a_fixed_address_is_refused_before_the_driver() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    for flags in FIXED {
        let mut params = memory_params(64 << 10);
        assert!(write_u32(&mut params, 8, flags) && write_u64(&mut params, 72, 64 * MIB));
        spy.escapes(0);
        assert_eq!(context.object(NV01_MEMORY_LOCAL_USER, &mut params), Err(Status::INVALID_ARGUMENT), "{flags:#x}");
        assert_eq!(spy.escapes(0x2b), Vec::<Vec<u8>>::new(), "{flags:#x}");
        // Nor is it asked by the old heap call.
        for function in FUNCTIONS {
            let answer = heap(&context, function, flags, CARD);
            assert_eq!(answer, Err(Status::INVALID_ARGUMENT), "{function:?} {flags:#x}");
            assert_eq!(spy.escapes(0x4a), Vec::<Vec<u8>>::new(), "{function:?} {flags:#x}");
        }
    }
    assert_eq!(container.used(0), 0);
}

/// The flag is refused on a card's memory, and nowhere else: graphics drivers place addresses where
/// they like.
#[test]
fn addresses_and_memory_of_the_hosts_may_be_fixed() {
    let OneContext { context, .. } = OneContext::within(MIB);
    for function in FUNCTIONS {
        assert_eq!(heap(&context, function, 0, CARD), Ok(()), "{function:?}");
        assert_eq!(heap(&context, function, FIXED[0] | VIRTUAL, CARD), Ok(()), "{function:?}");
        for attr in [HOST, ANYWHERE] {
            assert_eq!(heap(&context, function, FIXED[0], attr), Ok(()), "{function:?} {attr:#x}");
        }
    }
}
