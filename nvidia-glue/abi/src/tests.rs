use super::{
    classes::{CLASSES, Class, ClassKind, EngineKind, class, classes},
    decode::*,
    escapes::{Action, ESCAPES, escape},
    layout::write_u32,
    memory::{HeapMemory, MemoryRequest},
    uvm::{UVM_COMMANDS, UvmRule},
    *,
};

fn abi(major: u16, minor: u16, patch: u16) -> Abi {
    Abi::of(DriverRelease::new(major, minor, patch)).unwrap()
}

/// One release of each branch whose structs were measured.
fn releases() -> Vec<Abi> {
    [
        (525, 60, 13),
        (525, 147, 5),
        (530, 41, 3),
        (535, 54, 3),
        (535, 288, 1),
        (545, 29, 6),
        (550, 40, 7),
        (550, 54, 14),
        (555, 58, 2),
        (560, 35, 3),
        (565, 77, 0),
        (570, 86, 15),
        (570, 211, 1),
        (575, 64, 5),
        (580, 65, 6),
        (580, 159, 4),
        (590, 48, 1),
        (595, 45, 4),
    ]
    .into_iter()
    .map(|(major, minor, patch)| abi(major, minor, patch))
    .collect()
}

fn iowr(number: u8, size: usize) -> u32 {
    3 << 30 | u32::try_from(size).unwrap() << 16 | u32::from(b'F') << 8 | u32::from(number)
}

fn put(args: &mut [u8], fields: &[(usize, u32)]) {
    for (at, value) in fields {
        assert!(write_u32(args, *at, *value));
    }
}

/// Returns the offset of a call's status; `None` when the release does not take that size.
fn status_at(abi: Abi, number: u8, size: usize) -> Option<usize> {
    let node = if number == 0x27 { Node::Card(0) } else { Node::Control };
    row(abi, node, iowr(number, size)).ok().and_then(|row| row.status_at())
}

#[test]
fn status_offsets_of_escapes_are_those_of_the_release() {
    for (release, number, size, at) in [
        // NVOS21: the same size, another offset.
        (abi(525, 60, 13), 0x2b, 32, Some(24)),
        (abi(530, 41, 3), 0x2b, 32, Some(24)),
        (abi(535, 54, 3), 0x2b, 32, Some(28)),
        (abi(595, 45, 4), 0x2b, 32, Some(28)),
        // NVOS64 grew.
        (abi(530, 41, 3), 0x2b, 40, Some(36)),
        (abi(530, 41, 3), 0x2b, 48, None),
        (abi(535, 54, 3), 0x2b, 48, Some(40)),
        (abi(535, 54, 3), 0x2b, 40, None),
        // NVOS46, NVOS47.
        (abi(575, 64, 5), 0x57, 56, Some(48)),
        (abi(575, 64, 5), 0x57, 64, None),
        (abi(580, 65, 6), 0x57, 64, Some(56)),
        (abi(545, 29, 6), 0x58, 40, Some(32)),
        (abi(550, 54, 14), 0x58, 48, Some(40)),
        (abi(550, 54, 14), 0x58, 40, None),
        // dma-buf.
        (abi(565, 77, 0), 0xd9, 2600, Some(2592)),
        (abi(570, 86, 15), 0xd9, 2608, Some(2600)),
        // The same everywhere.
        (abi(525, 60, 13), 0x2a, 32, Some(28)),
        (abi(595, 45, 4), 0x2a, 32, Some(28)),
        (abi(595, 45, 4), 0x29, 16, Some(12)),
        (abi(595, 45, 4), 0x34, 28, Some(24)),
        (abi(595, 45, 4), 0x35, 24, Some(20)),
        (abi(595, 45, 4), 0x4a, 184, Some(20)),
        (abi(595, 45, 4), 0x4e, 56, Some(40)),
        (abi(595, 45, 4), 0x27, 56, Some(40)),
    ] {
        assert_eq!(status_at(release, number, size), at, "{} {number:#x} of {size}", release.release());
    }
}

