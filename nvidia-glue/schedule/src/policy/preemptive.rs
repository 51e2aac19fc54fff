//! `preemptive` (cGPU 1): equal parts among those that have the GPU open.

use base::ComputeEnforcement;

use super::{Hold, RoomUnit, Rules, Sharer};

pub(super) const RULES: Rules = Rules {
    meaning: "the same for all that have a process with the card open",
    takes_caps: false,
    takes_weights: false,
    counts_slices: true,
    skips_absent: true,
    shares_costs: false,
    room: RoomUnit::Weight,
    enforced_by: ComputeEnforcement::Windows,
    slices: |_| 1,
    is_hard_cap: |_| false,
    promised_parts: |_| 0,
    hold: |of| if of.is_present { Sharer::equal_window(of.present) } else { Hold::Absent },
    weight_instead: |_| 1,
};
