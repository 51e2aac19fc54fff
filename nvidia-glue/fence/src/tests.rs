use super::bpf::{JUMP, RETURN};
use super::{
    kernel::{NOTIFY, run_with},
    *,
};

const ALLOW: u32 = SECCOMP_RET_ALLOW;
const ENOTTY: u32 = 0x0005_0000 | 25;

fn run(program: &[BpfInstruction], arch: u32, nr: u32, command: u64) -> u32 {
    run_with(program, arch, nr, [0, command, 0, 0, 0, 0])
}

/// Every way to reach ioctl: machine, audit value, system call number.
const WAYS: &[(Arch, u32, u32)] = &[
    (Arch::X86_64, 0xc000_003e, 16),
    (Arch::X86_64, 0xc000_003e, X32_BIT | 514),
    (Arch::X86_64, 0xc000_003e, X32_BIT | 16),
    (Arch::X86_64, 0xc000_003e, 514),
    (Arch::X86_64, 0x4000_0003, 54),
    (Arch::Aarch64, 0xc000_00b7, 29),
    (Arch::Aarch64, 0x4000_0028, 54),
];

fn command(direction: u32, kind: u8, number: u8, size: u32) -> u64 {
    u64::from(direction << 30 | size << 16 | u32::from(kind) << 8 | u32::from(number))
}

#[test]
fn every_protected_call_is_refused_at_every_entry() {
    for (arch, audit, nr) in WAYS {
        let program = program(*arch, Action::NOT_A_DRIVER);
        let answer = |command: u64| run(&program, *audit, *nr, command);
        for escape in PROTECTED_ESCAPES {
            for direction in 0..4 {
                for size in [0, 1, 16, 72, 144, 2304, 16383] {
                    let own = command(direction, b'F', escape.number, size);
                    assert_eq!(answer(own), ENOTTY, "{} F size {size}", escape.name);
                    assert_eq!(answer(own | 0xdead_beef << 32), ENOTTY, "high word, {}", escape.name);
                }
                for size in escape.guarded_sizes() {
                    for kind in [0, b'E', b'T', b'd', 0xff] {
                        let foreign = command(direction, kind, escape.number, u32::from(size));
                        assert_eq!(answer(foreign), ENOTTY, "{} type {kind} size {size}", escape.name);
                    }
                }
            }
        }
        // Those too that no release has.
        for number in 0..=255 {
            for (direction, size) in [(0, 8), (1, 16), (2, 48), (3, 512), (3, 16383), (3, 0)] {
                let unknown = command(direction, b'F', number, size);
                assert_eq!(answer(unknown), ENOTTY, "F {number:#x} direction {direction} size {size}");
            }
        }
        for number in 0x21..=255 {
            assert_eq!(answer(command(0, b'F', number, 0)), ENOTTY, "F {number:#x}, a bare number");
        }
        for uvm in UVM_COMMANDS.chain(UVM_LIFECYCLE) {
            assert_eq!(answer(u64::from(uvm)), ENOTTY, "UVM {uvm}");
            assert_eq!(answer(u64::from(uvm) | 1 << 32), ENOTTY, "UVM {uvm} with a high word");
        }
    }
}

