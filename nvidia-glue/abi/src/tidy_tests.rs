//! Numbers and offsets stand in this crate, and in no other.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{classes::classes, controls::controls};

/// Folders that are read, from this crate's.
const FOLDERS: [&str; 13] = [
    "../account/src",
    "../base/src",
    "../benches",
    "../cards/src",
    "../driver/src",
    "../fence/src",
    "../ledger/src",
    "../mediator/src",
    "../schedule/src",
    "../simulator/src",
    "../src",
    "../testing/src",
    "../trace/src",
];

/// The test client, too; the hostile one in C has its own numbers, as a second opinion.
const TEST_CLIENT: &str = "../../integration/rm-client/src";

/// Marks a line with a number that no table has.
const MARKER: &str = "// Not in the tables";

/// First class whose number is taken for one wherever it stands: smaller ones are sizes and flags,
/// too.
const FIRST_CLASS: u32 = 0x2000;

#[test]
fn numbers_and_offsets_have_names() {
    let numbers: BTreeSet<u32> = controls().map(|row| row.id).filter(|id| *id > 0xffff).collect();
    let classes: BTreeSet<u32> = classes().map(|row| row.id).filter(|id| *id >= FIRST_CLASS).collect();
    let is_number = |number| numbers.contains(&number) || has_shape(number, &classes);
    let mut faults = Vec::new();
    for folder in FOLDERS.into_iter().chain([TEST_CLIENT]) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let files = sources(&folder);
        assert!(!files.is_empty(), "no sources in {}", folder.display());
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            // The simulator's tests name offsets: a second opinion on those of the structs.
            let has_offsets = file.components().any(|part| part.as_os_str() == "tests");
            for (line, fault) in faults_in(&text, is_number) {
                if !(has_offsets && fault == OFFSET) {
                    faults.push(format!("{}:{line}: {fault}", file.display()));
                }
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
    let lines = |text: &str| faults_in(text, is_number).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(lines("let a = 0x2080_110b;\nlet b = 0xa06c;"), [1, 2]);
    assert_eq!(lines("call(0x00801705, 0xc030_462b)"), [1, 1]);
    assert_eq!(lines("const CLIENT_AT: usize = 4;\nread_u32(params, 4)"), [1, 2]);
    assert_eq!(lines("write_u64(&mut params, usize::from(at), 4)"), [] as [usize; 0]);
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
fn faults_in(text: &str, is_number: impl Fn(u32) -> bool) -> Vec<(usize, &'static str)> {
    let mut faults = Vec::new();
    let code = code_of(text);
    for ((number, line), code) in (1..).zip(text.lines()).zip(code.lines()) {
        if line.contains(MARKER) {
            continue;
        }
        let hex = code.split("0x").skip(1).filter_map(hex_at_start);
        faults.extend(hex.filter(|hex| is_number(*hex)).map(|_| (number, NUMBER)));
        if names_offset(code) || reads_at_literal(code) {
            faults.push((number, OFFSET));
        }
    }
    faults
}

/// Value of the hexadecimal digits that a text begins with.
fn hex_at_start(text: &str) -> Option<u32> {
    let end = text.find(|letter: char| !letter.is_ascii_hexdigit() && letter != '_').unwrap_or(text.len());
    u32::from_str_radix(&text.get(..end)?.replace('_', ""), 16).ok()
}

/// Returns whether a line is `const ..._AT: usize = `.
fn names_offset(code: &str) -> bool {
    code.contains("const ") && ["_AT: usize = ", "_AT: u16 = "].iter().any(|word| code.contains(word))
}

/// Returns whether a line reads or writes at an offset that is a number.
fn reads_at_literal(code: &str) -> bool {
    let calls = ["read_u32(", "read_u64(", "write_u32(", "write_u64("];
    calls.into_iter().flat_map(|call| code.split(call).skip(1)).any(|arguments| {
        let offset = arguments.split(',').nth(1).unwrap_or_default().trim();
        offset.trim_end_matches([')', '?', ';']).parse::<usize>().is_ok()
    })
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

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let own = files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    own.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}
