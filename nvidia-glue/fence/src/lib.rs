//! The seccomp filter that stands between a container and the NVIDIA driver's ioctls, as pure data.
//!
//! Around a container with a share of a card it hands the driver's calls to a listener. Around a
//! container without a grant it refuses them: a neighbour could hand such a one an open driver file
//! (SCM_RIGHTS, `/proc/PID/fd`), and with it it would use a card without any limit. The device
//! cgroup does not see a file that is already open; the filter does.
//!
//! What it keys on, and why:
//! - The resource manager (`nvidia_ioctl()`, kernel-open/nvidia/nv.c) reads a command's **number**
//!   and **size** and never its type byte or direction. Where the type is the driver's own `F`, all
//!   numbers are protected, those too that no known release has: a later one may have given them a
//!   meaning. Only what is a frame buffer's goes through. Under any other type a known command is
//!   protected by (number, size).
//! - UVM (`uvm_ioctl()`, kernel-open/nvidia-uvm/uvm.c) switches over the raw low 32 bits of the
//!   command. Bare numbers that are nobody else's are protected, known or not.
//! - The kernel cuts a command to 32 bits before any driver sees it; the high word of the argument
//!   is ignored here too.
//! - The driver's 32-bit entry is the same handler with the same structs, so i386 and x32 (ARM on
//!   AArch64) are covered.
//!
//! Everything else is allowed, as it cannot be told from what programs ask of terminals, sockets
//! and other drivers: a number that no release has under a foreign type byte (TCGETS is 0x5401,
//! number 1), and bare numbers below 8. On the driver's own files such calls fail, each with a line
//! in the kernel's log. The filter is stacked on top of the container's own seccomp profile, and
//! the kernel takes the strictest answer of all filters.
#![forbid(unsafe_code)]

mod bpf;
mod table;

pub use abi::escapes::{ESCAPES as PROTECTED_ESCAPES, Escape};
use bpf::Assembler;
pub use bpf::BpfInstruction;
pub use table::{ESCAPE_NUMBERS, FRAME_BUFFER_COMMANDS, SIZED_FRAME_BUFFER_COMMANDS, UVM_COMMANDS, UVM_LIFECYCLE};

/// Action of the kernel on a protected call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The call fails with this errno (`SECCOMP_RET_ERRNO`); at most 4095.
    Errno(u16),
    /// The call is handed to the filter's listener (`SECCOMP_RET_USER_NOTIF`).
    UserNotification,
}

impl Action {
    /// "Inappropriate ioctl for device": what a file that is no NVIDIA device answers to these
    /// calls, so that a program concludes that there is no card.
    pub const NOT_A_DRIVER: Self = Self::Errno(25);

    /// The filter's return value, `linux/seccomp.h`.
    fn return_value(self) -> u32 {
        const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
        const SECCOMP_RET_USER_NOTIF: u32 = 0x7fc0_0000;
        match self {
            Self::Errno(errno) => SECCOMP_RET_ERRNO | u32::from(errno.min(4095)),
            Self::UserNotification => SECCOMP_RET_USER_NOTIF,
        }
    }
}

/// The machines that NVIDIA ships Linux drivers and containers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// x86-64 with its i386 and x32 entries.
    X86_64,
    /// AArch64 with its 32-bit ARM entry.
    Aarch64,
}

impl Arch {
    /// The machine that this program was built for; `None` where NVIDIA has no driver.
    pub const fn native() -> Option<Self> {
        if cfg!(target_arch = "x86_64") {
            Some(Self::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Self::Aarch64)
        } else {
            None
        }
    }

