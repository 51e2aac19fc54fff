//! `egpu explain`: the reasons for which a container gets no GPU, or a change is not made.

use base::RefusalCode;
use serde::Serialize;

use super::{
    error::CliError,
    exit::Exit,
    listing::{Listing, ListingOptions},
    table::{Cell, Column, wrapped},
    value_parsers,
};

/// Arguments of `egpu explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A refusal has its code in parentheses: GPU request refused (code no-memory). Codes are never renamed."
)]
pub(super) struct ExplainArguments {
    /// The code of a refusal [default: list all]
    #[arg(value_name = "CODE", value_parser = value_parsers::refusal_code(), hide_possible_values = true)]
    code: Option<RefusalCode>,
    #[command(flatten)]
    listing: ListingOptions,
}

/// Explanation of a code, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Clone, Serialize)]
struct Explanation {
    code: &'static str,
    /// Meaning, for people.
    meaning: &'static str,
    /// Advice.
    remedy: &'static str,
    /// The document that says more: a file of egpu's folder `docs`.
    document: &'static str,
}

const COLUMNS: [Column; 3] = [Column::new("CODE"), Column::text("MEANING"), Column::new("DOCUMENT").wide()];

pub(super) fn run(arguments: &ExplainArguments) -> Result<Exit, CliError> {
    let listing = &arguments.listing;
    listing.view.print(|screen| match arguments.code.map(explanation) {
        Some(one) => listing.view.text(&one, |_| text(&one, screen.width.unwrap_or(100))),
        None => {
            let all = RefusalCode::ALL.iter().copied().map(explanation).collect();
            Listing::new(&COLUMNS, all, row).text(listing, screen)
        }
    })?;
    Ok(Exit::Success)
}

fn row(explanation: &Explanation) -> Vec<Vec<Cell>> {
    vec![[explanation.code, explanation.meaning, explanation.document].map(Cell::from).to_vec()]
}

fn text(explanation: &Explanation, width: usize) -> String {
    let Explanation { code, meaning, remedy, document } = explanation;
    let paragraphs = [format!("{code}: {meaning}"), format!("What to do: {remedy}"), format!("More: docs/{document}")];
    let lines = paragraphs.iter().flat_map(|paragraph| wrapped(paragraph, width));
    lines.map(|line| line + "\n").collect()
}

