//! Any bytes as a driver call: decoding never panics, and what the tables say of a call lies within
//! its bytes.
#![no_main]

use abi::{
    Abi, Call, DriverRelease, Node, Status, classes::ClassKind, controls::rule_of, decode, memory::MemoryRequest,
};
use libfuzzer_sys::fuzz_target;

// A node (1 byte), a driver's major (2 bytes) and minor (1), a command (4), and the argument
// struct; nvidia-glue's tests read the seeds in the same way. The parameters of an allocation or a
// control are tried with the same bytes again.
fuzz_target!(|input: &[u8]| {
    let Some((head, args)) = input.split_at_checked(8) else { return };
    let &[node, major_low, major_high, minor, c0, c1, c2, c3] = head else { return };
    let node = [Node::Control, Node::Card(0), Node::Uvm][usize::from(node % 3)];
    let major = u16::from_le_bytes([major_low, major_high]);
    let abi = Abi::nearest(DriverRelease::new(major, u16::from(minor), 0));
    let command = u32::from_le_bytes([c0, c1, c2, c3]);
    let Ok(decoded) = decode(abi, node, command, args) else { return };

    let row = decoded.row;
    assert!(row.size() <= args.len());
    for pointer in row.pointers() {
        assert!(usize::from(pointer.at) + 8 <= row.size());
        let _ = (pointer.address(args), pointer.length.of(args));
    }
    for descriptor in row.descriptors() {
        assert!(usize::from(descriptor.at) + 4 <= row.size());
        let _ = descriptor.number(args);
    }
    let mut answer = args.to_vec();
    if row.set_status(&mut answer, Status::NO_MEMORY) {
        assert_eq!(row.status(&answer), Some(Status::NO_MEMORY));
    }
    match decoded.call {
        Call::Alloc(alloc) => {
            assert!(alloc.buffer_size() <= 4096);
            let is_memory = alloc.class().is_some_and(|class| class.kind == ClassKind::VideoMemory);
            if let Some(request) = MemoryRequest::of_params(args).filter(|_| is_memory) {
                assert!(request.rounded_size() >= request.size);
            }
        }
        Call::Control(control) => {
            let _ = rule_of(control.id);
            if let Some(row) = control.row() {
                for pointer in row.pointers_in(abi) {
                    let length = pointer.length.of(args);
                    assert!(length.is_none_or(|length| length <= 1 << 20));
                }
            }
        }
        _ => {}
    }
});
