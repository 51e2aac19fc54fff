//! The device rules of a container on cgroup v2: a BPF program on its cgroup.
//!
//! libcgroups has one, behind a feature that lowers RLIMIT_MEMLOCK for every container and denies
//! all devices on each update. v1 has files for it, which libcgroups writes.
//!
//! As in runc, nothing is allowed to begin with, then come the spec's rules, then those that every
//! container gets (/dev/null and its like, mknod). For each kind of access that a call asks for,
//! the last rule that speaks of this device and this access decides.

mod unit;

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::PathBuf,
};

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, Spec};
use sys::bpf;

pub(crate) use self::unit::unit_properties;
use super::launch::Launched;
use crate::cgroup::{Cgroup, CgroupsPath, Host, LocateError};

/// A filter that could not be installed. The container must not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceFilterError {
    /// The container's cgroup.
    #[error(transparent)]
    Place(#[from] LocateError),
    /// A rule with letters that mean nothing.
    #[error("the device rule's access is {0:?}; r, w and m are accepted")]
    Access(String),
    /// The cgroup's directory.
    #[error("cannot open {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel does not take the program.
    #[error("the kernel refuses the device filter (needs CONFIG_CGROUP_BPF and CAP_BPF)")]
    Load(#[source] io::Error),
    /// The kernel does not attach it.
    #[error("cannot attach the device filter to {}", path.display())]
    Attach {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// `BPF_DEVCG_ACC_*`, linux/bpf.h.
const MKNOD: u8 = 1;
const READ: u8 = 2;
const WRITE: u8 = 4;
const ALL: u8 = MKNOD | READ | WRITE;

/// `BPF_DEVCG_DEV_*`, linux/bpf.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceKind {
    Block = 1,
    Character = 2,
}

/// One rule; `None` is any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    allow: bool,
    kind: Option<DeviceKind>,
    major: Option<i64>,
    minor: Option<i64>,
    access: u8,
}

impl Rule {
    /// Returns whether it speaks of every device and every access that `other` speaks of.
    fn covers(&self, other: &Self) -> bool {
        let covers = |own: Option<i64>, others| own.is_none() || own == others;
        (self.kind.is_none() || self.kind == other.kind)
            && covers(self.major, other.major)
            && covers(self.minor, other.minor)
            && other.access & !self.access == 0
    }
}

/// Attaches, on cgroup v2, the filter of `spec` to the cgroup in which `init` waits. Nothing to do
/// on v1.
pub(crate) fn apply(init: &Launched, id: &str, systemd: bool, spec: &Spec, v2: bool) -> Result<(), DeviceFilterError> {
    if !v2 {
        return Ok(());
    }
    let linux = spec.linux().as_ref();
    let place = CgroupsPath::new(linux.and_then(|linux| linux.cgroups_path().as_deref()), id, systemd)?;
    let cgroup = Cgroup::of_process(&Host::default(), init.pid.as_raw(), &place)?;
    let given = linux.and_then(|linux| linux.resources().as_ref()?.devices().as_deref()).unwrap_or_default();
    let program =
        bpf::load_device_program(&compile(&without_shadowed(&rules(given)?))).map_err(DeviceFilterError::Load)?;
    for path in cgroup.directories() {
        let open = |source| DeviceFilterError::Open { path: path.to_owned(), source };
        let directory = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path).map_err(open)?;
        bpf::attach_device_program(directory.as_fd(), program.as_fd())
            .map_err(|source| DeviceFilterError::Attach { path: path.to_owned(), source })?;
    }
    Ok(())
}

