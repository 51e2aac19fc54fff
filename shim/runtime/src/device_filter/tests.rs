//! The program, run by a small interpreter and compared with the rules read in order.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A device and what is asked of it.
#[derive(Debug, Clone, Copy)]
struct DeviceAccess {
    kind: DeviceKind,
    major: u32,
    minor: u32,
    access: u8,
}

/// Runs a program as the kernel would; `None` when it leaves its own end or uses what this does not
/// know.
fn interpret(program: &[Instruction], request: DeviceAccess) -> Option<bool> {
    let context = [u32::from(request.access) << 16 | request.kind as u32, request.major, request.minor];
    let mut registers = [0u64; 11];
    let mut at = 0usize;
    loop {
        let i = program.get(at)?;
        at += 1;
        let immediate = i64::from(i.immediate).cast_unsigned();
        let value = registers[usize::from(i.to)];
        let jump = match i.code {
            LOAD_WORD => {
                registers[usize::from(i.to)] = u64::from(context[usize::try_from(i.offset / 4).ok()?]);
                false
            }
            MOVE => {
                registers[usize::from(i.to)] = registers[usize::from(i.from)];
                false
            }
            MOVE_IMMEDIATE => {
                registers[usize::from(i.to)] = immediate;
                false
            }
            AND_IMMEDIATE => {
                registers[usize::from(i.to)] = value & immediate;
                false
            }
            SHIFT_RIGHT_IMMEDIATE => {
                registers[usize::from(i.to)] = value >> immediate;
                false
            }
            JUMP_IF_EQUAL => value == immediate,
            JUMP_IF_NOT_EQUAL => value != immediate,
            EXIT => return Some(registers[usize::from(ANSWER)] == 1),
            _ => return None,
        };
        if jump {
            at += usize::try_from(i.offset).ok()?;
        }
    }
}

/// The rules as their description reads.
fn expected(rules: &[Rule], request: DeviceAccess) -> bool {
    [MKNOD, READ, WRITE].into_iter().filter(|access| request.access & access != 0).all(|access| {
        let speaks = |rule: &&Rule| {
            rule.access & access != 0
                && rule.kind.is_none_or(|kind| kind == request.kind)
                && rule.major.is_none_or(|major| major == i64::from(request.major))
                && rule.minor.is_none_or(|minor| minor == i64::from(request.minor))
        };
        rules.iter().rev().find(speaks).is_some_and(|rule| rule.allow)
    })
}

fn spec_rules(value: serde_json::Value) -> Vec<Rule> {
    rules(&serde_json::from_value::<Vec<LinuxDeviceCgroup>>(value).unwrap()).unwrap()
}

#[test]
fn a_container_gets_its_devices_and_the_usual_ones() {
    let rules = spec_rules(json!([
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"},
        {"allow": true, "type": "b", "major": 8, "access": "r"},
        {"allow": false, "type": "c", "major": 195, "minor": 0, "access": "w"},
    ]));
    let program = assemble(&rules);
    use DeviceKind::{Block, Character};
    for (kind, major, minor, access, allowed) in [
        (Character, 195, 0, READ, true),
        (Character, 195, 0, READ | WRITE, false),
        (Character, 195, 1, READ, false),
        (Character, 195, 1, MKNOD, true),
        (Block, 8, 17, READ, true),
        (Block, 8, 17, READ | WRITE, false),
        (Character, 1, 3, READ | WRITE, true),
        (Character, 136, 7, READ | WRITE, true),
        (Character, 1, 1, READ, false),
    ] {
        let request = DeviceAccess { kind, major, minor, access };
        assert_eq!(interpret(&program, request), Some(allowed), "{request:?}");
    }
}

#[test]
fn without_rules_nothing_unusual_is_allowed() {
    let program = assemble(&spec_rules(json!([])));
    let disk = DeviceAccess { kind: DeviceKind::Block, major: 8, minor: 0, access: READ };
    assert_eq!(interpret(&program, disk), Some(false));
    let privileged = assemble(&spec_rules(json!([{"allow": true, "access": "rwm"}])));
    assert_eq!(interpret(&privileged, disk), Some(true));
}

#[test]
fn an_access_of_other_letters_is_refused() {
    assert!(matches!(access(Some("rx")), Err(DeviceFilterError::Access(_))));
    assert_eq!(access(None).unwrap(), ALL);
}

#[test]
fn the_kernel_takes_the_program() {
    let program = compile(&spec_rules(json!([
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "major": 195, "access": "rw"},
        {"allow": false, "type": "c", "major": 195, "minor": 254, "access": "w"},
    ])));
    match bpf::load_device_program(&program) {
        Ok(_) => {}
        Err(e) if [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported].contains(&e.kind()) => {
            testing::skipped(format_args!("this kernel lets nobody here load a program: {e}"));
        }
        Err(e) => panic!("{e}"),
    }
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let kind = prop_oneof![Just(None), Just(Some(DeviceKind::Block)), Just(Some(DeviceKind::Character))];
    let number = || prop_oneof![2 => Just(None), 5 => (0i64..4).prop_map(Some), 1 => Just(Some(1 << 40))];
    (any::<bool>(), kind, number(), number(), 1..=ALL).prop_map(|(allow, kind, major, minor, access)| Rule {
        allow,
        kind,
        major,
        minor,
        access,
    })
}

proptest! {
    #[test]
    fn the_program_does_what_the_rules_say(
        rules in prop::collection::vec(any_rule(), 0..12), major in 0u32..4, minor in 0u32..4, access in 1..=ALL,
        block in any::<bool>(),
    ) {
        let request = DeviceAccess { kind: if block { DeviceKind::Block } else { DeviceKind::Character }, major, minor, access };
        prop_assert_eq!(interpret(&assemble(&rules), request), Some(expected(&rules, request)));
        prop_assert_eq!(expected(&without_shadowed(&rules), request), expected(&rules, request));
    }

    #[test]
    fn every_jump_stays_in_the_program_and_every_instruction_is_reachable(
        rules in prop::collection::vec(any_rule(), 0..12),
    ) {
        let program = assemble(&rules);
        let mut reached = vec![false; program.len()];
        let mut open = vec![0usize];
        while let Some(at) = open.pop() {
            prop_assert!(at < program.len());
            if std::mem::replace(&mut reached[at], true) { continue; }
            let i = program[at];
            if i.code != EXIT { open.push(at + 1); }
            if matches!(i.code, JUMP_IF_EQUAL | JUMP_IF_NOT_EQUAL) {
                prop_assert!(i.offset > 0);
                open.push(at + 1 + usize::try_from(i.offset).unwrap());
            }
        }
        prop_assert!(reached.into_iter().all(|reached| reached));
    }
}
