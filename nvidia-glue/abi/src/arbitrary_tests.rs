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
        let _ = (device_instance(&bytes), device_other_clients(&bytes), channel_engine(&bytes));
        let _ = (EventParams::of_params(&bytes), class(id), rule_of(id));
        let _ = Length::Squared { at, element, most }.of(&bytes);
        for width in [layout::Width::U8, layout::Width::U16, layout::Width::U32, layout::Width::U64] {
            if let Some(length) = (Length::Counted { at, width, element, most }).of(&bytes) {
                prop_assert!(u64::try_from(length).unwrap() <= u64::from(most) * u64::from(element));
            }
        }
    }
}

/// The fuzzer's seeds (fuzz/seeds/decode; fuzz/fuzz_targets/decode.rs says how one is read) are
/// whole calls, and remain so.
#[test]
fn seeds_of_the_fuzzer_are_calls() {
    let mut seen = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/decode")).unwrap() {
        let path = entry.unwrap().path();
        let input = std::fs::read(&path).unwrap();
        let (head, args) = input.split_at(8);
        let node = [Node::Control, Node::Card(0), Node::Uvm][usize::from(head[0])];
        let abi = Abi::of(DriverRelease::new(u16::from_le_bytes([head[1], head[2]]), u16::from(head[3]), 0)).unwrap();
        let command = u32::from_le_bytes(head[4..].try_into().unwrap());
        let decoded = decode(abi, node, command, args).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(decoded.row.size(), args.len(), "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 30, "{seen} seeds");
}
