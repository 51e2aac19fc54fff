//! Memory that is attached to addresses on the NVLink fabric.

use std::sync::Arc;

use abi::{Status, params::*};

use super::{
    super::{
        bytes::{elements, get, list, put},
        fabric::Place,
        objects::{FabricAddresses, Kind},
        state::State,
    },
    Control,
};

/// Pieces of memory, or offsets, that a call may name.
const MOST: u16 = 64;

fn addresses(state: &mut State, control: &Control<'_, '_>) -> Result<Arc<FabricAddresses>, Status> {
    match &state.client(control.call.file, control.client)?.object(control.object)?.kind {
        Kind::Fabric(addresses) => Ok(Arc::clone(addresses)),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// Attaches pieces of memory, up to the first that cannot be.
pub(super) fn attach(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV00F8_CTRL_ATTACH_MEM_PARAMS;
    type Info = NV00F8_CTRL_ATTACH_MEM_INFO;
    let addresses = addresses(state, control)?;
    // The driver writes to that card's page tables.
    state.is_corrupted |= control.card != Some(addresses.card);
    let params = control.params();
    let count = get(params, Params::numMemInfos);
    if get(params, Params::flags) != 0 || !(1..=MOST).contains(&count) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let place = |info: &mut [u8]| Place {
        memory: get(info, Info::hMemory).0,
        offset: get(info, Info::offset),
        from: get(info, Info::mapOffset),
        length: get(info, Info::mapLength),
    };
    let places: Vec<Place> = elements(params, Params::memInfos).take(count.into()).map(place).collect();
    for (attached, place) in (0..).zip(places) {
        put(control.params(), Params::numAttached, attached);
        let by = (control.client, control.object);
        addresses.attach(by, state.client(control.call.file, control.client)?, place)?;
    }
    put(control.params(), Params::numAttached, count);
    Ok(())
}

/// Detaches what is at some offsets, up to the first at which nothing is.
pub(super) fn detach(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV00F8_CTRL_DETACH_MEM_PARAMS;
    let addresses = addresses(state, control)?;
    let params = control.params();
    let count = get(params, Params::numOffsets);
    if get(params, Params::flags) != 0 || !(1..=MOST).contains(&count) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let offsets: Vec<u64> = list(params, Params::offsets, count.into());
    for (detached, offset) in (0..).zip(offsets) {
        put(control.params(), Params::numDetached, detached);
        // Else the driver takes it out of another object's list (`refRemoveInterMapping`).
        state.is_corrupted |= !addresses.detach((control.client, control.object), offset)?;
    }
    put(control.params(), Params::numDetached, count);
    Ok(())
}
