//! The languages in which containers ask, one module each.
//!
//! Native terms and those of at most one foreign language are joined; `NVIDIA_*` names cards and
//! driver capabilities for all of them.

pub(super) mod alibaba_cgpu;
pub(super) mod alibaba_egpu;
pub(super) mod ctyun;
pub(super) mod hami;
pub(super) mod kai;
pub(super) mod native;
pub(super) mod nvidia;
pub(super) mod nvidia_fractions;

use super::{
    DeviceSelector, Dialect, RequestError,
    error::AsWritten,
    statements::{Statement, Statements},
    terms::Terms,
};
use crate::config::Config;

/// Names of what a language reads: all that is bounded in length, and logged for a request that is
/// refused.
pub(super) struct Names {
    /// Variables; one that ends in `_` stands for all that begin with it.
    variables: &'static [&'static str],
    /// Returns whether an annotation, of these, is one.
    is_annotation: fn(&str, &Statements<'_>) -> bool,
}

/// Names of every language.
const NAMES: &[Names] = &[
    native::NAMES,
    nvidia::NAMES,
    alibaba_egpu::NAMES,
    alibaba_cgpu::NAMES,
    ctyun::NAMES,
    hami::NAMES,
    nvidia_fractions::NAMES,
    kai::NAMES,
];

/// Returns whether an annotation of this name may be about GPUs, in one of the languages.
pub(super) fn is_annotation_of_a_request(name: &str, annotations: &Statements<'_>) -> bool {
    NAMES.iter().any(|names| (names.is_annotation)(name, annotations))
}

/// Returns whether a variable of this name may be about GPUs, in one of the languages.
pub fn is_of_a_request(name: &str) -> bool {
    let mut all = NAMES.iter().flat_map(|names| names.variables);
    all.any(|known| name == *known || (known.ends_with('_') && name.starts_with(known)))
}

/// A request in a foreign language.
#[derive(Debug)]
pub(super) struct Foreign {
    pub(super) dialect: Dialect,
    pub(super) terms: Terms,
    pub(super) cards: ForeignCards,
    /// Asked for by annotations of the pod, rather than by variables alone.
    pub(super) by_annotation: bool,
}

/// The cards that a foreign language names.
#[derive(Debug)]
pub(super) enum ForeignCards {
    /// The cards that `NVIDIA_VISIBLE_DEVICES` names.
    Visible,
    /// The same; where that names none, so many cards.
    VisibleOr(u32),
    /// Particular cards that `NVIDIA_VISIBLE_DEVICES` names, or else so many.
    Counted(u32),
    /// Cards that are shared; what else `NVIDIA_VISIBLE_DEVICES` names is given whole.
    Shared(Vec<DeviceSelector>, AsWritten),
    /// Cards that have limits of their own each; they must be among the visible ones.
    Listed(Vec<DeviceSelector>, AsWritten),
}

/// Reads the foreign language that a container speaks, if any.
pub(super) fn foreign(
    env: &Statements<'_>,
    annotations: &Statements<'_>,
    config: &Config,
) -> Result<Option<Foreign>, RequestError> {
    let egpu = alibaba_egpu::selected_by(env)?;
    let candidates = [
        (Dialect::AlibabaEgpu, egpu),
        (Dialect::AlibabaCgpu, if egpu.is_none() { alibaba_cgpu::selected_by(env)? } else { None }),
        (Dialect::CtyunEgpu, ctyun::selected_by(env)),
        (Dialect::Kai, kai::selected_by(env, annotations)),
        (Dialect::NvidiaFractions, nvidia_fractions::selected_by(env, annotations)),
        (Dialect::Hami, hami::selected_by(env)?),
    ];
    let mut spoken = candidates.into_iter().filter_map(|(dialect, said)| Some((dialect, said?)));
    let Some((dialect, said)) = spoken.next() else { return Ok(None) };
    let beside: Vec<(Dialect, Statement<'_>)> = spoken.collect();
    if let Some((second, second_said)) = beside.iter().find(|(second, _)| !is_one_request(dialect, *second)) {
        return Err(RequestError::TwoDialects {
            first: dialect,
            first_said: said.into(),
            second: *second,
            second_said: (*second_said).into(),
        });
    }
    let foreign = match dialect {
        Dialect::AlibabaEgpu => alibaba_egpu::parse(said, env)?,
        Dialect::AlibabaCgpu => alibaba_cgpu::parse(said, env, config)?,
        Dialect::CtyunEgpu => ctyun::parse(env)?,
        Dialect::Kai => of_kai(said, &beside, env, annotations, config)?,
        Dialect::NvidiaFractions => nvidia_fractions::parse(said, env, annotations)?,
        Dialect::Hami => hami::parse(said, env, annotations, config)?,
        // Neither is foreign; the candidates above do not hold them.
        Dialect::Native | Dialect::Nvidia => return Ok(None),
    };
    Ok(Some(foreign))
}

/// KAI's scheduler states its request in NVIDIA's fractions, and through its plugin for HAMi-core
/// in HAMi's variables, besides its own.
fn is_one_request(first: Dialect, second: Dialect) -> bool {
    first == Dialect::Kai && matches!(second, Dialect::NvidiaFractions | Dialect::Hami)
}

/// A request of KAI and the languages beside it: the tighter holds.
fn of_kai(
    said: Statement<'_>,
    beside: &[(Dialect, Statement<'_>)],
    env: &Statements<'_>,
    annotations: &Statements<'_>,
    config: &Config,
) -> Result<Foreign, RequestError> {
    let mut kai = kai::parse(said, env, annotations)?;
    for (dialect, said) in beside {
        if *dialect == Dialect::NvidiaFractions {
            let fractions = nvidia_fractions::parse(*said, env, annotations)?;
            kai.terms = fractions.terms.join(kai.terms)?;
            kai.by_annotation |= fractions.by_annotation;
            if matches!(fractions.cards, ForeignCards::Listed(..)) {
                kai.cards = fractions.cards;
            }
        } else {
            kai.terms = hami::limits(*said, env, config)?.join(kai.terms)?;
        }
    }
    Ok(kai)
}

/// The warning that a request below its limit is not used yet.
fn unused(request: impl Into<AsWritten>, limit: impl Into<AsWritten>) -> String {
    format!("{} is not used yet: {} is reserved and held", request.into(), limit.into())
}

/// Returns whether a variable that takes the limits off is set; `key` of the configuration must
/// allow it.
fn takes_limits_off(name: &str, env: &Statements<'_>, config: &Config) -> Result<bool, RequestError> {
    for statement in env.spoken(name) {
        if statement.boolean()? && !config.allow_isolation_none {
            return Err(RequestError::NotAllowed { said: statement.into(), key: "allow_isolation_none = true" });
        }
    }
    // AsWritten both ways: the limits stay.
    Ok(env.joined(name, Statement::boolean, |one, other| one && other)?.unwrap_or(false))
}
