//! Part of a text file that egpu put there, between two comment lines.
//!
//! The first line has a checksum of what is between them, so that a part that somebody has edited
//! is told from one that another version of egpu wrote.

use std::ops::Range;

use sha2::{Digest, Sha256};

/// Begin of a first line; the name and the checksum follow.
const BEGIN: &str = "# egpu install: begin";
const END: &str = "# egpu install: end";
const ADVICE: &str = "`egpu uninstall` takes this out";
/// Mark of a part whose file did not exist before.
const NEW_FILE: &str = "new file";

/// A part that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block<'a> {
    text: &'a str,
    /// Bytes of the text that it takes, with the lines around it.
    range: Range<usize>,
    /// Lines between the first and the last.
    pub(super) body: &'a str,
    /// The body is as egpu wrote it.
    pub(super) is_intact: bool,
    /// Nobody had the file before.
    pub(super) made_the_file: bool,
}

impl Block<'_> {
    /// Returns the whole text, with something else in the part's place.
    fn replaced_by(&self, other: &str) -> String {
        let mut text = self.text.to_owned();
        text.replace_range(self.range.clone(), other);
        text
    }
}

/// Formats a part of that name.
fn render(name: &str, body: &str, made_the_file: bool) -> String {
    let new_file = if made_the_file { format!(", {NEW_FILE}") } else { String::new() };
    format!("{BEGIN} {name} (sha256 {}{new_file}); {ADVICE}\n{body}{END} {name}\n", checksum(body))
}

fn checksum(body: &str) -> String {
    Sha256::digest(body).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Finds the part of that name.
pub(super) fn find<'a>(text: &'a str, name: &str) -> Option<Block<'a>> {
    let begin = format!("{BEGIN} {name} (");
    let end = format!("{END} {name}\n");
    let start = line_that_begins(text, 0, &begin)?;
    let body_start = start + text.get(start..)?.find('\n')? + 1;
    let body_end = line_that_begins(text, body_start, &end)?;
    let first_line = text.get(start..body_start)?;
    let body = text.get(body_start..body_end)?;
    Some(Block {
        text,
        range: start..body_end + end.len(),
        body,
        is_intact: first_line.contains(&format!("(sha256 {}", checksum(body))),
        made_the_file: first_line.contains(NEW_FILE),
    })
}

/// Returns where the first line from `from` on begins that has this beginning.
fn line_that_begins(text: &str, from: usize, beginning: &str) -> Option<usize> {
    let lines = text.get(from..)?.split_inclusive('\n');
    let starts = lines.scan(from, |start, line| {
        let this = *start;
        *start += line.len();
        Some((this, line))
    });
    starts.into_iter().find(|(_, line)| line.starts_with(beginning)).map(|(start, _)| start)
}

/// Part of a text file, as far as it depends on what the file is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Name of the part.
    pub(super) name: &'static str,
    /// A new one goes before all else, as keys of TOML do that belong to no table; else behind.
    pub(super) is_first: bool,
    /// Text that a new file has besides.
    pub(super) new_file: &'static str,
}

impl Part {
    /// Returns the text with the part: in the place of the one that is there, or else in a new one.
    /// `None` as a text: there is no such file.
    pub(super) fn put(&self, text: Option<&str>, body: &str) -> String {
        if let Some(block) = text.and_then(|text| find(text, self.name)) {
            return block.replaced_by(&render(self.name, body, block.made_the_file));
        }
        let rendered = render(self.name, body, text.is_none());
        let text = text.unwrap_or(self.new_file);
        if self.is_first { rendered + text } else { format!("{text}\n{rendered}") }
    }

    /// Returns the text without the part, as it was before [`Self::put`]; `None`: there was no such
    /// file.
    pub(super) fn remove(&self, text: &str) -> Option<String> {
        let Some(block) = find(text, self.name) else { return Some(text.to_owned()) };
        let mut rest = block.replaced_by("");
        // The line between the others and the part. Where it is the only end of theirs, and
        // something came behind the part, it stays.
        let before = rest.get(..block.range.start).unwrap_or_default();
        let is_last = block.range.start == rest.len();
        if !self.is_first && (before.ends_with("\n\n") || (is_last && before.ends_with('\n'))) {
            rest.remove(block.range.start - 1);
        }
        (!block.made_the_file || rest != self.new_file).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: Part = Part { name: "x", is_first: false, new_file: "version = 2\n" };
    const FIRST: Part = Part { name: "y", is_first: true, new_file: "version = 3\n" };

    #[test]
    fn what_was_there_before_is_there_afterwards() {
        for text in
            [None, Some(""), Some("\n"), Some("a = 1"), Some("a = 1\n"), Some("a = 1\n\n\n"), Some("version = 2\n")]
        {
            let with = FIRST.put(Some(&LAST.put(text, "b = 1\n")), "c = 1\n");
            assert_eq!(find(&with, "x").map(|block| (block.body, block.is_intact)), Some(("b = 1\n", true)), "{with}");
            let without = FIRST.remove(&with).unwrap();
            assert_eq!(LAST.remove(&without).as_deref(), text, "{with}");
        }
    }

    #[test]
    fn a_part_is_renewed_where_it_is() {
        let first = LAST.put(Some("a = 1\n"), "b = 1\n") + "[others]\n";
        let second = LAST.put(Some(&first), "b = 2\n");
        assert_eq!(LAST.put(Some(&second), "b = 1\n"), first);
        assert_eq!(LAST.remove(&second).as_deref(), Some("a = 1\n[others]\n"));
        let others = LAST.put(Some("a = 1"), "b = 1\n") + "[others]\n";
        assert_eq!(LAST.remove(&others).as_deref(), Some("a = 1\n[others]\n"));
        let made = LAST.put(Some(&LAST.put(None, "b = 1\n")), "b = 2\n");
        assert_eq!(LAST.remove(&made), None);
        assert_eq!(LAST.remove(&(made + "c = 1\n")).as_deref(), Some("version = 2\nc = 1\n"));
    }

    #[test]
    fn an_edit_shows() {
        let text = LAST.put(Some(""), "b = 1\n").replace("b = 1", "b = 3");
        let block = find(&text, "x").unwrap();
        assert_eq!((block.body, block.is_intact), ("b = 3\n", false));
        assert_eq!(find(&text, "y"), None);
        assert_eq!(find(&text.replace(END, "#"), "x"), None);
    }
}
