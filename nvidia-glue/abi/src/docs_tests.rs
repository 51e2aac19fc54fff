//! Generator and check of docs/driver-calls.md, which shows the tables to people, one row a call.
//! `EGPU_WRITE_DOCS=1 cargo test -p abi driver_calls` writes it anew.

use std::fmt::Write;

use super::{
    DriverRelease,
    classes::{self, Class, ClassKind},
    controls::{ControlRow, ControlRule, controls, passing_tests::PASSING},
    escapes::{Action, ESCAPES, Escape, OnNode},
    layout::{Direction, Length, Pointer, Releases},
    tests::PLAIN,
    uvm::{UVM_COMMANDS, UvmRule},
};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/driver-calls.md");

#[test]
fn driver_calls_md_is_what_the_tables_say() {
    testing::is_document(PATH, |_| document());
}

const INTRODUCTION: &str = "\
# What egpu does with each driver call

Generated from the tables in `nvidia-glue/abi`: a test fails when it is stale, and
`EGPU_WRITE_DOCS=1 cargo test -p abi driver_calls` writes it anew. Known drivers: 525 to 595.
Numbers and structs are those of NVIDIA's open kernel modules; what a real driver did with them is
in [driver-facts.md](driver-facts.md).

A container with a quota makes these calls. The mediator does one of four things with each:

- **executes** it itself, on a private copy of the arguments and on duplicates of the container's
  open files, and writes the results back. Whatever takes, frees, maps, shares or schedules is
  executed, so no thread of the container can change it after it was checked;
- **continues** it: the kernel executes the container's own call. Only calls that are harmless
  whatever a racing thread turns their arguments into, and the one that pins a program's memory,
  which is led into a client of the mediator's own;
- **answers** it without the driver;
- **refuses** it, with the status that the driver has for such a case.
";

const UNKNOWN_CALLS: &str = "
## Calls that are not in the tables
- **An escape that no known release has**: type `F`, any number and size but those of frame buffers
  (`0x4600` to `0x4620`, `0x80204612`, `0x40044620`). Refused (`EINVAL`, as the driver does) and
  counted.
- **A UVM command that no known release has**: 8 to 0x1ff, 0x30000000 to 0x300000ff. Refused
  (`EINVAL`), counted.
- **A class**: refused with `NV_ERR_INVALID_CLASS`, counted: it could obtain memory.
- **A control**: refused with `NV_ERR_NOT_SUPPORTED`, as the open modules do, counted: a pointer in
  its parameters would be one into the mediator. Those whose parameters the kernel hands to the
  card's firmware as they are (bit 15 without bit 14, and class 0x2081) pass and are counted.
- **Serialized parameters** (`FINN_SERIALIZED`): refused with `NV_ERR_INVALID_ARGUMENT`; programs on
  the card's own host do not use them.
- **The driver's numbers under another type byte than `F`**, with the sizes that they have:
  `ENOTTY`, in the filter; but for a few that can do nothing without the others and are also other
  drivers'.
- **Any other number under another type byte, bare numbers below 8**: pass. They cannot be told from
  what programs ask of terminals, sockets, file systems and other drivers. The driver fails them,
  with a line in the kernel's log. A release that is not known might take one.

A container without a grant gets `ENOTTY` for all of them that are refused here, as for every call
in the tables.
";

fn document() -> String {
    let mut text = INTRODUCTION.to_owned();
    summary(&mut text);
    text.push_str(UNKNOWN_CALLS);
    escapes(&mut text);
    uvm(&mut text);
    classes(&mut text);
    control_tables(&mut text);
    pointers(&mut text);
    text
}

/// Outcome of a call: the word for it, and the reason where there is one.
struct Outcome {
    word: &'static str,
    reason: String,
}

impl Outcome {
    fn new(word: &'static str, reason: impl Into<String>) -> Self {
        Self { word, reason: reason.into() }
    }

