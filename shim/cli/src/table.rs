//! Tables for people. They fit the terminal: names are cut in the middle, text is wrapped, and
//! columns that can be spared are left out. Where stdout is no terminal, nothing is cut.

use clap::builder::styling::{AnsiColor, Effects, Style};
use runtime_config::Bytes;
use textwrap::core::display_width;

use super::{output::printable, screen::Screen};

/// Widths below which names and text are not cut.
const LEAST_NAME: usize = 10;
const LEAST_TEXT: usize = 24;
/// Space between columns.
const GAP: usize = 2;
/// Stands for the middle of a name.
const CUT: &str = "..";

/// A column and its title.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    kind: ColumnKind,
    presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnKind {
    Figure,
    /// May be cut in its middle.
    Name,
    /// May be wrapped.
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Always,
    /// Left out where the terminal is narrow.
    Spare,
    /// Only with `-o wide`.
    Wide,
    /// Left out while no row has anything in it.
    Used,
}

impl Column {
    pub(super) const fn new(title: &'static str) -> Self {
        Self { title, kind: ColumnKind::Figure, presence: Presence::Always }
    }

    pub(super) const fn name(title: &'static str) -> Self {
        Self { kind: ColumnKind::Name, ..Self::new(title) }
    }

    pub(super) const fn text(title: &'static str) -> Self {
        Self { kind: ColumnKind::Text, ..Self::new(title) }
    }

    pub(super) const fn spare(self) -> Self {
        Self { presence: Presence::Spare, ..self }
    }

    pub(super) const fn wide(self) -> Self {
        Self { presence: Presence::Wide, ..self }
    }

    pub(super) const fn used(self) -> Self {
        Self { presence: Presence::Used, ..self }
    }
}

/// State that a cell shows in its colour, too. Its text says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum CellState {
    #[default]
    Plain,
    Good,
    Warning,
    Bad,
}

impl CellState {
    /// Colours of the terminal's own palette.
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default() | Effects::BOLD,
        }
    }

    /// Formats text in the colour of the state.
    pub(super) fn paint(self, text: &str, screen: Screen) -> String {
        match self {
            Self::Plain => text.to_owned(),
            _ if !screen.has_colours => text.to_owned(),
            _ => {
                let style = self.style();
                format!("{style}{text}{style:#}")
            }
        }
    }
}

/// One cell: printable text, and the number by which it is sorted where it shows one.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Cell {
    text: String,
    number: Option<f64>,
    state: CellState,
}

impl Cell {
    #[expect(clippy::cast_precision_loss, reason = "numbers are compared, not shown")]
    pub(super) fn number(number: u64, text: impl Into<String>) -> Self {
        Self { number: Some(number as f64), ..Self::from(text.into()) }
    }

    pub(super) fn amount(bytes: Option<Bytes>, text: impl Into<String>) -> Self {
        let text = text.into();
        bytes.map_or_else(|| Self::from(text.clone()), |bytes| Self::number(bytes.0, text.clone()))
    }

    pub(super) fn percent(percent: Option<f64>, text: impl Into<String>) -> Self {
        Self { number: percent, ..Self::from(text.into()) }
    }

    pub(super) fn in_state(self, state: CellState) -> Self {
        Self { state, ..self }
    }

