//! Questions to the driver about versions.

use abi::Node;
use cards::Inventory;

use super::{
    alone::OneProgram,
    spy::Spy,
    world::{Machine, Program},
};
use crate::Answer;

const NUMBER: u8 = 0xd2;

fn asked(command: u8, version: &str) -> [u8; 72] {
    let mut args = [0; 72];
    args[0] = command;
    args[8..8 + version.len()].copy_from_slice(version.as_bytes());
    args
}

/// Answer that the program gets, and how often the driver was asked, and told the kernel's log of
/// it.
struct VersionAnswer {
    answer: Answer,
    version: String,
    asked: usize,
    logged: usize,
}

fn ask(program: &Program, control: i32, spy: &Spy, command: u8, version: &str) -> VersionAnswer {
    let mut args = asked(command, version);
    let answer = program.escape(control, NUMBER, &mut args);
    let seen = spy.escapes(NUMBER);
    let text = |args: &[u8]| String::from_utf8(args[8..].to_vec()).unwrap().trim_end_matches('\0').to_owned();
    let version = text(&args);
    assert_eq!(args[1..8], [0, 0, 0, 1, 0, 0, 0], "the question was understood");
    let logged = seen.iter().filter(|args| args[0] != b'2' && text(args) != version).count();
    VersionAnswer { answer, version, asked: seen.len(), logged }
}

#[test]
fn no_wrong_string_gets_to_a_driver_that_tells_its_own() {
    let OneProgram { machine, spy, program, .. } = OneProgram::new();
    let control = program.open(Node::Control);
    let own = machine.inventory.driver_version.clone();
    for (turn, (command, wrong)) in [(0, "1.2.3"), (b'1', "4.5"), (7, ""), (0, "4.5.6")].into_iter().enumerate() {
        let told = ask(&program, control, &spy, command, wrong);
        assert_eq!((told.answer, told.version.as_str()), (Answer::Errno(libc::EINVAL), own.as_str()));
        assert_eq!((told.asked, told.logged), (usize::from(turn == 0), 0), "asked which its own is, once");
    }
    for (command, right) in [(0, own.as_str()), (b'2', ""), (b'2', "4.5.6")] {
        let told = ask(&program, control, &spy, command, right);
        assert_eq!((told.answer, told.version.as_str(), told.asked), (Answer::Return(0), own.as_str(), 1));
    }
    let mut args = asked(b'2', "4.5.6");
    args[1] = 1;
    assert_eq!(program.escape(control, NUMBER, &mut args), Answer::Errno(libc::EINVAL));
    assert!(spy.escapes(NUMBER).is_empty(), "the command is all of its 32 bits");
}

#[test]
fn to_one_that_does_not_tell_it_gets_once() {
    let machine = Machine::of(Inventory { driver_version: "525.105.17".to_owned(), ..Machine::new(1).inventory });
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let control = program.open(Node::Control);
    assert_eq!(ask(&program, control, &spy, b'2', "1.2.3").version, "1.2.3", "its answer to that question is yes");
    let logged = |wrong| {
        let told = ask(&program, control, &spy, 0, wrong);
        assert_eq!((told.answer, told.version.as_str()), (Answer::Errno(libc::EINVAL), "525.105.17"));
        told.logged
    };
    assert_eq!((logged("1.2.3"), logged("1.2.3"), logged("4.5.6")), (1, 0, 0));
}
