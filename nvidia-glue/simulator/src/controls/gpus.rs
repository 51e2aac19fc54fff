//! Lists of the cards, their numbers and names.

use abi::{Status, params::*};

use super::{
    super::{
        bytes::{elements, fill, get, list, put, put_text},
        state::{SimulatedCard, State},
    },
    Control,
};

/// `NV0000_CTRL_GPU_INVALID_ID`.
const NO_GPU: u32 = 0xffff_ffff;
/// `NV0000_CTRL_GPU_ATTACH_ALL_PROBED_IDS`.
const ALL_GPUS: u32 = 0xffff;
/// No NUMA node of its own.
const NO_NUMA_NODE: i32 = -1;
/// Entries of a list of cards.
const LIST: usize = 32;
/// The bit of `flags` that asks for a UUID's 16 bytes and not for its text.
const BINARY: u32 = 2;

fn find(state: &State, gpu_id: u32) -> Result<(u32, &SimulatedCard), Status> {
    (0..).zip(&state.cards).find(|(_, card)| card.gpu_id() == gpu_id).ok_or(Status::INVALID_ARGUMENT)
}

/// A list of all cards, filled up with "none".
fn gpu_ids(state: &State) -> [u32; LIST] {
    std::array::from_fn(|index| state.cards.get(index).map_or(NO_GPU, SimulatedCard::gpu_id))
}

pub(super) fn attached_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    put(control.params(), NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS::gpuIds, gpu_ids(state));
    Ok(())
}

pub(super) fn probed_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    put(params, NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS::gpuIds, gpu_ids(state));
    // None is excluded, and none has a flag.
    fill(params, NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS::excludedGpuIds, 0xff);
    fill(params, NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS::gpuFlags, 0);
    Ok(())
}

pub(super) fn device_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let count = u32::try_from(state.cards.len()).unwrap_or(32).min(32);
    let instances = u32::try_from((1_u64 << count) - 1).unwrap_or(u32::MAX);
    put(control.params(), NV0000_CTRL_GPU_GET_DEVICE_IDS_PARAMS::deviceIds, instances);
    Ok(())
}

pub(super) fn active_device_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_GPU_GET_ACTIVE_DEVICE_IDS_PARAMS;
    type Device = NV0000_CTRL_GPU_ACTIVE_DEVICE;
    let params = control.params();
    params.fill(0);
    put(params, Params::numDevices, u32::try_from(state.cards.len()).unwrap_or(u32::MAX));
    for (card, device) in state.cards.iter().zip(elements(params, Params::devices)) {
        put(device, Device::gpuId, card.gpu_id());
        put(device, Device::gpuInstanceId, NO_GPU);
        put(device, Device::computeInstanceId, NO_GPU);
    }
    Ok(())
}

/// Defines the control that reports a card's numbers, in a struct with or without a pointer to a
/// name.
macro_rules! id_info {
    ($function:ident, $Params:ident) => {
        #[doc = concat!("Answers a control of `", stringify!($Params), "`.")]
        pub(super) fn $function(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
            let params = control.params();
            let (instance, _) = find(state, get(params, $Params::gpuId))?;
            for zero in [$Params::gpuFlags, $Params::subDeviceInstance, $Params::sliStatus] {
                put(params, zero, 0);
            }
            for field in [$Params::deviceInstance, $Params::boardId, $Params::gpuInstance] {
                put(params, field, instance);
            }
            put(params, $Params::numaId, NO_NUMA_NODE);
            Ok(())
        }
    };
}
id_info!(id_info, NV0000_CTRL_GPU_GET_ID_INFO_PARAMS);
id_info!(id_info_v2, NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS);

/// Reports a card's PCI address.
pub(super) fn pci_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS;
    let params = control.params();
    let (_, card) = find(state, get(params, Params::gpuId))?;
    let pci = card.card.pci;
    put(params, Params::domain, pci.domain);
    put(params, Params::bus, u16::from(pci.bus));
    put(params, Params::slot, u16::from(pci.device));
    Ok(())
}

