//! The time slices of the groups behind a gate.

use abi::{Handle, controls::NVA06C_CTRL_CMD_SET_TIMESLICE, encode, params::NVA06C_CTRL_TIMESLICE_PARAMS};
use account::ObjectName;
use schedule::EdgeError;

use crate::{
    channels::gate::{CardGate, calls::GateCallError},
    locks::lock,
};

const SET_TIMESLICE_NAME: &str = "NVA06C_CTRL_CMD_SET_TIMESLICE";
const DUP_NAME: &str = "NV_ESC_RM_DUP_OBJECT";
/// Time slice of a group of which nobody has set one (`NV_RAMRL_ENTRY_TIMESLICE`: 128 << 3
/// microseconds).
pub(crate) const DEFAULT_SLICE_US: u64 = 1024;
/// Time slice that CUDA sets for compute: a program that sets more gets this.
pub(crate) const MOST_SLICE_US: u64 = 2048;

impl CardGate {
    /// Returns a group's time slice as it is to be, if it is one on the compute engine; and how
    /// often that has changed.
    pub(crate) fn slice_of(&self, group: ObjectName) -> (Option<u64>, u64) {
        let state = lock(&self.state);
        let program = state.channels.slice_of(group);
        (program.map(|program| chosen(state.slice_us, program)), state.slices)
    }

    /// Returns whether the scheduler sets time slices.
    pub(crate) fn sets_slices(&self) -> bool {
        lock(&self.state).slice_us.is_some()
    }

    /// Sets a group's time slice to what it is to be, for as long as that changes. The driver's
    /// last verdict; what it refuses, the scheduler tries again.
    pub(crate) fn bring_slice(&self, group: ObjectName) {
        loop {
            let (Some(slice_us), slices) = self.slice_of(group) else { return };
            let _ = self.apply_slice(group, slice_us);
            if lock(&self.state).slices == slices {
                return;
            }
        }
    }

    /// Through a duplicate in the mediator's own client: the container's client could only be used
    /// on its own file. The duplicate would keep the group alive, and goes at once.
    pub(super) fn apply_slice(&self, group: ObjectName, slice_us: u64) -> Result<(), EdgeError> {
        let raw = self.raw();
        let duplicate = match raw.dup((self.device, Handle::NONE), (group.client, group.object)) {
            Ok((status, handle)) if status.is_ok() => handle,
            Ok((status, _)) => return Err(self.error(DUP_NAME, GateCallError::Refused(status))),
            Err(error) => return Err(self.error(DUP_NAME, GateCallError::Call(error))),
        };
        let params = encode!(NVA06C_CTRL_TIMESLICE_PARAMS { timesliceUs: slice_us });
        let set = self.raw_control(duplicate, NVA06C_CTRL_CMD_SET_TIMESLICE, params.to_vec());
        let freed = raw.free(duplicate);
        set.map_err(|failure| self.error(SET_TIMESLICE_NAME, failure))?;
        match freed {
            Ok(status) if status.is_ok() => Ok(()),
            Ok(status) => Err(self.error("NV_ESC_RM_FREE", GateCallError::Refused(status))),
            Err(error) => Err(self.error("NV_ESC_RM_FREE", GateCallError::Call(error))),
        }
    }

    pub(super) fn is_gone(&self, name: ObjectName) -> bool {
        !self.with(|channels| channels.has_group(name))
            || matches!(self.driver.client_exists(&self.own, name.client), Ok(false))
    }
}

/// Chooses a time slice: the scheduler's goes before the program's, which is bounded.
pub(super) fn chosen(slice_us: Option<u64>, program_us: Option<u64>) -> u64 {
    slice_us.unwrap_or_else(|| program_us.map_or(DEFAULT_SLICE_US, |slice| slice.min(MOST_SLICE_US)))
}