#[test]
fn uvm_structs_are_those_of_the_release() {
    for (release, command, size, at) in [
        (abi(525, 60, 13), 33, 1200, 1196),
        (abi(550, 40, 7), 33, 1200, 1196),
        (abi(550, 54, 14), 33, 9264, 9260),
        (abi(595, 45, 4), 33, 9264, 9260),
        (abi(580, 159, 4), 34, 24, 16),
        (abi(590, 44, 1), 34, 16, 8),
        (abi(580, 159, 4), 28, 28, 24),
        (abi(590, 44, 1), 28, 12, 8),
        (abi(545, 29, 6), 42, 40, 32),
        (abi(550, 54, 14), 42, 40, 36),
        (abi(545, 29, 6), 68, 1184, 1176),
        (abi(550, 54, 14), 68, 9248, 9240),
        (abi(580, 159, 4), 37, 40, 36),
    ] {
        let row = row(release, Node::Uvm, command).unwrap();
        assert_eq!((row.size(), row.status_at()), (size, Some(at)), "{} {command}", release.release());
    }
    assert!(row(abi(525, 60, 13), Node::Uvm, 75).is_err(), "MM_INITIALIZE came with 535");
    assert!(row(abi(595, 45, 4), Node::Uvm, 54).is_err(), "SYSTEM_WIDE_ATOMICS went with 595");
    assert!(row(abi(595, 45, 4), Node::Uvm, 22).is_err());
}

#[test]
fn no_release_has_two_structs_of_one_size_and_fields_lie_within() {
    for release in releases() {
        for escape in ESCAPES {
            let mut sizes: Vec<u16> = escape
                .layouts
                .iter()
                .filter(|layout| layout.releases.contain(release))
                .map(|layout| layout.size)
                .collect();
            let all = sizes.len();
            sizes.sort_unstable();
            sizes.dedup();
            assert_eq!(sizes.len(), all, "{} in {}", escape.name, release.release());
        }
        for command in UVM_COMMANDS {
            let fitting = command.layouts.iter().filter(|layout| layout.releases.contain(release)).count();
            assert!(fitting <= 1, "{} in {}", command.name, release.release());
        }
    }
    for escape in ESCAPES {
        for layout in escape.layouts {
            assert!(layout.status.is_none_or(|at| at + 4 <= layout.size), "{}", escape.name);
            assert!(layout.pointers.iter().all(|pointer| pointer.at + 8 <= layout.size), "{}", escape.name);
            assert!(layout.descriptors.iter().all(|descriptor| descriptor.at + 4 <= layout.size), "{}", escape.name);
        }
    }
    for command in UVM_COMMANDS {
        for layout in command.layouts {
            assert!(layout.status.is_none_or(|at| at + 4 <= layout.size), "{}", command.name);
            assert!(layout.descriptors.iter().all(|descriptor| descriptor.at + 4 <= layout.size), "{}", command.name);
        }
    }
}

fn strictly_rising<T: PartialOrd + std::fmt::Debug>(values: impl Iterator<Item = T>) {
    let values: Vec<T> = values.collect();
    for pair in values.windows(2) {
        assert!(pair[0] < pair[1], "{:?} before {:?}", pair[0], pair[1]);
    }
}

#[test]
fn tables_have_each_number_once() {
    strictly_rising(ESCAPES.iter().map(|escape| escape.number));
    strictly_rising(CLASSES.iter().map(|class| class.id));
    strictly_rising(UVM_COMMANDS.iter().map(|command| command.command));
    for row in classes() {
        assert_eq!(class(row.id), Some(row), "{:#x} is found", row.id);
    }
    for escape in ESCAPES {
        assert!(escape.name.starts_with("NV_ESC_") && !escape.what.is_empty(), "{:#x}", escape.number);
    }
    for command in UVM_COMMANDS {
        assert!(command.name.starts_with("UVM_") && !command.header.is_empty(), "{}", command.command);
    }
}

/// Whatever names an object, or begins or ends what keeps memory, is never left to the kernel: a
/// racing thread could change its struct after the check. Only this short list of escapes is, and
/// of UVM what works on the caller's own pages.
#[test]
fn what_decides_is_never_continued() {
    let continued: Vec<u8> = ESCAPES
        .iter()
        .filter(|escape| matches!(escape.action, Action::Continue(_)))
        .map(|escape| escape.number)
        .collect();
    assert_eq!(continued, [0x27, 0x52, 0xd6, 0xd7, 0xda]);
    for command in [25, 26, 27, 28, 33, 34, 37, 38, 66, 68, 73] {
        let row = uvm::uvm_command(command).unwrap();
        assert_eq!(row.rule, UvmRule::Execute, "{}", row.name);
    }
    for command in UVM_COMMANDS {
        let names_a_client = command.layouts.iter().any(|layout| !layout.descriptors.is_empty());
        let may = command.command == 75 || !matches!(command.rule, UvmRule::Continue(_));
        assert!(!names_a_client || may, "{} names a client or a file", command.name);
    }
    assert!(matches!(escape(0xd3).unwrap().action, Action::Refuse(..)), "XFER carries any call");
}