/// Commands of the terminal, sockets, file systems, block devices, DRM, KVM and FUSE, as numbered
/// on both machines.
const HARMLESS: &[(&str, u64)] = &[
    ("TCGETS", 0x5401),
    ("TCSETS", 0x5402),
    ("TIOCGWINSZ", 0x5413),
    ("TIOCSWINSZ", 0x5414),
    ("TIOCSCTTY", 0x540e),
    ("TIOCGPGRP", 0x540f),
    ("TIOCOUTQ", 0x5411),
    ("FIONREAD", 0x541b),
    ("FIONBIO", 0x5421),
    ("FIOCLEX", 0x5451),
    ("TIOCGPTN", 0x8004_5430),
    ("TIOCSPTLCK", 0x4004_5431),
    ("TCGETS2", 0x802c_542a),
    ("TCSETS2", 0x402c_542b), // Not in the tables: the terminals' own.
    ("SIOCGIFCONF", 0x8912),
    ("SIOCGIFADDR", 0x8915),
    ("SIOCETHTOOL", 0x8946),
    ("FIBMAP", 1),
    ("FIGETBSZ", 2),
    ("SCSI_IOCTL_START_UNIT", 5),
    ("SCSI_IOCTL_STOP_UNIT", 6),
    ("SCSI_IOCTL_GET_IDLUN", 0x5382),
    ("FDGETDRVTYP", 0x8010_020f),
    ("FDFLUSH", 0x024b),
    ("FDFMTBEG", 0x0247),
    ("HDIO_GETGEO", 0x0301),
    ("LPGETSTATUS", 0x060b),
    ("RAID_VERSION", 0x800c_0910),
    ("IOCTL_VMCI_INIT_CONTEXT", 0x07a0),
    ("SG_IO", 0x2285),
    ("FS_IOC_GETFLAGS", 0x8008_6601),
    ("FS_IOC_SETFLAGS", 0x4008_6602),
    ("FS_IOC_GETVERSION", 0x8008_7601),
    ("FS_IOC_FIEMAP", 0xc020_660b),
    ("FS_IOC_FSGETXATTR", 0x801c_581f),
    ("FS_IOC_FSSETXATTR", 0x401c_5820),
    ("FS_IOC_GETFSLABEL", 0x8100_9431),
    ("FS_IOC_ENABLE_VERITY", 0x4080_6685),
    ("FICLONE", 0x4004_9409),
    ("FICLONERANGE", 0x4020_940d),
    ("FIDEDUPERANGE", 0xc018_9436),
    ("FITRIM", 0xc018_5879),
    ("BTRFS_IOC_SUBVOL_CREATE", 0x5000_940e),
    ("BLKGETSIZE64", 0x8008_1272),
    ("BLKSSZGET", 0x1268),
    ("LOOP_CTL_GET_FREE", 0x4c82),
    ("FBIOGET_VSCREENINFO", 0x4600),
    ("FBIOPUT_VSCREENINFO", 0x4601),
    ("FBIOGET_FSCREENINFO", 0x4602),
    ("FBIOGETCMAP", 0x4604),
    ("FBIOPUTCMAP", 0x4605),
    ("FBIOPAN_DISPLAY", 0x4606),
    ("FBIOGET_CON2FBMAP", 0x460f),
    ("FBIOPUT_CON2FBMAP", 0x4610),
    ("FBIOBLANK", 0x4611),
    ("FBIOGET_VBLANK", 0x8020_4612),
    ("FBIOGET_DISPINFO", 0x4618),
    ("FBIO_WAITFORVSYNC", 0x4004_4620),
    ("DRM_IOCTL_VERSION", 0xc040_6400),
    ("DRM_IOCTL_GET_CAP", 0xc010_640c),
    ("DRM_IOCTL_PRIME_HANDLE_TO_FD", 0xc00c_642d),
    ("DRM_IOCTL_MODE_REVOKE_LEASE", 0xc004_64c9),
    ("DRM_IOCTL_I915_GEM_MMAP", 0xc028_645e),
    ("DRM_IOCTL_RADEON_SETPARAM", 0x4010_6459),
    ("PPPIOCSXASYNCMAP", 0x4020_744f),
    ("KVM_GET_API_VERSION", 0xae00),
    ("KVM_RUN", 0xae80),
    ("TUNSETIFF", 0x4004_54ca),
    ("TUNGETIFF", 0x8004_54d2),
    ("TUNSETOFFLOAD", 0x4004_54d0),
    ("VHOST_SET_OWNER", 0xaf01),
    ("FUSE_DEV_IOC_CLONE", 0x8004_e500),
    ("UFFDIO_API", 0xc018_aa3f),
    ("RNDGETENTCNT", 0x8004_5200),
    ("NS_GET_USERNS", 0xb701),
    ("PERF_EVENT_IOC_ENABLE", 0x2400),
    ("RDMA_VERBS_IOCTL", 0xc018_1b01),
    ("VIDIOC_QUERYCAP", 0x8068_5600),
    ("SNDRV_PCM_IOCTL_HW_PARAMS", 0xc260_4111),
];

