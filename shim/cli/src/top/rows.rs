//! Rows of the list: chosen, sorted and folded.

use std::collections::HashSet;

use ledger::{ContainerKey, ContainerName, Waiter};
use runtime_config::request::Priority;
use schedule::Running;

use super::frame::{CardLine, ContainerCardLine, ContainerLines, Frame};
use crate::output::printable;

/// Name of a row, by which it is found again in the next frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum RowKey {
    /// A card, by its UUID.
    Card(String),
    /// A container with its cards below it.
    Container(ContainerKey),
    /// A container on one card.
    Line(ContainerKey, String),
    /// A container that waits for room.
    Waiting(ContainerKey),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Row<'a> {
    Card { card: &'a CardLine, is_folded: bool },
    Container { container: &'a ContainerLines, is_folded: bool },
    Line { container: &'a ContainerLines, line: &'a ContainerCardLine },
    Waiting(&'a Waiting),
}

/// A container that waits for room.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) key: ContainerKey,
    pub(super) name: String,
    /// RFC 3339.
    pub(super) since: String,
    pub(super) asked: String,
}

/// Rows that stand above their parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Grouping {
    #[default]
    Card,
    Container,
}

/// Order of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sort {
    #[default]
    Admission,
    Name,
    Memory,
    Time,
    Held,
    Waited,
    Denied,
}

/// Choices about the list.
#[derive(Debug, Default)]
pub(super) struct ListSettings {
    pub(super) grouping: Grouping,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    pub(super) folded: HashSet<RowKey>,
    /// UUID of the card that has the screen for itself.
    pub(super) only_card: Option<String>,
}

impl Sort {
    const ALL: [Self; 7] =
        [Self::Admission, Self::Name, Self::Memory, Self::Time, Self::Held, Self::Waited, Self::Denied];

    pub(super) fn next(self) -> Self {
        let position = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL.get(position + 1).copied().unwrap_or_default()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Admission => "oldest first",
            Self::Name => "by name",
            Self::Memory => "by memory",
            Self::Time => "by time",
            Self::Held => "by time held back",
            Self::Waited => "by time waited",
            Self::Denied => "by refused calls",
        }
    }
}

impl Waiting {
    pub(super) fn new(waiter: &Waiter) -> Self {
        let name = ContainerName { key: &waiter.container, pod: waiter.request.pod.as_ref() };
        Self {
            key: waiter.container.clone(),
            name: printable(&name.to_string()),
            since: waiter.since.clone(),
            asked: printable(&waiter.request.asked.join(", ")),
        }
    }
}

impl Row<'_> {
    pub(super) fn key(&self) -> RowKey {
        match self {
            Self::Card { card, .. } => RowKey::Card(card.uuid.clone()),
            Self::Container { container, .. } => RowKey::Container(container.key.clone()),
            Self::Line { container, line } => RowKey::Line(container.key.clone(), line.uuid.clone()),
            Self::Waiting(waiting) => RowKey::Waiting(waiting.key.clone()),
        }
    }
}

/// Lists the rows.
pub(super) fn rows<'a>(frame: &'a Frame, waiting: &'a [Waiting], settings: &ListSettings) -> Vec<Row<'a>> {
    let is_chosen = |container: &&ContainerLines| settings.matches(&searchable(container));
    let chosen: Vec<&ContainerLines> = frame.containers.iter().filter(is_chosen).collect();
    let mut rows = match settings.grouping {
        Grouping::Card => by_card(frame, &chosen, settings),
        Grouping::Container => by_container(chosen, settings),
    };
    if settings.only_card.is_none() {
        let is_chosen = |waiting: &&Waiting| settings.matches(&format!("{} waits", waiting.name));
        rows.extend(waiting.iter().filter(is_chosen).map(Row::Waiting));
    }
    rows
}

impl ListSettings {
    fn matches(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.filter.to_lowercase())
    }

    fn is_on_screen(&self, uuid: &str) -> bool {
        self.only_card.as_ref().is_none_or(|only| only == uuid)
    }
}

