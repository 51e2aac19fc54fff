//! Which cards there are, and what they are called.

use abi::Status;

use super::{
    super::{
        bytes::{get, put, put_bytes},
        state::{SimulatedCard, State},
    },
    Control,
};

/// `NV0000_CTRL_GPU_INVALID_ID`.
const NO_GPU: u32 = 0xffff_ffff;
/// `NV0000_CTRL_GPU_ATTACH_ALL_PROBED_IDS`.
const ALL_GPUS: u32 = 0xffff;
/// Entries of a list of cards.
const LIST: usize = 32;
/// The bit of `flags` that asks for a UUID's 16 bytes and not for its text.
const BINARY: u32 = 2;

fn find(state: &State, gpu_id: u32) -> Result<(u32, &SimulatedCard), Status> {
    (0..).zip(&state.cards).find(|(_, card)| card.gpu_id() == gpu_id).ok_or(Status::INVALID_ARGUMENT)
}

/// A list of all cards, filled up with "none".
fn put_list(params: &mut [u8], state: &State) {
    for (index, place) in params.chunks_exact_mut(4).take(LIST).enumerate() {
        put(place, 0, state.cards.get(index).map_or(NO_GPU, SimulatedCard::gpu_id));
    }
}

pub(super) fn attached_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    put_list(control.params(), state);
    Ok(())
}

pub(super) fn probed_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    put_list(params, state);
    // None is excluded, and none has a flag.
    params.get_mut(128..256).unwrap_or_default().fill(0xff);
    params.get_mut(256..384).unwrap_or_default().fill(0);
    Ok(())
}

pub(super) fn device_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let count = u32::try_from(state.cards.len()).unwrap_or(32).min(32);
    put(control.params(), 0, u32::try_from((1_u64 << count) - 1).unwrap_or(u32::MAX));
    Ok(())
}

pub(super) fn active_device_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    params.fill(0);
    put(params, 0, u32::try_from(state.cards.len()).unwrap_or(u32::MAX));
    for (card, entry) in state.cards.iter().zip(params.get_mut(4..).unwrap_or_default().chunks_exact_mut(12)) {
        put(entry, 0, card.gpu_id());
        put(entry, 4, NO_GPU);
        put(entry, 8, NO_GPU);
    }
    Ok(())
}

/// gpuId, gpuFlags, deviceInstance, subDeviceInstance, szName, sliStatus, boardId, gpuInstance, numaId.
pub(super) fn id_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    let (instance, _) = find(state, get(params, 0))?;
    put_id_info(params, instance, 24);
    Ok(())
}

/// The same without a name.
pub(super) fn id_info_v2(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    let (instance, _) = find(state, get(params, 0))?;
    put_id_info(params, instance, 16);
    Ok(())
}

fn put_id_info(params: &mut [u8], instance: u32, rest: usize) {
    for (at, value) in [(4, 0), (8, instance), (12, 0), (rest, 0), (rest + 4, instance), (rest + 8, instance)] {
        put(params, at, value);
    }
    // No NUMA node of its own.
    put(params, rest + 12, u32::MAX);
}

/// gpuId, domain, bus, slot.
pub(super) fn pci_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    let (_, card) = find(state, get(params, 0))?;
    let pci = card.card.pci;
    put(params, 4, pci.domain);
    put_bytes(params, 8, &u16::from(pci.bus).to_le_bytes());
    put_bytes(params, 10, &u16::from(pci.device).to_le_bytes());
    Ok(())
}

