//! Boxes over the screen: help, a question, an answer.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    symbols::border,
    text::Text,
    widgets::{Block, Clear, Paragraph, Widget, Wrap},
};

use super::theme::Theme;
use crate::top::state::{Mode, State};

const HELP: &str = "\
up down, j k   choose a row          g   group by card or container
PgUp PgDn      ten rows              s   sort by the next column
Home End       first, last           r   reverse the order
space          fold, unfold          /   filter: a part of a name,
z              fold all                  'card 1', 'low', 'no work'
f, Enter       one card alone        p   pause
Esc            back                  q   quit

M  memory limit     C  cap on its part of the time     W  weight
P  priority         O  policy of the card
The ledger is asked first; nothing changes before you say y.

MEMORY  bar: used, and granted. Of a container: of its limit.
TIME    bar: part of the card's time that it got in the last second;
        the mark is what it asked for.
HELD    part of the time for which its work was kept off the card
WAIT    part of the last second with work and without the card
DENY    driver calls that were refused";

const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// Paints it, if there is any.
pub(super) fn draw(state: &State, theme: &Theme, buffer: &mut Buffer, area: Rect) {
    match &state.mode {
        Mode::List | Mode::Filter { .. } => {}
        Mode::Help => paint(theme, buffer, area, "keys and columns", HELP),
        Mode::Ask(request) => {
            let (field, name) = (request.field.name(), theme.clip(&request.name, 60));
            let value = theme.text(&request.value);
            let text = format!("{field} of {name}: {value}_\n\n{}", request.field.hint());
            paint(theme, buffer, area, &format!("change {field}"), &text);
        }
        Mode::Confirm { request, preview } => {
            let name = theme.clip(&request.name, 60);
            let text = format!("{name}\n{}\nThe ledger would grant this. Change it? (y/n)", lines(theme, preview));
            paint(theme, buffer, area, &format!("change {}", request.field.name()), &text);
        }
        Mode::Told { title, text } => paint(theme, buffer, area, title, &lines(theme, text)),
    }
}

/// Replaces what cannot be shown, line by line.
fn lines(theme: &Theme, text: &str) -> String {
    text.lines().map(|line| format!("{}\n", theme.text(line))).collect()
}

/// Leaves the middle out of a text that is too long: a refusal begins with what was asked, and ends
/// with the reason.
fn without_middle(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let half = most.saturating_sub(5) / 2;
    let (head, tail): (String, String) =
        (text.chars().take(half).collect(), text.chars().skip(length.saturating_sub(half)).collect());
    format!("{head} ... {tail}")
}

fn paint(theme: &Theme, buffer: &mut Buffer, area: Rect, title: &str, text: &str) {
    let width = area.width.saturating_sub(4).min(78);
    let inner = usize::from(width.saturating_sub(4)).max(1);
    // Broken lines are not filled: two thirds of the room are sure to do. Lines that are not broken
    // show their first ones.
    let is_broken = text.lines().any(|line| line.chars().count() > inner);
    let most = inner * usize::from(area.height.saturating_sub(4)) * 2 / 3;
    let text = &if is_broken && text != HELP { without_middle(text, most) } else { text.to_owned() };
    let rows: usize = text.lines().map(|line| line.chars().count().div_ceil(inner).max(1)).sum();
    // Lines are broken between words.
    let spare = if text.lines().any(|line| line.chars().count() > inner) { rows / 4 + 1 } else { 0 };
    let height = u16::try_from(rows + spare + 2).unwrap_or(u16::MAX).min(area.height);
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let set = if theme.is_ascii { ASCII_BORDER } else { border::PLAIN };
    let block = Block::bordered().border_set(set).title(format!(" {title} ")).title_style(theme.heading());
    Clear.render(place, buffer);
    let block = block.padding(ratatui::widgets::Padding::horizontal(1));
    Paragraph::new(Text::raw(text.to_owned())).wrap(Wrap { trim: false }).block(block).render(place, buffer);
}
