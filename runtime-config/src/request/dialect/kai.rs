//! KAI's scheduler and Run:ai: the pod's annotations `gpu-fraction` and `gpu-memory`, and
//! `GPU_PORTION`, which the scheduler's binder reckons from them.

use super::{Foreign, ForeignCards, Names, nvidia_fractions, unused};
use crate::{
    request::{
        Dialect, MemoryLimit, PerCard, RequestError,
        statements::{Portion, Statement, Statements},
        terms::Terms,
    },
    units::Bytes,
};

const PORTION: &str = "GPU_PORTION";
/// The same as KAI before 0.7.6 writes it, and Run:ai. A whole number is a number of whole cards.
const NUMBER: &str = "RUNAI_NUM_OF_GPUS";
/// Run:ai's limit, above which a request may not grow.
const LIMIT: &str = "RUNAI_GPU_MEMORY_LIMIT";
const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const CARDS: &str = "gpu-fraction-num-devices";
/// The container that the annotations are for, where it is not the pod's first.
const CONTAINER: &str = "gpu-fraction-container-name";
pub(super) const NAMES: Names = Names {
    variables: &[PORTION, NUMBER, LIMIT],
    is_annotation: |name, _| [FRACTION, MEMORY, CARDS, CONTAINER].contains(&name),
};
/// The scheduler's mark on a pod: it sets `GPU_PORTION` in the container that the share is for.
const SCHEDULED: &str = "runai/shared-gpu-configmap";
/// Most cards of a request, as of egpu's own.
const MAX_CARDS: u64 = 1024;

/// The first statement of this language that asks for a share.
pub(super) fn selected_by<'a>(env: &Statements<'a>, annotations: &Statements<'a>) -> Option<Statement<'a>> {
    let annotated = || [FRACTION, MEMORY, CARDS].iter().find_map(|key| own(env, annotations, key));
    portions(env).next().or_else(annotated)
}

pub(super) fn parse(
    said: Statement<'_>,
    env: &Statements<'_>,
    annotations: &Statements<'_>,
) -> Result<Foreign, RequestError> {
    let annotation = |key| own(env, annotations, key);
    let by_annotation = [FRACTION, MEMORY].iter().find_map(|key| annotation(key));
    if let (Some(fraction), Some(memory)) = (annotation(FRACTION), annotation(MEMORY)) {
        let reason = "the one is a part of each card, the other MiB; set one of them";
        return Err(RequestError::contradiction(fraction, memory, reason));
    }
    let Some(request) = by_annotation.or_else(|| portions(env).next()) else {
        return Err(RequestError::invalid(said, format!("accompanied by {FRACTION} or {MEMORY}")));
    };
    let mut requested = portions(env).map(portion).collect::<Result<Vec<_>, _>>()?;
    requested.extend(annotation(FRACTION).map(portion).transpose()?);
    requested.extend(annotation(MEMORY).map(mebibytes).transpose()?);
    let limits = env.spoken(LIMIT).map(limit).collect::<Result<Vec<_>, _>>()?;
    let mut terms = Terms::new(said);
    if let (Some(limit), Some(last)) = (env.any(LIMIT), requested.last())
        && limits.iter().all(|limit| may_exceed(*limit, *last))
    {
        terms.warnings.push(unused(request, limit));
    }
    terms.memory_said = Some(env.any(LIMIT).unwrap_or(request).into());
    terms.memory = PerCard::same(if limits.is_empty() { requested } else { limits });
    let count = annotation(CARDS).map(|count| count.integer(1, MAX_CARDS)).transpose()?;
    let count = count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1);
    let by_annotation = by_annotation.is_some();
    Ok(Foreign { dialect: Dialect::Kai, terms, cards: ForeignCards::Counted(count), by_annotation })
}

/// The variables that say a part of each card.
fn portions<'a>(env: &Statements<'a>) -> impl Iterator<Item = Statement<'a>> + use<'a> {
    let is_part = |statement: &Statement<'_>| {
        // A whole number is a number of whole cards. What is neither is refused.
        let value = statement.value.trim();
        let is_less = |portion: Portion| portion.numerator < portion.denominator;
        !value.bytes().all(|byte| byte.is_ascii_digit()) && Portion::read(value).is_none_or(is_less)
    };
    env.spoken(PORTION).chain(env.spoken(NUMBER).filter(is_part))
}

/// The pod's annotation under a key, where it is for this container.
fn own<'a>(env: &Statements<'a>, annotations: &Statements<'a>, key: &str) -> Option<Statement<'a>> {
    annotations.all(key).next().filter(|_| are_for_this_container(env, annotations))
}

/// Returns whether the pod's annotations are for this container. They do not say so by themselves:
/// the share is the first container's, and a container does not know its place in the pod.
fn are_for_this_container(env: &Statements<'_>, annotations: &Statements<'_>) -> bool {
    if let Some(named) = annotations.any(CONTAINER) {
        return nvidia_fractions::container_name(annotations).is_none_or(|own| own == named.value.trim());
    }
    if portions(env).next().is_some() {
        return true;
    }
    let is_scheduled = annotations.all(SCHEDULED).next().is_some();
    nvidia_fractions::means_this_container(annotations).unwrap_or(!is_scheduled)
}

fn portion(statement: Statement<'_>) -> Result<MemoryLimit, RequestError> {
    statement.portion().map(ratio)
}

fn ratio(Portion { numerator, denominator }: Portion) -> MemoryLimit {
    MemoryLimit::Ratio { numerator, denominator, reserved: Bytes(0) }
}

fn mebibytes(statement: Statement<'_>) -> Result<MemoryLimit, RequestError> {
    let accepted = "a whole number of MiB above 0, such as 4096";
    let amount = Bytes::from_mib(statement.amount(1, accepted)?);
    amount.map(MemoryLimit::bytes).ok_or_else(|| RequestError::invalid(statement, accepted))
}

/// A part of the card, as for `gpu-fraction`, or a quantity, as for `gpu-memory`.
fn limit(statement: Statement<'_>) -> Result<MemoryLimit, RequestError> {
    if let Some(portion) = Portion::read(statement.value.trim()) {
        return Ok(ratio(portion));
    }
    let accepted = "a part of a card such as 0.5, or a quantity of at least 1Mi such as 8Gi";
    let amount = nvidia_fractions::quantity(statement);
    amount.map(MemoryLimit::bytes).map_err(|_| RequestError::invalid(statement, accepted))
}

/// Returns whether `limit` may be more than `request`, whatever the card.
fn may_exceed(limit: MemoryLimit, request: MemoryLimit) -> bool {
    match (limit, request) {
        (MemoryLimit::Bytes { amount: limit, .. }, MemoryLimit::Bytes { amount: request, .. }) => limit > request,
        (
            MemoryLimit::Ratio { numerator: limit, denominator: of_limit, .. },
            MemoryLimit::Ratio { numerator: request, denominator: of_request, .. },
        ) => u128::from(limit) * u128::from(of_request) > u128::from(request) * u128::from(of_limit),
        _ => true,
    }
}
