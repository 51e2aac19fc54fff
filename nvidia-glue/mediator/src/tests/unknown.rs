//! Calls that no table has: calls of a number that no release knows, and drivers of a release that
//! is not known.

use std::{collections::BTreeSet, error::Error, fs::File};

use abi::{
    DriverRelease, Node, Status,
    escapes::{ESCAPES, escape},
    uvm::uvm_command,
};
use fence::{ESCAPE_NUMBERS, UVM_COMMANDS};

use super::{
    alone::OneProgram,
    world::{Container, GIB, MIB, Machine},
};
use crate::{Answer, locks::lock};

/// `_IOWR('F', number, size)`.
fn command(number: u32, size: u32) -> u32 {
    3 << 30 | size << 16 | ESCAPE_NUMBERS.start() | number
}

fn told(container: &Container) -> Vec<String> {
    lock(&container.observed.unknown).iter().map(ToString::to_string).collect()
}

/// Every number that the filter sends here and no release has is answered as the driver answers it,
/// without the driver, which would write a line into the kernel's log.
#[test]
fn calls_that_no_release_has_are_refused_and_counted() {
    let OneProgram { container, program, .. } = OneProgram::within(GIB);
    let control = program.open(Node::Control);
    let card = program.open(Node::Card(container.machine.inventory.cards[0].minor));
    let uvm = program.open(Node::Uvm);
    let mut calls = Vec::new();
    for number in (0..=255).filter(|number| escape(*number).is_none()).map(u32::from) {
        // None of them is a frame buffer's, though these have the same type and low numbers.
        for (fd, size) in [(control, 4), (card, 48), (control, 512)] {
            calls.push((fd, command(number, size), format!("ioctl {number:#04x}")));
        }
    }
    let unknown_of_uvm = UVM_COMMANDS.chain([0x3000_0003]).filter(|command| uvm_command(*command).is_none());
    calls.extend(unknown_of_uvm.map(|command| (uvm, command, format!("UVM ioctl {command}"))));
    assert!(calls.len() > 3 * (256 - ESCAPES.len()) + 400, "{} calls", calls.len());
    for (fd, command, name) in &calls {
        let mut args = [0x5a; 512];
        assert_eq!(program.ioctl(*fd, *command, &mut args), Answer::Errno(libc::EINVAL), "{name}, {command:#x}");
        assert_eq!(args, [0x5a; 512], "{name} writes nothing");
    }
    let usage = container.session.usage();
    assert_eq!((usage.unknown_refused, usage.unknown_passed), (u64::try_from(calls.len()).unwrap(), 0));
    let told = told(&container);
    let distinct: BTreeSet<&String> = told.iter().collect();
    assert_eq!(told.len(), distinct.len(), "each is told once");
    // Not more than so many kinds: a program cannot fill a log with them either.
    assert_eq!(told.len(), 256);
    assert_eq!(program.context(0).memory(MIB).map(drop), Ok(()), "other calls work on");
}

/// A program is told of its own files what it is told outside: that the file does not know it.
#[test]
fn such_calls_on_other_files_are_not_counted() {
    let OneProgram { container, program, .. } = OneProgram::within(GIB);
    let null = program.give(File::open("/dev/null").unwrap());
    for command in [command(0xf0, 16), command(0x05, 8), 8, 221, 0x1ff, 0x3000_0009] {
        assert_eq!(program.ioctl(null, command, &mut [0; 16]), Answer::Errno(libc::ENOTTY), "{command:#x}");
        assert_eq!(program.ioctl(99, command, &mut [0; 16]), Answer::Errno(libc::EBADF), "{command:#x}");
    }
    assert_eq!(container.session.usage().unknown_refused, 0);
    assert_eq!(told(&container), Vec::<String>::new());
}

const UNKNOWN: [DriverRelease; 2] = [DriverRelease::new(700, 1, 0), DriverRelease::new(470, 256, 2)];

#[test]
fn an_unknown_driver_is_refused_with_what_is_accepted() {
    let machine = Machine::new(1);
    for release in UNKNOWN {
        let error = machine.container_beside(release, false).err().expect("a refusal");
        let cause = error.source().expect("a cause").to_string();
        assert!(cause.contains(&release.to_string()) && cause.contains("525 to 595"), "{cause}");
        assert!(cause.contains("`unknown_driver = \"pass\"`"), "{cause}");
    }
}

/// It is read as the nearest known one, and held to the quota; what it might know beyond that is
/// refused all the same.
#[test]
fn an_unknown_driver_that_is_passed_is_mediated_as_the_nearest() {
    let machine = Machine::new(1);
    let container = machine.container_beside(UNKNOWN[0], true).unwrap();
    assert_eq!(container.session.abi.release(), DriverRelease::new(595, 0, 0));
    let program = container.program();
    let context = program.context(0);
    let memory = context.memory(768 * MIB).unwrap();
    assert_eq!(container.used(0), 768 * MIB);
    assert_eq!(context.memory(512 * MIB), Err(Status::NO_MEMORY));
    context.free(memory).unwrap();
    assert_eq!(container.used(0), 0);
    assert_eq!(program.escape(context.control, 0xf0, &mut [0; 16]), Answer::Errno(libc::EINVAL));
    assert_eq!(program.ioctl(program.open(Node::Uvm), 81, &mut [0; 16]), Answer::Errno(libc::EINVAL));
    let usage = container.session.usage();
    assert_eq!((usage.unknown_refused, usage.unknown_passed), (2, 0));
    assert_eq!(told(&container), ["ioctl 0xf0", "UVM ioctl 81"]);
}

/// A release that is known needs no leave.
#[test]
fn a_known_driver_is_read_as_itself_either_way() {
    let machine = Machine::new(1);
    let release = DriverRelease::new(580, 159, 4);
    for passed in [false, true] {
        let container = machine.container_beside(release, passed).unwrap();
        assert_eq!(container.session.abi.release(), release);
    }
}
