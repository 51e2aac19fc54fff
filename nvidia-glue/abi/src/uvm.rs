//! The ioctls of `/dev/nvidia-uvm`.

mod named;

pub use named::*;

use super::{
    Abi, DriverRelease, Status,
    layout::{Descriptor, NoFile, Releases},
};

/// One UVM command.
#[derive(Debug, PartialEq, Eq)]
pub struct UvmCommand {
    /// NVIDIA's name.
    pub name: &'static str,
    /// The bare number.
    pub command: u32,
    /// Its structs, oldest first, in disjoint ranges of releases. UVM's numbers carry no size.
    /// Empty: always refused.
    pub layouts: &'static [UvmLayout],
    /// Treatment by the mediator.
    pub rule: UvmRule,
    /// Header that defines it.
    pub header: &'static str,
}

/// The struct of a UVM command in some releases.
#[derive(Debug, PartialEq, Eq)]
pub struct UvmLayout {
    /// Releases that have it.
    pub releases: Releases,
    /// Bytes.
    pub size: u16,
    /// Offset of `rmStatus`; `None`: it has none, and the errno is the only answer.
    pub status: Option<u16>,
    /// Descriptors of control and UVM files.
    pub descriptors: &'static [Descriptor],
}

/// Treatment of a UVM command by the mediator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UvmRule {
    /// Executed by the mediator on a copy.
    Execute,
    /// Executed by the kernel in the caller's place; the reason why that is harmless whatever the
    /// struct says by then.
    Continue(&'static str),
    /// Refused.
    Refuse(Status, &'static str),
}

impl UvmCommand {
    /// Its struct in a release; `None`: that release does not know it.
    pub fn layout(&self, abi: Abi) -> Option<&'static UvmLayout> {
        self.layouts.iter().find(|layout| layout.releases.contain(abi))
    }
}

/// The row of a command.
pub fn uvm_command(command: u32) -> Option<&'static UvmCommand> {
    UVM_COMMANDS.iter().find(|row| row.command == command)
}

impl UvmLayout {
    const fn in_releases(mut self, releases: Releases) -> Self {
        self.releases = releases;
        self
    }

    const fn with_descriptor(mut self, descriptors: &'static [Descriptor]) -> Self {
        self.descriptors = descriptors;
        self
    }
}

const fn layout(size: u16, status: Option<u16>) -> UvmLayout {
    UvmLayout { releases: Releases::ALL, size, status, descriptors: &[] }
}

const fn row(name: &'static str, command: u32, rule: UvmRule, layouts: &'static [UvmLayout]) -> UvmCommand {
    let header = if command < UVM_INITIALIZE {
        "kernel-open/nvidia-uvm/uvm_ioctl.h"
    } else {
        "kernel-open/nvidia-uvm/uvm_linux_ioctl.h"
    };
    UvmCommand { name, command, layouts, rule, header }
}

/// Layout of a command that has none: always refused.
pub(super) static NO_UVM_LAYOUT: UvmLayout = layout(0, None);

/// `UVM_DEINITIALIZE`.
pub const UVM_DEINITIALIZE: u32 = 0x3000_0002;

/// `UVM_INITIALIZE`.
pub const UVM_INITIALIZE: u32 = 0x3000_0001;

const R535: DriverRelease = DriverRelease::new(535, 0, 0);
const R550: DriverRelease = DriverRelease::new(550, 0, 0);
/// The first of 550's releases in which `UVM_MAX_GPUS` counts partitions.
const R550_40_53: DriverRelease = DriverRelease::new(550, 40, 53);
const R560: DriverRelease = DriverRelease::new(560, 0, 0);
const R565: DriverRelease = DriverRelease::new(565, 0, 0);
const R580: DriverRelease = DriverRelease::new(580, 0, 0);
const R590: DriverRelease = DriverRelease::new(590, 0, 0);
const R595: DriverRelease = DriverRelease::new(595, 0, 0);

