//! The container's cards, by all their names.

use std::io;

use abi::{
    Abi, Handle, Node, Status,
    classes::{NV01_DEVICE_0, NV20_SUBDEVICE_0},
    controls::{
        NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, NV0000_CTRL_CMD_GPU_GET_PCI_INFO,
    },
    encode,
    params::{
        NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS as AttachedIds, NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS,
        NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS as PciInfo, NV0080_ALLOC_PARAMETERS, NV2080_ALLOC_PARAMETERS,
    },
};
use account::Card;
use driver::{DeviceFile, Driver, OwnClient};

use crate::{GrantedCard, SessionError, raw::Raw};

/// `NV0000_CTRL_GPU_INVALID_ID`: the end of a list of ids.
pub(crate) const INVALID_GPU_ID: u32 = 0xffff_ffff;

/// A card as the driver names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CardNames {
    /// Name in controls of the root.
    pub(crate) gpu_id: u32,
    /// Name by which `NV01_DEVICE_0` is allocated.
    pub(crate) device_instance: u32,
}

#[derive(Debug)]
pub(super) struct OwnCard {
    pub(super) granted: GrantedCard,
    names: CardNames,
    pub(super) uuid: Option<[u8; 16]>,
    /// The mediator's own device and subdevice of it.
    pub(super) device: Handle,
    pub(super) subdevice: Handle,
    /// Kept open: the driver gives a device only to a process that has the card's node open.
    _file: DeviceFile,
}

impl OwnCard {
    /// The driver's number for its device.
    pub(super) const fn device_instance(&self) -> u32 {
        self.names.device_instance
    }
}

/// Every card of the grant; no other exists.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) cards: Vec<OwnCard>,
    names: Vec<CardNames>,
}

/// Handles of the mediator's own objects; any that are not null will do in a client of its own.
const OWN_DEVICES: u32 = 0xe690_0000;
const OWN_SUBDEVICES: u32 = 0xe691_0000;

impl Grant {
    /// Opens each card's node, and looks for it among the cards that the driver has attached.
    pub(super) fn find(
        driver: &dyn Driver,
        abi: Abi,
        own: &OwnClient,
        granted: Vec<GrantedCard>,
    ) -> Result<Self, SessionError> {
        let raw = Raw { driver, abi, file: &own.control, client: own.client };
        let mut opened = Vec::new();
        for card in granted {
            let open = driver.open(Node::Card(card.minor));
            let file = open.map_err(|source| SessionError::Open { minor: card.minor, source })?;
            opened.push((card, file));
        }
        let attached = attached(raw)?;
        let mut cards = Vec::new();
        for (at, (granted, file)) in (0_u32..).zip(opened) {
            let here = |(id, place): &(u32, PciPlace)| place.is(&granted).then_some(*id);
            let gpu_id = attached.iter().find_map(here);
            let gpu_id =
                gpu_id.ok_or_else(|| SessionError::NoSuchCard { uuid: granted.uuid.clone(), pci: granted.pci })?;
            let device_instance = device_instance(raw, gpu_id)?;
            let (device, subdevice) = own_subdevice(raw, at, device_instance)?;
            let uuid = uuid_bytes(&granted.uuid);
            let names = CardNames { gpu_id, device_instance };
            cards.push(OwnCard { granted, names, uuid, device, subdevice, _file: file });
        }
        let names = cards.iter().map(|card| card.names).collect();
        Ok(Self { cards, names })
    }

    /// Returns the names that the driver has for them.
    pub(super) fn names(&self) -> &[CardNames] {
        &self.names
    }

    fn find_card(&self, is_it: impl Fn(&OwnCard) -> bool) -> Option<Card> {
        self.cards.iter().position(is_it).and_then(|at| u8::try_from(at).ok()).map(Card)
    }

    pub(super) fn get(&self, card: Card) -> Option<&OwnCard> {
        self.cards.get(usize::from(card.0))
    }

    /// Each with its number in the accounts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Card, &OwnCard)> {
        (0..=u8::MAX).map(Card).zip(&self.cards)
    }

    pub(super) fn by_device_instance(&self, instance: u32) -> Option<Card> {
        self.find_card(|card| card.names.device_instance == instance)
    }

    /// By `GPU-...`.
    pub(super) fn by_uuid(&self, uuid: &str) -> Option<Card> {
        self.find_card(|card| card.granted.uuid == uuid)
    }

    /// By the 16 bytes that UVM uses.
    pub(super) fn by_uuid_bytes(&self, uuid: [u8; 16]) -> Option<Card> {
        self.find_card(|card| card.uuid == Some(uuid))
    }

    /// By domain, bus and device on PCI.
    pub(super) fn by_pci(&self, domain: u32, bus: u8, device: u8) -> Option<Card> {
        self.find_card(|card| {
            let pci = card.granted.pci;
            (pci.domain, pci.bus, pci.device) == (domain, bus, device)
        })
    }

    /// `GPU-...`.
    pub(super) fn uuid(&self, card: Card) -> &str {
        self.get(card).map_or("", |card| &card.granted.uuid)
    }
}

