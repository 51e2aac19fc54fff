//! docs/driver-calls.md is what this prints: the tables, for people. `EGPU_WRITE_DOCS=1 cargo test -p abi driver_calls`
//! writes it anew.

use std::{collections::BTreeMap, fmt::Write, fs};

use super::{
    DriverRelease,
    classes::{CLASSES, ClassKind},
    controls::{ControlRow, ControlRule, controls, passing_tests::PASSING},
    escapes::{Action, ESCAPES, Escape, OnNode},
    layout::{Direction, Length, Releases},
    tests::PLAIN,
    uvm::{UVM_COMMANDS, UvmRule},
};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/driver-calls.md");

#[test]
fn driver_calls_md_is_what_the_tables_say() {
    let text = document();
    if std::env::var_os("EGPU_WRITE_DOCS").is_some() {
        fs::write(PATH, &text).unwrap();
    }
    let committed = fs::read_to_string(PATH).unwrap_or_default();
    let first = text.lines().zip(committed.lines()).find(|(now, then)| now != then);
    assert!(committed == text, "docs/driver-calls.md is stale, first at {first:?}; EGPU_WRITE_DOCS=1 writes it anew");
}

const INTRODUCTION: &str = "\
# What egpu does with each driver call

Generated from the tables in `nvidia-glue/abi/src`; a test fails when it is stale, and `EGPU_WRITE_DOCS=1 cargo test -p abi driver_calls`
writes it anew. Known drivers: 525 to 595. Numbers and structs are those of NVIDIA's open kernel modules; what a real driver did with them is in
[driver-facts.md](driver-facts.md).

A container with a quota makes these calls, and the mediator does one of four things with each:

- **executes** it itself, on a private copy of the arguments and on duplicates of the container's open files, and writes the results back.
  Whatever takes, frees, maps, shares or schedules is executed, so no thread of the container can change it after it was checked;
- **continues** it: the kernel executes the container's own call. Only calls that are harmless whatever a racing thread turns their arguments into,
  and the one that pins a program's memory, which is led into a client of the mediator's own;
- **answers** it without the driver;
- **refuses** it, with the status that the driver has for such a case.

## What is not in the tables
| what | done |
|---|---|
| an escape that no known release has: type `F`, any number and size but those of frame buffers (`0x4600` to `0x4620`, `0x80204612`, `0x40044620`) | refused (`EINVAL`, as the driver does), counted |
| a UVM command that no known release has: 8 to 0x1ff, 0x30000000 to 0x300000ff | refused (`EINVAL`), counted |
| a class | refused with `NV_ERR_INVALID_CLASS`, counted: it could obtain memory |
| a control | refused with `NV_ERR_NOT_SUPPORTED`, as the open modules do, counted: a pointer in its parameters would be one into the mediator. Those whose parameters the kernel hands to the card's firmware as they are (bit 15 without bit 14, and class 0x2081) pass and are counted |
| serialized parameters (`FINN_SERIALIZED`) | refused with `NV_ERR_INVALID_ARGUMENT`; programs on the card's own host do not use them |
| the driver's numbers under another type byte than `F`, with the sizes that they have | `ENOTTY`, in the filter; but for a few that can do nothing without the others and are also other drivers' |
| any other number under another type byte, bare numbers below 8 | pass: they cannot be told from what programs ask of terminals, sockets, file systems and other drivers. The driver fails them, with a line in the kernel's log. A release that is not known might take one |

A container without a grant gets `ENOTTY` for all of them that are refused here, as for every call in the tables.
";

fn document() -> String {
    let mut text = INTRODUCTION.to_owned();
    continued(&mut text);
    escapes(&mut text);
    uvm(&mut text);
    classes(&mut text);
    control_tables(&mut text);
    text
}

fn continued(text: &mut String) {
    text.push_str("\n## The continued calls, each with the reason\n| call | why it may be continued |\n|---|---|\n");
    for escape in ESCAPES {
        if let Action::Continue(reason) = escape.action {
            writeln!(text, "| `{}` ({:#04x}) | {reason} |", escape.name, escape.number).unwrap();
        }
    }
    for command in UVM_COMMANDS {
        if let UvmRule::Continue(reason) = command.rule {
            writeln!(text, "| `{}` ({}) | {reason} |", command.name, uvm_number(command.command)).unwrap();
        }
    }
}

fn uvm_number(command: u32) -> String {
    if command < 1000 { command.to_string() } else { format!("{command:#x}") }
}

fn action(action: Action) -> String {
    match action {
        Action::Execute => "executed".to_owned(),
        Action::Continue(_) => "continued".to_owned(),
        Action::Refuse(_, reason) => format!("refused: {reason}"),
    }
}

