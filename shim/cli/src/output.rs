//! Output of results: text for people, JSON for programs. Data goes to stdout, everything else to
//! stderr.

use std::io::{self, Write};

use clap::ValueEnum;
use runtime_config::request::is_control_or_format;
use serde::Serialize;

use super::{error::CliError, exit::Exit};

/// Format of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// A table for people
    #[default]
    Table,
    /// JSON for programs: keys and units do not change
    Json,
}

/// Writes to stdout.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::Output)
}

/// Formats a value as JSON, with a line end.
pub(super) fn json<T: Serialize>(value: &T) -> Result<String, CliError> {
    Ok(format!("{}\n", without_control(&serde_json::to_string_pretty(value)?)))
}

/// Formats a value as JSON on one line.
pub(super) fn json_line<T: Serialize>(value: &T) -> Result<String, CliError> {
    Ok(format!("{}\n", without_control(&serde_json::to_string(value)?)))
}

/// Escapes, in JSON, what [`printable`] replaces: the same value, also for who reads it on a
/// terminal.
fn without_control(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        // Outside strings there are no others than line ends.
        if character != '\n' && is_control_or_format(character) {
            // All of them are in the first plane of Unicode.
            escaped.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Replaces characters that would move the cursor of the terminal, hide or reverse text beside
/// them, or pile up on the character before them.
pub(super) fn printable(text: &str) -> String {
    let is_wild = |character: char| {
        is_control_or_format(character) || textwrap::core::display_width(character.encode_utf8(&mut [0; 4])) == 0
    };
    text.chars().map(|character| if is_wild(character) { '?' } else { character }).collect()
}

/// Formats columns under their titles, each as wide as its widest cell.
pub(super) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(titles.get(column).map(|title| title.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let header = line(&mut titles.iter().copied());
    let rows = rows.iter().map(|row| line(&mut row.iter().map(String::as_str)));
    std::iter::once(header).chain(rows).collect()
}

/// Options of a command whose result is text or JSON.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Output {
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: Format,
}

pub(super) fn show<T: Serialize>(output: Output, value: &T, text: impl FnOnce() -> String) -> Result<Exit, CliError> {
    print(&match output.output {
        Format::Json => json(value)?,
        Format::Table => text(),
    })?;
    Ok(Exit::Success)
}

/// Prints a line to stderr. A failure of that is ignored: there is nowhere to report it.
pub(super) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shown_moves_hides_or_turns_round_what_is_beside_it() {
        for hostile in ['\n', '\u{1b}', '\u{9b}', '\u{61c}', '\u{200b}', '\u{200f}', '\u{202a}', '\u{202e}', '\u{2066}']
        {
            let text = format!("a{hostile}b");
            assert_eq!(printable(&text), "a?b", "{hostile:?}");
            let json = json_line(&[&text]).unwrap();
            assert_eq!(printable(json.trim_end()), json.trim_end(), "{hostile:?}");
            assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [text], "the same value");
        }
        assert_eq!(printable("z\u{335}\u{320}"), "z??");
        assert_eq!(json(&["a"]).unwrap(), "[\n  \"a\"\n]\n");
        assert_eq!(printable("a-ä 字"), "a-ä 字");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["1".to_owned(), "long cell".to_owned(), "x".to_owned()],
            vec!["22".into(), "s".into(), String::new()],
        ];
        assert_eq!(table(&["A", "TITLE", "C"], &rows), "A   TITLE      C\n1   long cell  x\n22  s\n");
        assert_eq!(table(&["A", "B"], &[]), "A  B\n");
    }
}
