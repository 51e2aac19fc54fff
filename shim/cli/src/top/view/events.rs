//! The last events of the node.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
};

use super::{put, theme::Theme};
use crate::top::{gather::EventLine, state::State};

/// Kinds that are about something that went as it should.
const QUIET: [&str; 6] = ["admitted", "released", "changed", "policy", "recovered", "waiting"];

/// Paints as many as there is room for, the newest below.
pub(super) fn draw(state: &State, theme: &Theme, buffer: &mut Buffer, area: Rect) {
    if area.height < 2 {
        return;
    }
    put(buffer, area, 0, Line::styled("EVENTS", theme.heading()));
    let room = usize::from(area.height - 1);
    let first = state.events.len().saturating_sub(room);
    for (row, event) in (1..).zip(state.events.iter().skip(first)) {
        put(buffer, area, row, line(theme, event, usize::from(area.width)));
    }
    if state.events.is_empty() {
        put(buffer, area, 1, Line::styled("none since the machine's start", theme.dim()));
    }
}

fn line(theme: &Theme, event: &EventLine, width: usize) -> Line<'static> {
    let EventLine { clock, kind, count, subject, text } = event;
    let is_quiet = QUIET.contains(&kind.as_str());
    let kind = theme.clip(&if *count > 1 { format!("{kind} x{count}") } else { kind.clone() }, 18);
    let rest =
        theme.clip(&format!("{subject}  {text}"), width.saturating_sub(clock.len() + kind.chars().count().max(12) + 4));
    Line::from(vec![
        Span::styled(format!("{clock}  "), theme.dim()),
        Span::styled(format!("{kind:<12}"), if is_quiet { theme.dim() } else { theme.bad() }),
        Span::raw(format!("  {rest}")),
    ])
}
