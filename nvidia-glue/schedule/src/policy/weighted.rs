//! `weighted` (cGPU 2): shares by weight among those that exist.

use base::ComputeEnforcement;

use super::{Hold, RoomUnit, Rules, weight_or_one};
use crate::layout::ratio_parts;

pub(super) const RULES: Rules = Rules {
    meaning: "by weight among the containers that exist",
    takes_caps: false,
    takes_weights: true,
    counts_slices: true,
    skips_absent: false,
    shares_costs: true,
    room: RoomUnit::Weight,
    enforced_by: ComputeEnforcement::Windows,
    slices: weight_or_one,
    is_hard_cap: |_| false,
    promised_parts: |_| 0,
    hold: |of| Hold::Window(ratio_parts(of.slices().into(), of.all_slices)),
    weight_instead: |of| of.slices().max(1),
};
