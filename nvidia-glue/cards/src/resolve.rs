//! From what a request names to a card or a MIG device of this node.

use base::PciBusId;
use runtime_config::request::DeviceSelector;

use super::{Card, Inventory, MigDevice};

/// Meaning of a selector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CardOrMig<'a> {
    /// A whole card.
    Card(&'a Card),
    /// One MIG device of a card.
    Mig {
        /// The card that it is on.
        card: &'a Card,
        device: &'a MigDevice,
    },
}

impl<'a> CardOrMig<'a> {
    /// The card, or the card that the MIG device is on.
    pub fn card(self) -> &'a Card {
        match self {
            Self::Card(card) | Self::Mig { card, .. } => card,
        }
    }
}

/// A selector that names nothing on this node, or more than one thing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The node has no cards at all.
    #[error("`{selector}` names a card, but this node has none")]
    NoCards {
        /// As written.
        selector: String,
    },
    #[error("this node has no card `{selector}`; it has {existing}")]
    NoSuchCard {
        /// As written.
        selector: String,
        /// Existing cards, for people.
        existing: String,
    },
    #[error("this node has no MIG device `{selector}`; it has {existing}")]
    NoSuchMigDevice {
        /// As written.
        selector: String,
        /// Existing devices, for people.
        existing: String,
    },
    /// A prefix that fits several.
    #[error("`{selector}` fits more than one: {candidates}; write more of the UUID")]
    Ambiguous {
        /// As written.
        selector: String,
        /// UUIDs that it fits.
        candidates: String,
    },
}

impl Inventory {
    /// The card with this index in NVML's order.
    pub fn by_index(&self, index: u32) -> Option<&Card> {
        // Not `cards[index]`: an inventory may be read from a file, and the promise about the order
        // is not checked there.
        self.cards.iter().find(|card| card.index == index)
    }

    /// The card with exactly this UUID, without regard to case.
    pub fn by_uuid(&self, uuid: &str) -> Option<&Card> {
        self.cards.iter().find(|card| card.uuid.eq_ignore_ascii_case(uuid))
    }

    /// The card whose node is `/dev/nvidia<minor>`.
    pub fn by_minor(&self, minor: u32) -> Option<&Card> {
        self.cards.iter().find(|card| card.minor == minor)
    }

    /// The MIG device with exactly this UUID, and its card.
    pub fn mig_by_uuid(&self, uuid: &str) -> Option<(&Card, &MigDevice)> {
        self.mig_devices().find(|(_, device)| device.uuid.eq_ignore_ascii_case(uuid))
    }

    /// All MIG devices with the cards that they are on.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&Card, &MigDevice)> {
        self.cards.iter().flat_map(|card| card.mig_devices.iter().map(move |device| (card, device)))
    }

    /// Resolves `selector` to a card or a MIG device. Health is not considered: an unusable card
    /// resolves, and whoever selects refuses it with its reason.
    ///
    /// # Errors
    /// When it names nothing here or, as a UUID prefix, more than one thing; the message lists what
    /// exists.
    pub fn resolve(&self, selector: &DeviceSelector) -> Result<CardOrMig<'_>, ResolveError> {
        if self.cards.is_empty() {
            return Err(ResolveError::NoCards { selector: selector.to_string() });
        }
        match selector {
            DeviceSelector::Index(index) => self.whole_card(selector, |card| card.index == *index),
            DeviceSelector::Pci(address) => self.whole_card(selector, |card| same_slot(card.pci, *address)),
            DeviceSelector::Uuid(prefix) => self.card_by_prefix(selector, prefix),
            DeviceSelector::MigUuid(prefix) => self.mig_by_prefix(selector, prefix),
            DeviceSelector::MigIndex { card, mig } => {
                let found = self
                    .mig_devices()
                    .find(|(parent, device)| parent.index == *card && device.index == *mig)
                    .map(|(card, device)| CardOrMig::Mig { card, device });
                found.ok_or_else(|| self.no_such_mig(selector))
            }
        }
    }

    fn whole_card(
        &self,
        selector: &DeviceSelector,
        wanted: impl Fn(&Card) -> bool,
    ) -> Result<CardOrMig<'_>, ResolveError> {
        let found = self.cards.iter().find(|card| wanted(card)).map(CardOrMig::Card);
        found.ok_or_else(|| self.no_such_card(selector))
    }

    fn card_by_prefix(&self, selector: &DeviceSelector, prefix: &str) -> Result<CardOrMig<'_>, ResolveError> {
        if let Some(card) = self.by_uuid(prefix) {
            return Ok(CardOrMig::Card(card));
        }
        let fitting: Vec<&Card> = self.cards.iter().filter(|card| begins_with(&card.uuid, "GPU-", prefix)).collect();
        match fitting.as_slice() {
            [] => Err(self.no_such_card(selector)),
            [card] => Ok(CardOrMig::Card(card)),
            several => Err(ambiguous(selector, several.iter().map(|card| card.uuid.as_str()))),
        }
    }

    fn mig_by_prefix(&self, selector: &DeviceSelector, prefix: &str) -> Result<CardOrMig<'_>, ResolveError> {
        if let Some((card, device)) = self.mig_by_uuid(prefix) {
            return Ok(CardOrMig::Mig { card, device });
        }
        let fitting: Vec<(&Card, &MigDevice)> =
            self.mig_devices().filter(|(_, device)| begins_with(&device.uuid, "MIG-", prefix)).collect();
        match fitting.as_slice() {
            [] => Err(self.no_such_mig(selector)),
            [(card, device)] => Ok(CardOrMig::Mig { card, device }),
            several => Err(ambiguous(selector, several.iter().map(|(_, device)| device.uuid.as_str()))),
        }
    }

    fn no_such_card(&self, selector: &DeviceSelector) -> ResolveError {
        let existing = listing(self.cards.iter().map(|card| format!("{} ({}, {})", card.index, card.uuid, card.pci)));
        ResolveError::NoSuchCard { selector: selector.to_string(), existing }
    }

    fn no_such_mig(&self, selector: &DeviceSelector) -> ResolveError {
        let all = self.mig_devices().map(|(card, device)| format!("{}:{} ({})", card.index, device.index, device.uuid));
        ResolveError::NoSuchMigDevice { selector: selector.to_string(), existing: listing(all) }
    }
}

