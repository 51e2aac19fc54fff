//! The list of containers, under their cards or with their cards below them.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use runtime_config::request::Priority;

use super::{
    amounts::{amounts, count, percent, percent_or_dash},
    bars::{self, Bar},
    columns::{Column, draw_titles, place},
    put,
    theme::Theme,
};
use crate::top::{
    frame::{ContainerCardLine, ContainerLines},
    history::percent_of,
    rows::{Grouping, Row, Waiting, status},
    state::State,
};

/// Part of the time from which on being held back, or waiting, is shown as such.
const NOTABLE_PERCENT: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Name,
    Card,
    MemoryBar,
    Memory,
    TimeBar,
    Time,
    Held,
    Waited,
    Denied,
    State,
    Priority,
    Processes,
    Minute,
}

const COLUMNS: [Column<Content>; 13] = {
    const fn left(content: Content, title: &'static str, least: u16, most: u16, rank: u8) -> Column<Content> {
        Column { content, title, least, most, rank, is_right: false }
    }
    const fn right(content: Content, title: &'static str, width: u16, rank: u8) -> Column<Content> {
        Column { content, title, least: width, most: width, rank, is_right: true }
    }
    [
        left(Content::Name, "CONTAINER", 18, 50, 0),
        left(Content::Card, "CARD", 4, 4, 0),
        left(Content::MemoryBar, "MEMORY of limit", 5, 16, 0),
        left(Content::Memory, "", 13, 14, 0),
        left(Content::TimeBar, "TIME got/asked", 6, 24, 0),
        left(Content::Time, "", 10, 10, 0),
        right(Content::Held, "HELD", 4, 1),
        right(Content::Waited, "WAIT", 4, 2),
        right(Content::Denied, "DENY", 4, 3),
        left(Content::State, "STATE", 11, 11, 4),
        left(Content::Priority, "PRIO", 4, 4, 5),
        right(Content::Processes, "PROC", 4, 6),
        right(Content::Minute, "60 S", 6, 7),
    ]
};

/// Paints the rows around the selected one. Returns which these are, if there are more.
pub(super) fn draw(state: &State, theme: &Theme, buffer: &mut Buffer, area: Rect) -> Option<String> {
    let rows = state.rows();
    let is_by_card = state.list.grouping == Grouping::Card;
    let chosen: Vec<Column<Content>> =
        COLUMNS.into_iter().filter(|column| !(is_by_card && column.content == Content::Card)).collect();
    let columns = place(&chosen, area.width);
    draw_titles(&columns, buffer, area, theme.heading());
    let room = usize::from(area.height.saturating_sub(1));
    let position = state.position(&rows);
    let first = position.saturating_sub(room / 2).min(rows.len().saturating_sub(room));
    for (y, row) in (1..).zip(rows.iter().skip(first).take(room)) {
        match row {
            Row::Line { container, line } => {
                for column in &columns {
                    let cell = cell(theme, container, line, column.column.content, usize::from(column.width));
                    column.draw(buffer, area, y, cell);
                }
            }
            Row::Waiting(waiting) => put(buffer, area, y, waits(theme, waiting, area.width)),
            head => put(buffer, area, y, heading(theme, head, area.width)),
        }
        if usize::from(y) == position - first + 1 {
            // The name alone, so that bars keep their colours.
            let width = match (row, columns.first()) {
                (Row::Line { .. }, Some(name)) => name.width,
                _ => area.width,
            };
            buffer.set_style(Rect { y: area.y + y, width, height: 1, ..area }, theme.selected());
        }
    }
    if rows.is_empty() {
        let text = if state.list.filter.is_empty() { "no container holds a card" } else { "nothing fits the filter" };
        put(buffer, area, 1, Line::styled(text, theme.dim()));
    }
    (rows.len() > room).then(|| format!("{}-{} of {}", first + 1, first + room, rows.len()))
}