/// Devices that every container gets, as from runc 1.1: major, minor, access.
const USUAL: [(Option<i64>, Option<i64>, u8); 10] = [
    (None, None, MKNOD),
    (Some(1), Some(3), ALL),    // /dev/null
    (Some(1), Some(5), ALL),    // /dev/zero
    (Some(1), Some(7), ALL),    // /dev/full
    (Some(1), Some(8), ALL),    // /dev/random
    (Some(1), Some(9), ALL),    // /dev/urandom
    (Some(5), Some(0), ALL),    // /dev/tty
    (Some(5), Some(2), ALL),    // /dev/ptmx
    (Some(136), None, ALL),     // /dev/pts/*
    (Some(10), Some(200), ALL), // /dev/net/tun
];

/// The spec's rules, then those of every container.
fn rules(given: &[LinuxDeviceCgroup]) -> Result<Vec<Rule>, DeviceFilterError> {
    let mut rules = Vec::new();
    for rule in given {
        let number = |number: Option<i64>| number.filter(|number| *number >= 0);
        let kind = match rule.typ().unwrap_or_default() {
            LinuxDeviceType::A => None,
            LinuxDeviceType::B => Some(DeviceKind::Block),
            LinuxDeviceType::C | LinuxDeviceType::U => Some(DeviceKind::Character),
            // A pipe is no device: no rule of the kernel's is about it.
            LinuxDeviceType::P => continue,
        };
        rules.push(Rule {
            allow: rule.allow(),
            kind,
            major: number(rule.major()),
            minor: number(rule.minor()),
            access: access(rule.access().as_deref())?,
        });
    }
    let allow = |kind| move |(major, minor, access)| Rule { allow: true, kind: Some(kind), major, minor, access };
    rules.extend(USUAL.map(allow(DeviceKind::Character)));
    rules.push(allow(DeviceKind::Block)((None, None, MKNOD)));
    Ok(rules)
}

/// Drops the rules of which a later one speaks as well: most specs list the usual devices, and what
/// the kernel's verifier takes for a program grows faster than the program.
fn without_shadowed(rules: &[Rule]) -> Vec<Rule> {
    let is_shadowed =
        |(position, rule): (usize, &Rule)| rules.iter().skip(position + 1).any(|later| later.covers(rule));
    let kept = rules.iter().enumerate().filter(|rule| !is_shadowed(*rule));
    kept.map(|(_, rule)| *rule).collect()
}

fn access(letters: Option<&str>) -> Result<u8, DeviceFilterError> {
    let letters = letters.unwrap_or_default();
    // Absent, a rule is about every access.
    if letters.is_empty() {
        return Ok(ALL);
    }
    letters.chars().try_fold(0, |access, letter| match letter {
        'r' => Ok(access | READ),
        'w' => Ok(access | WRITE),
        'm' => Ok(access | MKNOD),
        _ => Err(DeviceFilterError::Access(letters.to_owned())),
    })
}

// The instructions that the program is made of, as in linux/bpf.h: `opcode`, registers, offset,
// immediate.
const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xbf;
const MOVE_IMMEDIATE: u8 = 0xb7;
const AND_IMMEDIATE: u8 = 0x57;
const SHIFT_RIGHT_IMMEDIATE: u8 = 0x77;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_IF_NOT_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

/// Registers: the answer, the context, the access that no rule has settled, and the field that is
/// compared.
const ANSWER: u8 = 0;
const CONTEXT: u8 = 1;
const REQUESTED: u8 = 2;
const FIELD: u8 = 3;

/// Offsets in `struct bpf_cgroup_dev_ctx`: access << 16 | kind, major, minor; each an u32.
const ACCESS_AND_KIND: i16 = 0;
const MAJOR: i16 = 4;
const MINOR: i16 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn new(code: u8, to: u8, immediate: i32) -> Self {
        Self { code, to, from: 0, offset: 0, immediate }
    }

    /// `struct bpf_insn` of a little- or big-endian machine, as the eight bytes in memory.
    fn encode(self) -> u64 {
        let registers =
            if cfg!(target_endian = "little") { self.from << 4 | self.to } else { self.to << 4 | self.from };
        let [offset_0, offset_1] = self.offset.to_ne_bytes();
        let [a, b, c, d] = self.immediate.to_ne_bytes();
        u64::from_ne_bytes([self.code, registers, offset_0, offset_1, a, b, c, d])
    }
}

