//! Paints the state. Reads nothing else, and does nothing else.
//!
//! From above: a title, the cards, the containers, the graph of the selected row, the last events,
//! and a line of keys. What does not fit is left out, the least important first.

mod amounts;
mod bars;
mod cards;
mod columns;
mod detail;
mod events;
mod list;
mod overlay;
mod theme;

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
};
pub(super) use theme::Theme;

use super::{
    rows::Grouping,
    state::{Mode, State},
};

/// Smallest terminal that shows anything.
const SMALLEST: (u16, u16) = (60, 12);
/// Height of the graph with its heading.
const DETAIL: u16 = 5;
/// Rows that the list has at least, its title included, before there is a graph, and before there
/// are events.
const LIST_BEFORE_DETAIL: u16 = 6;
const LIST_BEFORE_EVENTS: u16 = 8;

/// Paints everything.
pub(super) fn draw(state: &State, theme: &Theme, buffer: &mut Buffer) {
    let area = buffer.area;
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (width, height) = SMALLEST;
        let text = format!("egpu top needs {width}x{height}, this is {}x{}", area.width, area.height);
        put(buffer, area, 0, Line::raw(text));
        return;
    }
    let mut rest = area;
    let (top, foot) = (take_top(&mut rest, 1), take_bottom(&mut rest, 1));
    put(buffer, top, 0, title(state, theme));
    put_right(buffer, top, Line::styled(state.clock.clone(), theme.dim()));
    put(buffer, foot, 0, keys(state, theme));
    if let Some(notice) = notice(state, theme, area.width) {
        put(buffer, take_top(&mut rest, 1), 0, notice);
    }
    let Some(frame) = &state.frame else {
        let text = if state.problem.is_none() { "looking at the node ..." } else { "nothing has been seen yet" };
        put(buffer, rest, 1, Line::styled(text, theme.dim()));
        overlay::draw(state, theme, buffer, area);
        return;
    };
    let height = cards::height(state, frame, rest.height);
    cards::draw(state, theme, frame, buffer, take_top(&mut rest, height));
    if rest.height >= LIST_BEFORE_DETAIL + DETAIL {
        let detail = take_bottom(&mut rest, DETAIL + (area.height / 40));
        let events = if rest.height > LIST_BEFORE_EVENTS { (rest.height - LIST_BEFORE_EVENTS).min(4) } else { 0 };
        // Below the graph.
        let mut below = Rect { y: rest.bottom() - events, height: events + detail.height, ..detail };
        rest.height -= events;
        detail::draw(state, theme, buffer, take_top(&mut below, detail.height));
        events::draw(state, theme, buffer, below);
    }
    if let Some(shown) = list::draw(state, theme, buffer, rest) {
        put_right(buffer, foot, Line::styled(shown, theme.dim()));
    }
    overlay::draw(state, theme, buffer, area);
}

fn title(state: &State, theme: &Theme) -> Line<'static> {
    let list = &state.list;
    let mut parts = vec![Span::styled("egpu top", theme.heading())];
    if let Some(frame) = &state.frame {
        let count = |many: usize, one: &str| format!("{many} {one}{}", if many == 1 { "" } else { "s" });
        let (cards, containers) = (frame.cards.len(), frame.containers.len());
        parts.push(Span::raw(format!("  {}, {}", count(cards, "card"), count(containers, "container"))));
        if !state.waiting.is_empty() {
            parts.push(Span::styled(format!(", {} waiting for room", state.waiting.len()), theme.bad()));
        }
    }
    let by = match list.grouping {
        Grouping::Card => "card",
        Grouping::Container => "container",
    };
    if state.is_paused {
        parts.push(Span::styled("  PAUSED", theme.bad()));
    }
    if !list.filter.is_empty() {
        parts.push(Span::raw(format!("  filter: {}", theme.text(&list.filter))));
    }
    let reversed = if list.is_reversed { " reversed" } else { "" };
    parts.push(Span::styled(format!("  of each {by}, {}{reversed}", list.sort.name()), theme.dim()));
    Line::from(parts)
}

/// Returns what is wrong with what is shown.
fn notice(state: &State, theme: &Theme, width: u16) -> Option<Line<'static>> {
    let text = match (&state.problem, state.warnings.as_slice()) {
        (Some(problem), _) => problem.clone(),
        (None, []) => return None,
        (None, [warning]) => warning.clone(),
        (None, [warning, others @ ..]) => format!("{warning} (and {} more)", others.len()),
    };
    Some(Line::styled(theme.clip(&format!("! {text}"), usize::from(width)), theme.bad()))
}

fn keys(state: &State, theme: &Theme) -> Line<'static> {
    let text = match &state.mode {
        Mode::List if state.list.only_card.is_some() => {
            "?:help q:quit Esc:all cards s:sort /:filter p:pause MCWPO:change"
        }
        Mode::List => "?:help q:quit g:group f:one card s:sort /:filter p:pause MCWPO:change",
        Mode::Filter { .. } => {
            return Line::from(vec![
                Span::styled("filter: ", theme.heading()),
                Span::raw(format!("{}_", theme.text(&state.list.filter))),
                Span::styled("  Enter keeps it, Esc drops it", theme.dim()),
            ]);
        }
        Mode::Help | Mode::Told { .. } => "Esc: back",
        Mode::Ask(_) => "Enter: ask the ledger   Esc: back",
        Mode::Confirm { .. } => "y: change   n: back",
    };
    Line::styled(text, theme.dim())
}

/// Writes a line into a row of the area, cut at its right side.
fn put(buffer: &mut Buffer, area: Rect, row: u16, line: impl Into<Line<'static>>) {
    if row < area.height {
        buffer.set_line(area.x, area.y + row, &line.into(), area.width);
    }
}

/// Writes a line at the right end of an area's first row, over what is there.
fn put_right(buffer: &mut Buffer, area: Rect, line: Line<'static>) {
    let width = u16::try_from(line.width() + 1).unwrap_or(area.width).min(area.width);
    let place = Rect { x: area.right() - width, width, ..area };
    put(buffer, place, 0, Line::raw(" "));
    put(buffer, Rect { x: place.x + 1, width: width - 1, ..place }, 0, line);
}

/// Cuts rows off at the top.
fn take_top(area: &mut Rect, height: u16) -> Rect {
    let height = height.min(area.height);
    let taken = Rect { height, ..*area };
    (area.y, area.height) = (area.y + height, area.height - height);
    taken
}

/// Cuts rows off at the bottom.
fn take_bottom(area: &mut Rect, height: u16) -> Rect {
    let height = height.min(area.height);
    area.height -= height;
    Rect { y: area.bottom(), height, ..*area }
}