#[test]
fn other_calls_pass() {
    for (arch, audit, nr) in WAYS {
        let program = program(*arch, Action::UserNotification);
        for (name, command) in HARMLESS {
            assert_eq!(run(&program, *audit, *nr, *command), ALLOW, "{name}");
        }
    }
}

#[test]
fn the_one_known_collision_is_btrfs_qgroup_limit() {
    let program = program(Arch::X86_64, Action::UserNotification);
    let btrfs_ioc_qgroup_limit = 0x8030_942b;
    assert_eq!(run(&program, 0xc000_003e, 16, btrfs_ioc_qgroup_limit), ENOTTY);
}

#[test]
fn other_system_calls_pass_whatever_their_arguments() {
    for (arch, audit, ioctl) in WAYS {
        let program = program(*arch, Action::NOT_A_DRIVER);
        for nr in 0..600 {
            let is_ioctl = WAYS.iter().any(|way| way.1 == *audit && way.2 & !X32_BIT == nr);
            if !is_ioctl {
                assert_eq!(run(&program, *audit, nr, command(3, b'F', 0x2b, 48)), ALLOW, "{nr} beside {ioctl}");
            }
        }
    }
}

/// Every way to reach mmap: machine, audit value, system call number.
const MMAP_WAYS: &[(Arch, u32, u32)] = &[
    (Arch::X86_64, 0xc000_003e, 9),
    (Arch::X86_64, 0xc000_003e, X32_BIT | 9),
    (Arch::X86_64, 0x4000_0003, 192),
    (Arch::Aarch64, 0xc000_00b7, 222),
    (Arch::Aarch64, 0x4000_0028, 192),
];

/// flags, offset, notified
const MAPPINGS: &[(&str, u64, u64, bool)] = &[
    ("shared at its own address", 0x01, 0x7f00_0020_0000, true),
    ("with MAP_FIXED", 0x11, 0x20_0000, true),
    ("only the low half of the offset is set", 0x01, 0x1000, true),
    ("only the high half of the offset is set", 0x01, 1 << 32, true),
    ("MAP_SHARED_VALIDATE", 0x03, 0x1000, true),
    ("MAP_SHARED_VALIDATE with MAP_SYNC", 0x08_0003, 0x1000, true),
    ("flags above 32 bits, which the kernel cuts off", 0xffff_ffff_0000_0001, 0x1000, true),
    ("from the start of the file", 0x01, 0, false),
    ("private", 0x02, 0x1000, false),
    ("private and anonymous", 0x22, 0, false),
    ("shared and anonymous, whose offset means nothing", 0x21, 0x1000, false),
    ("neither shared nor private, which the kernel refuses", 0, 0x1000, false),
];

#[test]
fn shared_mappings_at_an_offset_are_notified_at_every_entry() {
    for (arch, audit, nr) in MMAP_WAYS {
        let notifying = program(*arch, Action::UserNotification);
        let fence = program(*arch, Action::NOT_A_DRIVER);
        for (name, flags, offset, notified) in MAPPINGS {
            let arguments = [0x7f00_0020_0000, 0x20_0000, 3, *flags, 5, *offset];
            let expected = if *notified { NOTIFY } else { ALLOW };
            assert_eq!(run_with(&notifying, *audit, *nr, arguments), expected, "{name} at {audit:#x} {nr}");
            assert_eq!(run_with(&fence, *audit, *nr, arguments), ALLOW, "{name}, static fence");
        }
    }
}

