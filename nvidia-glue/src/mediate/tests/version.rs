//! What the driver is asked of versions.

use super::{spy::Spy, world::Machine};
use crate::{mediate::Answer, rm::Node};

const NUMBER: u8 = 0xd2;

fn asked(command: u8, version: &str) -> [u8; 72] {
    let mut args = [0; 72];
    args[0] = command;
    args[8..8 + version.len()].copy_from_slice(version.as_bytes());
    args
}

#[test]
fn a_wrong_string_gets_to_the_driver_once() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let control = program.open(Node::Control);
    let ask = |command: u8, version: &str| {
        let mut args = asked(command, version);
        let answer = program.escape(control, NUMBER, &mut args);
        let told = String::from_utf8(args[8..].to_vec()).unwrap();
        (answer, told.trim_end_matches('\0').to_owned(), spy.escapes(NUMBER).len())
    };
    let (answer, own, _) = ask(b'2', "");
    assert_eq!(answer, Answer::Return(0));
    assert_eq!(ask(0, &own), (Answer::Return(0), own.clone(), 1));
    let refused = Answer::Errno(libc::EINVAL);
    assert_eq!(ask(0, "1.2.3"), (refused, own.clone(), 1), "the driver says which is right");
    for (command, wrong) in [(0, "1.2.3"), (0, "4.5.6"), (b'1', "4.5"), (7, "")] {
        let mut args = asked(command, wrong);
        assert_eq!(program.escape(control, NUMBER, &mut args), refused);
        assert_eq!(args[..8], [command, 0, 0, 0, 1, 0, 0, 0], "the question was understood");
        assert_eq!(ask(command, wrong), (refused, own.clone(), 0));
    }
    assert_eq!(ask(0, &own), (Answer::Return(0), own.clone(), 1));
    assert_eq!(ask(b'2', "4.5.6"), (Answer::Return(0), own, 1));
}