fn kind(id: u32) -> ClassKind {
    class(id).map(|class| class.kind).unwrap()
}

#[test]
fn classes_that_hold_memory_are_known_as_such() {
    assert_eq!(kind(0x40), ClassKind::VideoMemory);
    assert_eq!(kind(0x3e), ClassKind::SystemMemory);
    assert_eq!(kind(0x50a0), ClassKind::VirtualMemory);
    assert_eq!(kind(0x70), ClassKind::VirtualMemory);
    assert_eq!(kind(0x90f1), ClassKind::AddressSpace);
    assert_eq!(kind(0xa06c), ClassKind::ChannelGroup);
    assert_eq!(kind(0xc96f), ClassKind::Channel);
    assert_eq!(kind(0xcbc0), ClassKind::Engine(EngineKind::Compute));
    assert_eq!(kind(0xde), ClassKind::UserSharedData);
    for id in [
        0x3f, 0x42, 0x71, 0x81, 0x82, 0x83, 0xc2, 0xe0, 0xf3, 0xf9, 0xfb, 0xfd, 0xfe, 0x5080, 0x90cd, 0x0004, 0x9074,
        0x90cc,
    ] {
        assert!(matches!(kind(id), ClassKind::Refused(..)), "{id:#x}");
    }
    for id in [0xc639, 0xc640] {
        assert!(matches!(kind(id), ClassKind::Answered(Status::INSUFFICIENT_PERMISSIONS, _)), "{id:#x}");
    }
    assert_eq!(class(0x1234), None);
    let channels = CLASSES.iter().filter(|class| class.kind == ClassKind::Channel).count();
    assert_eq!(channels, CLASSES.iter().filter(|Class { id, .. }| id & 0xff == 0x6f && *id > 0x1000).count());
}

/// So far NVIDIA's numbers say it: a row that says otherwise wants a second look.
#[test]
fn the_last_two_digits_of_a_class_tell_its_engine() {
    for row in CLASSES {
        let ClassKind::Engine(kind) = row.kind else { continue };
        let expected = match row.id & 0xff {
            0x97 => EngineKind::Graphics,
            0xc0 => EngineKind::Compute,
            0x2d => EngineKind::TwoD,
            0x40 => EngineKind::InlineToMemory,
            0xb5 => EngineKind::Copy,
            _ => EngineKind::Video,
        };
        assert_eq!(kind, expected, "{}", row.name);
    }
}

/// Reasons why objects of classes that nothing is decided about may be made.
pub(super) const PLAIN: &[(&str, &[u32])] = &[
    (
        "what questions about the card are asked on; each is judged by itself",
        &[0x0073, 0x208f, 0x9096, 0x90e6, 0x90e7, 0xcb33],
    ),
    ("what questions to the card's firmware are asked on, which knows who is no administrator", &[0x2081]),
    ("switches what a display shows, from a channel; cards for computing have none", &[0x9072]),
    ("holds the figures of the caller's own video session", &[0xa0bc, 0xa0bd]),
    (
        "the doorbell, which has the card look for work in a channel: there is none in another's that its owner has not put there",
        &[0xc361, 0xc461, 0xc561, 0xc661, 0xc761],
    ),
];

/// Rows are all that has the bytes of a struct that no code reads.
#[test]
fn classes_of_one_kind_have_parameters_of_one_size() {
    let rows = || {
        let decided = CLASSES.iter().filter(|row| !matches!(row.kind, ClassKind::Plain | ClassKind::Answered(..)));
        // NV01_MEMORY_VIRTUAL and HOPPER_SEC2_WORK_LAUNCH_A have others.
        decided.filter(|row| !matches!(row.id, 0x0070 | 0xcba2))
    };
    for row in rows() {
        let first = rows().find(|first| first.kind == row.kind).unwrap();
        assert_eq!(row.params_size, first.params_size, "{} and {}", row.name, first.name);
    }
}