    /// The first clause of the reason; [`reasons_in_full`] has the rest.
    fn clause(&self) -> &str {
        let end = [": ", "; ", ". "].iter().filter_map(|mark| self.reason.find(mark)).min();
        end.map_or(self.reason.as_str(), |end| &self.reason[..end])
    }

    fn cell(&self) -> String {
        if self.reason.is_empty() { self.word.to_owned() } else { format!("{}: {}", self.word, self.clause()) }
    }
}

fn escape_outcome(escape: &Escape) -> Outcome {
    match escape.action {
        Action::Execute => Outcome::new("executed", ""),
        Action::Continue(reason) => Outcome::new("continued", reason),
        Action::Refuse(_, reason) => Outcome::new("refused", reason),
    }
}

fn uvm_outcome(rule: UvmRule) -> Outcome {
    match rule {
        UvmRule::Execute => Outcome::new("executed", ""),
        UvmRule::Continue(reason) => Outcome::new("continued", reason),
        UvmRule::Refuse(_, reason) => Outcome::new("refused", reason),
    }
}

fn class_outcome(class: &Class) -> Outcome {
    let reason = match class.kind {
        ClassKind::Refused(_, reason) => return Outcome::new("refused", reason),
        ClassKind::Answered(_, reason) => return Outcome::new("answered", reason),
        ClassKind::Plain => PLAIN.iter().find(|(_, ids)| ids.contains(&class.id)).map_or("", |(reason, _)| reason),
        kind => class_kind(kind),
    };
    Outcome::new("executed", reason)
}

fn control_outcome(row: &ControlRow) -> Outcome {
    let reason = match row.rule {
        ControlRule::Refuse(_, reason) => return Outcome::new("refused", reason),
        ControlRule::Answered(_, reason) => return Outcome::new("answered", reason),
        ControlRule::Pass => PASSING.iter().find(|(_, ids)| ids.contains(&row.id)).map_or("", |(reason, _)| reason),
        ControlRule::View(_) => "names granted cards only; its answer shows the grant",
        ControlRule::Schedule(_) => {
            "decides about scheduling; own channels only, and the grant's share has the last word"
        }
        ControlRule::Export => "gives an object out to a file: a reference",
        ControlRule::Import => "takes an object in from a file",
        ControlRule::ContextSize => {
            "tells of the calling client's own channel or group, which the driver looks for in that client only"
        }
        ControlRule::Share => "lets other clients duplicate objects; the container's own only",
        ControlRule::Attach => {
            "attaches the client's own charged memory of one card to its own addresses on the fabric, or detaches it; only by the handle that these were made with"
        }
    };
    Outcome::new("executed", reason)
}

fn summary(text: &mut String) {
    text.push_str("\n| | known | executed | continued | answered | refused |\n|---|---|---|---|---|---|\n");
    let kinds = [
        ("escapes", ESCAPES.iter().map(escape_outcome).collect::<Vec<_>>()),
        ("UVM commands", UVM_COMMANDS.iter().map(|command| uvm_outcome(command.rule)).collect()),
        ("classes", classes::classes().map(|row| class_outcome(&row)).collect()),
        ("controls", controls().map(|row| control_outcome(&row)).collect()),
    ];
    for (kind, outcomes) in kinds {
        let count = |word| outcomes.iter().filter(|outcome| outcome.word == word).count();
        let [executed, continued, answered, refused] = ["executed", "continued", "answered", "refused"].map(count);
        let known = outcomes.len();
        assert_eq!(known, executed + continued + answered + refused);
        writeln!(text, "| {kind} | {known} | {executed} | {continued} | {answered} | {refused} |").unwrap();
    }
    let views = controls().filter(|row| matches!(row.rule, ControlRule::View(_))).count();
    let scheduling = controls().filter(|row| matches!(row.rule, ControlRule::Schedule(_))).count();
    let notes = format!(
        "Of the executed controls, {views} have answers that are made to show the grant, and {scheduling} decide about \
         scheduling. A reason in a table is its first clause; where there is more to it, the list below the table has it \
         whole."
    );
    text.push('\n');
    wrapped(text, "", &notes);
}