#[expect(clippy::too_many_lines, reason = "one row for each code")]
fn explanation(code: RefusalCode) -> Explanation {
    let (meaning, remedy, document) = match code {
        RefusalCode::NoMemory => (
            "Less of the card's memory is free than the container asked for.",
            "Ask for less memory, name another card, or wait until a container of this card ends; `egpu ps --sort -memory` \
             shows who has it. With admission_wait in the configuration, containers wait by themselves.",
            "limits.md#waiting-for-room",
        ),
        RefusalCode::NoTime => (
            "The caps of the card's containers leave less of its time than the container asked for.",
            "Ask for a smaller percentage, name another card, or lower the cap of another container: `egpu set ID --compute 20%`.",
            "limits.md#shares-of-time",
        ),
        RefusalCode::NoWeight => (
            "The card is divided into max_inst parts, and fewer are free than the container's weight.",
            "Ask for a smaller weight, or wait until a container of this card ends; `egpu cards` shows the free weight.",
            "requests.md#policies",
        ),
        RefusalCode::NoRemainder => (
            "Containers without a cap must keep a part of the card's time, and caps would take it.",
            "Give each container of the card a cap, or ask for a smaller one.",
            "requests.md#policies",
        ),
        RefusalCode::NoWindows => (
            "The shares would fit in sum, but no order of turns gives each container its own, on all its cards at the same time.",
            "Ask for smaller shares or fewer cards, or for a longer period: `egpu policy CARD --period 200ms`.",
            "limits.md#shares-of-time",
        ),
        RefusalCode::TooManyContainers => (
            "The card has as many containers as device_split_count in the configuration allows.",
            "Use another card, wait until a container ends, or raise device_split_count.",
            "configuration.md",
        ),
        RefusalCode::NoChannels => (
            "The card has too few free channels for one more program: each container is promised some.",
            "Use another card, wait until a container ends, or lower device_split_count, so that each may have more.",
            "limits.md#channels-and-pinned-host-memory",
        ),
        RefusalCode::NoPinnedMemory => (
            "The node has too little memory that the driver may pin for one more container.",
            "Ask for less with EGPU_PINNED_MEMORY, or raise pinned_memory in the configuration.",
            "limits.md#host-memory-that-is-pinned",
        ),
        RefusalCode::CardInUse => (
            "The container asked for a whole card, and other containers have parts of it.",
            "Ask for a share, name another card, or wait until its containers have ended; `egpu ps` lists them.",
            "limits.md#waiting-for-room",
        ),
        RefusalCode::CardTaken => (
            "Another container has the whole card.",
            "Use another card, or wait until it is free; `egpu ps` says who has it.",
            "limits.md#waiting-for-room",
        ),
        RefusalCode::MigTaken => (
            "Another container has the MIG device.",
            "Name another MIG device, or wait until it is free.",
            "requests.md#nvidia",
        ),
        RefusalCode::OtherPolicy => (
            "The container needs another policy of sharing than the one that the card's containers have.",
            "Use another card, leave the policy out of the request, or change the card's: `egpu policy CARD POLICY`.",
            "requests.md#policies",
        ),
        RefusalCode::CapNeedsFixed => (
            "A cap on time was asked for on a card whose policy has weights only.",
            "Set a weight instead, or the card's policy to fixed: `egpu policy CARD fixed`.",
            "requests.md#policies",
        ),
        RefusalCode::NoHardCaps => (
            "A cap on time was asked for, and this card cannot take a running container off.",
            "Ask for a weight with policy soft, use another card, or let caps count as weights: hard_caps_unavailable = \"degrade\".",
            "limits.md#shares-of-time",
        ),
        RefusalCode::NoRoom => (
            "No card of the node, or no set of cards together, has room for the container; the reasons differ from card to card.",
            "The message names the reason of each card. Ask for less or for fewer cards, or wait until containers end.",
            "limits.md#waiting-for-room",
        ),
        RefusalCode::RoomKept => (
            "There is room, and it is kept for a container that has waited for it longer.",
            "Wait: the other one starts as soon as those have ended that are ending.",
            "limits.md#waiting-for-room",
        ),
        RefusalCode::TooManyWaiting => (
            "As many containers wait for room as may.",
            "Try again when fewer do; `egpu ps` lists them.",
            "limits.md#waiting-for-room",
        ),
        RefusalCode::WaitEnded => (
            "The container waited for room until it was killed or deleted, or nobody asked for it any more.",
            "Nothing is wrong with the node. Start it again when there is room.",
            "limits.md#waiting-for-room",
        ),
        RefusalCode::NotOnThisNode => (
            "The request cannot be met on this node, whoever else is there: a card that it does not have or offer, more cards \
             than it has, or more memory than any has.",
            "The message names what is missing; `egpu cards` lists the cards, `egpu doctor` says why one is not offered.",
            "requests.md",
        ),
        RefusalCode::InvalidValue => (
            "A variable, annotation or option has a value that is not accepted.",
            "The message names it and what is accepted: correct it.",
            "requests.md",
        ),
        RefusalCode::Contradiction => (
            "Two parts of the request cannot both hold, or it speaks two languages of other systems.",
            "The message names both: leave one of them out.",
            "requests.md",
        ),
        RefusalCode::NotAllowed => (
            "The node's configuration does not allow the container to ask in this way.",
            "The message names the setting that would allow it; it is the node's administrator who decides.",
            "requests.md#who-is-believed",
        ),
        RefusalCode::Privileged => (
            "The container has rights with which it could get around its quota.",
            "Take the rights away that the message names, ask for whole cards, or set allow_privileged_quota in the configuration.",
            "limits.md#what-a-share-refuses",
        ),
        RefusalCode::SeccompListener => (
            "The container's seccomp profile has a listener of its own, and the kernel allows only one, which egpu needs.",
            "Take it out of the profile, or ask for whole cards.",
            "limits.md#what-a-share-refuses",
        ),
        RefusalCode::MigQuota => (
            "A quota was asked for on a MIG device, which is given whole.",
            "Ask for the MIG device without a quota, or for a card without MIG.",
            "requests.md#nvidia",
        ),
        RefusalCode::Claim => (
            "The container names a claim of Kubernetes that it cannot use: it is another pod's, is not prepared, or is in use.",
            "Name the claim in the pod's resources and nowhere else, and use a ResourceClaimTemplate, which makes one for each pod.",
            "limits.md#claims-of-kubernetes",
        ),
        RefusalCode::AlreadyGranted => (
            "A container of this name has cards already.",
            "Delete that one first; `egpu inspect ID` says what it is.",
            "troubleshooting.md",
        ),
        RefusalCode::Cgroup => (
            "The container would have no cgroup for itself, so nobody could tell its processes from others'.",
            "Give it a cgroupsPath of its own.",
            "limits.md#containers-and-hosts",
        ),
        RefusalCode::NotChangeable => (
            "The container has nothing that can be changed while it runs: whole cards, or a request that forbids it.",
            "Start it anew with other limits.",
            "requests.md#while-containers-run",
        ),
        RefusalCode::NodeFailure => (
            "The node is at fault, and not the request: its configuration, driver, disk or state directory.",
            "`egpu doctor` says what is wrong; the node's log of decisions has the error with its causes.",
            "troubleshooting.md",
        ),
    };
    Explanation { code: code.name(), meaning, remedy, document }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::test_support;

    #[test]
    fn every_code_has_its_own_name_and_a_document_that_is_there() {
        let names: BTreeSet<&str> = RefusalCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), RefusalCode::ALL.len());
        for explanation in RefusalCode::ALL.iter().copied().map(explanation) {
            let (file, anchor) = explanation.document.split_once('#').unwrap_or((explanation.document, ""));
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
            let document = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let anchors = document.lines().filter_map(|line| line.strip_prefix('#'));
            let mut anchors = anchors
                .map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-").replace('\'', ""));
            assert!(anchor.is_empty() || anchors.any(|known| known == anchor), "{explanation:?}");
            for text in [explanation.meaning, explanation.remedy] {
                assert!(
                    text.ends_with('.') && text.starts_with(|first: char| first.is_uppercase() || first == '`'),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn one_is_told_in_sentences_and_all_in_a_table() {
        let told = text(&explanation(RefusalCode::CardTaken), 60);
        assert_eq!(
            told,
            "card-taken: Another container has the whole card.\n\
             What to do: Use another card, or wait until it is free;\n\
             `egpu ps` says who has it.\n\
             More: docs/limits.md#waiting-for-room\n"
        );
        let all = RefusalCode::ALL.iter().copied().map(explanation).collect();
        let table = test_support::shown(Listing::new(&COLUMNS, all, row), &[]);
        assert_eq!(table.lines().count(), RefusalCode::ALL.len() + 1);
    }
}
