//! Listings: options that all of them have, their formats, and showing them again and again.

use std::{thread, time::Duration};

use clap::{
    Arg,
    builder::{PossibleValue, TypedValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
};
use serde::Serialize;

use super::{
    error::CliError,
    output,
    screen::Screen,
    table::{self, Cell, Column},
    template::Template,
    value_parsers,
};

/// Cursor home, and clear to the end of the screen (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[J";

/// Options of what is shown once, or again and again.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct View {
    /// Output format. A template has {{.KEY}} of the JSON in it, such as
    /// 'template={{.id}} {{.cards.*.uuid}}'
    #[arg(long, short, value_name = "FORMAT", default_value = "table", value_parser = FormatParser)]
    pub(super) output: ListingFormat,
    /// Show it again at this interval, until interrupted [default interval: 2s]
    // Joined by `=`, or it would take the argument after it.
    #[arg(long, short, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s", value_parser = value_parsers::interval)]
    pub(super) watch: Option<Duration>,
}

/// Options of tables.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ListingOptions {
    #[command(flatten)]
    pub(super) view: View,
    /// Leave out the titles of the columns
    #[arg(long)]
    pub(super) no_header: bool,
    /// Sort by the column with this title; with - before it, the largest first
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub(super) sort: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListingFormat {
    Table,
    /// A table with all columns.
    Wide,
    Json,
    Template(Template),
}

const TEMPLATE: &str = "template=";

/// Parser of formats, which knows their names for help and completions.
#[derive(Debug, Clone, Copy)]
struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = ListingFormat;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<ListingFormat, clap::Error> {
        let text = value.to_string_lossy();
        let reason = match (text.as_ref(), text.strip_prefix(TEMPLATE)) {
            ("table", _) => return Ok(ListingFormat::Table),
            ("wide", _) => return Ok(ListingFormat::Wide),
            ("json", _) => return Ok(ListingFormat::Json),
            (_, Some(template)) => match template.parse() {
                Ok(template) => return Ok(ListingFormat::Template(template)),
                Err(error) => error.to_string(),
            },
            _ => "table, json, wide or template=TEMPLATE is accepted".to_owned(),
        };
        let mut error = clap::Error::new(ErrorKind::ValueValidation).with_cmd(command);
        if let Some(argument) = argument {
            error.insert(ContextKind::InvalidArg, ContextValue::String(argument.to_string()));
        }
        error.insert(ContextKind::InvalidValue, ContextValue::String(text.into_owned()));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![reason.into()]));
        Err(error)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(["table", "wide", "json", TEMPLATE].into_iter().map(PossibleValue::new)))
    }
}

/// Entries, each with its rows of the table.
#[derive(Debug)]
pub(super) struct Listing<T> {
    pub(super) columns: Vec<Column>,
    pub(super) entries: Vec<(T, Vec<Vec<Cell>>)>,
    /// Line below the table.
    pub(super) footer: Option<String>,
}

impl<T: Serialize> Listing<T> {
    pub(super) fn new(columns: &[Column], entries: Vec<T>, rows: impl Fn(&T) -> Vec<Vec<Cell>>) -> Self {
        let entries = entries.into_iter().map(|entry| (rows(&entry), entry)).map(|(rows, entry)| (entry, rows));
        Self { columns: columns.to_vec(), entries: entries.collect(), footer: None }
    }

    /// Sorts the entries by the first row of each.
    fn sort(&mut self, wanted: &str) -> Result<(), CliError> {
        let (title, is_reversed) = wanted.strip_prefix('-').map_or((wanted, false), |title| (title, true));
        let folded = |text: &str| text.to_ascii_lowercase().replace([' ', '-', '_'], "");
        let named = |column: &Column| folded(column.title) == folded(title);
        let Some(index) = self.columns.iter().position(named) else {
            let columns = self.columns.iter().map(|column| column.title.to_ascii_lowercase().replace(' ', "-"));
            return Err(CliError::NoSuchColumn { wanted: title.to_owned(), columns: columns.collect() });
        };
        let nothing = Cell::default();
        fn cell<'a>(rows: &'a [Vec<Cell>], index: usize, nothing: &'a Cell) -> &'a Cell {
            rows.first().and_then(|row| row.get(index)).unwrap_or(nothing)
        }
        self.entries.sort_by(|(_, one), (_, other)| {
            let order = cell(one, index, &nothing).order(cell(other, index, &nothing));
            if is_reversed { order.reverse() } else { order }
        });
        Ok(())
    }

    /// Formats the entries.
    pub(super) fn text(mut self, options: &ListingOptions, screen: Screen) -> Result<String, CliError> {
        if let Some(sort) = &options.sort {
            self.sort(sort)?;
        }
        let entries: Vec<&T> = self.entries.iter().map(|(entry, _)| entry).collect();
        options.view.text(&entries, |is_wide| self.table(is_wide, !options.no_header, screen))
    }

    /// Formats the entries as a table.
    pub(super) fn table(&self, is_wide: bool, has_header: bool, screen: Screen) -> String {
        let rows: Vec<&[Cell]> = self.entries.iter().flat_map(|(_, rows)| rows).map(Vec::as_slice).collect();
        let table = table::table(&self.columns, &rows, is_wide, has_header, screen);
        table + self.footer.as_deref().unwrap_or_default()
    }
}

