//! Controls that tell sizes of a card's memory.

use abi::{
    Handle, Status,
    decode::Control,
    params::{
        NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_VIDMEM_SIZE_PARAMS as ConfComputeSize,
        NV2080_CTRL_FB_GET_INFO_V2_PARAMS as FbInfo,
    },
};

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::named_locks::LockName,
    view,
    view::memory::ShownMemory,
};

/// The entries of a list of sizes, and how many were asked for.
type InfoList = for<'f> fn(&'f mut InFlightCall<'_>) -> (&'f mut [u8], u32);

impl Session {
    /// `NV2080_CTRL_CMD_FB_GET_INFO`, and its `_V2`.
    pub(super) fn fb_info(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        list: InfoList,
    ) -> Result<Answer, CallEnd> {
        // A program may have just freed managed memory: its `munmap` does not come here.
        let (entries, count) = list(flight);
        if view::memory::asks_for_free(entries, count) {
            self.managed.look_again(&self.scan_env(), flight.pid);
        }
        // Nobody makes another card's object of the handle between the answer and its rewriting.
        self.objects.locks.with(&[LockName::Client(control.client)], || -> Result<(), CallEnd> {
            let is_share = self.shown_memory(control).is_ok_and(|shown| shown.is_some());
            let replaced = is_share.then(|| {
                let (entries, count) = list(flight);
                view::memory::ask_for_all_of_bar1(entries, count)
            });
            let status = flight.execute(self.driver.as_ref());
            if let Some(replaced) = replaced {
                view::memory::as_asked(list(flight).0, &replaced);
            }
            if status?.is_ok()
                && let Some(shown) = self.shown_memory(control)?
            {
                let (entries, count) = list(flight);
                view::memory::fb_info(entries, count, shown);
            }
            Ok(())
        })?;
        flight.finish()
    }

    pub(super) fn rewrite_fb_regions(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<(), CallEnd> {
        if let Some(shown) = self.shown_memory(control)? {
            view::memory::fb_regions(flight.params_mut(), shown);
        }
        Ok(())
    }

    /// The memory that the card of a control's object is shown to have; `None`: what it has.
    fn shown_memory(&self, control: Control) -> Result<Option<ShownMemory>, CallEnd> {
        let card = self.objects.card_of(control.client, control.object);
        let card = card.ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
        Ok(ShownMemory::of(&self.grant, card, &lock(&self.objects.accounts)))
    }

    /// `NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_VIDMEM_SIZE`: of the card whose subdevice the parameters
    /// name.
    ///
    /// That NVML asks this is read off its name and struct: it is the only control that tells the
    /// two sizes (ctrlcb33.h).
    pub(crate) fn rewrite_conf_compute_size(
        &self,
        flight: &mut InFlightCall<'_>,
        client: Handle,
    ) -> Result<(), CallEnd> {
        let subdevice = ConfComputeSize::hSubDevice.get(flight.params());
        let card = subdevice.and_then(|subdevice| self.objects.card_of(client, subdevice));
        let card = card.ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
        let shown = ShownMemory::of(&self.grant, card, &lock(&self.objects.accounts));
        if let Some(shown) = shown {
            view::memory::conf_compute_size(flight.params_mut(), shown);
        }
        Ok(())
    }
}

/// Of `NV2080_CTRL_CMD_FB_GET_INFO`: behind a pointer.
pub(super) fn fb_info_list<'f>(flight: &'f mut InFlightCall<'_>) -> (&'f mut [u8], u32) {
    let count = FbInfo::fbInfoListSize.get(flight.params()).unwrap_or(0);
    let list = flight.buffers.get_mut(1).map(|list| list.bytes.as_mut_slice());
    (list.unwrap_or_default(), count)
}

/// Of its `_V2`: behind the count.
pub(super) fn fb_info_list_v2<'f>(flight: &'f mut InFlightCall<'_>) -> (&'f mut [u8], u32) {
    let count = FbInfo::fbInfoListSize.get(flight.params()).unwrap_or(0);
    let list = flight.params_mut().get_mut(FbInfo::fbInfoList.at()..);
    (list.unwrap_or_default(), count)
}
