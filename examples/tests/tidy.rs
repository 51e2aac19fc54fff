//! Comments are tidy: the first line of a documentation comment names the thing, and lines are
//! short.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops; helpers are not seen as tests")]

use std::{fs, path::Path};

/// Columns of a line with a comment only. Tables of calls and aligned figures may be longer.
const COLUMNS: usize = 100;
/// Words that ask about a thing instead of naming it.
const QUESTIONS: [&str; 9] = ["What", "How", "Whether", "Who", "Whose", "Which", "Where", "When", "Why"];

/// Calls `check` with the name and the text of each source file.
fn sources(folder: &Path, check: &mut impl FnMut(&str, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, check);
        } else if name.ends_with(".rs") {
            check(&path.to_string_lossy(), &fs::read_to_string(&path).unwrap());
        }
    }
}

fn faults(fault: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut |name, text| {
        let mut before = "";
        for (number, line) in (1..).zip(text.lines().map(str::trim_end)) {
            if fault(before, line) {
                found.push(format!("{name}:{number}: {}", line.trim()));
            }
            before = line;
        }
    });
    found
}

fn documentation(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start)
}

/// The comment is the first of its block, and begins with a question.
fn asks(before: &str, line: &str) -> bool {
    let first = |text: &str| text.split(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or("").to_owned();
    documentation(before).is_none() && documentation(line).is_some_and(|text| QUESTIONS.contains(&first(text).as_str()))
}

/// A comment alone on its line that is too long, and could be broken at a blank.
fn is_long(_: &str, line: &str) -> bool {
    let is_table = |text: &str| text.starts_with('|');
    line.chars().count() > COLUMNS
        && line.trim_start().starts_with("//")
        && !documentation(line).is_some_and(is_table)
        && line.trim_start().trim_start_matches(['/', '!', ' ']).contains(' ')
}

#[test]
fn documentation_names_things() {
    let faults = faults(asks);
    assert!(
        faults.is_empty(),
        "begin with a noun, or a verb in the third person (\"Returns whether ...\"):\n{}",
        faults.join("\n")
    );
}

#[test]
fn comments_end_at_column_100() {
    let faults = faults(is_long);
    assert!(faults.is_empty(), "break these lines before column {COLUMNS}:\n{}", faults.join("\n"));
}

#[test]
fn a_question_is_found() {
    assert!(asks("", "    /// Whether it is open."));
    assert!(asks("}", "//! What a mediator holds."));
    assert!(!asks("/// The limit, and", "/// what is used."));
    assert!(!asks("", "/// Returns whether it is open."));
    assert!(is_long("", &format!("    // {}", "word ".repeat(30))));
    assert!(!is_long("", &format!("let text = \"{}\";", "word ".repeat(30))));
}
