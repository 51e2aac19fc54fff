//! `fair` (cGPU 0): 1/max_inst each, also when alone.

use base::ComputeEnforcement;

use super::{RoomUnit, Rules, Sharer};
use crate::layout::ratio_parts;

pub(super) const RULES: Rules = Rules {
    meaning: "each container has the same fixed part of the time, 1/max_inst, also when it is alone",
    takes_caps: false,
    takes_weights: false,
    counts_slices: true,
    skips_absent: false,
    shares_costs: false,
    room: RoomUnit::Percent,
    enforced_by: ComputeEnforcement::Windows,
    slices: |_| 1,
    is_hard_cap: |_| true,
    promised_parts: |of| ratio_parts(of.slices.into(), of.max_inst.into()),
    hold: |of| Sharer::equal_window(of.max_inst.into()),
    weight_instead: |_| 1,
};