    /// Compares numbers, and before them texts.
    pub(super) fn order(&self, other: &Self) -> std::cmp::Ordering {
        let by_number = |(one, other): (f64, f64)| one.total_cmp(&other);
        match (self.number, other.number) {
            (None, None) => self.text.cmp(&other.text),
            (Some(one), Some(other)) => by_number((one, other)),
            (one, other) => one.is_some().cmp(&other.is_some()),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text: printable(&text), ..Self::default() }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// Formats rows of as many cells as there are columns.
pub(super) fn table(columns: &[Column], rows: &[&[Cell]], is_wide: bool, has_header: bool, screen: Screen) -> String {
    let title = |column: &Column| if has_header { column.title.len() } else { 0 };
    let natural: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| display_width(&cell.text));
            cells.max().unwrap_or(0).max(title(column))
        })
        .collect();
    let mut chosen: Vec<usize> = (0..columns.len())
        .filter(|&index| {
            let is_empty = || rows.iter().all(|row| row.get(index).is_none_or(|cell| cell.text.is_empty()));
            match columns.get(index).map(|column| column.presence) {
                Some(Presence::Wide) => is_wide,
                Some(Presence::Used) => !is_empty(),
                _ => true,
            }
        })
        .collect();
    let widths = loop {
        let fitted = fit(columns, &chosen, &natural, screen.width);
        let is_spare = |index: &usize| columns.get(*index).is_some_and(|column| column.presence == Presence::Spare);
        match (fitted, chosen.iter().rposition(is_spare)) {
            (Fitted { overflow: 1.., .. }, Some(position)) if !is_wide => drop(chosen.remove(position)),
            (Fitted { widths, .. }, _) => break widths,
        }
    };
    let header: Vec<Cell> = columns.iter().map(|column| Cell::from(column.title)).collect();
    let header = has_header.then_some(header.as_slice());
    let lines = header.into_iter().chain(rows.iter().copied());
    lines.map(|row| format_row(columns, &chosen, &widths, row, screen)).collect()
}

/// Widths of the chosen columns, and by how much they are too wide together.
struct Fitted {
    widths: Vec<usize>,
    overflow: usize,
}

fn fit(columns: &[Column], chosen: &[usize], natural: &[usize], width: Option<usize>) -> Fitted {
    let of = |kind: ColumnKind, index: usize| columns.get(index).is_some_and(|column| column.kind == kind);
    let mut widths: Vec<usize> = chosen.iter().map(|&index| natural.get(index).copied().unwrap_or(0)).collect();
    let all = widths.iter().sum::<usize>() + GAP * chosen.len().saturating_sub(1);
    let mut overflow = width.map_or(0, |width| all.saturating_sub(width));
    for (kind, least) in [(ColumnKind::Text, LEAST_TEXT), (ColumnKind::Name, LEAST_NAME)] {
        while overflow > 0 {
            let candidates =
                widths.iter_mut().zip(chosen).filter(|(width, index)| **width > least && of(kind, **index));
            let Some((widest, _)) = candidates.max_by_key(|(width, _)| **width) else { break };
            *widest -= 1;
            overflow -= 1;
        }
    }
    Fitted { widths, overflow }
}

fn format_row(columns: &[Column], chosen: &[usize], widths: &[usize], row: &[Cell], screen: Screen) -> String {
    let nothing = Cell::default();
    let cells: Vec<(&Cell, usize, Vec<String>)> = chosen
        .iter()
        .zip(widths)
        .map(|(&index, &width)| {
            let cell = row.get(index).unwrap_or(&nothing);
            let is_text = columns.get(index).is_some_and(|column| column.kind == ColumnKind::Text);
            let is_wrapped = is_text && display_width(&cell.text) > width;
            let lines = if is_wrapped { wrapped(&cell.text, width) } else { vec![shortened(&cell.text, width)] };
            (cell, width, lines)
        })
        .collect();
    let height = cells.iter().map(|(_, _, lines)| lines.len()).max().unwrap_or(1);
    let line = |number: usize| {
        let mut line = String::new();
        // Blanks are written before what follows them, so that no line ends with any.
        let mut blanks = 0;
        for (cell, width, lines) in &cells {
            let text = lines.get(number).map_or("", String::as_str);
            if !text.is_empty() {
                line.extend(std::iter::repeat_n(' ', blanks));
                line.push_str(&cell.state.paint(text, screen));
                blanks = 0;
            }
            blanks += width.saturating_sub(display_width(text)) + GAP;
        }
        line + "\n"
    };
    (0..height).map(line).collect()
}

/// Wraps text at words; a longer word is split.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    // Names are not split at their hyphens.
    let options = textwrap::Options::new(width).word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(std::borrow::Cow::into_owned).collect()
}

