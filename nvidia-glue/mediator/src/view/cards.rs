//! List of the cards that there are.

use abi::{
    layout::{read_u32, write_u32},
    params::{
        Field, NV0000_CTRL_GPU_ACTIVE_DEVICE as ActiveDevice, NV0000_CTRL_GPU_ATTACH_IDS_PARAMS,
        NV0000_CTRL_GPU_GET_ACTIVE_DEVICE_IDS_PARAMS as ActiveDevices, NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS,
        NV0000_CTRL_GPU_GET_DEVICE_IDS_PARAMS, NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS as ProbedIds,
        NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS as P2pCapsMatrix,
        NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS as P2pCaps, NV2080_CTRL_GET_P2P_CAPS_PARAMS as PeerCaps,
        NV2080_CTRL_GPU_P2P_PEER_CAPS_PEER_INFO as PeerInfo, nv_ioctl_card_info_t as CardInfo,
    },
};

use crate::grant::{CardNames, INVALID_GPU_ID};

/// Bytes of a GPU id.
const ID: usize = 4;
/// `NV_MAX_DEVICES`: ids in a list.
const LIST: usize = 32;

fn is_granted(cards: &[CardNames], gpu_id: u32) -> bool {
    cards.iter().any(|card| card.gpu_id == gpu_id)
}

/// Leaves only granted ids in a list that ends with `INVALID_GPU_ID`; `beside` is a second list
/// whose entries go with them.
fn filter(params: &mut [u8], at: usize, beside: Option<usize>, cards: &[CardNames]) {
    let mut kept = 0;
    for index in 0..LIST {
        let Some(id) = read_u32(params, at + index * ID) else { return };
        if id == INVALID_GPU_ID {
            break;
        }
        if !is_granted(cards, id) {
            continue;
        }
        let _ = write_u32(params, at + kept * ID, id);
        if let Some(beside) = beside
            && let Some(value) = read_u32(params, beside + index * ID)
        {
            let _ = write_u32(params, beside + kept * ID, value);
        }
        kept += 1;
    }
    for index in kept..LIST {
        let _ = write_u32(params, at + index * ID, INVALID_GPU_ID);
        if let Some(beside) = beside {
            let _ = write_u32(params, beside + index * ID, 0);
        }
    }
}

/// `NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS`.
pub(crate) fn attached_ids(params: &mut [u8], cards: &[CardNames]) {
    filter(params, NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS::gpuIds.at(), None, cards);
}

/// `NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS`: the ids, the excluded ids, and since 580 flags of the
/// ids.
pub(crate) fn probed_ids(params: &mut [u8], cards: &[CardNames]) {
    let flags = ProbedIds::gpuFlags.bytes(params).map(|_| ProbedIds::gpuFlags.at());
    filter(params, ProbedIds::gpuIds.at(), flags, cards);
    filter(params, ProbedIds::excludedGpuIds.at(), None, &[]);
}

/// `NV0000_CTRL_GPU_GET_DEVICE_IDS_PARAMS`: a mask of device instances.
pub(crate) fn device_ids(params: &mut [u8], cards: &[CardNames]) {
    let granted =
        cards.iter().filter_map(|card| 1_u32.checked_shl(card.device_instance)).fold(0, |mask, bit| mask | bit);
    let device_ids = NV0000_CTRL_GPU_GET_DEVICE_IDS_PARAMS::deviceIds;
    if let Some(mask) = device_ids.get(params) {
        let _ = device_ids.set(params, mask & granted);
    }
}

/// `NV0000_CTRL_GPU_GET_ACTIVE_DEVICE_IDS_PARAMS`: the count, then id, GPU instance and compute
/// instance each.
pub(crate) fn active_device_ids(params: &mut [u8], cards: &[CardNames]) {
    const ENTRY: usize = ActiveDevice::SIZE;
    let Some(count) = ActiveDevices::numDevices.get(params).and_then(|count| usize::try_from(count).ok()) else {
        return;
    };
    let Some(entries) = params.get_mut(ActiveDevices::devices.at()..) else { return };
    let count = count.min(entries.len() / ENTRY);
    let mut kept = 0;
    for index in 0..count {
        let from = index * ENTRY;
        let entry = entries.get(from..).unwrap_or_default();
        if ActiveDevice::gpuId.get(entry).is_some_and(|id| is_granted(cards, id)) {
            entries.copy_within(from..from + ENTRY, kept * ENTRY);
            kept += 1;
        }
    }
    if let Some(rest) = entries.get_mut(kept * ENTRY..count * ENTRY) {
        rest.fill(0);
    }
    let _ = ActiveDevices::numDevices.set(params, u32::try_from(kept).unwrap_or(0));
}