/// 32 numbers, ended by "none" (or "all"), then the one that failed.
pub(super) fn attach_ids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    put(params, 128, NO_GPU);
    for index in 0..LIST {
        match get(params, index * 4) {
            NO_GPU | ALL_GPUS => break,
            gpu_id if find(state, gpu_id).is_err() => {
                put(params, 128, gpu_id);
                return Err(Status::INVALID_ARGUMENT);
            }
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn attach_id(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    match get(control.params(), 0) {
        NO_GPU | ALL_GPUS => Ok(()),
        gpu_id => find(state, gpu_id).map(|_| ()),
    }
}

/// gpuUuid\[256\], flags, gpuId, deviceInstance, subdeviceInstance.
pub(super) fn uuid_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    let binary = get(params, 256) & 3 == BINARY;
    let asked = params.get(..256).unwrap_or_default();
    let is_asked = |card: &SimulatedCard| {
        let uuid = uuid(&card.card.uuid, binary);
        asked.starts_with(&uuid)
    };
    let (instance, card) = (0..).zip(&state.cards).find(|(_, card)| is_asked(card)).ok_or(GPU_UUID_NOT_FOUND)?;
    let gpu_id = card.gpu_id();
    put(params, 260, gpu_id);
    put(params, 264, instance);
    put(params, 268, 0);
    Ok(())
}

/// `NV_ERR_GPU_UUID_NOT_FOUND`.
const GPU_UUID_NOT_FOUND: Status = Status(0x12);

/// gpuId, flags, gpuUuid\[256\], length.
pub(super) fn uuid_of_gpu_id(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    let (_, card) = find(state, get(params, 0))?;
    let uuid = uuid(&card.card.uuid, get(params, 4) & 3 == BINARY);
    put_text(params.get_mut(8..264).unwrap_or_default(), &uuid);
    put(params, 264, u32::try_from(uuid.len()).unwrap_or(0));
    Ok(())
}

/// index, flags, length, data\[256\].
pub(super) fn gid(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let place = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    let params = control.params();
    let uuid = uuid(&place.card.uuid, get(params, 4) & 3 == BINARY);
    put_text(params.get_mut(12..268).unwrap_or_default(), &uuid);
    put(params, 8, u32::try_from(uuid.len()).unwrap_or(0));
    Ok(())
}

/// flags, then 64 characters of one or two bytes.
pub(super) fn name(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let model = state.cards.get(card).map(|place| place.card.model.clone()).ok_or(Status::INVALID_DEVICE)?;
    let params = control.params();
    let wide = get(params, 0) == 1;
    let text: Vec<u8> =
        model.bytes().take(63).flat_map(|byte| [byte, 0].into_iter().take(1 + usize::from(wide))).collect();
    put_text(params.get_mut(4..132).unwrap_or_default(), &text);
    Ok(())
}

pub(super) fn short_name(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let model = state.cards.get(card).map(|place| place.card.model.clone()).ok_or(Status::INVALID_DEVICE)?;
    put_text(control.params(), model.as_bytes().get(..63).unwrap_or(model.as_bytes()));
    Ok(())
}

/// No card reaches another's memory: gpuIds\[32\], gpuCount, p2pCaps, ...
pub(super) fn p2p_caps(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let params = control.params();
    let count = get(params, 128) as usize;
    if count == 0 || count > LIST {
        return Err(Status::INVALID_ARGUMENT);
    }
    for index in 0..count {
        find(state, get(params, index * 4))?;
    }
    params.get_mut(132..144).unwrap_or_default().fill(0);
    // NV0000_CTRL_P2P_CAPS_STATUS_NOT_SUPPORTED for every kind of access, and no peer numbers.
    params.get_mut(144..153).unwrap_or_default().fill(5);
    params.get_mut(156..).unwrap_or_default().fill(0xff);
    Ok(())
}

/// Two groups of at most 8 cards, and matrices of what each of the one can do with each of the other.
pub(super) fn p2p_matrix(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    const MOST: usize = 8;
    let params = control.params();
    for (count, list) in [(get(params, 0) as usize, 8), (get(params, 4) as usize, 40)] {
        if count > MOST {
            return Err(Status::INVALID_ARGUMENT);
        }
        for index in 0..count {
            find(state, get(params, list + index * 4))?;
        }
    }
    params.get_mut(72..).unwrap_or_default().fill(0);
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

/// Text, and zeros behind it.
fn put_text(field: &mut [u8], text: &[u8]) {
    field.fill(0);
    put_bytes(field, 0, text);
}
