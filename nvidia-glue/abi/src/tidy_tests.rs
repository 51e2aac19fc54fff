//! Numbers of the driver's calls and offsets in its structs have names everywhere but in this
//! crate, where they stand.
//!
//! This test sees numbers of classes from [`FIRST_CLASS`] on, of controls but those of clients, and
//! of escapes as commands, wherever they stand; smaller ones, where they are an argument of one of
//! [`CALLS`]; and, outside folders of tests, offsets as constants whose name ends in `_AT`, in
//! [`ACCESSES`], and in [`RANGES`] outside modules of tests. Bare numbers of escapes and any other
//! arithmetic it does not see. It reads Rust: the hostile program in C has its own numbers, as a
//! second opinion.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{classes::classes, controls::controls};

/// Folders that are read, from this crate's; this crate is not.
const FOLDERS: [&str; 6] =
    ["..", "../../examples", "../../fuzz", "../../integration", "../../runtime-config", "../../shim"];

/// Marks a line with a number that no table has.
const MARKER: &str = "// Not in the tables";

/// First class whose number is taken for one wherever it stands: smaller ones are sizes and flags,
/// too.
const FIRST_CLASS: u32 = 0x2000;

/// Functions of which an argument that is the number of a control or a class means that.
const CALLS: [&str; 4] = ["row(", "control(", "ask(", "alloc("];

/// Functions whose second argument is an offset.
const ACCESSES: [&str; 4] = ["read_u32(", "read_u64(", "write_u32(", "write_u64("];

/// Ranges of these are offsets.
const RANGES: [&str; 6] = ["params[", "args[", "params.get(", "args.get(", "params.get_mut(", "args.get_mut("];

#[test]
fn numbers_and_offsets_have_names() {
    let (controls, small_controls): (BTreeSet<_>, BTreeSet<_>) =
        controls().map(|row| row.id).partition(|id| *id > 0xffff);
    let (classes, small_classes): (BTreeSet<_>, BTreeSet<_>) =
        classes().map(|row| row.id).partition(|id| *id >= FIRST_CLASS);
    let is_number = |number| controls.contains(&number) || has_shape(number, &classes);
    let in_calls = &small_controls | &small_classes;
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).canonicalize().unwrap(), &mut files);
    }
    let mut faults = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        // Tests name offsets: a second opinion on those of the structs.
        let has_offsets = file.components().any(|part| part.as_os_str() == "tests");
        for (line, fault) in faults_in(&text, is_number, &in_calls) {
            if !(has_offsets && fault == OFFSET) {
                faults.push(format!("{}:{line}: {fault}", file.display()));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "use the names of abi::{{classes, controls, escapes, uvm, params}}:\n{}",
        faults.join("\n")
    );
}

#[test]
fn faults_are_found() {
    let classes = BTreeSet::from([0x2080, 0xa06c]);
    let is_number = |number| number == 0x0080_1705 || has_shape(number, &classes);
    let in_calls = BTreeSet::from([0x201, 0x80]);
    let lines =
        |text: &str| faults_in(text, is_number, &in_calls).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(lines("let a = 0x2080_110b;\nlet b = 0xa06c;"), [1, 2]);
    assert_eq!(lines("call(0x00801705, 0xc030_462b)"), [1, 1]);
    assert_eq!(lines("const CLIENT_AT: usize = 4;\nread_u32(params, 4)"), [1, 2]);
    assert_eq!(lines("let x =\nwrite_u32(\n    &mut params(7, 8),\n    4,\n    x,\n)"), [2]);
    assert_eq!(lines("write_u64(&mut params, usize::from(at), 4)"), [] as [usize; 0]);
    assert_eq!(lines("row(0x201, 1);\nx.control(\n    (client, 0), 0x0201,\n)\nalloc(card, 0x80)"), [1, 2, 5]);
    assert_eq!(lines("narrow(0x201); row(0x202, 0x200 + 1); words(&[0x80])"), [] as [usize; 0]);
    assert_eq!(lines("&params[8..];\nargs.get(4..8);\nargs.get_mut(..SIZE)\nparams[..4]"), [1, 2, 4]);
    assert_eq!(lines("names[1..]; params[at..at + 4]\nmod tests {\nargs[8..16]"), [] as [usize; 0]);
    assert_eq!(lines("// 0x2080_110b\nlet text = \"0x2080_110b\nand 0x2080\";\nlet c = '\"'; 0x2080"), [4]);
    assert_eq!(lines("0x2080_0999 // Not in the tables."), [] as [usize; 0]);
    assert_eq!(lines("0x5c00_0001; 0x7f00_0000_0000; 0x40_0000; 4"), [] as [usize; 0]);
}

const NUMBER: &str = "a number of the driver's";
const OFFSET: &str = "an offset in a struct";

/// Returns whether a number can be nothing else: a class, a control of one, or an escape's command.
fn has_shape(number: u32, classes: &BTreeSet<u32>) -> bool {
    const ESCAPE: u32 = 3 << 30 | (b'F' as u32) << 8;
    classes.contains(&number) || classes.contains(&(number >> 16)) || number & (3 << 30 | 0xff00) == ESCAPE
}

