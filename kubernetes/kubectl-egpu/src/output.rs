//! Tables for people, JSON for programs. Data goes to stdout, everything else to stderr.

use std::io::{self, Write};

use clap::ValueEnum;
use kubernetes_api::{Quantity, names::capacity};
use serde::Serialize;

use crate::{allocation::Amounts, exit::CommandError};

/// Format of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// For programs: keys and units do not change
    Json,
}

/// Prints a value in the format that is wanted.
pub(crate) fn print<T: Serialize>(
    format: Format,
    value: &T,
    text: impl FnOnce() -> String,
) -> Result<(), CommandError> {
    let text = match format {
        Format::Json => format!("{}\n", serde_json::to_string_pretty(value)?),
        Format::Table => text(),
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CommandError::Output)
}

/// Prints a line to stderr. A failure of that is ignored: there is nowhere to report it.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Formats columns under their titles, each as wide as its widest cell.
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
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

/// Formats an amount of a capacity: `20Gi`, `25%`, `3`.
pub(crate) fn amount(name: &str, amount: u64) -> String {
    match name {
        capacity::MEMORY => Quantity(amount).to_string(),
        capacity::COMPUTE => format!("{amount}%"),
        _ => amount.to_string(),
    }
}

/// Formats amounts, memory first.
pub(crate) fn amounts(amounts: &Amounts) -> Vec<(&str, String)> {
    let mut all: Vec<_> = amounts.iter().map(|(name, one)| (name.as_str(), amount(name, *one))).collect();
    all.sort_by_key(|(name, _)| *name != capacity::MEMORY);
    all
}

/// Replaces characters that would move the cursor of the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["1".to_owned(), "long".to_owned()], vec!["22".into(), String::new()]];
        assert_eq!(table(&["A", "B"], &rows), "A   B\n1   long\n22\n");
    }

    #[test]
    fn amounts_have_their_units() {
        assert_eq!(amount("memory", 20 << 30), "20Gi");
        assert_eq!(amount("memory", (20 << 30) - 1), "21474836479");
        assert_eq!(amount("compute", 25), "25%");
        assert_eq!(amount("containers", 3), "3");
    }
}