/// Returns whether a card that a control names before it is executed is the container's.
pub(crate) fn names_granted(params: &[u8], gpu_id: Field<u32>, cards: &[CardNames]) -> bool {
    gpu_id.get(params).is_none_or(|id| is_granted(cards, id))
}

/// Returns whether the id that bytes begin with is granted.
pub(crate) fn id_granted(id: &[u8], cards: &[CardNames]) -> bool {
    read_u32(id, 0).is_none_or(|id| is_granted(cards, id))
}

/// A list of ids to attach or detach, ended by `INVALID_GPU_ID` or the list's end, or the number
/// that stands for all of them. Those of other cards are taken out; "all" becomes the granted ones.
pub(crate) fn restrict_list(params: &mut [u8], cards: &[CardNames]) {
    /// `NV0000_CTRL_GPU_ATTACH_ALL_PROBED_IDS`, `NV0000_CTRL_GPU_DETACH_ALL_ATTACHED_IDS`.
    const ALL: u32 = 0x0000_ffff;
    let list = NV0000_CTRL_GPU_ATTACH_IDS_PARAMS::gpuIds.at();
    if read_u32(params, list) != Some(ALL) {
        return filter(params, list, None, cards);
    }
    for index in 0..LIST {
        let id = cards.get(index).map_or(INVALID_GPU_ID, |card| card.gpu_id);
        let _ = write_u32(params, list + index * ID, id);
    }
}

/// `NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS` and `_V2`: a list of ids of which `gpuCount`, behind
/// it, are named.
pub(crate) fn p2p_names_granted(params: &[u8], cards: &[CardNames]) -> bool {
    P2pCaps::gpuCount.get(params).is_none_or(|count| are_granted(params, P2pCaps::gpuIds, count, cards))
}

/// `NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS`: two counts, then two lists.
pub(crate) fn p2p_matrix_names_granted(params: &[u8], cards: &[CardNames]) -> bool {
    let counts = (P2pCapsMatrix::grpACount.get(params), P2pCapsMatrix::grpBCount.get(params));
    let (Some(first), Some(second)) = counts else { return true };
    are_granted(params, P2pCapsMatrix::gpuIdGrpA, first, cards)
        && are_granted(params, P2pCapsMatrix::gpuIdGrpB, second, cards)
}

/// Returns whether the first `count` ids of a list are granted.
fn are_granted<const MOST: usize>(params: &[u8], list: Field<[u32; MOST]>, count: u32, cards: &[CardNames]) -> bool {
    let ids = |count| (0..count).map(|index| list.element(index));
    usize::try_from(count)
        .is_ok_and(|count| count <= MOST && ids(count).flatten().all(|id| names_granted(params, id, cards)))
}

/// `NV2080_CTRL_GET_P2P_CAPS_PARAMS`: whether all cards are asked about, whether by UUID, the
/// number of peers, and 32 peers that begin with their ids. A peer has 48 bytes, or 52 since 555.
mod peers {
    use super::PeerCaps;

    pub(super) const AT: usize = PeerCaps::peerGpuCaps.at();

    pub(super) fn asks_for_all(params: &[u8]) -> bool {
        PeerCaps::bAllCaps.get(params).is_some_and(|all| all != 0)
    }

    pub(super) fn bytes_of_one(params: &[u8]) -> usize {
        params.len().saturating_sub(AT) / super::LIST
    }
}

