//! `NV_ESC_RM_CONTROL`.

use abi::{
    Handle, Status,
    controls::{
        ControlRule, NV0000_CTRL_CMD_CLIENT_SHARE_OBJECT, NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, ViewKind, rule_of,
    },
    decode::Control,
    layout::read_u32,
    params::{
        NV0000_CTRL_CLIENT_SET_INHERITED_SHARE_POLICY_PARAMS, NV0000_CTRL_CLIENT_SHARE_OBJECT_PARAMS,
        NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS, NV0000_CTRL_GPUACCT_GET_ACCOUNTING_PIDS_PARAMS as AccountingPids,
        NV0000_CTRL_GPUACCT_GET_ACCOUNTING_STATE_PARAMS as AccountingState,
        NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO_PARAMS as NvencSessions, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS,
        NVOS54_PARAMETERS,
    },
};
use driver::Holder;

use crate::{
    Answer, Session, UnknownKind,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::named_locks::LockName,
    view,
};

impl Session {
    pub(crate) fn control(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        self.own_client(control.client)?;
        let rule = rule_of(control.id);
        match control.row() {
            None => self.count_unknown(UnknownKind::Control(control.id), !matches!(rule, ControlRule::Refuse(..))),
            Some(row) if row.is_refused_to_tools() => self.report_refused_tool(row.name),
            Some(_) => {}
        }
        if let ControlRule::Answered(status, _) | ControlRule::Refuse(status, _) = rule {
            return Err(CallEnd::Status(status));
        }
        if control.params_size > Control::PARAMS_MOST {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        // All of them are for the kernel's own use.
        let _ = NVOS54_PARAMETERS::flags.set(&mut flight.args, 0);
        let size = usize::try_from(control.params_size).map_err(|_| CallEnd::Status(Status::INVALID_ARGUMENT))?;
        self.copy_params(flight, NVOS54_PARAMETERS::params.at(), control.params, size)?;
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
        if control.id == NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE {
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
            ControlRule::Attach => self.attach_control(flight, control),
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
            kind if kind.names_a_card() => view::cards::id_granted(params, names),
            _ => true,
        };
        if !is_granted {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        if matches!(kind, ViewKind::AttachIds | ViewKind::DetachIds) {
            view::cards::restrict_list(flight.params_mut(), names);
        }
        if kind == ViewKind::PidInfo {
            return self.pid_info(flight, control);
        }
        if matches!(kind, ViewKind::Sessions | ViewKind::AccountingState | ViewKind::AccountingPids) {
            return answer_none(flight, kind);
        }
        if kind == ViewKind::PageData
            && let Some(answer) = self.poll_page(flight, control)
        {
            return answer;
        }
        if matches!(kind, ViewKind::FbInfo | ViewKind::FbInfoV2) {
            self.look_for_freed(flight, kind);
        }
        // Nobody makes another card's object of the handle between the answer and its rewriting.
        self.objects.locks.with(&[LockName::Client(control.client)], || {
            let status = self.execute_view(flight, control, kind)?;
            if status.is_ok() { self.rewrite(flight, control, kind) } else { Ok(()) }
        })?;
        flight.finish()
    }

    fn rewrite(&self, flight: &mut InFlightCall<'_>, control: Control, kind: ViewKind) -> Result<(), CallEnd> {
        let names = self.grant.names();
        match kind {
            ViewKind::FbInfo | ViewKind::FbInfoV2 | ViewKind::FbRegionInfo => self.rewrite_sizes(flight, control, kind)?,
            ViewKind::ConfComputeSize => self.rewrite_conf_compute_size(flight, control.client)?,
            ViewKind::Pids => self.list_processes(flight, control),
            ViewKind::SessionStats => self.rewrite_sessions(flight, control),
            ViewKind::UtilSamples => self.rewrite_samples(flight, control),
            ViewKind::VideoEngineSample => self.rewrite_video_sample(flight, control),
            ViewKind::AttachedIds => view::cards::attached_ids(flight.params_mut(), names),
            ViewKind::ProbedIds => view::cards::probed_ids(flight.params_mut(), names),
            ViewKind::DeviceIds => view::cards::device_ids(flight.params_mut(), names),
            ViewKind::ActiveDeviceIds => view::cards::active_device_ids(flight.params_mut(), names),
            ViewKind::UuidInfo => {
                if !view::cards::names_granted(flight.params(), NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS::gpuId, names) {
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
            | ViewKind::SvmSize
            // Answered, but for who sees the driver's own page.
            | ViewKind::PageData
            | ViewKind::PidInfo
            | ViewKind::Sessions
            | ViewKind::AccountingState
            | ViewKind::AccountingPids => {}
        }
        Ok(())
    }

    /// Answered from the accounts: the driver knows the mediator only.
    fn pid_info(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        let count = NV2080_CTRL_GPU_GET_PID_INFO_PARAMS::pidInfoListCount.get(flight.params()).unwrap_or(0);
        if count == 0 || count > view::processes::MOST_PID_INFOS {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        let own = self.shown_processes(flight, control);
        view::processes::pid_info(flight.params_mut(), &own);
        succeed(flight)
    }

    /// Refuses parameters that name a client of somebody else's.
    fn clients_are_own(&self, params: &[u8], mut fields: impl Iterator<Item = u16>) -> Result<(), CallEnd> {
        let accounts = lock(&self.objects.accounts);
        let is_own = |at: u16| {
            read_u32(params, usize::from(at)).is_none_or(|client| client == 0 || accounts.knows_client(Handle(client)))
        };
        if fields.all(is_own) { Ok(()) } else { Err(CallEnd::Status(Status::INVALID_CLIENT)) }
    }

    /// `NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY` {policy}, `..._SHARE_OBJECT` {object,
    /// policy}.
    fn share_control(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        let policy = match control.id {
            NV0000_CTRL_CMD_CLIENT_SHARE_OBJECT => NV0000_CTRL_CLIENT_SHARE_OBJECT_PARAMS::sharePolicy,
            _ => NV0000_CTRL_CLIENT_SET_INHERITED_SHARE_POLICY_PARAMS::sharePolicy,
        };
        self.may_be_shared(flight.params().get(policy.at()..).unwrap_or_default())?;
        flight.execute(self.driver.as_ref())?;
        flight.finish()
    }
}

/// Answers a question about other containers' doings as where there are none; the driver, which
/// would tell everybody's, is not asked.
fn answer_none(flight: &mut InFlightCall<'_>, kind: ViewKind) -> Result<Answer, CallEnd> {
    /// `NV0000_CTRL_GPU_ACCOUNTING_STATE_DISABLED`.
    const DISABLED: u32 = 1;
    let params = flight.params_mut();
    let is_answered = match kind {
        ViewKind::AccountingState => AccountingState::state.set(params, DISABLED),
        ViewKind::AccountingPids => AccountingPids::pidCount.set(params, 0),
        // All three begin with the number of sessions.
        _ => NvencSessions::sessionInfoTblEntry.set(params, 0),
    };
    if is_answered { succeed(flight) } else { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) }
}

/// Ends a call that was answered without the driver.
fn succeed(flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
    let row = flight.row;
    if !row.set_status(&mut flight.args, Status::OK) {
        return Err(CallEnd::Errno(libc::EINVAL));
    }
    flight.finish()
}