#[test]
fn the_old_mmap_of_i386_does_not_exist_beside_a_listener() {
    const ENOSYS: u32 = 0x0005_0000 | 38;
    assert_eq!(run(&program(Arch::X86_64, Action::UserNotification), 0x4000_0003, 90, 0), ENOSYS);
    assert_eq!(run(&program(Arch::X86_64, Action::NOT_A_DRIVER), 0x4000_0003, 90, 0), ALLOW);
    // 90 is chmod on x86-64 and capget on AArch64.
    assert_eq!(run(&program(Arch::X86_64, Action::UserNotification), 0xc000_003e, 90, 0), ALLOW);
    assert_eq!(run(&program(Arch::Aarch64, Action::UserNotification), 0xc000_00b7, 90, 0), ALLOW);
}

/// The mediator distinguishes a program from the next one of its process by where its memory
/// begins.
#[test]
fn beside_a_listener_no_program_says_where_its_memory_begins() {
    const EPERM: u32 = 0x0005_0000 | 1;
    let entries = [
        (Arch::X86_64, 0xc000_003e, 157, 135),
        (Arch::X86_64, 0xc000_003e, 157 | X32_BIT, 135 | X32_BIT),
        (Arch::X86_64, 0x4000_0003, 172, 136),
        (Arch::Aarch64, 0xc000_00b7, 167, 92),
        (Arch::Aarch64, 0x4000_0028, 172, 136),
    ];
    for (arch, audit, prctl, personality) in entries {
        let listening = program(arch, Action::UserNotification);
        let fence = program(arch, Action::NOT_A_DRIVER);
        // The kernel reads the low halves: an int, and an unsigned int.
        for first in [35, 0xdead_beef_0000_0023] {
            assert_eq!(run_with(&listening, audit, prctl, [first, 14, 0, 0, 0, 0]), EPERM, "{audit:#x}");
            assert_eq!(run_with(&fence, audit, prctl, [first, 14, 0, 0, 0, 0]), ALLOW, "{audit:#x}");
        }
        for first in [15, 36, 38] {
            assert_eq!(run_with(&listening, audit, prctl, [first, 0, 0, 0, 0, 0]), ALLOW, "{audit:#x} {first}");
        }
        for (first, expected) in [
            (0x0004_0000, EPERM),
            (0x0104_0008, EPERM),
            (0x1_0004_0000, EPERM),
            (0xffff_ffff, ALLOW),
            (0, ALLOW),
            (8, ALLOW),
        ] {
            assert_eq!(
                run_with(&listening, audit, personality, [first, 0, 0, 0, 0, 0]),
                expected,
                "{audit:#x} {first:#x}"
            );
        }
        assert_eq!(run_with(&fence, audit, personality, [0x0004_0000, 0, 0, 0, 0, 0]), ALLOW, "{audit:#x}");
    }
}

/// A mapping of the UVM file that was moved could become managed memory by it, and no mmap would
/// tell.
#[test]
fn beside_a_listener_nothing_is_mapped_but_by_mmap() {
    const ENOSYS: u32 = 0x0005_0000 | 38;
    for (arch, audit, nr) in [
        (Arch::X86_64, 0xc000_003e, 216),
        (Arch::X86_64, 0xc000_003e, 216 | X32_BIT),
        (Arch::X86_64, 0x4000_0003, 257),
        (Arch::Aarch64, 0xc000_00b7, 234),
        (Arch::Aarch64, 0x4000_0028, 253),
    ] {
        assert_eq!(run(&program(arch, Action::UserNotification), audit, nr, 0), ENOSYS, "{audit:#x}");
        assert_eq!(run(&program(arch, Action::NOT_A_DRIVER), audit, nr, 0), ALLOW, "{audit:#x}");
    }
}