    /// Each system call entry. x32 shares x86-64's audit value and sets bit 30 of the number; its
    /// own ioctl is 514. The bit is masked off, and both numbers are taken with and without it:
    /// kernels before 5.5 ran 514 without the bit as well. On i386, 90 is the old mmap, whose
    /// arguments are in memory; ARM's table has none (asm/unistd32.h).
    fn entries(self) -> &'static [Entry] {
        match self {
            Self::X86_64 => &[
                Entry {
                    audit_arch: 0xc000_003e,
                    ioctl: &[16, 514],
                    mmap: 9,
                    old_mmap: None,
                    prctl: 157,
                    personality: 135,
                    remap_file_pages: 216,
                },
                Entry {
                    audit_arch: 0x4000_0003,
                    ioctl: &[54],
                    mmap: 192,
                    old_mmap: Some(90),
                    prctl: 172,
                    personality: 136,
                    remap_file_pages: 257,
                },
            ],
            Self::Aarch64 => &[
                Entry {
                    audit_arch: 0xc000_00b7,
                    ioctl: &[29],
                    mmap: 222,
                    old_mmap: None,
                    prctl: 167,
                    personality: 92,
                    remap_file_pages: 234,
                },
                Entry {
                    audit_arch: 0x4000_0028,
                    ioctl: &[54],
                    mmap: 192,
                    old_mmap: None,
                    prctl: 172,
                    personality: 136,
                    remap_file_pages: 253,
                },
            ],
        }
    }

    /// Identifies a notified call by the audit value and the number in its `struct seccomp_data`:
    /// the filter notifies no others. `None`: not one of its calls.
    pub fn call(self, audit_arch: u32, nr: i32) -> Option<NotifiedCall> {
        let entry = self.entries().iter().find(|entry| entry.audit_arch == audit_arch)?;
        let nr = u32::try_from(nr).ok()? & !X32_BIT;
        if entry.ioctl.contains(&nr) {
            return Some(NotifiedCall::Ioctl);
        }
        // mmap2 counts in units of 4096 bytes whatever the page size.
        let is_32_bit = audit_arch & AUDIT_ARCH_64BIT == 0;
        (entry.mmap == nr).then_some(NotifiedCall::Mmap { offset_unit: if is_32_bit { 4096 } else { 1 } })
    }
}

/// A call that a filter with [`Action::UserNotification`] hands to its listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifiedCall {
    /// `ioctl(fd, command, argument)`.
    Ioctl,
    /// `mmap(address, length, protection, flags, fd, offset)`.
    Mmap {
        /// Bytes that one unit of `offset` is.
        offset_unit: u64,
    },
}

/// One way into the kernel.
#[derive(Debug)]
struct Entry {
    /// `AUDIT_ARCH_*`, linux/audit.h.
    audit_arch: u32,
    ioctl: &'static [u32],
    /// The mmap that has its arguments in registers.
    mmap: u32,
    /// One that has them in memory, where nothing can be decided about them.
    old_mmap: Option<u32>,
    prctl: u32,
    personality: u32,
    remap_file_pages: u32,
}

/// `__AUDIT_ARCH_64BIT`.
const AUDIT_ARCH_64BIT: u32 = 0x8000_0000;

