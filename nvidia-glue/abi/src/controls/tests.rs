use super::*;

/// `src/nvidia` of the releases: see the module's documentation for how the list was made.
const POINTER_CONTROLS: &str = include_str!("pointer_controls.txt");

#[test]
fn every_control_with_a_pointer_is_described_or_refused() {
    let mut seen = 0;
    for line in POINTER_CONTROLS.lines() {
        let (id, name) = line.split_once(' ').unwrap();
        let id = u32::from_str_radix(id.strip_prefix("0x").unwrap(), 16).unwrap();
        let row = control(id).unwrap_or_else(|| panic!("{line} has no row"));
        let settled = !row.pointers.is_empty()
            || matches!(row.rule, ControlRule::Refuse(..))
            || row.rule == ControlRule::Schedule(ScheduleKind::DisableChannels);
        assert!(settled, "{name} would follow a pointer of the container's in the mediator");
        seen += 1;
    }
    assert_eq!(seen, 101, "the list is whole");
}

#[test]
fn rows_are_in_order_and_of_their_table() {
    for (number, table) in TABLES.into_iter().enumerate() {
        for pair in table.windows(2) {
            assert!(pair[0].id < pair[1].id, "{:#x} before {:#x}", pair[0].id, pair[1].id);
        }
        for row in table {
            assert_eq!(table_of(row.id), number, "{:#010x} is in the table where it is looked up", row.id);
        }
    }
    for row in controls() {
        assert_eq!(control(row.id), Some(row), "{:#010x} is found", row.id);
    }
}

#[test]
fn names_are_not_given_twice() {
    // These were renumbered between releases; most of the display's were.
    const RENUMBERED: [&str; 3] = [
        "NVB0CC_CTRL_CMD_INTERNAL_ALLOC_PMA_STREAM",
        "NV2080_CTRL_CMD_RUSD_GET_SUPPORTED_FEATURES",
        "NV2080_CTRL_CMD_GPU_PROCESS_POST_GC6_EXIT_TASKS",
    ];
    let mut names: Vec<&str> = controls().map(|row| row.name).collect();
    names.sort_unstable();
    for pair in names.windows(2) {
        let renumbered = pair[0].starts_with("NV0073_") || RENUMBERED.contains(&pair[0]);
        assert!(pair[0] != pair[1] || renumbered, "{} twice", pair[0]);
    }
}

#[test]
fn fields_lie_within_the_parameters() {
    for row in controls() {
        for pointer in row.pointers {
            let counted_at = match pointer.length {
                Length::Fixed(_) => 0,
                Length::Counted { at, .. } | Length::Squared { at, .. } => at,
            };
            assert!(counted_at + 4 <= row.least_params, "{}: the count", row.name);
            // The second list of P2P_CAPS came with a longer struct.
            assert!(pointer.at + 8 <= row.least_params || row.id == 0x127, "{}: pointer at {}", row.name, pointer.at);
        }
    }
}

/// A class of channels that is new has the controls of the others under numbers of its own.
#[test]
fn what_schedules_does_so_in_every_class() {
    use ScheduleKind::{Bind, Reset, ScheduleChannel, ScheduleGroup, SetTimeslice, Stop};
    let scheduled = [
        ("6C_CTRL_CMD_GPFIFO_SCHEDULE", ScheduleGroup, 1),
        ("6C_CTRL_CMD_BIND", Bind, 1),
        ("6C_CTRL_CMD_SET_TIMESLICE", SetTimeslice, 1),
        ("6F_CTRL_CMD_GPFIFO_SCHEDULE", ScheduleChannel, 6),
        ("6F_CTRL_CMD_BIND", Bind, 4),
        ("6F_CTRL_CMD_RESET_CHANNEL", Reset, 7),
        ("6F_CTRL_CMD_STOP_CHANNEL", Stop, 1),
    ];
    for (name, kind, least) in scheduled {
        let rows: Vec<_> = controls().filter(|row| row.name.ends_with(name)).collect();
        assert!(rows.len() >= least, "{name}");
        for row in rows {
            assert_eq!(row.rule, ControlRule::Schedule(kind), "{} {:#010x}", row.name, row.id);
        }
    }
    let refused = [
        "_SET_INTERLEAVE_LEVEL",
        "_RUNLIST",
        "SET_TPC_PARTITION_TABLE",
        "_SET_CHANNEL_PROPERTIES",
        "_SET_CHANNEL_HW_STATE",
        "_REALTIME",
        "SCHED_POLICY",
        "_INTERNAL_",
    ];
    for name in refused {
        let rows: Vec<_> = controls().filter(|row| row.name.contains(name)).collect();
        assert!(!rows.is_empty(), "{name}");
        for row in rows {
            assert!(matches!(row.rule, ControlRule::Refuse(..)), "{} {:#010x}", row.name, row.id);
        }
    }
}

