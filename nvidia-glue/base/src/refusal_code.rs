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
        "The card is divided into max_inst parts, and fewer of them are free than the container's weight.",
        "Ask for a smaller weight, or wait until a container of this card ends; `egpu cards` shows the free \
         weight.",
        "requests.md#policies",
    }
    NoRemainder = "no-remainder" {
        "Containers without a cap must keep a part of the card's time, which the caps would take.",
        "Give each container of the card a cap, or ask for a smaller one.",
        "requests.md#policies",
    }
    NoWindows = "no-windows" {
        "The sum of the shares fits, but no order of turns gives each container its share on all its cards at \
         the same time.",
        "Ask for smaller shares or fewer cards, or for a longer period: `egpu policy CARD --period 200ms`.",
        "limits.md#shares-of-time",
    }
    TooManyContainers = "too-many-containers" {
        "The card already has as many containers as device_split_count in the configuration allows.",
        "Use another card, wait until a container ends, or raise device_split_count.",
        "configuration.md",
    }
    NoChannels = "no-channels" {
        "The card has too few free channels for one more program: each container is promised some.",
        "Use another card, wait until a container ends, or lower device_split_count, so that each container \
         may have more.",
        "limits.md#channels-and-pinned-host-memory",
    }
    NoPinnedMemory = "no-pinned-memory" {
        "The node has too little memory that the driver may pin for one more container.",
        "Ask for less with EGPU_PINNED_MEMORY, or raise pinned_memory in the configuration.",
        "limits.md#host-memory-that-is-pinned",
    }
    CardInUse = "card-in-use" {
        "The container asked for a whole card, but other containers have parts of it.",
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
        "The container needs a different sharing policy than the card has.",
        "Use another card, leave the policy out of the request, or change the card's: `egpu policy CARD \
         POLICY`.",
        "requests.md#policies",
    }
    CapNeedsFixed = "cap-needs-fixed" {
        "The container asked for a cap on time, but the card's policy has weights only.",
        "Set a weight instead, or the card's policy to fixed: `egpu policy CARD fixed`.",
        "requests.md#policies",
    }
    NoHardCaps = "no-hard-caps" {
        "The container asked for a cap on time, but this card cannot take a running container off.",
        "Ask for a weight with policy soft, use another card, or let caps count as weights: \
         hard_caps_unavailable = \"degrade\".",
        "limits.md#shares-of-time",
    }
    NoRoom = "no-room" {
        "No card of the node, or no set of cards, has room for the container; the reasons differ by card.",
        "The message gives the reason for each card. Ask for less or for fewer cards, or wait until \
         containers end.",
        "limits.md#waiting-for-room",
    }
    RoomKept = "room-kept" {
        "There is room, but it is kept for a container that has waited longer.",
        "Wait: the other container starts as soon as the containers that are ending have ended.",
        "limits.md#waiting-for-room",
    }
    TooManyWaiting = "too-many-waiting" {
        "The maximum number of containers already wait for room.",
        "Try again when fewer wait; `egpu ps` lists them.",
        "limits.md#waiting-for-room",
    }
    WaitEnded = "wait-ended" {
        "The container waited for room until it was killed or deleted, or its caller went away.",
        "Nothing is wrong with the node. Start it again when there is room.",
        "limits.md#waiting-for-room",
    }
    NotOnThisNode = "not-on-this-node" {
        "The request can never be met on this node: it names a card that the node does not have or offer, \
         more cards than the node has, or more memory than any card has.",
        "The message names what is missing; `egpu cards` lists the cards, `egpu doctor` says why one is not \
         offered.",
        "requests.md",
    }
    InvalidValue = "invalid-value" {
        "A variable, annotation or option has a value that is not accepted.",
        "Correct it: the message names it and what is accepted.",
        "requests.md",
    }
    Contradiction = "contradiction" {
        "Two parts of the request contradict each other, or it uses the languages of two other systems.",
        "Leave one of them out: the message names both.",
        "requests.md",
    }
    NotAllowed = "not-allowed" {
        "The node's configuration does not allow the container to ask in this way.",
        "The message names the setting that would allow it; the node's administrator decides.",
        "requests.md#who-is-believed",
    }
    Privileged = "privileged" {
        "The container has privileges with which it could get around its quota.",
        "Remove the privileges that the message names, ask for whole cards, or set allow_privileged_quota in \
         the configuration.",
        "limits.md#what-a-share-refuses",
    }
    SeccompListener = "seccomp-listener" {
        "The container's seccomp profile has its own listener, but the kernel allows only one, and egpu needs \
         it.",
        "Remove it from the profile, or ask for whole cards.",
        "limits.md#what-a-share-refuses",
    }
    MigQuota = "mig-quota" {
        "The container asked for a quota on a MIG device, but MIG devices are given only whole.",
        "Ask for the MIG device without a quota, or for a card without MIG.",
        "requests.md#nvidia",
    }
    Claim = "claim" {
        "The container names a Kubernetes claim that it cannot use: the claim is another pod's, not \
         prepared, or in use.",
        "Name the claim only in the pod's resources, and use a ResourceClaimTemplate, which makes one for \
         each pod.",
        "limits.md#claims-of-kubernetes",
    }
    AlreadyGranted = "already-granted" {
        "A container of this name already has cards.",
        "Delete that one first; `egpu inspect ID` says what it is.",
        "troubleshooting.md",
    }
    Cgroup = "cgroup" {
        "The container would have no cgroup of its own, so its processes could not be told from others'.",
        "Give it a cgroupsPath of its own.",
        "limits.md#containers-and-hosts",
    }
    NotChangeable = "not-changeable" {
        "The container cannot be changed while it runs: it has whole cards, or its request forbids changes.",
        "Restart it with other limits.",
        "requests.md#while-containers-run",
    }
    NodeFailure = "node-failure" {
        "The node is at fault, not the request: its configuration, driver, disk or state directory.",
        "`egpu doctor` says what is wrong; the node's decision log has the error with its causes.",
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
        const HEAD: &str = "| code | cause | remedy |\n|---|---|---|\n";
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