#[test]
fn a_listener_is_notified_of_driver_calls_and_mappings_only() {
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let program = program(arch, Action::UserNotification);
        let arguments = [0, command(3, b'F', 0x2b, 48), 0, 1, 0, 0x1000];
        for audit in [0xc000_003e, 0x4000_0003, 0xc000_00b7, 0x4000_0028] {
            for nr in (0..600).chain((0..600).map(|nr| nr | X32_BIT)) {
                let notified = run_with(&program, audit, nr, arguments) == NOTIFY;
                let call = arch.call(audit, i32::try_from(nr).unwrap());
                assert_eq!(notified, call.is_some(), "{audit:#x} {nr}: {call:?}");
            }
        }
    }
    assert_eq!(Arch::X86_64.call(0xc000_003e, 9), Some(NotifiedCall::Mmap { offset_unit: 1 }));
    assert_eq!(Arch::X86_64.call(0x4000_0003, 192), Some(NotifiedCall::Mmap { offset_unit: 4096 }));
    assert_eq!(Arch::X86_64.call(0x4000_0003, 54), Some(NotifiedCall::Ioctl));
}

/// The machine that the tests run on has the numbers that the table says: whoever runs them on
/// another one, asks that one.
#[test]
fn the_native_entry_is_this_machines() {
    let Some(native) = Arch::native() else {
        testing::skipped("no machine that there is a driver for");
        return;
    };
    let number = |number: libc::c_long| u32::try_from(number).unwrap();
    let entry = &native.entries()[0];
    assert_eq!((entry.ioctl[0], entry.mmap), (number(libc::SYS_ioctl), number(libc::SYS_mmap)));
    assert_eq!(entry.remap_file_pages, number(libc::SYS_remap_file_pages));
    let ioctl = i32::try_from(libc::SYS_ioctl).unwrap();
    assert_eq!(native.call(entry.audit_arch, ioctl), Some(NotifiedCall::Ioctl));
}

/// Each number that a table of calls can have (32-bit ARM has its own calls from 0xf0000 on), and
/// some that none has.
fn numbers() -> impl Iterator<Item = u32> {
    let odd = [0x7fff_ffff, 0x8000_0000, u32::MAX, X32_BIT - 1];
    let private = 0x000f_0000..0x000f_0010;
    (0..4096).chain((0..4096).map(|nr| nr | X32_BIT)).chain(private).chain(odd)
}

/// Of all calls of a machine, by each of its entries, those that are decided about: for a driver's
/// call that names a driver's command, and a shared mapping at an offset.
#[test]
fn of_all_numbers_only_the_tables_are_decided_about() {
    let arguments = [5, command(3, b'F', 0x2b, 48), 3, 0x01, 5, 0x20_0000];
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let (listening, fence) = (program(arch, Action::UserNotification), program(arch, Action::NOT_A_DRIVER));
        for entry in arch.entries() {
            let is_64_bit = entry.audit_arch & AUDIT_ARCH_64BIT != 0;
            for nr in numbers() {
                let masked = nr & !X32_BIT;
                let (is_ioctl, is_mmap) = (entry.ioctl.contains(&masked), entry.mmap == masked);
                let is_old_mmap = arch == Arch::X86_64 && !is_64_bit && masked == 90;
                let is_remap = entry.remap_file_pages == masked;
                let expected = match (is_ioctl || is_mmap, is_old_mmap || is_remap) {
                    (true, _) => NOTIFY,
                    (false, true) => 0x0005_0000 | 38,
                    (false, false) => ALLOW,
                };
                let at = format!("{:#x} {nr:#x}", entry.audit_arch);
                assert_eq!(run_with(&listening, entry.audit_arch, nr, arguments), expected, "{at}, with a listener");
                let refused = if is_ioctl { ENOTTY } else { ALLOW };
                assert_eq!(run_with(&fence, entry.audit_arch, nr, arguments), refused, "{at}, the fence alone");
            }
        }
        // Other machines' entries, and what a kernel might yet get.
        for audit in [0xc000_003e, 0x4000_0003, 0xc000_00b7, 0x4000_0028, 0x8000_00b7, 0x0000_0028, 0xc000_00f3, 0] {
            let is_own = arch.entries().iter().any(|entry| entry.audit_arch == audit);
            for nr in [0, 9, 16, 29, 54, 192, 222].into_iter().filter(|_| !is_own) {
                assert_eq!(run_with(&fence, audit, nr, arguments), SECCOMP_RET_KILL_PROCESS, "{audit:#x} {nr}");
            }
        }
    }
    assert_eq!(Arch::Aarch64.call(0xc000_00b7, 222), Some(NotifiedCall::Mmap { offset_unit: 1 }));
    assert_eq!(Arch::Aarch64.call(0x4000_0028, 192), Some(NotifiedCall::Mmap { offset_unit: 4096 }));
    assert_eq!(Arch::Aarch64.call(0xc000_00b7, 29), Some(NotifiedCall::Ioctl));
    assert_eq!(Arch::Aarch64.call(0x4000_0028, 54), Some(NotifiedCall::Ioctl));
}