/// Cuts out the middle: names often differ at their ends.
fn shortened(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(CUT.len());
    let take = |characters: &mut dyn Iterator<Item = char>, room: usize| {
        let mut taken = String::new();
        for character in characters {
            taken.push(character);
            if display_width(&taken) > room {
                taken.pop();
                break;
            }
        }
        taken
    };
    let head = take(&mut text.chars(), room.div_ceil(2));
    let tail: String = take(&mut text.chars().rev(), room / 2).chars().rev().collect();
    format!("{head}{CUT}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 5] = [
        Column::name("NAME"),
        Column::new("N").spare(),
        Column::new("UUID").wide(),
        Column::new("POD").used(),
        Column::text("WHAT"),
    ];

    fn shown(rows: &[[&str; 5]], is_wide: bool, screen: Screen) -> String {
        let rows: Vec<Vec<Cell>> = rows.iter().map(|row| row.iter().map(|text| Cell::from(*text)).collect()).collect();
        let rows: Vec<&[Cell]> = rows.iter().map(Vec::as_slice).collect();
        table(&COLUMNS, &rows, is_wide, true, screen)
    }

    fn width(width: usize) -> Screen {
        Screen { width: Some(width), ..Screen::default() }
    }

    const LONG: [&str; 5] =
        ["a-very-long-name-of-a-pod", "1", "U", "", "this is a text of several words that is wrapped, not cut"];

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_nothing_is_cut_outside_a_terminal() {
        let text = shown(&[LONG, ["b", "22", "V", "", "c"]], false, Screen::default());
        assert_eq!(
            text,
            "NAME                       N   WHAT\n\
             a-very-long-name-of-a-pod  1   this is a text of several words that is wrapped, not cut\n\
             b                          22  c\n"
        );
        assert!(shown(&[LONG], true, Screen::default()).starts_with("NAME                       N  UUID  WHAT\n"));
        assert!(
            shown(&[["a", "", "", "p", ""]], false, Screen::default()).starts_with("NAME  N  POD  WHAT\na        p\n")
        );
        assert_eq!(shown(&[], false, Screen::default()), "NAME  N  WHAT\n");
    }

    #[test]
    fn a_narrow_terminal_cuts_names_wraps_text_and_spares_columns() {
        assert_eq!(
            shown(&[LONG], false, width(44)),
            "NAME             N  WHAT\n\
             a-very-..-a-pod  1  this is a text of\n\
             \u{20}                   several words that is\n\
             \u{20}                   wrapped, not cut\n"
        );
        let narrow = shown(&[LONG], false, width(36));
        assert!(narrow.starts_with("NAME        WHAT\na-ve..-pod  this is"), "{narrow}");
        for columns in [36, 44, 60, 80, 200] {
            let text = shown(&[LONG], false, width(columns));
            assert!(text.lines().all(|line| display_width(line) <= columns), "{columns}: {text}");
        }
    }

    #[test]
    fn hostile_names_change_nothing_beside_them() {
        let long = "n".repeat(4096);
        for hostile in ["\u{1b}[2J\u{202e}evil\r", "e\u{301}\u{301}\u{301}\u{301}", "\u{5b57}\u{5b57}\u{5b57}", &long] {
            for columns in [40, 80] {
                let text = shown(&[[hostile, "1", "", "", "what"]], false, width(columns));
                let row = text.lines().nth(1).unwrap_or_default();
                assert!(display_width(row) <= columns && row.ends_with("1  what"), "{text:?}");
                assert!(!text.contains(['\u{1b}', '\u{202e}', '\r', '\u{301}']), "{text:?}");
                assert_eq!(text.lines().count(), 2);
            }
        }
    }

    #[test]
    fn colours_are_beside_the_text_and_only_where_they_are_wanted() {
        let cells = [Cell::from("x").in_state(CellState::Bad), Cell::from("1")];
        let text =
            |has_colours| table(&COLUMNS[..2], &[&cells], false, true, Screen { has_colours, ..Screen::default() });
        assert_eq!(text(true), "NAME  N\n\u{1b}[1m\u{1b}[31mx\u{1b}[0m     1\n");
        assert_eq!(text(false), "NAME  N\nx     1\n");
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        use std::cmp::Ordering::{Greater, Less};
        assert_eq!(Cell::number(512, "512 B").order(&Cell::number(2048, "2 KiB")), Less);
        assert_eq!(Cell::from("-").order(&Cell::number(0, "0")), Less);
        assert_eq!(Cell::from("b").order(&Cell::from("a")), Greater);
    }
}