/// Address of a card on PCI.
struct PciPlace {
    domain: u32,
    bus: u16,
    device: u16,
}

impl PciPlace {
    fn is(&self, card: &GrantedCard) -> bool {
        let pci = card.pci;
        (self.domain, self.bus, self.device) == (pci.domain, pci.bus.into(), pci.device.into())
    }
}

fn control(raw: Raw<'_>, call: &'static str, id: u32, params: Vec<u8>) -> Result<Vec<u8>, SessionError> {
    let asked = raw.control(raw.client, id, params);
    let (status, params) = asked.map_err(|source| SessionError::Call { call, source })?;
    if status.is_ok() { Ok(params) } else { Err(SessionError::Refused { call, status }) }
}

/// Every card that the driver has attached, by its id (ctrl0000gpu.h).
fn attached(raw: Raw<'_>) -> Result<Vec<(u32, PciPlace)>, SessionError> {
    let params = vec![0; AttachedIds::SIZE];
    let list = control(raw, "NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS", NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, params)?;
    let ids = AttachedIds::gpuIds.get(&list).into_iter().flatten();
    let mut cards = Vec::new();
    for id in ids.take_while(|id| *id != INVALID_GPU_ID) {
        let params = encode!(PciInfo { gpuId: id }).to_vec();
        let answer = control(raw, "NV0000_CTRL_CMD_GPU_GET_PCI_INFO", NV0000_CTRL_CMD_GPU_GET_PCI_INFO, params)?;
        let place = (PciInfo::domain.get(&answer), PciInfo::bus.get(&answer), PciInfo::slot.get(&answer));
        if let (Some(domain), Some(bus), Some(device)) = place {
            cards.push((id, PciPlace { domain, bus, device }));
        }
    }
    Ok(cards)
}

fn device_instance(raw: Raw<'_>, gpu_id: u32) -> Result<u32, SessionError> {
    const CALL: &str = "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2";
    let params = encode!(NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS { gpuId: gpu_id }).to_vec();
    let answer = control(raw, CALL, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, params)?;
    NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS::deviceInstance
        .get(&answer)
        .ok_or(SessionError::Refused { call: CALL, status: Status::INVALID_ARGUMENT })
}

/// Parameters of a device of the card that the driver gives this number.
pub(super) fn device_params(device_instance: u32) -> Vec<u8> {
    encode!(NV0080_ALLOC_PARAMETERS { deviceId: device_instance }).to_vec()
}

/// The mediator's own device and subdevice of a card.
fn own_subdevice(raw: Raw<'_>, at: u32, device_instance: u32) -> Result<(Handle, Handle), SessionError> {
    let alloc = |parent, object, class, params: Vec<u8>, call: &'static str| {
        let made = raw.alloc(parent, object, class, params);
        match made.map_err(|source: io::Error| SessionError::Call { call, source })? {
            (status, handle) if status.is_ok() => Ok(handle),
            (status, _) => Err(SessionError::Refused { call, status }),
        }
    };
    let device =
        alloc(raw.client, Handle(OWN_DEVICES + at), NV01_DEVICE_0, device_params(device_instance), "NV01_DEVICE_0")?;
    let params = vec![0; NV2080_ALLOC_PARAMETERS::SIZE];
    Ok((device, alloc(device, Handle(OWN_SUBDEVICES + at), NV20_SUBDEVICE_0, params, "NV20_SUBDEVICE_0")?))
}

/// The bytes of `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
fn uuid_bytes(uuid: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = uuid.strip_prefix("GPU-")?.bytes().filter(|byte| *byte != b'-').collect();
    let digits = std::str::from_utf8(&digits).ok()?;
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids() {
        let bytes = uuid_bytes("GPU-00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(bytes[..4], [0, 0x11, 0x22, 0x33]);
        assert_eq!(bytes[15], 0xff);
        for wrong in
            ["", "GPU-", "GPU-0011", "MIG-00112233-4455-6677-8899-aabbccddeeff", "GPU-+0112233445566778899aabbccddeef"]
        {
            assert_eq!(uuid_bytes(wrong), None, "{wrong}");
        }
    }
}
