//! Calls of a gate to the driver, and what becomes of them when it refuses.

use std::io;

use abi::{
    Handle, Status, controls::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, encode,
    params::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS,
};
use account::ObjectName;
use schedule::{Edge, EdgeError};

use crate::{
    channels::gate::{CardGate, GateState, MOST},
    locks::lock,
    raw::Raw,
};

pub(super) const DISABLE_CHANNELS_NAME: &str = "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS";

/// Reason why a call of the mediator's own failed.
pub(super) enum GateCallError {
    Call(io::Error),
    Refused(Status),
}

impl GateCallError {
    /// Returns whether one of the channels that were named may be the reason, so that it is worth
    /// trying without it. Not where a card does not answer: each attempt would take seconds.
    fn is_about_channels(&self) -> bool {
        let about = [
            Status::INVALID_CHANNEL,
            Status::INVALID_CLIENT,
            Status::OBJECT_NOT_FOUND,
            Status::INVALID_STATE,
            Status::INVALID_ARGUMENT,
            Status::INVALID_OBJECT,
            Status::INVALID_OBJECT_HANDLE,
        ];
        matches!(self, Self::Refused(status) if about.contains(status))
    }
}

impl CardGate {
    /// Names channels to the driver, as many at a time as it takes. A channel that has gone makes
    /// it refuse the whole call, though it does the others of it all the same (580.159.04): to be
    /// sure of that, they are named again without it. One that has been taken off twice so is put
    /// back twice. The first refusal that is about one that is still there is what is told.
    pub(super) fn name_all(&self, disable: bool, names: &[ObjectName], edge: &mut Edge) -> Result<(), EdgeError> {
        let mut result = Ok(());
        // What comes last of those to be put on, and first of those to be taken off, is in as few
        // calls as it can be.
        let mut todo: Vec<Vec<ObjectName>> = if disable {
            names.chunks(MOST).rev().map(<[_]>::to_vec).collect()
        } else {
            names.rchunks(MOST).map(<[_]>::to_vec).collect()
        };
        while let Some(mut chunk) = todo.pop() {
            if !disable {
                // The gate may be about to close.
                let GateState { channels, is_closed, .. } = &*lock(&self.state);
                chunk.retain(|name| channels.ons(*name, *is_closed) > 0);
            }
            if chunk.is_empty() {
                continue;
            }
            edge.calls += 1;
            let Err(failure) = self.name_channels(disable, &chunk) else {
                self.with(|channels| channels.moved(&chunk, disable));
                continue;
            };
            if !failure.is_about_channels() {
                self.failed(disable, &chunk, &failure);
                return Err(self.error(DISABLE_CHANNELS_NAME, failure));
            }
            let named = chunk.len();
            self.retain_living(&mut chunk);
            match chunk.as_slice() {
                [] => {}
                // The driver knows no such channel.
                [_] if named == 1 && matches!(failure, GateCallError::Refused(Status::INVALID_CHANNEL)) => {}
                [_] if named == 1 => {
                    self.failed(disable, &chunk, &failure);
                    result = result.and(Err(self.error(DISABLE_CHANNELS_NAME, failure)));
                }
                _ => {
                    self.failed(disable, &chunk, &failure);
                    let rest = if chunk.len() == named { chunk.split_off(named / 2) } else { Vec::new() };
                    todo.extend([rest, chunk]);
                }
            }
        }
        result
    }

    /// A call that names channels did not succeed as a whole, and may have been done all the same.
    fn failed(&self, disable: bool, names: &[ObjectName], failure: &GateCallError) {
        if matches!(failure, GateCallError::Refused(Status::NOT_SUPPORTED)) {
            return;
        }
        self.with(|channels| if disable { channels.may_be_off(names) } else { channels.doubt(names) });
    }

    /// Leaves out those that have gone since they were looked up, or whose client has.
    pub(super) fn retain_living(&self, names: &mut Vec<ObjectName>) {
        let mut clients: Vec<Handle> = names.iter().map(|name| name.client).collect();
        clients.dedup();
        clients.retain(|client| matches!(self.driver.client_exists(&self.own, *client), Ok(false)));
        let state = lock(&self.state);
        names.retain(|name| !clients.contains(&name.client) && state.channels.has_channel(*name));
    }

    pub(super) fn name_channels(&self, disable: bool, names: &[ObjectName]) -> Result<(), GateCallError> {
        let (mut clients, mut channels) = ([Handle::NONE; MOST], [Handle::NONE; MOST]);
        for ((client, channel), name) in clients.iter_mut().zip(&mut channels).zip(names) {
            (*client, *channel) = (name.client, name.object);
        }
        let params = encode!(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS {
            bDisable: u8::from(disable),
            numChannels: u32::try_from(names.len()).unwrap_or(0),
            hClientList: clients,
            hChannelList: channels,
        });
        self.raw_control(self.subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params.to_vec())
    }

    pub(super) fn raw(&self) -> Raw<'_> {
        Raw { driver: self.driver.as_ref(), abi: self.abi, file: &self.own.control, client: self.own.client }
    }

    pub(super) fn raw_control(&self, object: Handle, id: u32, params: Vec<u8>) -> Result<(), GateCallError> {
        match self.raw().control(object, id, params) {
            Ok((status, _)) if status.is_ok() => Ok(()),
            Ok((status, _)) => Err(GateCallError::Refused(status)),
            Err(error) => Err(GateCallError::Call(error)),
        }
    }

    pub(super) fn error(&self, call: &'static str, failure: GateCallError) -> EdgeError {
        let uuid = self.uuid.clone();
        match failure {
            GateCallError::Call(source) => EdgeError::Call { call, uuid, source },
            GateCallError::Refused(status) => EdgeError::Refused { call, uuid, status },
        }
    }
}