/// Every command of the known range.
///
/// Sizes and offsets are those that a C compiler gives for the headers of every release from
/// 525.47.04 to 595.45.04. A command is executed by the mediator when it names an object of the
/// resource manager, or begins or ends something that keeps memory allocated, or says what a later
/// mapping is (a semaphore pool is host memory), or may bring managed memory onto a card, or is
/// counted: its struct must not change after the check. The others work on the caller's own address
/// space only, and several of them look pages up in the address space of the process that makes the
/// call (`current->mm`, and `uvm_va_space_mm_or_current_retain()` where the UVM file does not hold
/// on to one), so they must be made in its place; so must advice about memory that is not managed.
/// The command's number cannot be changed by a racing thread: it is in a register. A reason must
/// hold for any contents of the struct.
pub const UVM_COMMANDS: &[UvmCommand] = &[
    row("UVM_CREATE_RANGE_GROUP", 23, UvmRule::Execute, &[layout(16, Some(8))]),
    row("UVM_DESTROY_RANGE_GROUP", 24, UvmRule::Execute, &[layout(16, Some(8))]),
    row(
        "UVM_REGISTER_GPU_VASPACE",
        25,
        UvmRule::Execute,
        &[layout(32, Some(28)).with_descriptor(&[Descriptor { at: 16, none: NoFile::Negative }])],
    ),
    row("UVM_UNREGISTER_GPU_VASPACE", 26, UvmRule::Execute, &[layout(20, Some(16))]),
    row(
        "UVM_REGISTER_CHANNEL",
        27,
        UvmRule::Execute,
        &[layout(56, Some(48)).with_descriptor(&[Descriptor { at: 16, none: NoFile::Negative }])],
    ),
    row(
        "UVM_UNREGISTER_CHANNEL",
        28,
        UvmRule::Execute,
        &[
            layout(28, Some(24)).in_releases(Releases::before(R590)),
            layout(12, Some(8)).in_releases(Releases::since(R590)),
        ],
    ),
    row(
        "UVM_ENABLE_PEER_ACCESS",
        29,
        UvmRule::Continue("lets cards that are registered with the caller's own address space reach each other"),
        &[layout(36, Some(32))],
    ),
    row(
        "UVM_DISABLE_PEER_ACCESS",
        30,
        UvmRule::Continue("ends what UVM_ENABLE_PEER_ACCESS began"),
        &[layout(36, Some(32))],
    ),
    row(
        "UVM_SET_RANGE_GROUP",
        31,
        UvmRule::Continue("names managed ranges of the caller's own address space"),
        &[layout(32, Some(24))],
    ),
    row(
        "UVM_MAP_EXTERNAL_ALLOCATION",
        33,
        UvmRule::Execute,
        &[
            layout(1200, Some(1196))
                .in_releases(Releases::before(R550_40_53))
                .with_descriptor(&[Descriptor { at: 1184, none: NoFile::Negative }]),
            layout(9264, Some(9260))
                .in_releases(Releases::since(R550_40_53))
                .with_descriptor(&[Descriptor { at: 9248, none: NoFile::Negative }]),
        ],
    ),
    row(
        "UVM_FREE",
        34,
        UvmRule::Execute,
        &[
            layout(24, Some(16)).in_releases(Releases::before(R590)),
            layout(16, Some(8)).in_releases(Releases::since(R590)),
        ],
    ),
    row(
        "UVM_REGISTER_GPU",
        37,
        UvmRule::Execute,
        &[layout(40, Some(36)).with_descriptor(&[Descriptor { at: 24, none: NoFile::Negative }])],
    ),
    row("UVM_UNREGISTER_GPU", 38, UvmRule::Execute, &[layout(20, Some(16))]),
    row("UVM_PAGEABLE_MEM_ACCESS", 39, UvmRule::Continue("asks, and changes nothing"), &[layout(8, Some(4))]),
    row(
        "UVM_PREVENT_MIGRATION_RANGE_GROUPS",
        40,
        UvmRule::Continue(
            "moves or prepares managed pages, which were charged when they were mapped, or stay on the host",
        ),
        &[layout(272, Some(264))],
    ),
    row(
        "UVM_ALLOW_MIGRATION_RANGE_GROUPS",
        41,
        UvmRule::Continue(
            "moves or prepares managed pages, which were charged when they were mapped, or stay on the host",
        ),
        &[layout(272, Some(264))],
    ),
    row(
        "UVM_SET_PREFERRED_LOCATION",
        42,
        UvmRule::Execute,
        &[
            layout(40, Some(32)).in_releases(Releases::before(R550)),
            layout(40, Some(36)).in_releases(Releases::since(R550)),
        ],
    ),
    row("UVM_UNSET_PREFERRED_LOCATION", 43, UvmRule::Execute, &[layout(24, Some(16))]),
    row("UVM_ENABLE_READ_DUPLICATION", 44, UvmRule::Execute, &[layout(24, Some(16))]),
    row(
        "UVM_DISABLE_READ_DUPLICATION",
        45,
        UvmRule::Continue(
            "moves or prepares managed pages, which were charged when they were mapped, or stay on the host",
        ),
        &[layout(24, Some(16))],
    ),
    row(
        "UVM_SET_ACCESSED_BY",
        46,
        UvmRule::Continue("makes page tables for managed pages, which were charged when they were mapped"),
        &[layout(40, Some(32))],
    ),
    row("UVM_UNSET_ACCESSED_BY", 47, UvmRule::Continue("ends what UVM_SET_ACCESSED_BY began"), &[layout(40, Some(32))]),
    row("UVM_MIGRATE", 51, UvmRule::Execute, &[layout(80, Some(72))]),
    row("UVM_MIGRATE_RANGE_GROUP", 53, UvmRule::Execute, &[layout(32, Some(24))]),
    row(
        "UVM_ENABLE_SYSTEM_WIDE_ATOMICS",
        54,
        UvmRule::Continue("a mode of the caller's own address space"),
        &[layout(20, Some(16)).in_releases(Releases::before(R595))],
    ),
    row(
        "UVM_DISABLE_SYSTEM_WIDE_ATOMICS",
        55,
        UvmRule::Continue("a mode of the caller's own address space"),
        &[layout(20, Some(16)).in_releases(Releases::before(R595))],
    ),
    row(
        "UVM_TOOLS_INIT_EVENT_TRACKER",
        56,
        UvmRule::Refuse(Status::NOT_SUPPORTED, "profiling, on a node that containers do not have"),
        &[],
    ),
    row(
        "UVM_TOOLS_SET_NOTIFICATION_THRESHOLD",
        57,
        UvmRule::Refuse(Status::NOT_SUPPORTED, "profiling, on a node that containers do not have"),
        &[],
    ),
    row(
        "UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS",
        58,
        UvmRule::Refuse(Status::NOT_SUPPORTED, "profiling, on a node that containers do not have"),
        &[],
    ),
    row(
        "UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS",
        59,
        UvmRule::Refuse(Status::NOT_SUPPORTED, "profiling, on a node that containers do not have"),
        &[],
    ),
    row(
        "UVM_TOOLS_ENABLE_COUNTERS",
        60,
        UvmRule::Refuse(Status::NOT_SUPPORTED, "profiling, on a node that containers do not have"),
        &[],
    ),
    row(
        "UVM_TOOLS_DISABLE_COUNTERS",
        61,
        UvmRule::Refuse(Status::NOT_SUPPORTED, "profiling, on a node that containers do not have"),
        &[],
    ),
    row(
        "UVM_TOOLS_READ_PROCESS_MEMORY",
        62,
        UvmRule::Continue("copies between buffers and managed pages of the caller's own address space"),
        &[layout(40, Some(32))],
    ),
    row(
        "UVM_TOOLS_WRITE_PROCESS_MEMORY",
        63,
        UvmRule::Continue("copies between buffers and managed pages of the caller's own address space"),
        &[layout(40, Some(32))],
    ),
    row(
        "UVM_TOOLS_GET_PROCESSOR_UUID_TABLE",
        64,
        UvmRule::Continue("tells the cards that are registered with the caller's own address space"),
        &[
            layout(16, Some(12)).in_releases(Releases::before(R550_40_53)),
            layout(24, Some(12)).in_releases(Releases::between(R550_40_53, R560)),
            layout(16, Some(12)).in_releases(Releases::between(R560, R565)),
            layout(16, Some(8)).in_releases(Releases::since(R565)),
        ],
    ),
    row("UVM_MAP_DYNAMIC_PARALLELISM_REGION", 65, UvmRule::Execute, &[layout(40, Some(32))]),
    row("UVM_UNMAP_EXTERNAL", 66, UvmRule::Execute, &[layout(40, Some(32))]),
    row(
        "UVM_TOOLS_FLUSH_EVENTS",
        67,
        UvmRule::Continue("waits for the profiler's events of the caller's own address space"),
        &[layout(4, Some(0))],
    ),
    row(
        "UVM_ALLOC_SEMAPHORE_POOL",
        68,
        UvmRule::Execute,
        &[
            layout(1184, Some(1176)).in_releases(Releases::before(R550_40_53)),
            layout(9248, Some(9240)).in_releases(Releases::since(R550_40_53)),
        ],
    ),
    row(
        "UVM_CLEAN_UP_ZOMBIE_RESOURCES",
        69,
        UvmRule::Continue("ends what is left of cards that the caller unregistered"),
        &[layout(4, Some(0))],
    ),
    row("UVM_PAGEABLE_MEM_ACCESS_ON_GPU", 70, UvmRule::Continue("asks, and changes nothing"), &[layout(24, Some(20))]),
    row(
        "UVM_POPULATE_PAGEABLE",
        71,
        UvmRule::Continue("touches the caller's own ordinary memory"),
        &[layout(24, Some(20))],
    ),
    row("UVM_VALIDATE_VA_RANGE", 72, UvmRule::Continue("asks, and changes nothing"), &[layout(24, Some(16))]),
    row("UVM_CREATE_EXTERNAL_RANGE", 73, UvmRule::Execute, &[layout(24, Some(16))]),
    row("UVM_MAP_EXTERNAL_SPARSE", 74, UvmRule::Execute, &[layout(40, Some(32))]),
    row(
        "UVM_MM_INITIALIZE",
        75,
        UvmRule::Continue("ties one of the caller's own UVM files to another"),
        &[layout(8, Some(4))
            .in_releases(Releases::since(R535))
            .with_descriptor(&[Descriptor { at: 0, none: NoFile::Never }])],
    ),
    row(
        "UVM_TOOLS_INIT_EVENT_TRACKER_V2",
        76,
        UvmRule::Refuse(Status::NOT_SUPPORTED, "profiling, on a node that containers do not have"),
        &[],
    ),
    row(
        "UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_V2",
        77,
        UvmRule::Continue("tells the cards that are registered with the caller's own address space"),
        &[layout(16, Some(8)).in_releases(Releases::since(R565))],
    ),
    row(
        "UVM_ALLOC_DEVICE_P2P",
        78,
        UvmRule::Refuse(
            Status::NOT_SUPPORTED,
            "GPUDirect Storage, which a share does not have: with the card locked for everybody, the end of its range waits for whoever has pinned the pages",
        ),
        &[layout(56, Some(52))
            .in_releases(Releases::since(R565))
            .with_descriptor(&[Descriptor { at: 40, none: NoFile::Negative }])],
    ),
    row(
        "UVM_CLEAR_ALL_ACCESS_COUNTERS",
        79,
        UvmRule::Continue("resets counters of the caller's own address space"),
        &[layout(4, Some(0)).in_releases(Releases::since(R565))],
    ),
    row(
        "UVM_DISCARD",
        80,
        UvmRule::Continue("gives managed pages up"),
        &[layout(32, Some(24)).in_releases(Releases::since(R580))],
    ),
    row(
        "UVM_INITIALIZE",
        UVM_INITIALIZE,
        UvmRule::Continue(
            "makes an address space on the caller's own file, from the caller's own memory map, with no card in it yet; ordinary pages that its flags let move to a card make way for any allocation",
        ),
        &[layout(16, Some(8))],
    ),
    row("UVM_DEINITIALIZE", UVM_DEINITIALIZE, UvmRule::Continue("does nothing"), &[layout(0, None)]),
];