fn answer(allow: bool) -> [Instruction; 2] {
    [Instruction::new(MOVE_IMMEDIATE, ANSWER, i32::from(allow)), Instruction::new(EXIT, 0, 0)]
}

/// The program: from the last rule to the first, each settles the kinds of access that it speaks
/// of. A field is loaded anew for each comparison: the verifier forgets what it has learnt of it,
/// and follows one path from rule to rule instead of one for each outcome.
fn assemble(rules: &[Rule]) -> Vec<Instruction> {
    let mut program = vec![
        load(REQUESTED, ACCESS_AND_KIND),
        Instruction::new(SHIFT_RIGHT_IMMEDIATE, REQUESTED, 16),
        Instruction::new(AND_IMMEDIATE, REQUESTED, i32::from(ALL)),
    ];
    for rule in rules.iter().rev() {
        let (Ok(major), Ok(minor)) = (immediate(rule.major), immediate(rule.minor)) else { continue };
        let kind = rule.kind.map(|kind| kind as i32);
        if kind.is_none() && major.is_none() && minor.is_none() && rule.access == ALL {
            // Settles everything; what came after would be unreachable, which the verifier refuses.
            program.extend(answer(rule.allow));
            return program;
        }
        let mut settle = verdict(*rule);
        for (field, value) in [(MINOR, minor), (MAJOR, major), (ACCESS_AND_KIND, kind)] {
            if let Some(value) = value {
                settle = if_equal(field, value, settle);
            }
        }
        program.extend(settle);
    }
    program.extend(answer(false));
    program
}

fn load(register: u8, offset: i16) -> Instruction {
    Instruction { code: LOAD_WORD, to: register, from: CONTEXT, offset, immediate: 0 }
}

/// Instructions that run `then` for a call whose field has this value, and skip it for any other.
fn if_equal(field: i16, value: i32, then: Vec<Instruction>) -> Vec<Instruction> {
    let mut instructions = vec![load(FIELD, field)];
    if field == ACCESS_AND_KIND {
        instructions.push(Instruction::new(AND_IMMEDIATE, FIELD, 0xffff));
    }
    let offset = i16::try_from(then.len()).unwrap_or(i16::MAX);
    instructions.push(Instruction { offset, ..Instruction::new(JUMP_IF_NOT_EQUAL, FIELD, value) });
    instructions.extend(then);
    instructions
}

/// Returns the instructions that decide about a device that the rule matches.
fn verdict(rule: Rule) -> Vec<Instruction> {
    if rule.access == ALL {
        return answer(rule.allow).to_vec();
    }
    let access = i32::from(rule.access);
    let skip_answer = |code, register| Instruction { offset: 2, ..Instruction::new(code, register, 0) };
    let mut instructions = if rule.allow {
        vec![Instruction::new(AND_IMMEDIATE, REQUESTED, !access), skip_answer(JUMP_IF_NOT_EQUAL, REQUESTED)]
    } else {
        vec![
            Instruction { code: MOVE, to: ANSWER, from: REQUESTED, offset: 0, immediate: 0 },
            Instruction::new(AND_IMMEDIATE, ANSWER, access),
            skip_answer(JUMP_IF_EQUAL, ANSWER),
        ]
    };
    instructions.extend(answer(rule.allow));
    instructions
}

/// A number as an immediate; an error for one that no device has.
fn immediate(number: Option<i64>) -> Result<Option<i32>, std::num::TryFromIntError> {
    number.map(i32::try_from).transpose()
}

fn compile(rules: &[Rule]) -> Vec<u64> {
    assemble(rules).into_iter().map(Instruction::encode).collect()
}

#[cfg(test)]
mod tests;