/// Appends `words` in lines of at most 100 columns, those after the first indented.
fn wrapped(text: &mut String, indent: &str, words: &str) {
    let mut column = 0;
    for word in words.split(' ') {
        if column > 0 && column + 1 + word.chars().count() > 100 {
            text.push('\n');
            text.push_str(indent);
            column = indent.len();
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.chars().count();
    }
    text.push('\n');
}

/// Lists the reasons that the table above shows the first clause of, each once.
fn reasons_in_full(text: &mut String, outcomes: impl Iterator<Item = Outcome>) {
    let mut listed = Vec::new();
    for outcome in outcomes.filter(|outcome| outcome.clause() != outcome.reason) {
        let line = format!("- {}: {}", outcome.word, outcome.reason);
        if !listed.contains(&line) {
            listed.push(line);
        }
    }
    text.push('\n');
    for line in listed {
        wrapped(text, "  ", &line);
    }
}

fn uvm_number(command: u32) -> String {
    if command < 1000 { command.to_string() } else { format!("{command:#x}") }
}

fn escapes(text: &mut String) {
    text.push_str(
        "\n## Escapes\nThe ioctls of `/dev/nvidiactl` and `/dev/nvidiaN`. Struct: bytes, and where its status is.\n\n",
    );
    text.push_str("| number | name | node | purpose | done | structs |\n|---|---|---|---|---|---|\n");
    for escape in ESCAPES {
        let node = match escape.node {
            OnNode::Control => "control",
            OnNode::Card => "card",
            OnNode::Either => "both",
        };
        let (number, name, what) = (escape.number, escape.name, escape.what);
        let done = escape_outcome(escape).cell();
        let layouts = escape.layouts.iter().map(|it| layout(it.size, it.array, it.status, it.releases));
        let structs = layouts.collect::<Vec<_>>().join("; ");
        writeln!(text, "| {number:#04x} | `{name}` | {node} | {what} | {done} | {structs} |").unwrap();
    }
    reasons_in_full(text, ESCAPES.iter().map(escape_outcome));
}

fn layout(size: u16, array: bool, status: Option<u16>, of: Releases) -> String {
    let array = if array { ", or an array" } else { "" };
    let status = status.map(|at| format!(" ({at})")).unwrap_or_default();
    format!("{size}{array}{status}{}", releases(of))
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
        let (number, done) = (uvm_number(command.command), uvm_outcome(command.rule).cell());
        let layouts = command.layouts.iter().map(|it| layout(it.size, false, it.status, it.releases));
        let structs = layouts.collect::<Vec<_>>().join("; ");
        writeln!(text, "| {number} | `{}` | {done} | {structs} |", command.name).unwrap();
    }
    reasons_in_full(text, UVM_COMMANDS.iter().map(|command| uvm_outcome(command.rule)));
}

fn classes(text: &mut String) {
    text.push_str("\n## Classes\nThe objects that `NV_ESC_RM_ALLOC` makes.\n\n");
    text.push_str("| number | name | done |\n|---|---|---|\n");
    let mut rows: Vec<Class> = classes::classes().collect();
    rows.sort_by_key(|row| row.id);
    for class in &rows {
        writeln!(text, "| {:#06x} | `{}` | {} |", class.id, class.name, class_outcome(class).cell()).unwrap();
    }
    reasons_in_full(text, rows.iter().map(class_outcome));
}

