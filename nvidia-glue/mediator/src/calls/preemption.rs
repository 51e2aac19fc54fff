//! Preemption of kernels: what computes in a channel can leave the card at any instruction (CILP),
//! whether or not its program asks for that, as CUDA does. A kernel that could not would hold the
//! card beyond its container's time, and whoever waits for it to leave.
//!
//! The mode is a context's, which all channels of a group have in common. It is set before the
//! first object of the graphics engine is made, and who gets no mode gets no object. For the driver
//! sets it as long as a context has no objects but those of compute, and has it stay whatever comes
//! and goes later; beside an object of another class (3D, 2D, memory to memory), it refuses the
//! mode (`NV_ERR_INVALID_REQUEST`), and in a context that has the mode, it refuses those of 3D and
//! 2D (docs/driver-facts.md). So a context that draws cannot have it: that is left to containers
//! with the driver capability for that.

use abi::{
    Handle, Status,
    classes::EngineKind,
    controls::NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE,
    decode::Alloc,
    encode,
    layout::{read_u32, write_u32},
    params::{
        NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS as PreemptionBind,
        NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS as PreemptionMode,
    },
};

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::named_locks::LockName,
};

/// Distance of the mode of compute from the end of `NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS`:
/// the list before it has grown.
const BIND_CILP_FROM_END: usize = PreemptionBind::SIZE - PreemptionBind::cilpPreemptMode.at();
/// `NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_FLAGS_CILP`, and the only mode in which any kernel can
/// be preempted.
const FLAG_CILP: u32 = 1;
const CILP: u32 = 2;

const INVALID: CallEnd = CallEnd::Status(Status::INVALID_ARGUMENT);

impl Session {
    /// An object is about to be made in a channel: if with it the channel could compute, what runs
    /// there can be preempted at any instruction from then on.
    ///
    /// Precondition: the client is locked, so that what the handles stand for stays.
    pub(crate) fn make_preemptible(
        &self,
        flight: &InFlightCall<'_>,
        alloc: Alloc,
        kind: EngineKind,
    ) -> Result<(), CallEnd> {
        let client = alloc.client;
        // With an object of any class of the graphics engine there is a context. What is executed
        // in it, the program's own commands say, and nobody looks whether there is an object of
        // compute for these.
        if !kind.is_of_graphics_engine() || self.may_draw && kind != EngineKind::Compute {
            return Ok(());
        }
        let (context, device) = {
            let topology = lock(&self.objects.topology);
            let context = topology.context_of(client, alloc.parent);
            let device = topology.device_above(client, alloc.parent);
            let (Some(context), Some(device)) = (context, device) else {
                return Err(CallEnd::Status(Status::OBJECT_NOT_FOUND));
            };
            if topology.is_preemptible(client, context) {
                return Ok(());
            }
            (context, device)
        };
        let params = encode!(PreemptionMode { flags: FLAG_CILP, hChannel: context, cilpPreemptMode: CILP }).to_vec();
        let command = NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE;
        match self.ask_subdevice(&flight.file, client, device, (command, params)) {
            Some((Status::OK, _)) => {
                lock(&self.objects.topology).set_preemptible(client, context);
                Ok(())
            }
            // The card does not know it (ctrl2080gr.h; resControlLookup, rs_resource.c).
            Some((Status::NOT_SUPPORTED, _)) => Ok(()),
            // It draws.
            Some((Status::INVALID_REQUEST, _)) if self.may_draw => Ok(()),
            answer => {
                // A program can ask again and again.
                if self.channels.is_preemption_news() {
                    let status = answer.map(|(status, _)| format!("{:#x}", status.0));
                    tracing::warn!(
                        status,
                        "the driver does not make kernels preemptible: the object to compute with was refused"
                    );
                }
                // As where there are too many: CUDA knows it.
                Err(CallEnd::Insufficient("the driver does not make kernels preemptible"))
            }
        }
    }

    /// `NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS` {flags, hChannel, gfxpPreemptMode,
    /// cilpPreemptMode, grRouteInfo}.
    pub(crate) fn preemption_mode(&self, flight: &mut InFlightCall<'_>, client: Handle) -> Result<Answer, CallEnd> {
        let channel = PreemptionMode::hChannel.get(flight.params()).ok_or(INVALID)?;
        self.set_mode(flight, client, channel, PreemptionMode::cilpPreemptMode.at())
    }

    /// `NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS` {flags, hClient, hChannel, buffers,
    /// gfxpPreemptMode, cilpPreemptMode, grRouteInfo}.
    pub(crate) fn preemption_bind(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let client = PreemptionBind::hClient.get(flight.params()).ok_or(INVALID)?;
        let channel = PreemptionBind::hChannel.get(flight.params()).ok_or(INVALID)?;
        let cilp_at = flight.params().len().checked_sub(BIND_CILP_FROM_END).ok_or(INVALID)?;
        self.set_mode(flight, client, channel, cilp_at)
    }

    /// A program sets a mode itself. A channel whose kernels are waited for, or whose blocks are,
    /// would hold the card for as long as it likes: whatever it asks for compute, it gets the mode
    /// that is forced. But a context that draws cannot have that, and OpenGL and Vulkan ask for
    /// another.
    fn set_mode(
        &self,
        flight: &mut InFlightCall<'_>,
        client: Handle,
        channel: Handle,
        cilp_at: usize,
    ) -> Result<Answer, CallEnd> {
        // Both structs begin with them.
        let flags = PreemptionMode::flags.get(flight.params()).ok_or(INVALID)?;
        let asked = read_u32(flight.params(), cilp_at).ok_or(INVALID)?;
        // Nobody makes it preemptible meanwhile.
        self.objects.locks.with(&[LockName::Client(client)], || {
            if flags & FLAG_CILP != 0 && !self.draws(client, channel) {
                let _ = write_u32(flight.params_mut(), cilp_at, CILP);
            }
            flight.execute(self.driver.as_ref())
        })?;
        let _ = write_u32(flight.params_mut(), cilp_at, asked);
        flight.finish()
    }

    /// Returns whether a channel or a group may be one that draws: it has not been made
    /// preemptible, in a container that may draw.
    fn draws(&self, client: Handle, channel: Handle) -> bool {
        let topology = lock(&self.objects.topology);
        let context = topology.context_of(client, channel);
        self.may_draw && context.is_some_and(|context| !topology.is_preemptible(client, context))
    }
}