/// Attaches cards: a list that ends with "none", or "all".
pub(super) fn attach_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_GPU_ATTACH_IDS_PARAMS;
    let params = control.params();
    put(params, Params::failedId, NO_GPU);
    for gpu_id in get(params, Params::gpuIds) {
        match gpu_id {
            NO_GPU | ALL_GPUS => break,
            gpu_id if find(state, gpu_id).is_err() => {
                put(params, Params::failedId, gpu_id);
                return Err(Status::INVALID_ARGUMENT);
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn attach_id(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    match get(control.params(), NV0000_CTRL_GPU_ASYNC_ATTACH_ID_PARAMS::gpuId) {
        NO_GPU | ALL_GPUS => Ok(()),
        gpu_id => find(state, gpu_id).map(|_| ()),
    }
}

/// Finds a card by its UUID.
pub(super) fn uuid_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS;
    let params = control.params();
    let binary = get(params, Params::flags) & 3 == BINARY;
    let asked = Params::gpuUuid.bytes(params).unwrap_or_default();
    let is_asked = |card: &SimulatedCard| {
        let uuid = uuid(&card.card.uuid, binary);
        asked.starts_with(&uuid)
    };
    let (instance, card) =
        (0..).zip(&state.cards).find(|(_, card)| is_asked(card)).ok_or(Status::GPU_UUID_NOT_FOUND)?;
    let gpu_id = card.gpu_id();
    put(params, Params::gpuId, gpu_id);
    put(params, Params::deviceInstance, instance);
    put(params, Params::subdeviceInstance, 0);
    Ok(())
}

/// Reports a card's UUID.
pub(super) fn uuid_of_gpu_id(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS;
    let params = control.params();
    let (_, card) = find(state, get(params, Params::gpuId))?;
    let uuid = uuid(&card.card.uuid, get(params, Params::flags) & 3 == BINARY);
    put_text(params, Params::gpuUuid, &uuid);
    put(params, Params::uuidStrLen, u32::try_from(uuid.len()).unwrap_or(0));
    Ok(())
}

/// Reports the UUID of a subdevice's card.
pub(super) fn gid(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let place = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    type Params = NV2080_CTRL_GPU_GET_GID_INFO_PARAMS;
    let params = control.params();
    let uuid = uuid(&place.card.uuid, get(params, Params::flags) & 3 == BINARY);
    put_text(params, Params::data, &uuid);
    put(params, Params::length, u32::try_from(uuid.len()).unwrap_or(0));
    Ok(())
}

/// Reports a card's name in 64 characters of one or two bytes.
pub(super) fn name(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS_525;
    let card = control.card()?;
    let model = state.cards.get(card).map(|place| place.card.model.clone()).ok_or(Status::INVALID_DEVICE)?;
    let params = control.params();
    let wide = get(params, Params::gpuNameStringFlags) == 1;
    let text: Vec<u8> =
        model.bytes().take(63).flat_map(|byte| [byte, 0].into_iter().take(1 + usize::from(wide))).collect();
    put_text(params, Params::unicode, &text);
    Ok(())
}

pub(super) fn short_name(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let model = state.cards.get(card).map(|place| place.card.model.clone()).ok_or(Status::INVALID_DEVICE)?;
    let field = NV2080_CTRL_GPU_GET_SHORT_NAME_STRING_PARAMS::gpuShortNameString;
    put_text(control.params(), field, model.as_bytes().get(..63).unwrap_or(model.as_bytes()));
    Ok(())
}

/// Reports that no card reaches another's memory.
pub(super) fn p2p_caps(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS;
    let params = control.params();
    let count = get(params, Params::gpuCount) as usize;
    if count == 0 || count > LIST {
        return Err(Status::INVALID_ARGUMENT);
    }
    for gpu_id in list(params, Params::gpuIds, count) {
        find(state, gpu_id)?;
    }
    for field in [Params::p2pCaps, Params::p2pOptimalReadCEs, Params::p2pOptimalWriteCEs] {
        put(params, field, 0);
    }
    // NV0000_CTRL_P2P_CAPS_STATUS_NOT_SUPPORTED for every kind of access, and no peer numbers.
    fill(params, Params::p2pCapsStatus, 5);
    fill(params, Params::busPeerIds, 0xff);
    fill(params, Params::busEgmPeerIds, 0xff);
    Ok(())
}

/// Reports the same for two groups of at most 8 cards, in matrices.
pub(super) fn p2p_matrix(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS;
    const MOST: usize = 8;
    let params = control.params();
    for (count, group) in [(Params::grpACount, Params::gpuIdGrpA), (Params::grpBCount, Params::gpuIdGrpB)] {
        let count = get(params, count) as usize;
        if count > MOST {
            return Err(Status::INVALID_ARGUMENT);
        }
        for gpu_id in list(params, group, count) {
            find(state, gpu_id)?;
        }
    }
    params.get_mut(Params::p2pCaps.at()..).unwrap_or_default().fill(0);
    Ok(())
}

/// A card's UUID: `GPU-...` and a zero, or its 16 bytes.
pub(super) fn uuid(text: &str, binary: bool) -> Vec<u8> {
    if !binary {
        return text.bytes().chain([0]).collect();
    }
    let digits: Vec<u32> = text.chars().skip(4).filter_map(|digit| digit.to_digit(16)).collect();
    digits
        .chunks_exact(2)
        .filter_map(|pair| u8::try_from(pair.iter().fold(0, |byte, digit| byte << 4 | digit)).ok())
        .collect()
}