/// Faults of a text, by line.
fn faults_in(text: &str, is_number: impl Fn(u32) -> bool, in_calls: &BTreeSet<u32>) -> Vec<(usize, &'static str)> {
    let code = code_of(text);
    let mut faults: Vec<(usize, &'static str)> = Vec::new();
    let hex = code.match_indices("0x").filter(|(at, _)| hex_at_start(&code[at + 2..]).is_some_and(&is_number));
    faults.extend(hex.map(|(at, _)| (at, NUMBER)));
    let is_small = |argument: &&str| hex_alone(argument).is_some_and(|hex| in_calls.contains(&hex));
    let calls = CALLS.into_iter().flat_map(|name| calls(&code, name));
    faults.extend(calls.filter(|(_, arguments)| arguments.iter().any(is_small)).map(|(at, _)| (at, NUMBER)));
    faults.extend(offsets(&code).map(|at| (at, OFFSET)));
    let lines: Vec<&str> = text.lines().collect();
    let by_line = faults.into_iter().map(|(at, fault)| (code[..at].matches('\n').count(), fault));
    let mut by_line: Vec<_> = by_line.filter(|(line, _)| !lines[*line].contains(MARKER)).collect();
    by_line.sort_unstable();
    by_line.into_iter().map(|(line, fault)| (line + 1, fault)).collect()
}

/// Places of offsets that are numbers. Bytes that are no struct may be read from their beginning.
fn offsets(code: &str) -> impl Iterator<Item = usize> {
    let is_number = |text: &str| text.parse::<usize>().is_ok();
    let is_offset = move |arguments: &[&str]| match arguments {
        [bytes, "0", ..] => ["params", "args"].iter().any(|name| bytes.ends_with(name)),
        [_, offset, ..] => is_number(offset),
        _ => false,
    };
    let accesses = ACCESSES.into_iter().flat_map(|name| calls(code, name));
    let accesses = accesses.filter(move |(_, arguments)| is_offset(arguments)).map(|(at, _)| at);
    // The module of tests is a file's last.
    let product = code.split("\nmod tests {").next().unwrap_or_default();
    let ranges = RANGES.into_iter().flat_map(|name| calls(product, name));
    let is_range = move |range: &str| range.contains("..") && range.split("..").any(is_number);
    let ranges = ranges.filter(move |(_, inside)| inside.iter().any(|range| is_range(range))).map(|(at, _)| at);
    let constants = ["_AT: usize = ", "_AT: u16 = "].into_iter().flat_map(|name| code.match_indices(name));
    constants.map(|(at, _)| at).chain(accesses).chain(ranges)
}

/// Calls of a function, whose name ends in the bracket, each with its arguments.
fn calls<'code>(code: &'code str, name: &'static str) -> impl Iterator<Item = (usize, Vec<&'code str>)> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let whole = code.match_indices(name).filter(move |(at, _)| !code[..*at].ends_with(is_name));
    whole.map(move |(at, _)| (at, arguments(&code[at + name.len()..])))
}

/// Arguments of a call, whose bracket has been opened.
fn arguments(code: &str) -> Vec<&str> {
    let (mut arguments, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in code.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ',' if depth == 0 => {
                arguments.push(code[begin..at].trim());
                begin = at + 1;
            }
            ')' | ']' | '}' if depth == 0 => {
                arguments.push(code[begin..at].trim());
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    arguments
}

/// Value of an argument that is a hexadecimal number and nothing else.
fn hex_alone(argument: &str) -> Option<u32> {
    u32::from_str_radix(&argument.strip_prefix("0x")?.replace('_', ""), 16).ok()
}

/// Value of the hexadecimal digits that a text begins with.
fn hex_at_start(text: &str) -> Option<u32> {
    let end = text.find(|letter: char| !letter.is_ascii_hexdigit() && letter != '_').unwrap_or(text.len());
    u32::from_str_radix(&text.get(..end)?.replace('_', ""), 16).ok()
}

/// The text with its comments and strings blanked out, line by line.
fn code_of(text: &str) -> String {
    let (mut code, mut rest) = (String::new(), text);
    while let Some(letter) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("r#\"") {
            rest.find("\"#").map_or(rest.len(), |end| end + 2)
        } else if letter == '"' {
            string_length(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else {
            code.push(letter);
            rest = rest.get(letter.len_utf8()..).unwrap_or_default();
            continue;
        };
        let (skipped, after) = rest.split_at(length);
        code.extend(skipped.chars().filter(|letter| *letter == '\n'));
        rest = after;
    }
    code
}

/// Bytes of the string that a text begins with.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, letter)| {
        let ends = *letter == '"' && !escaped;
        escaped = *letter == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// Adds the sources below a folder, but for what was built and this crate.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let is_left_out = path.ends_with("target") || path == Path::new(env!("CARGO_MANIFEST_DIR"));
        if path.is_dir() && !is_left_out {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}