#[test]
fn classes_that_nothing_is_decided_about_have_a_reason() {
    let plain: Vec<u32> = CLASSES.iter().filter(|class| class.kind == ClassKind::Plain).map(|class| class.id).collect();
    let mut explained: Vec<u32> = PLAIN.iter().flat_map(|(_, ids)| *ids).copied().collect();
    explained.sort_unstable();
    assert_eq!(plain, explained);
}

#[test]
fn allocations_are_read_in_all_their_structs() {
    for (release, size, said) in
        [(abi(525, 60, 13), 32, 0), (abi(525, 60, 13), 40, 0), (abi(580, 159, 4), 32, 120), (abi(580, 159, 4), 48, 120)]
    {
        let mut args = vec![0; size];
        put(&mut args, &[(0, 0xc1d0_0001), (4, 0x5c00_0001), (8, 0x5c00_0002), (12, 0x40), (16, 0x1000), (20, 0x7fff)]);
        match (release.release().major, size) {
            (580, 32) => put(&mut args, &[(24, 120)]),
            (580, _) => put(&mut args, &[(24, 8), (32, 120)]),
            (_, 40) => put(&mut args, &[(24, 8)]),
            _ => {}
        }
        let decoded = decode(release, Node::Control, iowr(0x2b, size), &args).unwrap();
        let Call::Alloc(alloc) = decoded.call else { panic!("{:?}", decoded.call) };
        assert_eq!(
            (alloc.client, alloc.parent, alloc.object),
            (Handle(0xc1d0_0001), Handle(0x5c00_0001), Handle(0x5c00_0002))
        );
        assert_eq!((alloc.class, alloc.params, alloc.said_params_size), (0x40, 0x7fff_0000_1000, said));
        assert_eq!(alloc.rights, if size == 32 { 0 } else { 8 });
        assert_eq!(alloc.buffer_size(), 128, "the largest release's, whatever the caller says");

        assert!(decoded.row.set_status(&mut args, Status::NO_MEMORY));
        assert_eq!(decoded.row.status(&args), Some(Status::NO_MEMORY));
    }
}

#[test]
fn serialized_parameters_are_refused() {
    for (release, number, size, flags_at, flag) in
        [(abi(525, 60, 13), 0x2b, 40, 32, 1), (abi(580, 159, 4), 0x2b, 48, 36, 1), (abi(580, 159, 4), 0x2a, 32, 12, 4)]
    {
        let mut args = vec![0; size];
        put(&mut args, &[(flags_at, flag)]);
        let answer = decode(release, Node::Control, iowr(number, size), &args);
        let status_at = status_at(release, number, size).unwrap();
        assert!(matches!(answer, Err(Undecodable::Serialized { status_at: at, .. }) if at == status_at), "{answer:?}");
    }
}

#[test]
fn calls_are_taken_only_where_the_driver_takes_them() {
    let release = abi(580, 159, 4);
    let wrong = |node, command| row(release, node, command).unwrap_err();
    assert!(matches!(wrong(Node::Card(0), iowr(0x2a, 32)), Undecodable::WrongNode { .. }));
    assert!(matches!(wrong(Node::Control, iowr(0x27, 56)), Undecodable::WrongNode { .. }));
    assert!(matches!(wrong(Node::Control, iowr(0x2a, 33)), Undecodable::WrongSize { size: 33, .. }));
    assert!(matches!(wrong(Node::Control, 33), Undecodable::Unknown { .. }), "UVM's number on another node");
    assert!(matches!(wrong(Node::Uvm, iowr(0x2a, 32)), Undecodable::Unknown { .. }));
    let foreign_type = iowr(0x2b, 48) & !0xff00 | u32::from(b'Q') << 8;
    assert!(matches!(wrong(Node::Control, foreign_type), Undecodable::Unknown { .. }));
    assert_eq!(row(release, Node::Control, iowr(0xc8, 72 * 32)).unwrap().size(), 72 * 32, "an array");
    assert!(row(release, Node::Control, iowr(0xc8, 0)).is_err());
}