fn by_card<'a>(frame: &'a Frame, chosen: &[&'a ContainerLines], settings: &ListSettings) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for card in frame.cards.iter().filter(|card| settings.is_on_screen(&card.uuid)) {
        let is_folded = settings.folded.contains(&RowKey::Card(card.uuid.clone()));
        rows.push(Row::Card { card, is_folded });
        if is_folded {
            continue;
        }
        let mut lines: Vec<(&ContainerLines, &ContainerCardLine)> = Vec::new();
        for container in chosen {
            lines.extend(container.cards.iter().filter(|line| line.uuid == card.uuid).map(|line| (*container, line)));
        }
        sort(&mut lines, settings, |(container, line)| (container, std::slice::from_ref(*line)));
        rows.extend(lines.into_iter().map(|(container, line)| Row::Line { container, line }));
    }
    rows
}

fn by_container<'a>(mut chosen: Vec<&'a ContainerLines>, settings: &ListSettings) -> Vec<Row<'a>> {
    sort(&mut chosen, settings, |container| (container, &container.cards));
    let mut rows = Vec::new();
    for container in chosen {
        let is_folded = settings.folded.contains(&RowKey::Container(container.key.clone()));
        if container.cards.len() > 1 {
            rows.push(Row::Container { container, is_folded });
        }
        if container.cards.len() == 1 || !is_folded {
            let on_screen = container.cards.iter().filter(|line| settings.is_on_screen(&line.uuid));
            rows.extend(on_screen.map(|line| Row::Line { container, line }));
        }
    }
    rows
}

/// Sorts stably: what is equal stays in the order of admission.
fn sort<T>(
    rows: &mut [T],
    settings: &ListSettings,
    parts: impl for<'b> Fn(&'b T) -> (&'b ContainerLines, &'b [ContainerCardLine]),
) {
    match settings.sort {
        Sort::Admission => {}
        Sort::Name => rows.sort_by_key(|row| parts(row).0.name()),
        by => rows.sort_by(|one, other| {
            let highest = |row: &T| {
                let (container, lines) = parts(row);
                lines.iter().map(|line| figure(by, container, line)).fold(f64::MIN, f64::max)
            };
            highest(other).total_cmp(&highest(one))
        }),
    }
    if settings.is_reversed {
        rows.reverse();
    }
}

/// The figure by which a row is sorted, the largest first; unknown ones last.
#[expect(clippy::cast_precision_loss, reason = "an order for people")]
fn figure(by: Sort, container: &ContainerLines, line: &ContainerCardLine) -> f64 {
    let figure = match by {
        Sort::Admission | Sort::Name => None,
        Sort::Memory => line.memory_used_bytes.map(|used| used.0 as f64),
        Sort::Time => line.time.achieved_1s_percent,
        Sort::Held => line.throttled_percent,
        Sort::Waited => line.waited_1s_percent,
        Sort::Denied => container.denials.map(|denials| denials as f64),
    };
    figure.unwrap_or(-1.0)
}

/// Text in which a filter is looked for.
fn searchable(container: &ContainerLines) -> String {
    let mut text = format!("{} {}/{}", container.name(), container.namespace, container.id);
    for line in &container.cards {
        text.push_str(&format!(" card {} {}", line.index, status(line)));
    }
    if container.priority == Priority::Low {
        text.push_str(" low");
    }
    text
}

/// The state of a container on a card, in a word or two.
pub(super) fn status(line: &ContainerCardLine) -> &'static str {
    match (line.running, line.busy) {
        _ if line.exclusive => "whole card",
        (None, _) => "not known",
        (Some(Running::Degraded), _) => "weight only",
        (Some(Running::Waiting), _) => "gives way",
        (_, Some(false)) => "no work",
        (Some(Running::Closed), _) => "off turn",
        (Some(Running::Free | Running::Open | Running::Slices), _) => "runs",
    }
}
