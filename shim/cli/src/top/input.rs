//! Keys of the screen.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{changes::Field, state::Mode};

/// Request of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    /// Moves the selection by rows; negative: upwards.
    Move(isize),
    First,
    Last,
    Fold,
    FoldAll,
    Group,
    Sort,
    Reverse,
    Filter,
    OneCard,
    Pause,
    Help,
    Redraw,
    Change(Field),
    /// A character of a text that is being written.
    Type(char),
    Erase,
    Accept,
    Cancel,
}

/// Number of rows that a page key moves by.
const PAGE: isize = 10;

/// Returns what the key asks for; `None`: nothing, there.
pub(super) fn action(key: KeyEvent, mode: &Mode) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Quit),
            KeyCode::Char('l') => Some(Action::Redraw),
            KeyCode::Char('u') if mode.is_text() => Some(Action::Cancel),
            _ => None,
        };
    }
    match mode {
        Mode::List => list(key.code),
        Mode::Filter { .. } | Mode::Ask { .. } => text(key.code),
        Mode::Confirm { .. } => match key.code {
            KeyCode::Char('y' | 'Y') => Some(Action::Accept),
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => Some(Action::Cancel),
            _ => None,
        },
        Mode::Help | Mode::Told { .. } => match key.code {
            KeyCode::Char('q' | '?' | 'h' | ' ') | KeyCode::Esc | KeyCode::Enter => Some(Action::Cancel),
            _ => None,
        },
    }
}

fn list(code: KeyCode) -> Option<Action> {
    Some(match code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::PageUp => Action::Move(-PAGE),
        KeyCode::PageDown => Action::Move(PAGE),
        KeyCode::Home => Action::First,
        KeyCode::End => Action::Last,
        KeyCode::Char(' ') | KeyCode::Left | KeyCode::Right => Action::Fold,
        KeyCode::Char('z') => Action::FoldAll,
        KeyCode::Char('g') => Action::Group,
        KeyCode::Char('s') => Action::Sort,
        KeyCode::Char('r') => Action::Reverse,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Enter | KeyCode::Char('f') => Action::OneCard,
        KeyCode::Char('p') => Action::Pause,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Action::Help,
        KeyCode::Char('M') => Action::Change(Field::Memory),
        KeyCode::Char('C') => Action::Change(Field::Compute),
        KeyCode::Char('W') => Action::Change(Field::Weight),
        KeyCode::Char('P') => Action::Change(Field::Priority),
        KeyCode::Char('O') => Action::Change(Field::Policy),
        KeyCode::Esc => Action::Cancel,
        _ => return None,
    })
}

fn text(code: KeyCode) -> Option<Action> {
    Some(match code {
        KeyCode::Char(character) => Action::Type(character),
        KeyCode::Backspace => Action::Erase,
        KeyCode::Enter => Action::Accept,
        KeyCode::Esc => Action::Cancel,
        _ => return None,
    })
}