/// Returns whether a UUID begins with `prefix`, which must have at least one character beyond
/// `kind` (`GPU-`, `MIG-`), else it names nothing in particular.
fn begins_with(uuid: &str, kind: &str, prefix: &str) -> bool {
    let Some(start) = uuid.get(..prefix.len()) else { return false };
    prefix.len() > kind.len() && start.eq_ignore_ascii_case(prefix)
}

/// Returns whether two addresses are of one card. NVIDIA's cards have one function that computes,
/// so that `0000:65:00` and `0000:65:00.0` are the same card; NVML itself gives no function at all.
fn same_slot(a: PciBusId, b: PciBusId) -> bool {
    (a.domain, a.bus, a.device) == (b.domain, b.bus, b.device)
}

fn ambiguous<'a>(selector: &DeviceSelector, uuids: impl Iterator<Item = &'a str>) -> ResolveError {
    ResolveError::Ambiguous { selector: selector.to_string(), candidates: listing(uuids.map(str::to_owned)) }
}

fn listing(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simulated::tests::{inventory_of, mig_device};

    fn uuid(text: &str) -> DeviceSelector {
        DeviceSelector::Uuid(text.to_owned())
    }

    fn sample() -> Inventory {
        let mut inventory = inventory_of(3);
        inventory.cards[0].uuid = "GPU-aaaa1111-0000-0000-0000-000000000000".into();
        inventory.cards[1].uuid = "GPU-aaaa2222-0000-0000-0000-000000000001".into();
        inventory.cards[2].uuid = "GPU-bbbb0000-0000-0000-0000-000000000002".into();
        inventory.cards[2].mig_enabled = true;
        inventory.cards[2].mig_devices =
            vec![mig_device(0, "MIG-11110000-0000-0000-0000-000000000000"), mig_device(3, "MIG-2222")];
        inventory
    }

    fn index_of(inventory: &Inventory, selector: &DeviceSelector) -> Result<(u32, Option<u32>), ResolveError> {
        inventory.resolve(selector).map(|found| match found {
            CardOrMig::Card(card) => (card.index, None),
            CardOrMig::Mig { card, device } => (card.index, Some(device.index)),
        })
    }

    #[test]
    fn every_kind_of_selector_finds_its_card() {
        let inventory = sample();
        let pci = |bus| DeviceSelector::Pci(PciBusId { domain: 0, bus, device: 0, function: 0 });
        for (selector, expected) in [
            (DeviceSelector::Index(1), (1, None)),
            (uuid("GPU-aaaa2222-0000-0000-0000-000000000001"), (1, None)),
            (uuid("gpu-AAAA2222-0000-0000-0000-000000000001"), (1, None)),
            (uuid("GPU-b"), (2, None)),
            (uuid("gpu-AAAA1"), (0, None)),
            (pci(2), (1, None)),
            (DeviceSelector::MigUuid("mig-1111".into()), (2, Some(0))),
            (DeviceSelector::MigUuid("MIG-2222".into()), (2, Some(3))),
            (DeviceSelector::MigIndex { card: 2, mig: 3 }, (2, Some(3))),
        ] {
            assert_eq!(index_of(&inventory, &selector), Ok(expected), "{selector}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let inventory = sample();
        let message = |selector| index_of(&inventory, &selector).unwrap_err().to_string();
        assert!(message(DeviceSelector::Index(3)).contains("0 (GPU-aaaa1111"));
        assert!(message(uuid("GPU-c")).contains("GPU-bbbb0000"));
        assert!(message(uuid("GPU-aaaa")).contains("fits more than one: GPU-aaaa1111"));
        assert!(message(uuid("GPU-")).contains("has no card"), "the bare kind names nothing");
        assert!(message(DeviceSelector::MigIndex { card: 2, mig: 1 }).contains("2:0 (MIG-11110000"));
        assert!(message(DeviceSelector::MigIndex { card: 0, mig: 0 }).contains("2:3 (MIG-2222)"));
        let empty = Inventory { cards: Vec::new(), ..sample() };
        let error = empty.resolve(&DeviceSelector::Index(0)).unwrap_err().to_string();
        assert_eq!(error, "`0` names a card, but this node has none");
    }

    proptest! {
        #[test]
        fn any_prefix_resolves_or_is_refused_cleanly(text in "\\PC{0,40}") {
            let inventory = sample();
            let _ = inventory.resolve(&uuid(&text));
            let _ = inventory.resolve(&DeviceSelector::MigUuid(text));
        }

        #[test]
        fn a_prefix_that_resolves_is_a_prefix_of_what_it_found(length in 0usize..41) {
            let inventory = sample();
            for card in &inventory.cards {
                let prefix = &card.uuid[..length.min(card.uuid.len())];
                if let Ok(CardOrMig::Card(found)) = inventory.resolve(&uuid(prefix)) {
                    prop_assert_eq!(&found.uuid, &card.uuid);
                }
            }
        }
    }
}
