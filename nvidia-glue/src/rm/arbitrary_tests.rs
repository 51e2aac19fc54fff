//! Whatever bytes come, nothing panics, and what the rows say lies within the bytes.

use proptest::prelude::*;

use super::{classes::class, controls::rule_of, decode::*, layout::Length, memory::*, *};

fn release() -> impl Strategy<Value = Abi> {
    (525_u16..=595, 0_u16..300, 0_u16..60)
        .prop_map(|(major, minor, patch)| Abi::nearest(DriverRelease::new(major, minor, patch)))
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![Just(Node::Control), Just(Node::Card(0)), Just(Node::Uvm)]
}

/// Any command, and often one of the driver's.
fn command() -> impl Strategy<Value = u32> {
    let size =
        prop_oneof![Just(16_u32), Just(28), Just(32), Just(40), Just(48), Just(56), Just(64), Just(184), 0_u32..16384];
    let own =
        (any::<u8>(), size).prop_map(|(number, size)| 3 << 30 | size << 16 | u32::from(b'F') << 8 | u32::from(number));
    prop_oneof![any::<u32>(), own, 20_u32..90, 0x3000_0001_u32..=0x3000_0002]
}

proptest! {
    #[test]
    fn decoding_arbitrary_bytes(abi in release(), node in node(), command in command(), mut args in prop::collection::vec(any::<u8>(), 0..9300)) {
        if let Ok(decoded) = decode(abi, node, command, &args) {
            let row = decoded.row;
            prop_assert!(row.size() <= args.len());
            for pointer in row.pointers() {
                let _ = (pointer.address(&args), pointer.length.of(&args));
                prop_assert!(usize::from(pointer.at) + 8 <= row.size());
            }
            for descriptor in row.descriptors() {
                let _ = descriptor.number(&args);
            }
            if row.set_status(&mut args, Status::NO_MEMORY) {
                prop_assert_eq!(row.status(&args), Some(Status::NO_MEMORY));
            }
            match decoded.call {
                Call::Alloc(alloc) => {
                    let _ = alloc.class();
                    prop_assert!(alloc.buffer_size() <= 4096);
                }
                Call::Control(control) => {
                    let _ = (control.row(), rule_of(control.id));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn parameters_of_any_length(bytes in prop::collection::vec(any::<u8>(), 0..400), id in any::<u32>(), at in any::<u16>(), element in any::<u32>(), most in any::<u32>()) {
        if let Some(request) = MemoryRequest::of_params(&bytes) {
            prop_assert!(request.rounded_size() >= request.size);
            let rounded = request.rounded_size();
            prop_assert!(rounded == u64::MAX || rounded.is_multiple_of(GRANULE));
        }
        let _ = (device_instance(&bytes), device_other_clients(&bytes), channel_engine(&bytes), channel_group_engine(&bytes));
        let _ = (EventParams::of_params(&bytes), class(id), rule_of(id));
        let _ = Length::Squared { at, element, most }.of(&bytes);
        for width in [layout::Width::U8, layout::Width::U16, layout::Width::U32, layout::Width::U64] {
            if let Some(length) = (Length::Counted { at, width, element, most }).of(&bytes) {
                prop_assert!(u64::try_from(length).unwrap() <= u64::from(most) * u64::from(element));
            }
        }
    }
}
