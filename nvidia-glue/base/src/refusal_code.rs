//! Codes of the reasons for which a container gets no GPU, or a change is not made: the one table
//! of them, which `egpu explain` shows and `docs/troubleshooting.md` has.

use std::fmt;

use serde::Serialize;

/// Defines the codes: the name, which people and scripts rely on and which is never renamed; what
/// it means; what to do; and the document in `docs` that says more.
macro_rules! codes {
    ($($code:ident = $name:literal { $meaning:literal, $remedy:literal, $document:literal, })*) => {
        /// Reason of a refusal, as `egpu explain` knows it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum RefusalCode {
            $(#[doc = $meaning] $code,)*
        }

        impl RefusalCode {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// The name that is shown.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)*
                }
            }

            /// Returns what it means, what to do, and the document that says more.
            pub const fn explanation(self) -> Explanation {
                match self {
                    $(Self::$code => Explanation {
                        code: $name,
                        meaning: $meaning,
                        remedy: $remedy,
                        document: $document,
                    },)*
                }
            }
        }
    };
}

/// Explanation of a code, as `egpu explain --output json` shows it. Keys are fixed.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The code's name.
    pub code: &'static str,
    /// Meaning, in sentences.
    pub meaning: &'static str,
    /// Advice, in sentences.
    pub remedy: &'static str,
    /// The document that says more: a file of egpu's folder `docs`, and a section of it.
    pub document: &'static str,
}

codes! {
    NoMemory = "no-memory" {
        "Less of the card's memory is free than the container asked for.",
        "Ask for less memory, name another card, or wait until a container of this card ends; `egpu ps \
         --sort -memory` shows who has it. With admission_wait in the configuration, containers wait by \
         themselves.",
        "limits.md#waiting-for-room",
    }
    NoTime = "no-time" {
        "The caps of the card's containers leave less of its time than the container asked for.",
        "Ask for a smaller percentage, name another card, or lower the cap of another container: `egpu set \
         ID --compute 20%`.",
        "limits.md#shares-of-time",
    }
    NoWeight = "no-weight" {
        "The card is divided into max_inst parts, and fewer are free than the container's weight.",
        "Ask for a smaller weight, or wait until a container of this card ends; `egpu cards` shows the free \
         weight.",
        "requests.md#policies",
    }
    NoRemainder = "no-remainder" {
        "Containers without a cap must keep a part of the card's time, and caps would take it.",
        "Give each container of the card a cap, or ask for a smaller one.",
        "requests.md#policies",
    }
    NoWindows = "no-windows" {
        "The shares would fit in sum, but no order of turns gives each container its own, on all its cards \
         at the same time.",
        "Ask for smaller shares or fewer cards, or for a longer period: `egpu policy CARD --period 200ms`.",
        "limits.md#shares-of-time",
    }
    TooManyContainers = "too-many-containers" {
        "The card has as many containers as device_split_count in the configuration allows.",
        "Use another card, wait until a container ends, or raise device_split_count.",
        "configuration.md",
    }
    NoChannels = "no-channels" {
        "The card has too few free channels for one more program: each container is promised some.",
        "Use another card, wait until a container ends, or lower device_split_count, so that each may have \
         more.",
        "limits.md#channels-and-pinned-host-memory",
    }
    NoPinnedMemory = "no-pinned-memory" {
        "The node has too little memory that the driver may pin for one more container.",
        "Ask for less with EGPU_PINNED_MEMORY, or raise pinned_memory in the configuration.",
        "limits.md#host-memory-that-is-pinned",
    }
    CardInUse = "card-in-use" {
        "The container asked for a whole card, and other containers have parts of it.",
        "Ask for a share, name another card, or wait until its containers have ended; `egpu ps` lists them.",
        "limits.md#waiting-for-room",
    }
    CardTaken = "card-taken" {
        "Another container has the whole card.",
        "Use another card, or wait until it is free; `egpu ps` says who has it.",
        "limits.md#waiting-for-room",
    }
    MigTaken = "mig-taken" {
        "Another container has the MIG device.",
        "Name another MIG device, or wait until it is free.",
        "requests.md#nvidia",
    }
    OtherPolicy = "other-policy" {
        "The container needs another policy of sharing than the one that the card's containers have.",
        "Use another card, leave the policy out of the request, or change the card's: `egpu policy CARD \
         POLICY`.",
        "requests.md#policies",
    }
    CapNeedsFixed = "cap-needs-fixed" {
        "A cap on time was asked for on a card whose policy has weights only.",
        "Set a weight instead, or the card's policy to fixed: `egpu policy CARD fixed`.",
        "requests.md#policies",
    }
    NoHardCaps = "no-hard-caps" {
        "A cap on time was asked for, and this card cannot take a running container off.",
        "Ask for a weight with policy soft, use another card, or let caps count as weights: \
         hard_caps_unavailable = \"degrade\".",
        "limits.md#shares-of-time",
    }
    NoRoom = "no-room" {
        "No card of the node, or no set of cards together, has room for the container; the reasons differ \
         from card to card.",
        "The message names the reason of each card. Ask for less or for fewer cards, or wait until \
         containers end.",
        "limits.md#waiting-for-room",
    }
    RoomKept = "room-kept" {
        "There is room, and it is kept for a container that has waited for it longer.",
        "Wait: the other one starts as soon as those have ended that are ending.",
        "limits.md#waiting-for-room",
    }
    TooManyWaiting = "too-many-waiting" {
        "As many containers wait for room as may.",
        "Try again when fewer do; `egpu ps` lists them.",
        "limits.md#waiting-for-room",
    }
    WaitEnded = "wait-ended" {
        "The container waited for room until it was killed or deleted, or nobody asked for it any more.",
        "Nothing is wrong with the node. Start it again when there is room.",
        "limits.md#waiting-for-room",
    }
    NotOnThisNode = "not-on-this-node" {
        "The request cannot be met on this node, whoever else is there: a card that it does not have or \
         offer, more cards than it has, or more memory than any has.",
        "The message names what is missing; `egpu cards` lists the cards, `egpu doctor` says why one is not \
         offered.",
        "requests.md",
    }
    InvalidValue = "invalid-value" {
        "A variable, annotation or option has a value that is not accepted.",
        "The message names it and what is accepted: correct it.",
        "requests.md",
    }
    Contradiction = "contradiction" {
        "Two parts of the request cannot both hold, or it speaks two languages of other systems.",
        "The message names both: leave one of them out.",
        "requests.md",
    }
    NotAllowed = "not-allowed" {
        "The node's configuration does not allow the container to ask in this way.",
        "The message names the setting that would allow it; it is the node's administrator who decides.",
        "requests.md#who-is-believed",
    }
    Privileged = "privileged" {
        "The container has rights with which it could get around its quota.",
        "Take the rights away that the message names, ask for whole cards, or set allow_privileged_quota in \
         the configuration.",
        "limits.md#what-a-share-refuses",
    }
    SeccompListener = "seccomp-listener" {
        "The container's seccomp profile has a listener of its own, and the kernel allows only one, which \
         egpu needs.",
        "Take it out of the profile, or ask for whole cards.",
        "limits.md#what-a-share-refuses",
    }
    MigQuota = "mig-quota" {
        "A quota was asked for on a MIG device, which is given whole.",
        "Ask for the MIG device without a quota, or for a card without MIG.",
        "requests.md#nvidia",
    }
    Claim = "claim" {
        "The container names a claim of Kubernetes that it cannot use: it is another pod's, is not prepared, \
         or is in use.",
        "Name the claim in the pod's resources and nowhere else, and use a ResourceClaimTemplate, which \
         makes one for each pod.",
        "limits.md#claims-of-kubernetes",
    }
    AlreadyGranted = "already-granted" {
        "A container of this name has cards already.",
        "Delete that one first; `egpu inspect ID` says what it is.",
        "troubleshooting.md",
    }
    Cgroup = "cgroup" {
        "The container would have no cgroup for itself, so nobody could tell its processes from others'.",
        "Give it a cgroupsPath of its own.",
        "limits.md#containers-and-hosts",
    }
    NotChangeable = "not-changeable" {
        "The container has nothing that can be changed while it runs: whole cards, or a request that forbids \
         it.",
        "Start it anew with other limits.",
        "requests.md#while-containers-run",
    }
    NodeFailure = "node-failure" {
        "The node is at fault, and not the request: its configuration, driver, disk or state directory.",
        "`egpu doctor` says what is wrong; the node's log of decisions has the error with its causes.",
        "troubleshooting.md",
    }
}