/// Returns whether a subdevice is asked about granted peers only, or about all there are.
pub(crate) fn peers_granted(params: &[u8], cards: &[CardNames]) -> bool {
    if peers::asks_for_all(params) {
        return true;
    }
    // By UUID only a virtual machine's driver asks.
    let by_uuid = PeerCaps::bUseUuid.get(params).is_none_or(|by_uuid| by_uuid != 0);
    let Some(count) = PeerCaps::peerGpuCount.get(params).and_then(|count| usize::try_from(count).ok()) else {
        return false;
    };
    let size = peers::bytes_of_one(params);
    !by_uuid
        && count <= LIST
        && (0..count).all(|index| read_u32(params, peers::AT + index * size).is_none_or(|id| is_granted(cards, id)))
}

/// The answer: only granted peers are left.
pub(crate) fn peers(params: &mut [u8], cards: &[CardNames]) {
    let size = peers::bytes_of_one(params);
    let Some(count) = PeerCaps::peerGpuCount.get(params).and_then(|count| usize::try_from(count).ok()) else { return };
    let Some(entries) = params.get_mut(peers::AT..).filter(|_| size >= ID) else { return };
    let mut kept = 0;
    for index in 0..count.min(LIST) {
        let from = index * size;
        let entry = entries.get(from..).unwrap_or_default();
        if PeerInfo::gpuId.get(entry).is_some_and(|id| is_granted(cards, id)) {
            entries.copy_within(from..from + size, kept * size);
            kept += 1;
        }
    }
    if let Some(rest) = entries.get_mut(kept * size..) {
        rest.fill(0);
    }
    let _ = PeerCaps::peerGpuCount.set(params, u32::try_from(kept).unwrap_or(0));
}