impl View {
    /// Formats a value; `table` makes the table, given whether it is wide.
    pub(super) fn text<T: Serialize>(&self, value: &T, table: impl FnOnce(bool) -> String) -> Result<String, CliError> {
        match &self.output {
            ListingFormat::Table => Ok(table(false)),
            ListingFormat::Wide => Ok(table(true)),
            // One line for each time.
            ListingFormat::Json if self.watch.is_some() => output::json_line(value),
            ListingFormat::Json => output::json(value),
            ListingFormat::Template(template) => {
                let value = serde_json::to_value(value)?;
                for absent in template.absent(&value) {
                    crate::output::say(&format!("egpu: nothing here has {absent}; `-o json` shows the keys"));
                }
                Ok(template.lines(&value))
            }
        }
    }

    /// Prints what `text` returns: once, or again and again.
    pub(super) fn print(&self, text: impl FnMut(Screen) -> Result<String, CliError>) -> Result<(), CliError> {
        self.print_part(text, |lines, rows| lines.truncate(rows))
    }

    /// Prints like [`View::print`] a listing whose last lines are those that matter, below
    /// its titles.
    pub(super) fn print_newest(
        &self,
        titles: usize,
        text: impl FnMut(Screen) -> Result<String, CliError>,
    ) -> Result<(), CliError> {
        self.print_part(text, |lines, rows| keep_newest(lines, titles, rows))
    }

    fn print_part(
        &self,
        mut text: impl FnMut(Screen) -> Result<String, CliError>,
        fit: impl Fn(&mut Vec<&str>, usize),
    ) -> Result<(), CliError> {
        let is_table = matches!(self.output, ListingFormat::Table | ListingFormat::Wide);
        let mut is_first = true;
        loop {
            let screen = Screen::of_stdout();
            let shown = text(screen)?;
            let Some(interval) = self.watch else { return output::print(&shown) };
            output::print(&match screen.height {
                Some(height) if is_table => {
                    let mut lines: Vec<&str> = shown.lines().collect();
                    fit(&mut lines, height.saturating_sub(1));
                    format!("{CLEAR}{}\n", lines.join("\n"))
                }
                None if is_table && !is_first => format!("\n{shown}"),
                _ => shown,
            })?;
            is_first = false;
            thread::sleep(interval);
        }
    }
}

/// Leaves the titles and the last lines, so many in all.
fn keep_newest(lines: &mut Vec<&str>, titles: usize, rows: usize) {
    let titles = titles.min(lines.len());
    let over = lines.len().saturating_sub(rows.max(titles));
    drop(lines.drain(titles..titles + over));
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: ListingOptions,
    }

    fn options(line: &[&str]) -> ListingOptions {
        Line::try_parse_from(std::iter::once(&"egpu").chain(line)).unwrap().options
    }

    const COLUMNS: [Column; 2] = [Column::name("THE NAME"), Column::new("SIZE")];

    fn shown(line: &[&str]) -> Result<String, CliError> {
        let entry = |(name, size): (&'static str, u64)| serde_json::json!({"name": name, "size": size});
        let entries = [("b", 2048), ("a", 512), ("c", 1024)].map(entry).to_vec();
        let row = |entry: &serde_json::Value| {
            let size = entry["size"].as_u64().unwrap();
            vec![vec![entry["name"].as_str().unwrap().into(), Cell::number(size, size.to_string())], vec!["+".into()]]
        };
        Listing::new(&COLUMNS, entries, row).text(&options(line), Screen::default())
    }

    #[test]
    fn entries_are_sorted_whole_in_every_format() {
        assert_eq!(shown(&[]).unwrap(), "THE NAME  SIZE\nb         2048\n+\na         512\n+\nc         1024\n+\n");
        assert_eq!(shown(&["--sort", "size", "--no-header"]).unwrap(), "a  512\n+\nc  1024\n+\nb  2048\n+\n");
        assert_eq!(shown(&["--sort", "-the-name", "-o", "template={{.name}}"]).unwrap(), "c\nb\na\n");
        let json: serde_json::Value = serde_json::from_str(&shown(&["--sort=-SIZE", "-ojson"]).unwrap()).unwrap();
        assert_eq!(json[0]["size"], 2048);
        let error = shown(&["--sort", "sise"]).unwrap_err();
        assert_eq!(error.to_string(), "there is no column sise to sort by; there are the-name, size");
        assert_eq!(error.exit(), crate::Exit::Usage);
    }

    #[test]
    fn the_newest_lines_stay_below_the_titles() {
        for (rows, expected) in [(0, "T"), (1, "T"), (2, "T3"), (3, "T23"), (9, "T123")] {
            let mut lines = vec!["T", "1", "2", "3"];
            keep_newest(&mut lines, 1, rows);
            assert_eq!(lines.concat(), expected, "{rows}");
        }
        let mut none = Vec::new();
        keep_newest(&mut none, 1, 0);
        assert!(none.is_empty());
    }

    #[test]
    fn a_watch_has_an_interval_of_its_own() {
        assert_eq!(options(&[]).view.watch, None);
        assert_eq!(options(&["--watch"]).view.watch, Some(Duration::from_secs(2)));
        assert_eq!(options(&["-w=500ms"]).view.watch, Some(Duration::from_millis(500)));
        assert!(Line::try_parse_from(["egpu", "--watch=1ms"]).is_err());
        assert!(!shown(&["-w", "-o", "json"]).unwrap().trim_end().contains('\n'), "one line each time");
    }

    #[test]
    fn wrong_formats_are_refused_with_what_is_accepted() {
        for (wrong, accepted) in [("yaml", "table, json, wide or template=TEMPLATE"), ("template={{id}}", "{{.KEY}}")] {
            let error = Line::try_parse_from(["egpu", "-o", wrong]).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains(accepted), "{error}");
        }
    }
}