#[test]
fn video_heap_control_is_decoded_by_function() {
    let release = abi(580, 159, 4);
    let read = |fields: &[(usize, u32)]| {
        let mut args = vec![0; 184];
        put(&mut args, &[(0, 1), (4, 2)]);
        put(&mut args, fields);
        match decode(release, Node::Control, iowr(0x4a, 184), &args).unwrap().call {
            Call::VidHeap(heap) => heap.function,
            other => panic!("{other:?}"),
        }
    };
    let size = |function| match function {
        VidHeapFunction::Alloc(VidHeapAlloc { request, size_at, .. }) => (request.size, request.attr2, size_at),
        other => panic!("{other:?}"),
    };
    assert_eq!(size(read(&[(8, 2), (88, 4096), (144, 7)])), (4096, 7, 88));
    assert_eq!(size(read(&[(8, 6), (56, 100), (60, 256), (144, 7)])), (25600, 7, 88), "pitch times height");
    assert_eq!(size(read(&[(8, 6), (56, 100), (60, 256), (88, 1 << 30)])), (25600, 0, 88), "whatever the size says");
    assert_eq!(size(read(&[(8, 14), (80, 4096), (136, 7)])), (4096, 7, 80));
    assert_eq!(read(&[(8, 3), (44, 9)]), VidHeapFunction::Free { memory: Handle(9) });
    assert_eq!(read(&[(8, 5)]), VidHeapFunction::Info);
    for function in [0, 1, 4, 7, 19, 20, 27, 99] {
        assert_eq!(read(&[(8, function)]), VidHeapFunction::Refused(function));
    }
}

#[test]
fn external_mappings_are_read_at_the_end_of_the_struct() {
    for (release, size, at) in [(abi(545, 29, 6), 1200, 1184), (abi(580, 159, 4), 9264, 9248)] {
        let mut args = vec![0; size];
        put(&mut args, &[(0, 0x20_0000), (8, 0x1000), (16, 64), (at, 5), (at + 4, 6), (at + 8, 7)]);
        let decoded = decode(release, Node::Uvm, 33, &args).unwrap();
        let range = Range { base: 0x20_0000, length: 0x1000 };
        let memory = UvmMemory { range, offset: 64, control_fd: 5, client: Handle(6), memory: Handle(7) };
        assert_eq!(decoded.call, Call::Uvm(UvmCall::MapExternal(memory)));
        assert_eq!(decoded.row.descriptors().first().unwrap().number(&args), Some(5));
    }
}

#[test]
fn requests_are_rounded_to_the_page_that_the_driver_will_take() {
    const MIB: u64 = 1 << 20;
    let request = |attr: u32, attr2: u32, size: u64| MemoryRequest { flags: 0, attr, attr2, size };
    let huge = 3 << 23;
    for (what, request, rounded) in [
        ("small", request(0, 0, 1), 64 << 10),
        ("CUDA's 4 MiB and a bit", request(0, 0, 4_325_376), 6 * MIB),
        ("huge by default", request(huge, 0, 4096), 2 * MIB),
        ("512 MiB pages", request(huge, 2 << 20, 4096), 512 * MIB),
        ("256 GiB pages", request(huge, 3 << 20, 4096), 256 << 30),
        ("4 KiB pages are still handed out in granules", request(1 << 23, 0, 4096), 64 << 10),
        ("no multiple", request(0, 0, u64::MAX), u64::MAX),
        ("nothing", request(0, 0, 0), 0),
    ] {
        assert_eq!(request.rounded_size(), rounded, "{what}");
    }
    for (attr, attr2, made) in [
        (0, 0, HeapMemory::Video),
        (1 << 25, 0, HeapMemory::System),
        (2 << 25, 0, HeapMemory::System),
        (3 << 25, 0, HeapMemory::System),
        (0, 1 << 24, HeapMemory::Extended),
    ] {
        assert_eq!(request(attr, attr2, 1).heap_memory(), made, "{attr:#x} {attr2:#x}");
        let virtually = MemoryRequest { flags: 0x8_0000, ..request(attr, attr2, 1) };
        assert_eq!(virtually.heap_memory(), HeapMemory::Virtual);
    }
    assert_eq!(request(1 << 25, 0, 4096).host_size(), 4096);
    assert_eq!(request(1 << 25 | 3 << 23, 2 << 20, 4096).host_size(), 512 << 20);
}