#[test]
fn what_reveals_or_schedules_never_just_passes() {
    for (id, rule) in [
        (0x2080_1301, ControlRule::View(ViewKind::FbInfo)),
        (0x2080_1303, ControlRule::View(ViewKind::FbInfoV2)),
        (0x2080_018d, ControlRule::View(ViewKind::Pids)),
        (0x2080_018e, ControlRule::View(ViewKind::PidInfo)),
        (0x2080_2096, ControlRule::View(ViewKind::UtilSamples)),
        (0x0000_0201, ControlRule::View(ViewKind::AttachedIds)),
        (0x2080_110b, ControlRule::Schedule(ScheduleKind::DisableChannels)),
        (0xa06c_0103, ControlRule::Schedule(ScheduleKind::SetTimeslice)),
        (0xa06f_0103, ControlRule::Schedule(ScheduleKind::ScheduleChannel)),
        (0xc36f_0103, ControlRule::Schedule(ScheduleKind::ScheduleChannel)),
        (0x0000_0d04, ControlRule::Share),
        (0x0000_3d05, ControlRule::Export),
        (0x0000_3d0c, ControlRule::Import),
    ] {
        assert_eq!(rule_of(id), rule, "{id:#010x}");
    }
    for id in [
        0x0080_170f_u32,
        0x2080_111a,
        0xa06c_0107,
        0x2080_01a9,
        0x2080_01ac,
        0x0000_0b03,
        0x0000_3d0a,
        0x503c_0106,
        0xa06c_0201,
        0x2080_0a61,
        0xb06f_010d,
        0x00fd_0102,
        0x2080_130e,
        0x0041_0116,
        0x00da_0001,
        0x00da_0003,
        0x5080_0103,
        0x0080_1801,
        0x0080_1805,
        0x0080_1809,
        0x0080_180a,
        0x2080_0302,
        0x2080_0303,
        0x2080_0304,
        0x2080_0306,
        0x2080_0308,
        0x2080_1207,
        0x2080_120e,
        0x2080_1212,
        0x0000_012f,
        0x0000_013b,
        0x0000_0144,
        0x0000_0901,
        0x0000_0902,
        0x0000_3d02,
        0x0004_0110,
        0x0073_0109,
        0x0073_0154,
        0x0073_1373,
        0x0080_180c,
        0x0080_180e,
        0x0080_1810,
        0x00da_0005,
        0x2080_0401,
        0x2080_0402,
        0x2080_1102,
        0x2080_1209,
        0x2080_180e,
        0x2080_1827,
        0x2080_1828,
        0x2080_205d,
        0x2080_2213,
        0x2080_2502,
        0x2080_3041,
        0x2080_309b,
        0x2080_3120,
        0x2080_3122,
        0x9072_0101,
        0x9074_0101,
        0x9074_0102,
        0x9074_0103,
        0x9096_0101,
        0x9096_0102,
        0x9096_0104,
        0x9096_0105,
        0x90cc_0101,
        0x90cc_0102,
        0x90cc_0103,
        0x90cc_0301,
        0x90cc_0302,
        0xa06f_0108,
        0xa0bd_0101,
        0xb06f_010b,
        0xb06f_010e,
        0xb06f_010f,
        0xcb33_0109,
        0xcb33_010a,
    ] {
        assert!(matches!(rule_of(id), ControlRule::Refuse(..)), "{id:#010x}");
    }
}

/// Their rows are found by the words of the reason.
#[test]
fn the_calls_of_debuggers_and_profilers_are_reported() {
    assert_eq!(controls().filter(ControlRow::is_refused_to_tools).count(), 17);
}

#[test]
fn unknown_controls_are_refused_unless_they_go_to_the_firmware() {
    assert!(matches!(rule_of(0x2080_7f7f), ControlRule::Refuse(Status::NOT_SUPPORTED, _)));
    assert_eq!(rule_of(0x2080_852e), ControlRule::Pass);
    assert_eq!(rule_of(0x2081_0108), ControlRule::Pass);
    assert!(matches!(rule_of(0x2082_0108), ControlRule::Refuse(..)), "administrators' binary API");
    assert!(matches!(rule_of(0x2080_e001), ControlRule::Refuse(..)), "administrators' part of the firmware's numbers");
    assert!(matches!(rule_of(0x2080_a083), ControlRule::Refuse(..)), "has a pointer, so it has a row");
}

/// The client went out of the parameters with 560, whose first field is a channel.
#[test]
fn binding_a_channel_to_a_semaphore_surface_names_a_client_before_560_only() {
    let clients = |release| {
        let abi = Abi::of(release).unwrap();
        control(0x00da_0002).unwrap().clients_in(abi).collect::<Vec<_>>()
    };
    assert_eq!(clients(DriverRelease::new(555, 58, 2)), [0]);
    assert_eq!(clients(DriverRelease::new(560, 28, 3)), [0; 0]);
}

/// Exported by 560.28.03 only, by 580 and later, or, the last, known by the headers of 525 and 535
/// under that number.
#[test]
fn controls_of_few_releases_have_rows() {
    for id in [0x2080_3060, 0x2080_3067, 0x2080_0a45, 0x2080_0b08, 0x2080_016a] {
        assert!(control(id).is_some_and(|row| matches!(row.rule, ControlRule::Refuse(..))), "{id:#010x}");
    }
}