#[test]
fn an_unknown_entry_kills() {
    for arch in [Arch::X86_64, Arch::Aarch64] {
        assert_eq!(run(&program(arch, Action::NOT_A_DRIVER), 0xc000_00f3, 29, 0), SECCOMP_RET_KILL_PROCESS);
    }
}

#[test]
fn with_a_listener_only_the_drivers_own_type_is_notified() {
    let program = program(Arch::X86_64, Action::UserNotification);
    let answer = |command| run(&program, 0xc000_003e, 16, command);
    assert_eq!(answer(command(3, b'F', 0x2b, 48)), NOTIFY);
    assert_eq!(answer(command(3, b'F', 0x2b, 4000)), NOTIFY, "a struct that has grown");
    assert_eq!(answer(command(3, 0, 0x2b, 48)), ENOTTY, "another type is no honest program");
    assert_eq!(answer(33), NOTIFY);
    assert_eq!(answer(0x3000_0001), NOTIFY);
    assert_eq!(answer(command(3, b'F', 0xf0, 16)), NOTIFY, "an escape that no release has");
    assert_eq!(answer(221), NOTIFY, "a UVM command that no release has");
    assert_eq!(answer(command(3, b'T', 0xf0, 16)), ALLOW, "it cannot be told from another driver's");
}

/// Ranges meet without a gap: each command of two bytes, and each bare one with the driver's
/// highest bits.
#[test]
fn what_is_decided_about_ends_where_others_begin() {
    let guarded = |command: u64| {
        let (number, size) = (command & 0xff, command >> 16 & 0x3fff);
        let known = |escape: &&Escape| u64::from(escape.number) == number;
        let escape = PROTECTED_ESCAPES.iter().find(known);
        escape.is_some_and(|escape| escape.guarded_sizes().any(|guarded| u64::from(guarded) == size))
    };
    for (arch, audit, nr) in WAYS {
        let program = program(*arch, Action::UserNotification);
        for command in (0..=0xffff).chain(0x2fff_ff00..=0x3000_02ff) {
            let expected = match command {
                8..=0x1ff | 0x4621..=0x46ff | 0x3000_0000..=0x3000_00ff => NOTIFY,
                command if guarded(command) => ENOTTY,
                _ => ALLOW,
            };
            assert_eq!(run(&program, *audit, *nr, command), expected, "{command:#x} at {audit:#x} {nr}");
        }
    }
}

#[test]
fn the_program_is_one_that_the_kernel_takes() {
    let both = [Action::NOT_A_DRIVER, Action::UserNotification];
    for (arch, action) in [Arch::X86_64, Arch::Aarch64].into_iter().flat_map(|arch| both.map(|action| (arch, action))) {
        let program = program(arch, action);
        assert!(program.len() <= 4096, "{} instructions", program.len());
        assert_eq!(program.last().unwrap().code, RETURN);
        for (at, instruction) in program.iter().enumerate() {
            let furthest = match instruction.code {
                JUMP => usize::try_from(instruction.k).unwrap(),
                _ => usize::from(instruction.jt.max(instruction.jf)),
            };
            assert!(at + 1 + furthest < program.len() || instruction.code == RETURN, "jump at {at} leaves the program");
        }
    }
}

#[test]
fn the_table_names_each_number_once() {
    let mut numbers: Vec<u8> = PROTECTED_ESCAPES.iter().map(|escape| escape.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), PROTECTED_ESCAPES.len());
}
