//! `fixed` (cGPU 3): the percent asked for, or a weight of max_inst, as a hard cap; all others
//! share what the caps leave.

use base::{CardGrant, ComputeEnforcement, ComputeShare};

use super::{Hold, RoomUnit, Rules, Sharer};
use crate::layout::{percent_parts, ratio_parts};

pub(super) const RULES: Rules = Rules {
    meaning: "each has the percentage, or the slices of max_inst, that it asked for; the others share the rest",
    takes_caps: true,
    takes_weights: true,
    counts_slices: true,
    skips_absent: false,
    shares_costs: false,
    room: RoomUnit::Percent,
    enforced_by: ComputeEnforcement::Windows,
    slices,
    is_hard_cap: |compute| compute != ComputeShare::Unlimited,
    promised_parts: |of| percent_parts(of.caps_percent.into()) + ratio_parts(of.slices.into(), of.max_inst.into()),
    hold,
    weight_instead,
};

fn slices(compute: ComputeShare) -> u32 {
    compute.weight().map_or(0, |weight| weight.get().into())
}

fn hold(of: &Sharer<'_>) -> Hold {
    match of.grant.compute {
        ComputeShare::Cap { lifted_when_alone: true, .. } if of.is_alone => Hold::Free,
        ComputeShare::Cap { percent, .. } => Hold::Window(percent_parts(percent.get().into())),
        ComputeShare::Weight(weight) => Hold::Window(ratio_parts(weight.get().into(), of.max_inst.into())),
        ComputeShare::Unlimited => Hold::Remainder,
    }
}

fn weight_instead(of: &Sharer<'_>) -> u32 {
    let hundredths = |grant: &CardGrant| match grant.compute {
        ComputeShare::Cap { percent, .. } => u32::from(percent.get()),
        ComputeShare::Weight(weight) => (u32::from(weight.get()) * 100 / of.max_inst).max(1),
        ComputeShare::Unlimited => 0,
    };
    if of.grant.compute != ComputeShare::Unlimited {
        return hundredths(of.grant);
    }
    let taken: u32 = of.grants.iter().map(|(_, grant)| hundredths(grant)).sum();
    let sharers = of.grants.iter().filter(|(_, grant)| grant.compute == ComputeShare::Unlimited).count();
    let left = 100_u32.saturating_sub(taken) / u32::try_from(sharers.max(1)).unwrap_or(u32::MAX);
    left.max(1)
}
