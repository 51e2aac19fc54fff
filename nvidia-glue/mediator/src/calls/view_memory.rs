//! Controls that tell sizes of a card's memory.

use abi::{
    Handle, Status,
    controls::ViewKind,
    decode::Control,
    params::{
        NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_VIDMEM_SIZE_PARAMS as ConfComputeSize,
        NV2080_CTRL_FB_GET_INFO_V2_PARAMS as FbInfo,
    },
};

use crate::{
    Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    view,
    view::memory::ShownMemory,
};

impl Session {
    /// Has the driver execute a control whose answer is rewritten then.
    pub(crate) fn execute_view(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        kind: ViewKind,
    ) -> Result<Status, CallEnd> {
        let is_share = || {
            let card = self.objects.card_of(control.client, control.object);
            card.is_some_and(|card| ShownMemory::of(&self.grant, card, &lock(&self.objects.accounts)).is_some())
        };
        if !matches!(kind, ViewKind::FbInfo | ViewKind::FbInfoV2) || !is_share() {
            return flight.execute(self.driver.as_ref());
        }
        let (list, count) = fb_info_list(flight, kind);
        let replaced = view::memory::ask_for_all_of_bar1(list, count);
        let status = flight.execute(self.driver.as_ref());
        view::memory::as_asked(fb_info_list(flight, kind).0, &replaced);
        status
    }

    /// Lets go of managed memory that a program has just freed, before it is told what is free: its
    /// `munmap` does not come here.
    pub(crate) fn look_for_freed(&self, flight: &mut InFlightCall<'_>, kind: ViewKind) {
        let (list, count) = fb_info_list(flight, kind);
        if view::memory::asks_for_free(list, count) {
            self.managed.look_again(&self.scan_env(), flight.pid);
        }
    }

    pub(crate) fn rewrite_sizes(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        kind: ViewKind,
    ) -> Result<(), CallEnd> {
        let card =
            self.objects.card_of(control.client, control.object).ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
        let Some(shown) = ShownMemory::of(&self.grant, card, &lock(&self.objects.accounts)) else { return Ok(()) };
        if kind == ViewKind::FbRegionInfo {
            view::memory::fb_regions(flight.params_mut(), shown);
        } else {
            let (list, count) = fb_info_list(flight, kind);
            view::memory::fb_info(list, count, shown);
        }
        Ok(())
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

/// The entries of `NV2080_CTRL_CMD_FB_GET_INFO`, and how many were asked for: of the old one they
/// are behind a pointer, of `_V2` behind the count.
fn fb_info_list<'f>(flight: &'f mut InFlightCall<'_>, kind: ViewKind) -> (&'f mut [u8], u32) {
    let count = FbInfo::fbInfoListSize.get(flight.params()).unwrap_or(0);
    let list = if kind == ViewKind::FbInfo {
        flight.buffers.get_mut(1).map(|list| list.bytes.as_mut_slice())
    } else {
        flight.params_mut().get_mut(FbInfo::fbInfoList.at()..)
    };
    (list.unwrap_or_default(), count)
}
