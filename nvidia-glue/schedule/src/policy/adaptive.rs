//! `adaptive`: by weight among those that work, in time slices or in turns, whichever wastes less.

use base::ComputeEnforcement;

use super::{Hold, RoomUnit, Rules, weight_or_one};

pub(super) const RULES: Rules = Rules {
    meaning: "by weight among those that work, in time slices or in turns, whichever wastes less; idle time goes to \
              those that want it",
    takes_caps: false,
    takes_weights: true,
    counts_slices: false,
    skips_absent: false,
    shares_costs: false,
    room: RoomUnit::Endless,
    enforced_by: ComputeEnforcement::Windows,
    slices: weight_or_one,
    is_hard_cap: |_| false,
    promised_parts: |_| 0,
    hold: |of| Hold::Turns(of.slices().max(1)),
    weight_instead: |of| of.slices().max(1),
};
