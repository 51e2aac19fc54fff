//! The last minutes of the selected row, and in a sentence what holds it back.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use runtime_config::request::Priority;
use schedule::Running;

use super::{
    amounts::{amounts, percent},
    bars::Graph,
    put,
    theme::Theme,
};
use crate::top::{
    frame::{CardLine, ContainerCardLine, ContainerLines},
    history::Sample,
    rows::{Row, Waiting},
    state::State,
};

/// The least time that a graph shows, in seconds.
const SPAN_S: f64 = 180.0;
/// Blanks between graphs.
const GAP: u16 = 2;

/// One of the graphs.
struct Plot {
    label: String,
    value: fn(&Sample) -> Option<f32>,
    level: Option<f64>,
    top: f64,
    style: Style,
}

/// Paints heading and graphs.
pub(super) fn draw(state: &State, theme: &Theme, buffer: &mut Buffer, area: Rect) {
    let Some(row) = state.row() else { return };
    let (name, sentence, plots) = match row {
        Row::Card { card, .. } => (format!("card {}", card.index), of_card(card), card_plots(theme, card)),
        Row::Line { container, line } => {
            let name = match container.cards.len() {
                1 => container.name(),
                _ => format!("{} on card {}", container.name(), line.index),
            };
            (name, reason(state, container, line), line_plots(theme, line))
        }
        Row::Container { container, .. } => {
            (container.name(), "each of its cards is a row below".to_owned(), Vec::new())
        }
        Row::Waiting(Waiting { name, asked, .. }) => (name.clone(), format!("waits for room: {asked}"), Vec::new()),
    };
    let rule = theme.glyphs().level;
    let width = usize::from(area.width);
    let name = theme.clip(&name, width / 2);
    let sentence = theme.clip(&sentence, width.saturating_sub(name.chars().count() + 4));
    put(
        buffer,
        area,
        0,
        Line::from(vec![
            Span::styled(format!("{rule} "), theme.dim()),
            Span::styled(name, theme.heading()),
            Span::raw(format!(": {sentence}")),
        ]),
    );
    let Ok(many) = u16::try_from(plots.len()) else { return };
    if many == 0 {
        return;
    }
    let each = (area.width - GAP * (many - 1)) / many;
    for (position, plot) in (0..).zip(&plots) {
        let x = area.x + position * (each + GAP);
        let place = Rect { x, y: area.y + 1, width: each, height: area.height - 1 };
        draw_plot(state, theme, buffer, place, (&row, plot));
    }
}

fn draw_plot(state: &State, theme: &Theme, buffer: &mut Buffer, area: Rect, (row, plot): (&Row<'_>, &Plot)) {
    let columns = usize::from(area.width);
    let looks = looks_per_column(state, columns);
    let label = theme.clip(&format!("{}, {}", plot.label, span(state, columns * looks)), columns);
    put(buffer, area, 0, Line::styled(label, theme.dim()));
    let graph = Graph {
        columns: state.history.columns(&row.key(), columns, looks, plot.value),
        level: plot.level,
        top: plot.top,
        style: plot.style,
    };
    graph.draw(theme, buffer, Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area });
}

/// Returns how many looks a column of a graph stands for.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "small numbers"
)]
fn looks_per_column(state: &State, columns: usize) -> usize {
    (SPAN_S / state.interval.as_secs_f64() / columns.max(1) as f64).ceil().max(1.0) as usize
}

fn span(state: &State, looks: usize) -> String {
    let seconds = u32::try_from(looks).map_or(0, |looks| (state.interval * looks).as_secs());
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds / 60) }
}

fn card_plots(theme: &Theme, card: &CardLine) -> Vec<Plot> {
    let memory = amounts(&[card.memory_used_bytes], card.memory_total_bytes);
    let promised = card.promised();
    let time = format!("time {} of {promised:.0}%", percent(card.time.achieved_1s_percent));
    plots(theme, &memory, time, Some(promised))
}

fn line_plots(theme: &Theme, line: &ContainerCardLine) -> Vec<Plot> {
    let granted = line.time.granted_percent;
    let memory = amounts(&[line.memory_used_bytes], line.memory_limit_bytes);
    let time = format!("time {} of {}%", percent(line.time.achieved_1s_percent), percent(granted));
    let mut plots = plots(theme, &memory, time, granted);
    if line.waited_1s_percent.is_some() || line.waited_us.is_some() {
        plots.push(Plot {
            label: format!("waiting {}%", percent(line.waited_1s_percent)),
            value: |sample| sample.waited,
            level: None,
            top: 100.0,
            style: theme.mark(),
        });
    }
    plots
}

fn plots(theme: &Theme, memory: &str, time: String, asked: Option<f64>) -> Vec<Plot> {
    // Small shares are to be seen, too.
    let top = asked.map_or(100.0, |asked| (asked * 1.5).clamp(10.0, 100.0));
    vec![
        Plot {
            label: format!("memory {memory}"),
            value: |sample| sample.memory,
            level: None,
            top: 100.0,
            style: theme.used(),
        },
        Plot { label: time, value: |sample| sample.achieved, level: asked, top, style: theme.used() },
    ]
}

fn of_card(card: &CardLine) -> String {
    match (&card.unusable, card.containers) {
        (Some(reason), _) => format!("! not offered: {reason}"),
        (None, 0) => "nobody holds it".to_owned(),
        (None, _) => format!("{:.0}% of its time is promised, policy {}", card.promised(), card.policy),
    }
}

/// Returns in a sentence what the container gets, and what holds it back.
fn reason(state: &State, container: &ContainerLines, line: &ContainerCardLine) -> String {
    let held = line.throttled_percent.filter(|held| *held >= 0.5);
    let others = others(state, container, line);
    let why = match (line.running, line.busy) {
        _ if line.exclusive => return "it has the whole card; nothing holds it back".to_owned(),
        (None, _) => return "its mediator has not told of its time".to_owned(),
        (Some(Running::Degraded), _) => {
            return "! the card cannot take it off: its share is only a weight".to_owned();
        }
        (Some(Running::Waiting), _) if container.priority == Priority::Low => {
            "gives way to those of high priority".to_owned()
        }
        (Some(Running::Waiting), _) => "waits for others of higher priority".to_owned(),
        (_, Some(false)) => return "it has no work".to_owned(),
        (Some(Running::Free), _) => return "runs as the driver schedules it".to_owned(),
        (Some(Running::Slices), _) => format!("shares time slices by its weight with {others}"),
        (Some(Running::Open | Running::Closed), _) if line.time.achieved_1s_percent.is_none() => {
            return "its mediator has not told of its time lately".to_owned();
        }
        (Some(Running::Open | Running::Closed), _) => match (line.cap_percent, held) {
            (Some(cap), Some(held)) => format!("held back {held:.0}% of the time by its own limit of {cap}%"),
            (None, Some(held)) => format!("held back {held:.0}% of the time by the turns of {others}"),
            (_, None) => "nothing holds it back".to_owned(),
        },
    };
    match line.waited_1s_percent.filter(|waited| *waited >= 0.5) {
        Some(waited) => format!("{why}; had work and not the card {waited:.1}%"),
        None => why,
    }
}

fn others(state: &State, container: &ContainerLines, line: &ContainerCardLine) -> String {
    let all = state.frame.iter().flat_map(|frame| &frame.containers);
    let others = all.filter(|other| other.key != container.key);
    match others.filter(|other| other.cards.iter().any(|card| card.uuid == line.uuid)).count() {
        0 => "nobody else".to_owned(),
        1 => "1 other".to_owned(),
        many => format!("{many} others"),
    }
}
