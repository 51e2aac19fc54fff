//! `native` (cGPU 5): the driver's own; a quota of memory only.

use base::ComputeEnforcement;

use super::{Hold, RoomUnit, Rules};

pub(super) const RULES: Rules = Rules {
    meaning: "as the driver does it; only memory is limited",
    takes_caps: false,
    takes_weights: false,
    counts_slices: false,
    skips_absent: false,
    shares_costs: false,
    room: RoomUnit::Endless,
    enforced_by: ComputeEnforcement::None,
    slices: |_| 0,
    is_hard_cap: |_| false,
    promised_parts: |_| 0,
    hold: |_| Hold::Free,
    weight_instead: |_| 1,
};
