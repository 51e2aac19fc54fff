//! State of the screen: what was seen last, and what the keys have chosen. No I/O.

use std::time::Duration;

use super::{
    changes::{Answer, Field, Request, Target},
    frame::Frame,
    gather::{EventLine, Look},
    history::History,
    input::Action,
    rows::{Grouping, ListSettings, Row, RowKey, Waiting, rows},
};

/// Longest text that can be typed.
const LONGEST: usize = 64;

/// State of the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) interval: Duration,
    /// The last frame that could be read.
    pub(super) frame: Option<Frame>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) events: Vec<EventLine>,
    pub(super) warnings: Vec<String>,
    /// The reason why the last look failed.
    pub(super) problem: Option<String>,
    /// Time of day of the last look, UTC.
    pub(super) clock: String,
    pub(super) history: History,
    pub(super) list: ListSettings,
    pub(super) selected: Option<RowKey>,
    pub(super) is_paused: bool,
    pub(super) mode: Mode,
}

/// The part of the screen that the keys are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    List,
    /// A filter is being written; Escape brings the one before back.
    Filter {
        before: String,
    },
    Help,
    /// A value is being written.
    Ask(Request),
    /// The ledger would make the change.
    Confirm {
        request: Request,
        preview: String,
    },
    /// An answer is to be read.
    Told {
        title: String,
        text: String,
    },
}

/// Work that the state leaves to who holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    Redraw,
    Preview(Request),
    Apply(Request),
}

impl Mode {
    pub(super) fn is_text(&self) -> bool {
        matches!(self, Self::Filter { .. } | Self::Ask { .. })
    }
}

