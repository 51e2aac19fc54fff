//! `NV_ESC_RM_CONTROL`.

use abi::{
    Handle, Status,
    controls::{ControlRule, NV0000_CTRL_CMD_CLIENT_SHARE_OBJECT, rule_of},
    decode::Control,
    layout::read_u32,
    params::{
        NV0000_CTRL_CLIENT_SET_INHERITED_SHARE_POLICY_PARAMS, NV0000_CTRL_CLIENT_SHARE_OBJECT_PARAMS, NVOS54_PARAMETERS,
    },
};
use driver::Holder;

use crate::{
    Answer, Session, UnknownKind,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
};

impl Session {
    pub(crate) fn control(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        self.check_client(control.client)?;
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
        // Some are answered, or take effect here, without the driver.
        flight.confirm()?;
        match rule {
            ControlRule::Pass => {
                flight.execute(self.driver.as_ref())?;
                flight.finish()
            }
            ControlRule::ContextSize => {
                self.may_ask_context_size(control.client, flight.params())?;
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
