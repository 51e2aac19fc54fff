//! The answer for people.

use std::fmt::Write as _;

use kubernetes_api::names::capacity;

use super::report::{CardReport, Report, RequestReport, State};

use crate::{
    allocation::Amounts,
    output::{self, printable, table},
};

/// Rows of one table; JSON has all.
const MOST_ROWS: usize = 20;
/// Warnings that are shown.
const MOST_EVENTS: usize = 5;

/// Formats the answer.
pub(crate) fn text(report: &Report) -> String {
    let pod = format!("{}/{}", report.namespace, report.pod);
    let mut text = match report.state {
        State::NoClaim => format!(
            "pod {pod} asks for no card by a claim. What it asks for by variables or annotations, its node decides: \
             `kubectl describe pod`, and `egpu events` on the node.\n"
        ),
        State::Allocated => format!("pod {pod} has its cards ({}):\n", report.phase),
        State::Waiting => format!("pod {pod} waits{}\n", headline(report)),
    };
    for grant in &report.granted {
        let amounts = amounts(&grant.amounts);
        let (claim, request) = (&grant.claim, &grant.request);
        let _ =
            writeln!(text, "  claim {claim}, request {request}: card {} of node {}, {amounts}", grant.card, grant.node);
    }
    for fault in &report.faults {
        let _ = writeln!(text, "  {fault}");
    }
    for request in &report.requests {
        text.push_str(&of_request(request));
    }
    if let [first, others @ ..] = &report.fits[..] {
        let cards = first.cards.join(", ");
        let others = if others.is_empty() { String::new() } else { format!(" (and {} more nodes)", others.len()) };
        let _ = writeln!(text, "\nIt fits now on node {}: {cards}{others}.", first.node);
    }
    for node in &report.not_together {
        let _ = writeln!(text, "\nOn node {node} each request has a card, but not all of them together.");
    }
    if let Some(scheduler) = report.scheduler.as_ref().filter(|_| report.state == State::Waiting) {
        let _ = writeln!(text, "\nThe scheduler says: {}", printable(scheduler));
    }
    text.push_str(&events(report));
    text
}

/// The end of the first sentence.
fn headline(report: &Report) -> String {
    if !report.faults.is_empty() {
        return ":".to_owned();
    }
    if !report.fits.is_empty() {
        return ", though its cards are there.".to_owned();
    }
    let best = |request: &RequestReport| request.cards.first().filter(|card| !card.lacks.is_empty()).map(closest);
    match report.requests.iter().find_map(best) {
        Some(best) => format!(": no card has room. Closest: {best}."),
        None => ": no node has room for all of it.".to_owned(),
    }
}

fn closest(card: &CardReport) -> String {
    format!("{}/{}: {}", card.node, card.card, printable(&card.lacks.join("; ")))
}

fn amounts(amounts: &Amounts) -> String {
    let all: Vec<_> = output::amounts(amounts).into_iter().map(|(name, one)| format!("{name} {one}")).collect();
    if all.is_empty() { "whole".to_owned() } else { all.join(", ") }
}

fn of_request(request: &RequestReport) -> String {
    let count = request.count.map_or_else(
        || "all cards".to_owned(),
        |count| {
            if count == 1 { "1 card".to_owned() } else { format!("{count} cards") }
        },
    );
    let RequestReport { claim, request: name, class, asked, cards, .. } = request;
    let mut text = format!("\nclaim {claim}, request {name}: {count} of class {class}, {}\n", amounts(asked));
    let row = |card: &CardReport| {
        let free = output::amounts(&card.free).into_iter().filter(|(name, _)| *name != capacity::CONTAINERS);
        let free: Vec<_> = free.map(|(_, one)| one).collect();
        let lacks = if card.lacks.is_empty() { "-".to_owned() } else { printable(&card.lacks.join("; ")) };
        vec![card.node.clone(), card.card.clone(), card.model.clone(), free.join(" "), lacks]
    };
    if !cards.is_empty() {
        let rows: Vec<_> = cards.iter().take(MOST_ROWS).map(row).collect();
        text.push_str(&table(&["NODE", "CARD", "MODEL", "FREE", "IN THE WAY"], &rows));
    }
    if let Some(more) = cards.len().checked_sub(MOST_ROWS).filter(|more| *more > 0) {
        let _ = writeln!(text, "and {more} more cards (--output json shows all)");
    }
    text
}

fn events(report: &Report) -> String {
    let mut text = String::new();
    // The scheduler's own is above.
    let others = report.events.iter().filter(|event| event.reason != "FailedScheduling");
    for event in others.take(MOST_EVENTS) {
        let times = if event.count > 1 { format!(" ({} times)", event.count) } else { String::new() };
        let _ = writeln!(text, "  {}{times}: {}", printable(&event.reason), printable(&event.message));
    }
    if text.is_empty() { text } else { format!("\nWarnings of the pod:\n{text}") }
}
