//! Controls whose answers show the grant: what each of them may be asked about, and what becomes of
//! its answer.

use abi::{
    Status,
    controls::ViewKind,
    decode::Control,
    params::{
        NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS, NV0000_CTRL_GPUACCT_GET_ACCOUNTING_PIDS_PARAMS as AccountingPids,
        NV0000_CTRL_GPUACCT_GET_ACCOUNTING_STATE_PARAMS as AccountingState,
        NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO_PARAMS as NvencSessions, NV2080_CTRL_GPU_GET_PID_INFO_PARAMS,
    },
};

use super::view_memory::{fb_info_list, fb_info_list_v2};
use crate::{
    Answer, Session,
    grant::CardNames,
    in_flight::{CallEnd, InFlightCall},
    objects::named_locks::LockName,
    view::{cards, processes},
};

/// `NV0000_CTRL_GPU_ACCOUNTING_STATE_DISABLED`.
const ACCOUNTING_DISABLED: u32 = 1;

const INVALID: CallEnd = CallEnd::Status(Status::INVALID_ARGUMENT);

impl Session {
    /// Answers a control as the grant has it.
    pub(super) fn view(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        kind: ViewKind,
    ) -> Result<Answer, CallEnd> {
        let names = self.grant.names();
        let asks_of = |is_granted: fn(&[u8], &[CardNames]) -> bool, flight: &InFlightCall<'_>| {
            if is_granted(flight.params(), names) { Ok(()) } else { Err(INVALID) }
        };
        match kind {
            ViewKind::OfACard => {
                asks_of(cards::id_granted, flight)?;
                self.rewritten(flight, control, |_| {})
            }
            ViewKind::P2pCaps => {
                asks_of(cards::p2p_names_granted, flight)?;
                self.rewritten(flight, control, |_| {})
            }
            ViewKind::P2pCapsMatrix => {
                asks_of(cards::p2p_matrix_names_granted, flight)?;
                self.rewritten(flight, control, |_| {})
            }
            ViewKind::SubdeviceP2pCaps => {
                asks_of(cards::peers_granted, flight)?;
                self.rewritten(flight, control, |flight| cards::peers(flight.params_mut(), names))
            }
            ViewKind::AttachIds => {
                cards::restrict_list(flight.params_mut(), names);
                self.rewritten(flight, control, |_| {})
            }
            ViewKind::AttachedIds => {
                self.rewritten(flight, control, |flight| cards::attached_ids(flight.params_mut(), names))
            }
            ViewKind::ProbedIds => {
                self.rewritten(flight, control, |flight| cards::probed_ids(flight.params_mut(), names))
            }
            ViewKind::DeviceIds => {
                self.rewritten(flight, control, |flight| cards::device_ids(flight.params_mut(), names))
            }
            ViewKind::ActiveDeviceIds => {
                self.rewritten(flight, control, |flight| cards::active_device_ids(flight.params_mut(), names))
            }
            ViewKind::UuidInfo => self.rewritten_if(flight, control, |flight| {
                let gpu_id = NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS::gpuId;
                let is_granted = cards::names_granted(flight.params(), gpu_id, names);
                if is_granted { Ok(()) } else { Err(CallEnd::Status(Status::OBJECT_NOT_FOUND)) }
            }),
            ViewKind::FbInfo => self.fb_info(flight, control, fb_info_list),
            ViewKind::FbInfoV2 => self.fb_info(flight, control, fb_info_list_v2),
            ViewKind::FbRegionInfo => {
                self.rewritten_if(flight, control, |flight| self.rewrite_fb_regions(flight, control))
            }
            ViewKind::ConfComputeSize => {
                self.rewritten_if(flight, control, |flight| self.rewrite_conf_compute_size(flight, control.client))
            }
            ViewKind::Pids => self.rewritten(flight, control, |flight| self.list_processes(flight, control)),
            ViewKind::PidInfo => self.pid_info(flight, control),
            ViewKind::SessionStats => self.rewritten(flight, control, |flight| self.rewrite_sessions(flight, control)),
            ViewKind::UtilSamples => self.rewritten(flight, control, |flight| self.rewrite_samples(flight, control)),
            ViewKind::VideoEngineSample => {
                self.rewritten(flight, control, |flight| self.rewrite_video_sample(flight, control))
            }
            ViewKind::PageData => match self.poll_page(flight, control) {
                Some(answer) => answer,
                None => self.rewritten(flight, control, |_| {}),
            },
            // Other containers' sessions and processes: answered as where there are none. The
            // parameters of all three controls begin with the number of sessions.
            ViewKind::Sessions => answered(flight, |params| NvencSessions::sessionInfoTblEntry.set(params, 0)),
            ViewKind::AccountingState => {
                asks_of(cards::id_granted, flight)?;
                answered(flight, |params| AccountingState::state.set(params, ACCOUNTING_DISABLED))
            }
            ViewKind::AccountingPids => {
                asks_of(cards::id_granted, flight)?;
                answered(flight, |params| AccountingPids::pidCount.set(params, 0))
            }
        }
    }

    /// Executes it, and rewrites what the driver says.
    fn rewritten(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        rewrite: impl FnOnce(&mut InFlightCall<'_>),
    ) -> Result<Answer, CallEnd> {
        self.rewritten_if(flight, control, |flight| {
            rewrite(flight);
            Ok(())
        })
    }

    fn rewritten_if(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        rewrite: impl FnOnce(&mut InFlightCall<'_>) -> Result<(), CallEnd>,
    ) -> Result<Answer, CallEnd> {
        // Nobody makes another card's object of the handle between the answer and its rewriting.
        self.objects.locks.with(&[LockName::Client(control.client)], || {
            if flight.execute(self.driver.as_ref())?.is_ok() { rewrite(flight) } else { Ok(()) }
        })?;
        flight.finish()
    }

    /// Answered from the accounts: the driver knows the mediator only.
    fn pid_info(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        let count = NV2080_CTRL_GPU_GET_PID_INFO_PARAMS::pidInfoListCount.get(flight.params()).unwrap_or(0);
        if count == 0 || count > processes::MOST_PID_INFOS {
            return Err(INVALID);
        }
        let own = self.shown_processes(flight, control);
        answered(flight, |params| {
            processes::pid_info(params, &own);
            true
        })
    }
}

/// Answers without the driver, if the answer has room in the parameters.
fn answered(flight: &mut InFlightCall<'_>, write: impl FnOnce(&mut [u8]) -> bool) -> Result<Answer, CallEnd> {
    if !write(flight.params_mut()) {
        return Err(INVALID);
    }
    let row = flight.row;
    if !row.set_status(&mut flight.args, Status::OK) {
        return Err(CallEnd::Errno(libc::EINVAL));
    }
    flight.finish()
}