/// `NV_ESC_CARD_INFO`: an array of cards, of which those that are not granted are taken out.
pub(crate) fn card_info(args: &mut [u8], cards: &[CardNames]) {
    let count = args.len() / CardInfo::SIZE;
    let mut kept = 0;
    for index in 0..count {
        let from = index * CardInfo::SIZE;
        let info = args.get(from..).unwrap_or_default();
        let is_valid = CardInfo::valid.get(info).is_some_and(|valid| valid != 0);
        if is_valid && CardInfo::gpu_id.get(info).is_some_and(|id| is_granted(cards, id)) {
            args.copy_within(from..from + CardInfo::SIZE, kept * CardInfo::SIZE);
            kept += 1;
        }
    }
    if let Some(rest) = args.get_mut(kept * CardInfo::SIZE..) {
        rest.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CARDS: [CardNames; 2] =
        [CardNames { gpu_id: 0x100, device_instance: 0 }, CardNames { gpu_id: 0x300, device_instance: 2 }];

    fn list(ids: &[u32], length: usize) -> Vec<u8> {
        (0..length).flat_map(|index| ids.get(index).copied().unwrap_or(INVALID_GPU_ID).to_le_bytes()).collect()
    }

    #[test]
    fn lists_name_the_granted_cards_only() {
        let mut attached = list(&[0x100, 0x200, 0x300], LIST);
        attached_ids(&mut attached, &CARDS);
        assert_eq!(attached, list(&[0x100, 0x300], LIST));

        let flags: Vec<u8> = list(&[1, 2, 3], 3).into_iter().chain(vec![0; 4 * (LIST - 3)]).collect();
        let mut probed = [list(&[0x200, 0x100, 0x300], LIST), list(&[0x400], LIST), flags].concat();
        probed_ids(&mut probed, &CARDS);
        let flags: Vec<u8> = list(&[2, 3], 2).into_iter().chain(vec![0; 4 * (LIST - 2)]).collect();
        assert_eq!(probed, [list(&[0x100, 0x300], LIST), list(&[], LIST), flags].concat());

        let mut mask = 0b1111_u32.to_le_bytes();
        device_ids(&mut mask, &CARDS);
        assert_eq!(mask, 0b101_u32.to_le_bytes());
    }

    #[test]
    fn all_means_all_that_are_granted() {
        let mut all = list(&[0xffff], LIST + 1);
        restrict_list(&mut all, &CARDS);
        assert_eq!(all, list(&[0x100, 0x300], LIST + 1));
        let mut some = list(&[0x200, 0x300], LIST);
        restrict_list(&mut some, &CARDS);
        assert_eq!(some, list(&[0x300], LIST));
    }

    #[test]
    fn active_devices_and_card_infos_of_others_are_taken_out() {
        let entry = |id: u32| [id.to_le_bytes(), [1; 4], [2; 4]].concat();
        let mut active = [3_u32.to_le_bytes().to_vec(), entry(0x200), entry(0x300), entry(0x500), entry(9)].concat();
        active_device_ids(&mut active, &CARDS);
        assert_eq!(active, [1_u32.to_le_bytes().to_vec(), entry(0x300), vec![0; 24], entry(9)].concat());

        let info = |id: u32, valid: u8| {
            let mut info = vec![7; CardInfo::SIZE];
            info[0] = valid;
            info[CardInfo::gpu_id.at()..CardInfo::gpu_id.at() + 4].copy_from_slice(&id.to_le_bytes());
            info
        };
        let mut infos = [info(0x200, 1), info(0x100, 0), info(0x300, 1)].concat();
        card_info(&mut infos, &CARDS);
        assert_eq!(infos, [info(0x300, 1), vec![0; 2 * CardInfo::SIZE]].concat());
    }

    #[test]
    fn peers_outside_the_grant_are_no_peers() {
        let question = |ids: &[u32], count: u32| [list(ids, LIST), count.to_le_bytes().to_vec()].concat();
        assert!(p2p_names_granted(&question(&[0x100, 0x300], 2), &CARDS));
        assert!(!p2p_names_granted(&question(&[0x100, 0x200], 2), &CARDS));
        assert!(p2p_names_granted(&question(&[0x100, 0x200], 1), &CARDS));
        assert!(!p2p_names_granted(&question(&[0x100], 33), &CARDS));
        let matrix = |first: &[u32], second: &[u32]| {
            let counts = [first.len(), second.len()].map(|count| u32::try_from(count).unwrap().to_le_bytes());
            [counts.concat(), list(first, 8), list(second, 8)].concat()
        };
        assert!(p2p_matrix_names_granted(&matrix(&[0x100], &[0x300]), &CARDS));
        assert!(!p2p_matrix_names_granted(&matrix(&[0x100], &[0x200]), &CARDS));
        assert!(!p2p_matrix_names_granted(&matrix(&[0x200], &[]), &CARDS));
    }

    #[test]
    fn a_subdevice_has_granted_peers_only() {
        // Before and since 555.
        for size in [48, 52] {
            let ask = |all: u8, ids: &[u32]| {
                let mut params = vec![0; peers::AT + LIST * size];
                params[0] = all;
                assert!(PeerCaps::peerGpuCount.set(&mut params, u32::try_from(ids.len()).unwrap()));
                for (index, id) in ids.iter().enumerate() {
                    let entry = &mut params[peers::AT + index * size..][..size];
                    entry.fill(u8::try_from(index).unwrap() + 1);
                    assert!(PeerInfo::gpuId.set(entry, *id));
                }
                params
            };
            assert!(peers_granted(&ask(1, &[]), &CARDS));
            assert!(peers_granted(&ask(0, &[0x300, 0x100]), &CARDS));
            assert!(!peers_granted(&ask(0, &[0x100, 0x200]), &CARDS));
            let mut by_uuid = ask(0, &[0x100]);
            by_uuid[1] = 1;
            assert!(!peers_granted(&by_uuid, &CARDS));
            let mut answer = ask(1, &[0x100, 0x200, 0x300, 0x400]);
            peers(&mut answer, &CARDS);
            let mut expected = ask(1, &[0x100, 0x300]);
            expected[peers::AT + size + 4..][..size - 4].fill(3);
            assert_eq!(answer, expected);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            for rewrite in [attached_ids, probed_ids, device_ids, active_device_ids, restrict_list, card_info, peers] {
                let mut copy = bytes.clone();
                rewrite(&mut copy, &CARDS);
                prop_assert_eq!(copy.len(), bytes.len());
            }
            p2p_names_granted(&bytes, &CARDS);
            peers_granted(&bytes, &CARDS);
            p2p_matrix_names_granted(&bytes, &CARDS);
        }
    }
}