impl RefusalCode {
    /// The code of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

    #[test]
    fn every_code_has_its_own_name_and_a_document_that_is_there() {
        let names: BTreeSet<&str> = RefusalCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), RefusalCode::ALL.len());
        for explanation in RefusalCode::ALL.iter().map(|code| code.explanation()) {
            let (file, anchor) = explanation.document.split_once('#').unwrap_or((explanation.document, ""));
            let path = Path::new(DOCS).join(file);
            let document = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let anchors = document.lines().filter_map(|line| line.strip_prefix('#'));
            let mut anchors = anchors
                .map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-").replace('\'', ""));
            assert!(anchor.is_empty() || anchors.any(|known| known == anchor), "{explanation:?}");
            for text in [explanation.meaning, explanation.remedy] {
                let begins = text.starts_with(|first: char| first.is_uppercase() || first == '`');
                assert!(text.ends_with('.') && begins, "{text}");
            }
        }
    }

    /// `EGPU_WRITE_DOCS=1 cargo test -p base troubleshooting` writes its last table anew.
    #[test]
    fn troubleshooting_md_has_every_code() {
        const HEAD: &str = "| code | it is | do |\n|---|---|---|\n";
        let row = |Explanation { code, meaning, remedy, document }: Explanation| {
            let more = if document == "troubleshooting.md" { String::new() } else { format!(" ([more]({document}))") };
            format!("| `{code}` | {meaning}{more} | {remedy} |\n")
        };
        let table: String = RefusalCode::ALL.iter().map(|code| row(code.explanation())).collect();
        testing::is_document(&format!("{DOCS}/troubleshooting.md"), |committed| {
            let (above, _) = committed.split_once(HEAD).unwrap();
            format!("{above}{HEAD}{table}")
        });
    }
}
