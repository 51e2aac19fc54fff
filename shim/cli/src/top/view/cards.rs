//! The cards: a row each, or one card alone in some more lines.

use cards::SensorReading;
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
};

use super::{
    amounts::{amounts, percent},
    bars::{self, Bar},
    columns::{Column, draw_titles, place},
    put,
    theme::Theme,
};
use crate::{
    policy,
    top::{
        frame::{CardLine, Frame},
        history::percent_of,
        rows::Row,
        state::State,
    },
};

/// Lines of one card alone.
const ALONE: u16 = 5;
/// Rows of the screen below the cards, before cards are left out.
const BELOW: u16 = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Index,
    Policy,
    MemoryBar,
    Memory,
    TimeBar,
    Time,
    Temperature,
    Power,
    Ecc,
    Period,
    Containers,
    Model,
}

const COLUMNS: [Column<Content>; 12] = {
    const fn column(content: Content, title: &'static str, least: u16, most: u16, rank: u8) -> Column<Content> {
        Column { content, title, least, most, rank, is_right: false }
    }
    [
        column(Content::Index, "CARD", 4, 4, 0),
        column(Content::Policy, "POLICY", 8, 10, 0),
        column(Content::MemoryBar, "MEMORY used/granted/all", 8, 30, 0),
        column(Content::Memory, "", 16, 20, 0),
        column(Content::TimeBar, "TIME got/promised", 8, 30, 0),
        column(Content::Time, "", 11, 11, 0),
        column(Content::Temperature, "TEMP", 5, 5, 1),
        column(Content::Power, "POWER", 9, 9, 2),
        column(Content::Ecc, "ECC", 4, 4, 3),
        column(Content::Period, "PERIOD", 6, 6, 4),
        column(Content::Containers, "N", 3, 3, 5),
        column(Content::Model, "MODEL", 16, 28, 6),
    ]
};

/// Returns the rows that the cards take, of so many.
pub(super) fn height(state: &State, frame: &Frame, available: u16) -> u16 {
    if alone(state, frame).is_some() {
        return ALONE;
    }
    let all = u16::try_from(frame.cards.len() + 1).unwrap_or(u16::MAX);
    all.min((available / 3).max(available.saturating_sub(BELOW)))
}

/// Paints them.
pub(super) fn draw(state: &State, theme: &Theme, frame: &Frame, buffer: &mut Buffer, area: Rect) {
    if let Some(card) = alone(state, frame) {
        for (row, line) in (0..).zip(alone_lines(theme, card, area.width)) {
            put(buffer, area, row, line);
        }
        return;
    }
    if frame.cards.is_empty() {
        put(buffer, area, 0, Line::raw("This node has no cards; `egpu doctor` shows why and suggests fixes."));
        return;
    }
    let columns = place(&COLUMNS, area.width);
    draw_titles(&columns, buffer, area, theme.heading());
    let room = usize::from(area.height.saturating_sub(1));
    let selected = selected_card(state, frame);
    let first = selected.saturating_sub(room / 2).min(frame.cards.len().saturating_sub(room));
    for (row, card) in (1..).zip(frame.cards.iter().skip(first).take(room)) {
        for column in &columns {
            if card.unusable.is_some() && matters_not(column.column.content) {
                continue;
            }
            column.draw(buffer, area, row, cell(theme, card, column.column.content, column.width));
        }
        if let (Some(reason), Some(time)) =
            (&card.unusable, columns.iter().find(|one| one.column.content == Content::TimeBar))
        {
            let line = Line::styled(theme.clip(&format!("! {reason}"), usize::from(area.width - time.x)), theme.bad());
            put(buffer, Rect { x: area.x + time.x, width: area.width - time.x, ..area }, row, line);
        }
    }
}

/// Returns whether the reason for which a card is not offered stands there instead.
fn matters_not(content: Content) -> bool {
    !matches!(content, Content::Index | Content::Policy | Content::MemoryBar | Content::Memory)
}

fn alone<'a>(state: &State, frame: &'a Frame) -> Option<&'a CardLine> {
    let only = state.list.only_card.as_ref()?;
    frame.cards.iter().find(|card| card.uuid == *only)
}

/// Returns the position of the card that the selected row is about.
fn selected_card(state: &State, frame: &Frame) -> usize {
    let uuid = match state.row() {
        Some(Row::Card { card, .. }) => &card.uuid,
        Some(Row::Line { line, .. }) => &line.uuid,
        _ => return 0,
    };
    frame.cards.iter().position(|card| card.uuid == *uuid).unwrap_or(0)
}