fn class_kind(kind: ClassKind) -> &'static str {
    match kind {
        ClassKind::Root => "a client, registered",
        ClassKind::Device => {
            "a card, which must be granted. Its own address space is its client's alone, in the card's memory"
        }
        ClassKind::Subdevice => "a part of a card",
        ClassKind::VideoMemory => "video memory, charged",
        ClassKind::SystemMemory => "memory of the host",
        ClassKind::VirtualMemory => "GPU addresses, no memory",
        ClassKind::AddressSpace => {
            "an address space of the program's own, limited in number; its page tables are in the card's memory"
        }
        ClassKind::ChannelGroup => "a channel group, limited in number; its context buffers are charged",
        ClassKind::Channel => "a channel, limited in number",
        ClassKind::ContextShare => "a share of a channel group",
        ClassKind::Engine(_) => "an engine's object on a channel",
        ClassKind::Event(_) => {
            "an event without data, limited in number; one that calls back into the kernel is refused"
        }
        ClassKind::UserSharedData => "a page that tells the card's memory and load, its mapping replaced",
        ClassKind::Debugger => {
            "looks into an object of the container's own, and into no other container's; never puts off what ends a kernel that failed"
        }
        ClassKind::MemoryReference => {
            "keeps memory that exists allocated; the kernel maps it, and it may be 4 MiB long"
        }
        ClassKind::FabricMemory => {
            "addresses on the NVLink fabric, for video memory that exists, which they keep charged, or (since 570) for memory that is attached later, which they do not keep; at most twice the size of the block, and twice the limit of the card"
        }
        ClassKind::PeerToPeer => "a path between two cards, both of which must be granted",
        ClassKind::ContextDma => {
            "names a part of the caller's own memory, and is freed with it; the kernel maps a notifier's, which may be 4 MiB long"
        }
        ClassKind::Mps => "says that a server of MPS runs, to which the driver does nothing",
        ClassKind::Plain => "decides nothing",
        ClassKind::Answered(..) | ClassKind::Refused(..) => "refused",
    }
}

/// One table for each class whose objects take the controls: the upper half of a control's number.
fn control_tables(text: &mut String) {
    let mut rows: Vec<ControlRow> = controls().collect();
    rows.sort_by_key(|row| row.id);
    text.push_str("\n## Controls\nThe questions and commands of `NV_ESC_RM_CONTROL`, by the class of the object that takes them.\n");
    text.push_str("A test fails for a control that is executed and has no reason here.\n");
    for rows in rows.chunk_by(|one, other| one.id >> 16 == other.id >> 16) {
        let number = rows[0].id >> 16;
        let name = classes::class(number).map_or(String::new(), |class| format!(" {}", class.name));
        writeln!(text, "\n### Class {number:#06x}{name}\n\n| number | name | done |\n|---|---|---|").unwrap();
        for row in rows {
            writeln!(text, "| {:#010x} | `{}` | {} |", row.id, row.name, control_outcome(row).cell()).unwrap();
        }
    }
    text.push_str("\n### Reasons in full\n");
    reasons_in_full(text, rows.iter().map(control_outcome));
}

fn pointers(text: &mut String) {
    text.push_str("\n## Controls whose parameters point to memory\n");
    text.push_str("The memory that a pointer leads to is copied; no address of the container's reaches the driver.\n");
    text.push_str("Offset in the parameters: length, direction.\n\n| number | name | pointers |\n|---|---|---|\n");
    for row in controls().filter(|row| !row.pointers.is_empty()) {
        let each = row.pointers.iter().map(pointer).collect::<Vec<_>>().join("; ");
        writeln!(text, "| {:#010x} | `{}` | {each} |", row.id, row.name).unwrap();
    }
}

fn pointer(pointer: &Pointer) -> String {
    let length = match pointer.length {
        Length::Fixed(bytes) => format!("{bytes} bytes"),
        Length::Counted { at, element: 1, .. } => format!("as many bytes as at {at}"),
        Length::Counted { at, element, .. } => format!("{element} bytes times the number at {at}"),
        Length::Squared { at, element, .. } => format!("{element} bytes times the square of the number at {at}"),
    };
    let direction = match pointer.direction {
        Direction::In => "in",
        Direction::Out => "out",
        Direction::InOut => "in and out",
    };
    format!("{}: {length}, {direction}{}", pointer.at, releases(pointer.releases))
}
