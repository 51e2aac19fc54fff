//! Charging of what a context takes ([`crate::memory::context_buffers`]).

use abi::{
    Handle, Status,
    classes::NV20_SUBDEVICE_0,
    controls::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE,
    encode,
    params::{NV2080_ALLOC_PARAMETERS, NV2080_CTRL_GR_GET_CTX_BUFFER_SIZE_PARAMS as ContextBufferSize},
};
use account::{CommitError, ObjectName, Refusal};
use base::Bytes;
use driver::DeviceFile;

use crate::{
    Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    memory::context_buffers::UNTOLD,
    requirements::AllocAbort,
};

impl Session {
    /// A channel has got an object of the graphics engine. With the first one of a group, the
    /// driver is asked what the group takes; a channel without one is a group by itself.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn charge_context(
        &self,
        flight: &InFlightCall<'_>,
        channel: Handle,
        engine: ObjectName,
    ) -> Result<(), AllocAbort> {
        let client = engine.client;
        let (charged, card, device) = {
            let mut topology = lock(&self.objects.topology);
            let had_context = topology.has_context(client, channel);
            let Some(parent) = topology.context_came(client, channel) else { return Ok(()) };
            let charged = match topology.group(client, parent) {
                Some(false) => parent,
                None if !had_context => channel,
                _ => return Ok(()),
            };
            (charged, topology.card_of(client, charged), topology.device_above(client, charged))
        };
        let (Some(card), Some(device)) = (card, device) else { return Ok(()) };
        let Some(bytes) = self.context_size(&flight.file, client, device, channel) else { return Ok(()) };
        let bytes = Bytes(bytes.0.saturating_add(UNTOLD.0));
        lock(&self.objects.topology).group_is_measured(client, charged);
        let result = lock(&self.objects.accounts).charge_context(ObjectName::new(client, charged), card, bytes);
        result.map_err(|refusal| {
            // Its buffers stay until the group goes.
            self.unmake_locked(&flight.file, engine);
            self.unmake_locked(&flight.file, ObjectName { client, object: charged });
            match refusal {
                Refusal::OverQuota(over) => AllocAbort::CommitRefused(CommitError::OverQuota(over)),
                refusal => AllocAbort::End(refusal.into()),
            }
        })
    }

    /// The container asks for the size of a channel's context buffers; the answer of the driver
    /// where there are none.
    pub(crate) fn may_ask_context_size(&self, client: Handle, params: &[u8]) -> Result<(), CallEnd> {
        let channel = ContextBufferSize::hChannel.get(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
        if lock(&self.objects.topology).has_context(client, channel) {
            Ok(())
        } else {
            Err(CallEnd::Status(Status::INVALID_OBJECT))
        }
    }

    /// Bytes of the context buffers of a channel's group; `None`: the driver does not tell.
    fn context_size(&self, file: &DeviceFile, client: Handle, device: Handle, channel: Handle) -> Option<Bytes> {
        let params = encode!(ContextBufferSize { hChannel: channel }).to_vec();
        let command = NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE;
        let (status, params) = self.ask_subdevice(file, client, device, (command, params))?;
        ContextBufferSize::totalBufferSize.get(&params).filter(|_| status.is_ok()).map(Bytes)
    }

    /// A control of the mediator's own on the subdevice of a device in a client of the container's;
    /// `None`: it took no such call.
    ///
    /// Precondition: the client is locked, so that the subdevice, which is the program's own,
    /// cannot be freed meanwhile.
    pub(crate) fn ask_subdevice(
        &self,
        file: &DeviceFile,
        client: Handle,
        device: Handle,
        (command, params): (u32, Vec<u8>),
    ) -> Option<(Status, Vec<u8>)> {
        let subdevice = lock(&self.objects.topology).subdevice_below(client, device);
        let raw = self.raw(file, client);
        if let Some(subdevice) = subdevice {
            return raw.control(subdevice, command, params).ok();
        }
        // It has none: one for the question. The driver makes no second one of a device. It goes
        // with the client at the latest.
        let made = raw.alloc(device, Handle::NONE, NV20_SUBDEVICE_0, vec![0; NV2080_ALLOC_PARAMETERS::SIZE]).ok();
        let (_, subdevice) = made.filter(|(status, _)| status.is_ok())?;
        let answer = raw.control(subdevice, command, params).ok();
        let _ = raw.free(subdevice);
        answer
    }
}