fn cell(theme: &Theme, card: &CardLine, content: Content, width: u16) -> Line<'static> {
    let width = usize::from(width);
    let sensors = card.sensors.as_ref();
    Line::raw(match content {
        Content::MemoryBar => return bars::bar(theme, width, memory_bar(card)),
        Content::TimeBar => return bars::bar(theme, width, time_bar(card)),
        Content::Ecc => return ecc(theme, sensors),
        Content::Index => card.index.to_string(),
        Content::Policy => card.policy.to_owned(),
        Content::Memory => amounts(&[card.memory_used_bytes, Some(card.memory_granted_bytes)], card.memory_total_bytes),
        Content::Time => format!("{}/{:.0}%", percent(card.time.achieved_1s_percent), card.promised()),
        Content::Temperature => temperature(theme, sensors),
        Content::Power => power(sensors).unwrap_or_else(|| "-".to_owned()),
        Content::Period => policy::period(card.period_us),
        Content::Containers => card.containers.to_string(),
        Content::Model => theme.clip(&card.model, width),
    })
}

fn memory_bar(card: &CardLine) -> Bar {
    let part = |bytes| percent_of(bytes, card.memory_total_bytes);
    Bar { used: card.memory_used_bytes.and_then(part), granted: part(card.memory_granted_bytes), mark: None }
}

fn time_bar(card: &CardLine) -> Bar {
    Bar { used: card.time.achieved_1s_percent, granted: Some(card.promised()), mark: None }
}

fn temperature(theme: &Theme, sensors: Option<&SensorReading>) -> String {
    let celsius = sensors.and_then(|sensors| sensors.temperature_celsius);
    celsius.map_or_else(|| "-".to_owned(), |celsius| format!("{celsius}{}", theme.glyphs().degree))
}

/// Formats it with its limit, if that is known; `None`: nothing is.
fn power(sensors: Option<&SensorReading>) -> Option<String> {
    let watts = |milliwatts: u32| milliwatts.div_ceil(1000);
    let sensors = sensors?;
    let power = watts(sensors.power_mw?);
    Some(sensors.power_limit_mw.map_or_else(|| format!("{power}W"), |limit| format!("{power}/{}W", watts(limit))))
}

fn ecc(theme: &Theme, sensors: Option<&SensorReading>) -> Line<'static> {
    match sensors.and_then(|sensors| sensors.uncorrected_ecc_errors) {
        None => Line::raw("-"),
        Some(0) => Line::raw("0"),
        Some(errors) => Line::styled(format!("!{errors}"), theme.bad()),
    }
}

fn alone_lines(theme: &Theme, card: &CardLine, width: u16) -> Vec<Line<'static>> {
    let width = usize::from(width);
    let bar_width = width.saturating_sub(46).clamp(8, 60);
    let with_bar = |name: &'static str, bar: Bar, text: String| {
        let mut line = bars::bar(theme, bar_width, bar);
        line.spans.insert(0, Span::raw(name));
        line.push_span(Span::raw(format!(" {text}")));
        line
    };
    let memory = amounts(&[card.memory_used_bytes, Some(card.memory_granted_bytes)], card.memory_total_bytes);
    let [second, minute] = [card.time.achieved_1s_percent, card.time.achieved_60s_percent].map(percent);
    let mut facts = vec![format!("policy {}", card.policy), format!("turns every {}", policy::period(card.period_us))];
    let sensors = card.sensors.as_ref();
    if sensors.is_some_and(|sensors| sensors.temperature_celsius.is_some()) {
        facts.push(temperature(theme, sensors));
    }
    facts.extend(power(sensors));
    if let Some(errors) = sensors.and_then(|sensors| sensors.uncorrected_ecc_errors) {
        facts.push(format!("{errors} uncorrected ECC errors"));
    }
    let simulated = if card.is_simulated { "  simulated" } else { "" };
    let head = format!("card {}  {}  {}  {}{simulated}", card.index, card.model, card.uuid, card.pci);
    let remark = match (&card.unusable, card.has_weights_only) {
        (Some(reason), _) => Line::styled(theme.clip(&format!("! not offered: {reason}"), width), theme.bad()),
        (None, true) => Line::styled("! it cannot take containers off: caps are only weights", theme.bad()),
        (None, false) => Line::default(),
    };
    vec![
        Line::styled(theme.clip(&head, width), theme.heading()),
        with_bar("memory ", memory_bar(card), format!("{memory} used/granted/all")),
        with_bar("time   ", time_bar(card), format!("{second}% of {:.0}%, last minute {minute}%", card.promised())),
        Line::raw(theme.clip(&facts.join(", "), width)),
        remark,
    ]
}
