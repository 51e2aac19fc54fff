//! `NV_ESC_RM_CONTROL`.

use abi::{
    Handle, Status,
    controls::{ControlRule, ViewKind, rule_of},
    decode::Control,
    layout::{read_u32, write_u32},
};
use driver::Holder;

use super::in_flight::{CallEnd, InFlightCall};
use crate::{
    Answer, Session, UnknownKind,
    locks::{LockName, lock},
    memory::context_buffers,
    view,
};

impl Session {
    pub(crate) fn control(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        self.own_client(control.client)?;
        let rule = rule_of(control.id);
        if control.row().is_none() {
            self.count_unknown(UnknownKind::Control(control.id), !matches!(rule, ControlRule::Refuse(..)));
        }
        if let ControlRule::Answered(status, _) | ControlRule::Refuse(status, _) = rule {
            return Err(CallEnd::Status(status));
        }
        if control.params_size > Control::PARAMS_MOST {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        // All of them are for the kernel's own use.
        let _ = write_u32(&mut flight.args, Control::FLAGS_AT, 0);
        let size = usize::try_from(control.params_size).map_err(|_| CallEnd::Status(Status::INVALID_ARGUMENT))?;
        self.copy_params(flight, Control::PARAMS_AT, control.params, size)?;
        if let Some(row) = control.row().filter(|_| control.params != 0) {
            if size < usize::from(row.least_params) {
                return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
            }
            flight.copy_pointers(Holder::Buffer(0), row.pointers_in(self.abi))?;
            self.clients_are_own(flight.params(), row.clients_in(self.abi))?;
            if !matches!(rule, ControlRule::Export | ControlRule::Import) {
                flight.duplicate_files(self.driver.as_ref(), Holder::Buffer(0), row.descriptors)?;
            }
        }
        let names = self.grant.names();
        if NAME_A_CARD.contains(&control.id) && !view::cards::names_granted(flight.params(), 0, names) {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        if ATTACH_CARDS.contains(&control.id) {
            view::cards::restrict_list(flight.params_mut(), names);
        }
        if control.id == context_buffers::GET_CONTEXT_SIZE {
            self.may_ask_context_size(control.client, flight.params())?;
        }
        // Some are answered, or take effect here, without the driver.
        flight.confirm()?;
        match rule {
            ControlRule::Pass => {
                flight.execute(self.driver.as_ref())?;
                flight.finish()
            }
            ControlRule::View(kind) => self.view(flight, control, kind),
            ControlRule::Schedule(kind) => self.schedule(flight, control, kind),
            ControlRule::Export => self.export(flight, control),
            ControlRule::Import => self.import(flight, control),
            ControlRule::Share => self.share_control(flight, control),
            ControlRule::Answered(status, _) | ControlRule::Refuse(status, _) => Err(CallEnd::Status(status)),
        }
    }

    /// Executes it if it asks about granted cards only, and rewrites the answer.
    fn view(&self, flight: &mut InFlightCall<'_>, control: Control, kind: ViewKind) -> Result<Answer, CallEnd> {
        let names = self.grant.names();
        let params = flight.params();
        let is_granted = match kind {
            ViewKind::P2pCapsMatrix => view::cards::p2p_matrix_names_granted(params, names),
            ViewKind::P2pCaps | ViewKind::P2pCapsV2 => view::cards::p2p_names_granted(params, names),
            ViewKind::SubdeviceP2pCaps => view::cards::peers_granted(params, names),
            _ => true,
        };
        if !is_granted {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        if kind == ViewKind::PidInfo {
            return self.pid_info(flight, control);
        }
        if kind == ViewKind::PageData
            && let Some(answer) = self.poll_page(flight, control)
        {
            return answer;
        }
        // Nobody makes another card's object of the handle between the answer and its rewriting.
        self.locks.with(&[LockName::Client(control.client)], || {
            let status = self.execute_view(flight, control, kind)?;
            if status.is_ok() { self.rewrite(flight, control, kind) } else { Ok(()) }
        })?;
        flight.finish()
    }

    fn rewrite(&self, flight: &mut InFlightCall<'_>, control: Control, kind: ViewKind) -> Result<(), CallEnd> {
        let names = self.grant.names();
        match kind {
            ViewKind::FbInfo | ViewKind::FbInfoV2 | ViewKind::FbRegionInfo => self.rewrite_sizes(flight, control, kind)?,
            ViewKind::Pids => self.list_processes(flight, control),
            ViewKind::SessionStats => self.rewrite_sessions(flight, control),
            ViewKind::UtilSamples => self.rewrite_samples(flight, control),
            ViewKind::VideoEngineSample => self.rewrite_video_sample(flight, control),
            ViewKind::AttachedIds => view::cards::attached_ids(flight.params_mut(), names),
            ViewKind::ProbedIds => view::cards::probed_ids(flight.params_mut(), names),
            ViewKind::DeviceIds => view::cards::device_ids(flight.params_mut(), names),
            ViewKind::ActiveDeviceIds => view::cards::active_device_ids(flight.params_mut(), names),
            ViewKind::UuidInfo => {
                if !view::cards::names_granted(flight.params(), UUID_INFO_GPU_ID, names) {
                    return Err(CallEnd::Status(Status::OBJECT_NOT_FOUND));
                }
            }
            ViewKind::SubdeviceP2pCaps => view::cards::peers(flight.params_mut(), names),
            // Refused before they were executed if they name a card that is not granted.
            ViewKind::IdInfo
            | ViewKind::IdInfoV2
            | ViewKind::PciInfo
            | ViewKind::UuidFromGpuId
            | ViewKind::P2pCaps
            | ViewKind::P2pCapsV2
            | ViewKind::P2pCapsMatrix
            | ViewKind::AttachIds
            | ViewKind::DetachIds
            | ViewKind::AsyncAttachId
            | ViewKind::WaitAttachId
            | ViewKind::InitStatus
            | ViewKind::DrainState
            | ViewKind::VideoLinks
            // Answered, but for who sees the driver's own page.
            | ViewKind::PageData
            | ViewKind::PidInfo => {}
        }
        Ok(())
    }

    /// Answered from the accounts: the driver knows the mediator only.
    fn pid_info(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        let count = read_u32(flight.params(), 0).unwrap_or(0);
        if count == 0 || count > view::processes::MOST_PID_INFOS {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        let own = self.shown_processes(flight, control);
        view::processes::pid_info(flight.params_mut(), &own);
        let row = flight.row;
        if !row.set_status(&mut flight.args, Status::OK) {
            return Err(CallEnd::Errno(libc::EINVAL));
        }
        flight.finish()
    }

    /// Refuses parameters that name a client of somebody else's.
    fn clients_are_own(&self, params: &[u8], mut fields: impl Iterator<Item = u16>) -> Result<(), CallEnd> {
        let accounts = lock(&self.accounts);
        let is_own = |at: u16| {
            read_u32(params, usize::from(at)).is_none_or(|client| client == 0 || accounts.knows_client(Handle(client)))
        };
        if fields.all(is_own) { Ok(()) } else { Err(CallEnd::Status(Status::INVALID_CLIENT)) }
    }

    /// `NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY` {policy}, `..._SHARE_OBJECT` {object, policy}.
    fn share_control(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        let at = if control.id == SHARE_OBJECT { 4 } else { 0 };
        self.may_be_shared(flight.params().get(at..).unwrap_or_default())?;
        flight.execute(self.driver.as_ref())?;
        flight.finish()
    }
}

/// Controls whose parameters begin with a card's id (ctrl0000gpu.h, ctrl0000unix.h): `GET_ID_INFO`, `GET_INIT_STATUS`, `GET_ID_INFO_V2`,
/// `GET_PCI_INFO`, `GET_SVM_SIZE`, `GET_UUID_FROM_GPU_ID`, `MODIFY_DRAIN_STATE`, `QUERY_DRAIN_STATE`, `ASYNC_ATTACH_ID`, `WAIT_ATTACH_ID`,
/// `OS_GET_GPU_INFO`.
const NAME_A_CARD: [u32; 12] = [0x202, 0x203, 0x205, 0x219, 0x21b, 0x240, 0x275, 0x278, 0x279, 0x289, 0x290, 0x3d07];
/// `NV0000_CTRL_CMD_GPU_ATTACH_IDS`, `NV0000_CTRL_CMD_GPU_DETACH_IDS`.
const ATTACH_CARDS: [u32; 2] = [0x215, 0x216];
/// `NV0000_CTRL_CMD_CLIENT_SHARE_OBJECT`.
const SHARE_OBJECT: u32 = 0xd06;
/// Offset of `gpuId` in `NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS`.
const UUID_INFO_GPU_ID: usize = 260;

/// What the driver knows the container's processes as.
pub(crate) fn mediator_pid() -> u32 {
    std::process::id()
}
