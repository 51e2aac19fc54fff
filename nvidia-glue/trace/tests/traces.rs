//! Traces of real programs against the tables: what they do must be known and let through.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};

use abi::{
    Abi, Call, Node, Status,
    classes::ClassKind,
    controls::{self, ControlRule},
    decode::{self, Row},
    escapes::Action,
};
use testing::replay::{PROGRAMS, recorded};
use trace::{Event, Header, Ioctl, Line};

/// Every call, with the node that it was made on.
fn calls(lines: &[Line]) -> Vec<(Node, &Ioctl)> {
    let mut nodes = BTreeMap::new();
    let mut calls = Vec::new();
    for line in lines {
        match &line.event {
            Event::Open { file, node } => {
                let node = match node.as_str() {
                    "nvidiactl" => Node::Control,
                    "nvidia-uvm" => Node::Uvm,
                    card => Node::Card(card.strip_prefix("nvidia").unwrap().parse().unwrap()),
                };
                assert_eq!(nodes.insert(*file, node), None);
            }
            Event::Close { file } => assert!(nodes.remove(file).is_some()),
            Event::Ioctl(call) => calls.push((nodes[&call.file], call)),
            _ => {}
        }
    }
    assert_eq!(nodes, BTreeMap::new(), "all is closed in the end");
    calls
}

fn abi(header: &Header) -> Abi {
    Abi::of(header.driver.as_deref().unwrap().parse().unwrap()).unwrap()
}

#[test]
fn every_call_is_known_and_its_status_is_where_the_tables_say() {
    for program in PROGRAMS {
        let (header, lines) = recorded(program);
        let abi = abi(&header);
        for (node, call) in calls(&lines) {
            let row = decode::row(abi, node, call.command).unwrap_or_else(|error| panic!("{program}: {error}"));
            assert_eq!(row.size(), call.args.before.0.len(), "{program}: {}", row.name());
            decode::decode(abi, node, call.command, &call.args.before.0)
                .unwrap_or_else(|error| panic!("{program}: {error}"));
            let status = row.status(call.args.after()).map_or(0, |status| status.0);
            // Errors are small numbers, warnings begin at 0x10000 (nvstatuscodes.h): anything else
            // is another field.
            assert!(status < 0x100 || (0x10000..0x10100).contains(&status), "{program}: {} {status:#x}", row.name());
            assert_eq!(call.result, 0, "{program}: {}", row.name());
        }
    }
}

#[test]
fn nothing_that_they_need_is_refused() {
    let mut refused = BTreeSet::new();
    for program in PROGRAMS {
        let (header, lines) = recorded(program);
        let abi = abi(&header);
        for (node, call) in calls(&lines) {
            let worked =
                decode::row(abi, node, call.command).unwrap().status(call.args.after()).is_none_or(Status::is_ok);
            if let Some(what) = refusal(abi, node, call).filter(|_| worked) {
                refused.insert(what);
            }
        }
    }
    // What docs/driver-facts.md says they do without.
    let known = [
        "AMPERE_SMC_CONFIG_SESSION",
        "AMPERE_SMC_MONITOR_SESSION",
        "NV50_THIRD_PARTY_P2P",
        "NV503C_CTRL_CMD_REGISTER_VA_SPACE",
        "NV503C_CTRL_CMD_REGISTER_VIDMEM",
        "NV503C_CTRL_CMD_UNREGISTER_VIDMEM",
    ];
    assert_eq!(refused, known.map(str::to_owned).into_iter().collect());
}

/// Refusal of a call by the tables.
fn refusal(abi: Abi, node: Node, call: &Ioctl) -> Option<String> {
    let decoded = decode::decode(abi, node, call.command, &call.args.before.0).unwrap();
    if let Action::Refuse(..) = decoded.row.action() {
        return Some(decoded.row.name().to_owned());
    }
    match decoded.call {
        Call::Alloc(alloc) => match alloc.class() {
            None => Some(format!("class {:#x}", alloc.class)),
            Some(class) => {
                matches!(class.kind, ClassKind::Refused(..) | ClassKind::Answered(..)).then(|| class.name.to_owned())
            }
        },
        Call::Control(control) => {
            let is_refused = matches!(controls::rule_of(control.id), ControlRule::Refuse(..));
            is_refused.then(|| control.row().map_or_else(|| format!("{:#x}", control.id), |row| row.name.to_owned()))
        }
        _ => None,
    }
}

#[test]
fn buffers_are_as_large_as_the_tables_copy() {
    for program in PROGRAMS {
        let (header, lines) = recorded(program);
        let abi = abi(&header);
        for (node, call) in calls(&lines) {
            let decoded = decode::decode(abi, node, call.command, &call.args.before.0).unwrap();
            let Call::Control(control) = decoded.call else { continue };
            if control.params_size == 0 {
                continue;
            }
            let params = call.buffers.iter().find(|buffer| buffer.holder.is_none()).unwrap();
            assert_eq!(params.bytes.before.0.len(), control.params_size as usize, "{program}: {:#x}", control.id);
            let least = control.row().map_or(0, |row| usize::from(row.least_params));
            assert!(params.bytes.before.0.len() >= least, "{program}: {:#x}", control.id);
        }
    }
}

#[test]
fn libcuda_takes_what_the_facts_say() {
    let (header, lines) = recorded("cuda");
    let abi = abi(&header);
    let sizes: Vec<u64> = calls(&lines)
        .into_iter()
        .filter_map(|(node, call)| {
            let Row::Escape(escape, ..) = decode::row(abi, node, call.command).ok()? else { return None };
            let is_memory = escape.number == 0x2b && call.subject.as_deref() == Some("NV01_MEMORY_LOCAL_USER");
            let size = call.buffers.first()?.bytes.after().get(64..72)?.try_into().ok()?;
            is_memory.then_some(u64::from_le_bytes(size))
        })
        .collect();
    // docs/driver-facts.md: 17 allocations of its own, then the program's three of 64 MiB.
    assert_eq!(sizes.len(), 20);
    assert_eq!(sizes.iter().take(17).sum::<u64>(), 530_432 << 10);
    assert_eq!(sizes[17..], [64 << 20; 3]);
}