fn escapes(text: &mut String) {
    text.push_str(
        "\n## Escapes\nThe ioctls of `/dev/nvidiactl` and `/dev/nvidiaN`. Struct: bytes, and where its status is.\n\n",
    );
    text.push_str("| number | name | node | what it does | done | structs |\n|---|---|---|---|---|---|\n");
    for escape in ESCAPES {
        let node = match escape.node {
            OnNode::Control => "control",
            OnNode::Card => "card",
            OnNode::Either => "both",
        };
        writeln!(
            text,
            "| {:#04x} | `{}` | {node} | {} | {} | {} |",
            escape.number,
            escape.name,
            escape.what,
            action(escape.action),
            escape_structs(escape)
        )
        .unwrap();
    }
}

fn escape_structs(escape: &Escape) -> String {
    let each = escape.layouts.iter().map(|layout| {
        let array = if layout.array { ", or an array" } else { "" };
        format!("{}{array}{}{}", layout.size, status(layout.status), releases(layout.releases))
    });
    each.collect::<Vec<_>>().join("; ")
}

fn status(at: Option<u16>) -> String {
    at.map(|at| format!(" ({at})")).unwrap_or_default()
}

fn releases(releases: Releases) -> String {
    let since = releases.since.map(|release| format!(" since {}", short(release)));
    let before = releases.before.map(|release| format!(" before {}", short(release)));
    since.into_iter().chain(before).collect::<Vec<_>>().join(",")
}

/// A branch by its number alone.
fn short(release: DriverRelease) -> String {
    if (release.minor, release.patch) == (0, 0) { release.major.to_string() } else { release.to_string() }
}

fn uvm(text: &mut String) {
    text.push_str(
        "\n## UVM\nThe ioctls of `/dev/nvidia-uvm`.\n\n| number | name | done | structs |\n|---|---|---|---|\n",
    );
    for command in UVM_COMMANDS {
        let done = match command.rule {
            UvmRule::Execute => "executed".to_owned(),
            UvmRule::Continue(_) => "continued".to_owned(),
            UvmRule::Refuse(_, reason) => format!("refused: {reason}"),
        };
        let structs = command
            .layouts
            .iter()
            .map(|layout| format!("{}{}{}", layout.size, status(layout.status), releases(layout.releases)));
        let structs = structs.collect::<Vec<_>>().join("; ");
        writeln!(text, "| {} | `{}` | {done} | {structs} |", uvm_number(command.command), command.name).unwrap();
    }
}

/// Names by what is said of them, in the order in which that is first said.
#[derive(Default)]
struct Grouped {
    order: Vec<String>,
    names: BTreeMap<String, Vec<String>>,
}

impl Grouped {
    fn add(&mut self, what: String, name: String) {
        if !self.names.contains_key(&what) {
            self.order.push(what.clone());
        }
        self.names.entry(what).or_default().push(name);
    }

    fn write(&self, text: &mut String) {
        for what in &self.order {
            writeln!(text, "| {what} | {} |", self.names[what].join(", ")).unwrap();
        }
    }
}

fn classes(text: &mut String) {
    text.push_str("\n## Classes\nWhat `NV_ESC_RM_ALLOC` makes.\n\n| to egpu | classes |\n|---|---|\n");
    let mut grouped = Grouped::default();
    let mut refused = Grouped::default();
    for class in CLASSES {
        let name = format!("`{}` ({:#06x})", class.name, class.id);
        match class.kind {
            ClassKind::Refused(_, reason) => refused.add(reason.to_owned(), name),
            ClassKind::Answered(_, reason) => refused.add(format!("{reason}; answered by the mediator"), name),
            ClassKind::Plain => {
                let reason = PLAIN.iter().find(|(_, ids)| ids.contains(&class.id)).map_or("", |(reason, _)| reason);
                grouped.add(format!("decides nothing: {reason}"), name);
            }
            kind => grouped.add(class_kind(kind).to_owned(), name),
        }
    }
    grouped.write(text);
    text.push_str("\n### Refused classes\n| why | classes |\n|---|---|\n");
    refused.write(text);
}