fn heading(theme: &Theme, row: &Row<'_>, width: u16) -> Line<'static> {
    let glyphs = theme.glyphs();
    let (is_folded, text) = match row {
        Row::Card { card, is_folded } => {
            let many = match card.containers {
                0 => "nobody holds it".to_owned(),
                1 => "1 container".to_owned(),
                many => format!("{many} containers"),
            };
            let (index, model, policy) = (card.index, &card.model, card.policy);
            (*is_folded, format!("card {index}  {model}, {policy}: {many}"))
        }
        Row::Container { container, is_folded } => {
            (*is_folded, format!("{}  on {} cards", container.name(), container.cards.len()))
        }
        Row::Line { .. } | Row::Waiting(_) => return Line::default(),
    };
    let sign = if is_folded { glyphs.folded } else { glyphs.open };
    let text = theme.clip(&text, usize::from(width).saturating_sub(2));
    Line::styled(format!("{sign} {text}"), theme.heading())
}

fn waits(theme: &Theme, waiting: &Waiting, width: u16) -> Line<'static> {
    let Waiting { name, since, asked, .. } = waiting;
    // RFC 3339: the date is of no use here.
    let since = since.get(11..19).unwrap_or(since);
    let text = format!("~ {name} waits for room since {since}: {asked}");
    Line::styled(theme.clip(&text, usize::from(width)), theme.mark())
}

fn cell(
    theme: &Theme,
    container: &ContainerLines,
    line: &ContainerCardLine,
    content: Content,
    width: usize,
) -> Line<'static> {
    let notable = |percent: Option<f64>| {
        let is_notable = percent.is_some_and(|percent| percent >= NOTABLE_PERCENT);
        Line::styled(percent_or_dash(percent), if is_notable { theme.mark() } else { Style::new() })
    };
    Line::raw(match content {
        Content::Name => return name(theme, container, line, width),
        Content::MemoryBar => return bars::bar(theme, width, memory_bar(line)),
        Content::TimeBar => return bars::bar(theme, width, time_bar(line)),
        Content::Held => return notable(line.throttled_percent),
        Content::Waited => return notable(line.waited_1s_percent),
        Content::Denied => return denied(theme, container),
        Content::Card => line.index.to_string(),
        Content::Memory => amounts(&[line.memory_used_bytes], line.memory_limit_bytes),
        Content::Time => format!("{}/{}", percent(line.time.achieved_1s_percent), asked(line)),
        Content::State => status(line).to_owned(),
        Content::Priority => if container.priority == Priority::Low { "low" } else { "high" }.to_owned(),
        Content::Processes => container.processes.map_or_else(|| "-".to_owned(), |many| many.to_string()),
        Content::Minute => percent(line.time.achieved_60s_percent),
    })
}

fn name(theme: &Theme, container: &ContainerLines, line: &ContainerCardLine, width: usize) -> Line<'static> {
    let name = theme.clip(&container.name(), width.saturating_sub(2));
    let sign = if line.is_weight_only { Span::styled("! ", theme.bad()) } else { Span::raw("  ") };
    Line::from(vec![sign, Span::raw(name)])
}

fn denied(theme: &Theme, container: &ContainerLines) -> Line<'static> {
    match container.denials {
        None => Line::raw("-"),
        Some(0) => Line::raw("0"),
        Some(denials) => Line::styled(count(denials), theme.mark()),
    }
}

fn memory_bar(line: &ContainerCardLine) -> Bar {
    let used = line.memory_used_bytes.and_then(|used| percent_of(used, line.memory_limit_bytes));
    Bar { used, ..Bar::default() }
}

fn time_bar(line: &ContainerCardLine) -> Bar {
    Bar { used: line.time.achieved_1s_percent, granted: None, mark: line.time.granted_percent }
}

fn asked(line: &ContainerCardLine) -> String {
    match line.time.granted_percent {
        _ if line.exclusive => "all".to_owned(),
        Some(_) => format!("{}%", percent(line.time.granted_percent)),
        None => "-".to_owned(),
    }
}
