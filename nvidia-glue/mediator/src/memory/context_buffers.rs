//! Memory that the driver takes for a context and that no allocation shows.
//!
//! With one CUDA context on an H200 (driver 580.159.04), 9024 KiB of the card are gone beside all
//! allocations: 8256 KiB once its compute channel group is scheduled, 256 KiB for each of its three
//! groups of copy engines. Of the former, the driver tells 5308 KiB when asked for the size of a
//! channel's context buffers. So a group is charged when it is made, and what the driver tells
//! corrects that.
//!
//! The buffers come with the first object of the graphics engine in a channel. Asked before, the
//! driver writes three lines into the kernel's log, so nobody asks before: neither this module nor
//! the container through it.

use abi::{
    Handle, Status,
    classes::NV20_SUBDEVICE_0,
    controls::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE,
    encode,
    memory::Layout,
    params::{NV2080_ALLOC_PARAMETERS, NV2080_CTRL_GR_GET_CTX_BUFFER_SIZE_PARAMS as ContextBufferSize},
};
use account::{CommitError, ObjectName, Refusal};
use base::Bytes;
use driver::DeviceFile;

use crate::{
    Session,
    calls::{
        in_flight::{CallEnd, InFlightCall},
        object_alloc::{AllocAbort, AllocatedObject},
    },
    locks::lock,
};

/// Memory that a group of a graphics engine takes, before the driver says how much; and what it
/// takes beside that.
const GRAPHICS: Bytes = Bytes(8256 * Bytes::KIB);
const UNTOLD: Bytes = Bytes(2948 * Bytes::KIB);
/// Memory that a group of another engine takes.
const OTHER: Bytes = Bytes(256 * Bytes::KIB);

/// They are runs of granules, most of them of 256 KiB or 4 MiB (pool_alloc.c, `poolConfig`).
pub(crate) const LAYOUT: Layout = Layout::Contiguous;

/// `NV2080_ENGINE_TYPE_GR0` to `GR7` (src/common/sdk/nvidia/inc/class/cl2080_notification.h).
const GRAPHICS_ENGINES: std::ops::RangeInclusive<u32> = 1..=8;

/// Returns what a group of an engine is charged when it is made. 0 is an engine that is not chosen
/// yet: it may be any. Cards before Ampere do not look at what is said here
/// (`kfifoIsPerRunlistChramSupportedInHw`, kernel_channel_group_api.c): a group of copy engines
/// gets the buffers of the graphics engine with the first object of that, and is charged for them
/// then.
pub(crate) fn expected(engine: u32) -> Bytes {
    if engine == 0 || GRAPHICS_ENGINES.contains(&engine) { GRAPHICS } else { OTHER }
}

/// Returns whether objects of a class are the graphics engine's: 3D (`*97`), compute (`*C0`), 2D
/// (`*2D`) and memory to memory (`*40`) of every generation.
pub(crate) fn brings_context(class: u32) -> bool {
    matches!(class & 0xff, 0x97 | 0xc0 | 0x2d | 0x40)
}

/// Returns whether objects of a class compute.
pub(crate) fn computes(class: u32) -> bool {
    class & 0xff == 0xc0
}

impl Session {
    /// A channel has got an object of the graphics engine. With the first one of a group, the
    /// driver is asked what the group takes; a channel without one is a group by itself.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn charge_context(
        &self,
        flight: &InFlightCall<'_>,
        channel: Handle,
        engine: AllocatedObject,
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
            self.unmake_locked(&flight.file, AllocatedObject { client, object: charged });
            match refusal {
                Refusal::OverQuota(over) => AllocAbort::CommitRefused(CommitError::OverQuota(over)),
                refusal => AllocAbort::End(CallEnd::Status(refusal.status())),
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