fn class_kind(kind: ClassKind) -> &'static str {
    match kind {
        ClassKind::Root => "a client; registered",
        ClassKind::Device => {
            "a card; must be granted. Its own address space is its client's alone, in the card's memory"
        }
        ClassKind::Subdevice => "a part of a card",
        ClassKind::VideoMemory => "video memory; charged",
        ClassKind::SystemMemory => "memory of the host",
        ClassKind::VirtualMemory => "GPU addresses, no memory",
        ClassKind::AddressSpace => {
            "an address space of the program's own, its page tables in the card's memory; limited in number"
        }
        ClassKind::ChannelGroup => "a channel group; its context buffers are charged, limited in number",
        ClassKind::Channel => "a channel; limited in number",
        ClassKind::ContextShare => "a share of a channel group",
        ClassKind::Engine => "an engine's object on a channel",
        ClassKind::Event(_) => {
            "an event; it wakes and brings no data; limited in number; one that calls back into the kernel is refused"
        }
        ClassKind::UserSharedData => "a page that tells the card's memory and load; its mapping is replaced",
        ClassKind::Debugger => {
            "looks into an object of the container's own, and into no other container's; never puts off what ends a kernel that failed"
        }
        ClassKind::MemoryReference => {
            "keeps memory that exists allocated; the kernel maps it, and it may be 4 MiB long"
        }
        ClassKind::FabricMemory => {
            "addresses on the NVLink fabric for video memory that exists, which they keep charged; twice its size at most, and none to which memory is attached later"
        }
        ClassKind::PeerToPeer => "a path between two cards, both of which must be granted",
        ClassKind::Plain => "decides nothing",
        ClassKind::Answered(..) | ClassKind::Refused(..) => "refused",
    }
}

fn control_tables(text: &mut String) {
    let passed = controls().filter(|row| row.rule == ControlRule::Pass).count();
    writeln!(
        text,
        "\n## Controls\nWhat `NV_ESC_RM_CONTROL` asks: {} are known, and {passed} of them are executed with nothing more. The others:\n",
        controls().count()
    )
    .unwrap();
    text.push_str("| done | controls |\n|---|---|\n");
    let mut grouped = Grouped::default();
    for row in controls() {
        let done = match row.rule {
            ControlRule::View(_) => "names granted cards only; its answer shows the grant",
            ControlRule::Schedule(_) => {
                "decides about scheduling: own channels only, and the grant's share has the last word"
            }
            ControlRule::Export => "gives an object out to a file: a reference",
            ControlRule::Import => "takes an object in from a file",
            ControlRule::Share => "lets other clients duplicate objects; the container's own only",
            ControlRule::Answered(_, reason) => {
                grouped.add(format!("answered without the driver: {reason}"), name_of(&row));
                continue;
            }
            ControlRule::Pass | ControlRule::Refuse(..) => continue,
        };
        grouped.add(done.to_owned(), name_of(&row));
    }
    grouped.write(text);
    passing(text);
    pointers(text);
    refused_controls(text);
}

fn passing(text: &mut String) {
    text.push_str(
        "\n### Controls that pass, each with the reason\nA test fails for one that has none.\n\n| why | controls |\n|---|---|\n",
    );
    for (reason, ids) in PASSING {
        let rows = controls().filter(|row| ids.contains(&row.id));
        writeln!(text, "| {reason} | {} |", rows.map(|row| name_of(&row)).collect::<Vec<_>>().join(", ")).unwrap();
    }
}

fn pointers(text: &mut String) {
    text.push_str(
        "\n### Controls whose parameters point to memory\nWhat the pointer at an offset leads to is copied; no address of the container's \
         reaches the driver.\n\n| control | pointers |\n|---|---|\n",
    );
    for row in controls().filter(|row| !row.pointers.is_empty()) {
        let each = row.pointers.iter().map(|pointer| {
            let length = match pointer.length {
                Length::Fixed(bytes) => format!("{bytes} bytes"),
                Length::Counted { at, element: 1, .. } => format!("as many bytes as at {at}"),
                Length::Counted { at, element, .. } => format!("{element} bytes times the number at {at}"),
                Length::Squared { at, element, .. } => {
                    format!("{element} bytes times the square of the number at {at}")
                }
            };
            let direction = match pointer.direction {
                Direction::In => "in",
                Direction::Out => "out",
                Direction::InOut => "in and out",
            };
            format!("{}: {length}, {direction}{}", pointer.at, releases(pointer.releases))
        });
        writeln!(text, "| `{}` ({:#010x}) | {} |", row.name, row.id, each.collect::<Vec<_>>().join("; ")).unwrap();
    }
}

fn refused_controls(text: &mut String) {
    text.push_str("\n### Refused controls\n| why | controls |\n|---|---|\n");
    let mut grouped = Grouped::default();
    for row in controls() {
        let ControlRule::Refuse(_, reason) = row.rule else { continue };
        grouped.add(reason.to_owned(), name_of(&row));
    }
    for what in &grouped.order {
        let names = &grouped.names[what];
        // Those that the driver refuses by itself, and those of whole classes, are many and tell nobody anything.
        let many = names.len() > 100;
        let said = if many { format!("{} controls", names.len()) } else { names.join(", ") };
        writeln!(text, "| {what} | {said} |").unwrap();
    }
}

fn name_of(row: &ControlRow) -> String {
    format!("`{}` ({:#010x})", row.name, row.id)
}