/// Bit 30 of a system call number, x32's mark (`__X32_SYSCALL_BIT`). No other entry has numbers
/// that high.
const X32_BIT: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data` (linux/seccomp.h). Both machines are little-endian: a word's
/// low half comes first.
const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_FIRST: u32 = 16;
const OFFSET_COMMAND: u32 = 24;
const OFFSET_MMAP_FLAGS: u32 = 16 + 3 * 8;
const OFFSET_MMAP_OFFSET: u32 = 16 + 5 * 8;

/// `nr` and `size` of an ioctl command, `nr` and `type` of one (asm-generic/ioctl.h).
const NR_AND_SIZE: u32 = 0x3fff_00ff;
const NR_AND_TYPE: u32 = 0x0000_ffff;

/// `MAP_SHARED` (also in `MAP_SHARED_VALIDATE`) and `MAP_ANONYMOUS`: the same on both machines.
const MAP_SHARED: u32 = 0x01;
const MAP_ANONYMOUS: u32 = 0x20;

/// `PR_SET_MM` (linux/prctl.h).
const PR_SET_MM: u32 = 35;
/// `ADDR_NO_RANDOMIZE` (linux/personality.h), and what only asks.
const ADDR_NO_RANDOMIZE: u32 = 0x0004_0000;
const PERSONALITY_QUERY: u32 = 0xffff_ffff;

const SECCOMP_RET_KILL_PROCESS: u32 = 0x8000_0000;
const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;

/// The filter for `arch`: `driver_call` for commands that the driver's own user space sends or may
/// once send (type `F`, and UVM's), ENOTTY for known ones under a foreign type, which no honest
/// program sends; all else is allowed.
///
/// A filter that notifies also does so for shared mappings of files at a non-zero offset: that is
/// how managed memory is made (`uvm_mmap()` wants the offset to equal the address), and no ioctl
/// tells of it before. The old mmap of i386, which no C library of the last twenty years uses, does
/// not exist then, nor does `remap_file_pages`, which maps a file anew without a call of mmap and
/// which the kernel has only emulated since 4.0. Nor may a program say where its memory begins
/// (`PR_SET_MM`), or have it begin where it always does (`ADDR_NO_RANDOMIZE`): by that the mediator
/// distinguishes a program from the one that its process executes next.
///
/// An entry that `arch` does not have kills the process: no such kernel exists today, and a new one
/// must not be a hole.
///
/// At most a few hundred instructions, well under the kernel's 4096; install with
/// `SECCOMP_SET_MODE_FILTER`.
pub fn program(arch: Arch, driver_call: Action) -> Vec<BpfInstruction> {
    let mut assembler = Assembler::default();
    assembler.load(OFFSET_ARCH);
    let commands = commands(driver_call);
    for entry in arch.entries() {
        let mut section = Assembler::default();
        section.load(OFFSET_NR);
        section.and(!X32_BIT);
        if driver_call == Action::UserNotification {
            mappings(entry, &mut section);
            layout(entry, &mut section);
        }
        section.unless_any(entry.ioctl, SECCOMP_RET_ALLOW);
        section.extend(&commands);
        assembler.section_if_equal(entry.audit_arch, &section);
    }
    assembler.ret(SECCOMP_RET_KILL_PROCESS);
    assembler.finish()
}

/// Shared mappings of files. Falls through, with the number still loaded, for other calls.
fn mappings(entry: &Entry, section: &mut Assembler) {
    const ENOSYS: u16 = 38;
    let absent: Vec<u32> = entry.old_mmap.into_iter().chain([entry.remap_file_pages]).collect();
    section.if_any(&absent, Action::Errno(ENOSYS).return_value());
    let notify = Action::UserNotification.return_value();
    let mut mmap = Assembler::default();
    mmap.load(OFFSET_MMAP_FLAGS);
    mmap.and(MAP_SHARED | MAP_ANONYMOUS);
    mmap.unless_any(&[MAP_SHARED], SECCOMP_RET_ALLOW);
    for half in [OFFSET_MMAP_OFFSET, OFFSET_MMAP_OFFSET + 4] {
        mmap.load(half);
        mmap.unless_any(&[0], notify);
    }
    mmap.ret(SECCOMP_RET_ALLOW);
    section.section_if_equal(entry.mmap, &mmap);
}

/// Calls by which a program could look like another one. Falls through, with the number still
/// loaded, for other calls.
fn layout(entry: &Entry, section: &mut Assembler) {
    let refused = Action::Errno(1).return_value();
    let mut prctl = Assembler::default();
    prctl.load(OFFSET_FIRST);
    prctl.if_any(&[PR_SET_MM], refused);
    prctl.ret(SECCOMP_RET_ALLOW);
    section.section_if_equal(entry.prctl, &prctl);
    let mut personality = Assembler::default();
    personality.load(OFFSET_FIRST);
    personality.if_any(&[PERSONALITY_QUERY], SECCOMP_RET_ALLOW);
    personality.and(ADDR_NO_RANDOMIZE);
    personality.unless_any(&[0], refused);
    personality.ret(SECCOMP_RET_ALLOW);
    section.section_if_equal(entry.personality, &personality);
}

/// Assembles the part of the filter that decides about an ioctl by its command. Ends in a return on
/// every path.
fn commands(driver_call: Action) -> Assembler {
    let driver_call = driver_call.return_value();
    let mut section = Assembler::default();
    section.load(OFFSET_COMMAND);
    for uvm in [UVM_COMMANDS, UVM_LIFECYCLE] {
        section.if_in_range(&uvm, driver_call);
    }

    let mut own_type = Assembler::default();
    own_type.load(OFFSET_COMMAND);
    own_type.if_in_range(&FRAME_BUFFER_COMMANDS, SECCOMP_RET_ALLOW);
    own_type.if_any(&SIZED_FRAME_BUFFER_COMMANDS, SECCOMP_RET_ALLOW);
    own_type.ret(driver_call);
    section.and(NR_AND_TYPE);
    section.section_if_in_range(&ESCAPE_NUMBERS, &own_type);

    section.load(OFFSET_COMMAND);
    section.and(NR_AND_SIZE);
    let any_type: Vec<u32> = PROTECTED_ESCAPES
        .iter()
        .flat_map(|escape| escape.guarded_sizes().map(|size| u32::from(size) << 16 | u32::from(escape.number)))
        .collect();
    section.if_any(&any_type, Action::NOT_A_DRIVER.return_value());
    section.ret(SECCOMP_RET_ALLOW);
    section
}

#[cfg(any(test, feature = "kernel"))]
pub mod kernel;
#[cfg(test)]
mod tests;