impl State {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            frame: None,
            waiting: Vec::new(),
            events: Vec::new(),
            warnings: Vec::new(),
            problem: None,
            clock: String::new(),
            history: History::default(),
            list: ListSettings::default(),
            selected: None,
            is_paused: false,
            mode: Mode::List,
        }
    }

    /// Takes a look at the node in, unless the screen is paused.
    pub(super) fn see(&mut self, look: Look) {
        if self.is_paused {
            return;
        }
        let Look { clock, seen, events, warnings } = look;
        (self.clock, self.events, self.warnings) = (clock, events, warnings);
        match seen {
            Ok((frame, waiting)) => {
                self.history.record(&frame);
                (self.frame, self.waiting, self.problem) = (Some(frame), waiting, None);
            }
            Err(problem) => self.problem = Some(problem),
        }
        self.keep_selection();
    }

    /// Notes that a look is overdue.
    pub(super) fn miss(&mut self) {
        if !self.is_paused {
            self.problem = Some(format!("no news since {}: the disk or the driver does not answer", self.clock));
        }
    }

    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        self.frame.as_ref().map(|frame| rows(frame, &self.waiting, &self.list)).unwrap_or_default()
    }

    /// Returns the position of the selected row.
    pub(super) fn position(&self, rows: &[Row<'_>]) -> usize {
        let selected = self.selected.as_ref();
        rows.iter().position(|row| selected.is_some_and(|selected| row.key() == *selected)).unwrap_or(0)
    }

    /// Returns the selected row.
    pub(super) fn row(&self) -> Option<Row<'_>> {
        let rows = self.rows();
        rows.get(self.position(&rows)).copied()
    }

    /// Does what a key asks for, and returns what is left to do.
    pub(super) fn act(&mut self, action: Action) -> Option<Effect> {
        match action {
            Action::Quit => return Some(Effect::Quit),
            Action::Redraw => return Some(Effect::Redraw),
            Action::Accept => return self.accept(),
            Action::Cancel => self.cancel(),
            Action::Type(character) => self.edit(|text| text.push(character)),
            Action::Erase => self.edit(|text| {
                text.pop();
            }),
            Action::Pause => self.is_paused = !self.is_paused,
            Action::Help => self.mode = Mode::Help,
            Action::Filter => self.mode = Mode::Filter { before: self.list.filter.clone() },
            Action::Change(field) => self.ask(field),
            Action::Move(by) => self.select(|position, last| position.saturating_add_signed(by).min(last)),
            Action::First => self.select(|_, _| 0),
            Action::Last => self.select(|_, last| last),
            Action::Sort => self.list.sort = self.list.sort.next(),
            Action::Reverse => self.list.is_reversed = !self.list.is_reversed,
            Action::Group => {
                self.list.grouping = match self.list.grouping {
                    Grouping::Card => Grouping::Container,
                    Grouping::Container => Grouping::Card,
                }
            }
            Action::Fold => self.fold(),
            Action::FoldAll => self.fold_all(),
            Action::OneCard => self.show_one_card(),
        }
        self.keep_selection();
        None
    }

    /// Takes the ledger's answer to [`Effect::Preview`] in.
    pub(super) fn previewed(&mut self, request: Request, answer: Answer) {
        self.mode = match answer {
            Ok(preview) => Mode::Confirm { request, preview },
            Err(refusal) => Mode::Told { title: format!("{}: refused", request.field.name()), text: refusal },
        };
    }

    /// Takes the ledger's answer to [`Effect::Apply`] in.
    pub(super) fn applied(&mut self, request: &Request, answer: Answer) {
        let name = request.field.name();
        self.mode = match answer {
            Ok(text) => Mode::Told { title: format!("{name}: changed"), text },
            Err(refusal) => Mode::Told { title: format!("{name}: refused"), text: refusal },
        };
    }

    fn accept(&mut self) -> Option<Effect> {
        match std::mem::replace(&mut self.mode, Mode::List) {
            Mode::Ask(request) => Some(Effect::Preview(request)),
            Mode::Confirm { request, .. } => Some(Effect::Apply(request)),
            Mode::List | Mode::Filter { .. } | Mode::Help | Mode::Told { .. } => None,
        }
    }

    /// Leaves what was opened last: a text, a filter, the one card.
    fn cancel(&mut self) {
        match std::mem::replace(&mut self.mode, Mode::List) {
            Mode::Filter { before } => self.list.filter = before,
            Mode::List if self.list.filter.is_empty() => self.list.only_card = None,
            Mode::List => self.list.filter.clear(),
            Mode::Help | Mode::Ask(_) | Mode::Confirm { .. } | Mode::Told { .. } => {}
        }
    }

    fn edit(&mut self, change: impl FnOnce(&mut String)) {
        let text = match &mut self.mode {
            Mode::Filter { .. } => &mut self.list.filter,
            Mode::Ask(request) => &mut request.value,
            Mode::List | Mode::Help | Mode::Confirm { .. } | Mode::Told { .. } => return,
        };
        change(text);
        if text.chars().count() > LONGEST {
            text.pop();
        }
    }

    fn select(&mut self, to: impl FnOnce(usize, usize) -> usize) {
        let rows = self.rows();
        let position = to(self.position(&rows), rows.len().saturating_sub(1));
        self.selected = rows.get(position).map(Row::key);
    }

    /// Selects the first row where the selected one is gone.
    fn keep_selection(&mut self) {
        let rows = self.rows();
        let position = self.position(&rows);
        self.selected = rows.get(position).map(Row::key);
    }

    /// Folds the selected row, or the one that it is below.
    fn fold(&mut self) {
        let key = match (self.row(), self.list.grouping) {
            (Some(row @ (Row::Card { .. } | Row::Container { .. })), _) => row.key(),
            (Some(Row::Line { line, .. }), Grouping::Card) => RowKey::Card(line.uuid.clone()),
            (Some(Row::Line { container, .. }), Grouping::Container) => RowKey::Container(container.key.clone()),
            (Some(Row::Waiting(_)) | None, _) => return,
        };
        if !self.list.folded.remove(&key) {
            self.list.folded.insert(key.clone());
        }
        self.selected = Some(key);
    }

    /// Folds everything, or unfolds it where something is folded.
    fn fold_all(&mut self) {
        if !self.list.folded.is_empty() {
            self.list.folded.clear();
            return;
        }
        let Some(frame) = &self.frame else { return };
        let cards = frame.cards.iter().map(|card| RowKey::Card(card.uuid.clone()));
        let containers = frame.containers.iter().map(|container| RowKey::Container(container.key.clone()));
        self.list.folded = cards.chain(containers).collect();
    }

    fn show_one_card(&mut self) {
        self.list.only_card = match (&self.list.only_card, self.row()) {
            (None, Some(Row::Card { card, .. })) => Some(card.uuid.clone()),
            (None, Some(Row::Line { line, .. })) => Some(line.uuid.clone()),
            _ => None,
        };
    }

    /// Asks for the new value of the selected row.
    fn ask(&mut self, field: Field) {
        let Some(frame) = &self.frame else { return };
        let card = |uuid: &str| {
            let card = frame.cards.iter().find(|card| card.uuid == uuid)?;
            Some((Target::Card(card.uuid.clone()), format!("card {}", card.index)))
        };
        let target = match (field, self.row()) {
            (Field::Policy, Some(Row::Card { card: line, .. })) => card(&line.uuid),
            (Field::Policy, Some(Row::Line { line, .. })) => card(&line.uuid),
            (Field::Policy, _) => None,
            (_, Some(Row::Line { container, .. } | Row::Container { container, .. })) => {
                Some((Target::Container(container.key.clone()), container.name()))
            }
            (_, _) => None,
        };
        self.mode = match target {
            Some((target, name)) => Mode::Ask(Request { target, name, field, value: String::new() }),
            None => {
                let what = if field == Field::Policy { "a card, or a container on one" } else { "a container" };
                let title = format!("{}: nothing to change", field.name());
                Mode::Told { title, text: format!("Select {what} first.") }
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::top::{input, tests::busy_node};

    fn press(state: &mut State, keys: &str) -> Vec<Effect> {
        let codes = keys.chars().map(|key| match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        });
        let mut effects = Vec::new();
        for code in codes {
            let action = input::action(KeyEvent::from(code), &state.mode);
            effects.extend(action.and_then(|action| state.act(action)));
        }
        effects
    }

    fn names(state: &State) -> Vec<String> {
        let name = |row: &Row<'_>| match row {
            Row::Card { card, .. } => format!("card {}", card.index),
            Row::Container { container, .. } => container.name(),
            Row::Line { container, line } => format!("{} on {}", container.name(), line.index),
            Row::Waiting(waiting) => format!("{} waits", waiting.name),
        };
        state.rows().iter().map(name).collect()
    }

    #[test]
    fn rows_are_grouped_folded_filtered_and_sorted() {
        let mut state = busy_node(2, 4);
        let all = ["card 0", "team/job-0/main on 0", "team/job-2/main on 0", "card 1"];
        assert_eq!(names(&state)[..4], all);
        assert_eq!(names(&state).len(), 7, "{:?}", names(&state));
        press(&mut state, "j ");
        assert_eq!(names(&state)[..2], ["card 0", "card 1"], "the card of the selected row is folded");
        press(&mut state, "z");
        assert_eq!(names(&state)[..4], all);
        press(&mut state, "/JOB-3\n");
        assert_eq!(names(&state), ["card 0", "card 1", "team/job-3/main on 1"]);
        press(&mut state, "\x1b");
        press(&mut state, "gsr");
        let sorted = ["team/job-3/main", "team/job-2/main", "team/job-1/main", "team/job-0/main"];
        assert!(names(&state).iter().zip(sorted).all(|(row, name)| row.starts_with(name)), "{:?}", names(&state));
    }

    #[test]
    fn the_selection_stays_with_its_container_and_one_card_has_the_screen() {
        let mut state = busy_node(2, 4);
        press(&mut state, "jjj\n");
        assert_eq!(names(&state), ["card 1", "team/job-1/main on 1", "team/job-3/main on 1"]);
        press(&mut state, "jjjj");
        let selected = state.selected.clone();
        state.list.is_reversed = true;
        assert_eq!(state.position(&state.rows()), 1);
        state.see(Look::of_frame(state.frame.clone().unwrap()));
        assert_eq!(state.selected, selected);
        press(&mut state, "\x1b");
        assert_eq!(names(&state).len(), 6);
    }

    #[test]
    fn a_change_is_previewed_and_confirmed_before_it_is_made() {
        let mut state = busy_node(2, 4);
        assert_eq!(press(&mut state, "M"), [], "a card has no memory limit");
        assert!(matches!(&state.mode, Mode::Told { text, .. } if text.contains("Select a container")));
        let asked = press(&mut state, "\x1bjM6GiBx\x08\n");
        let [Effect::Preview(request)] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(
            (request.value.as_str(), request.field, request.name.as_str()),
            ("6GiB", Field::Memory, "team/job-0/main")
        );
        state.previewed(request.clone(), Err("no room".to_owned()));
        assert_eq!(press(&mut state, "y\n"), [], "what is refused cannot be confirmed");
        state.previewed(request.clone(), Ok("card 0: memory 4 GiB -> 6 GiB\n".to_owned()));
        assert_eq!(press(&mut state, "xj\n"), [], "only y confirms");
        assert_eq!(press(&mut state, "y"), [Effect::Apply(request.clone())]);
        state.applied(request, Ok("in force".to_owned()));
        assert!(matches!(&state.mode, Mode::Told { text, .. } if text == "in force"));
        let policy = press(&mut state, "qOsoft\n");
        assert!(matches!(&policy[..], [Effect::Preview(Request { target: Target::Card(_), .. })]), "{policy:?}");
    }

    #[test]
    fn a_paused_screen_stands_still() {
        let mut state = busy_node(2, 4);
        press(&mut state, "p");
        state.see(Look { seen: Err("gone".to_owned()), ..Look::of_frame(state.frame.clone().unwrap()) });
        assert_eq!(state.problem, None);
        press(&mut state, "p");
        state.see(Look { seen: Err("gone".to_owned()), ..Look::of_frame(state.frame.clone().unwrap()) });
        assert_eq!(state.problem.as_deref(), Some("gone"));
        assert!(state.frame.is_some(), "what was seen last stays");
    }
}
