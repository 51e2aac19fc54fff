//! NVIDIA's fractions of cards: `NVIDIA_GPU_MEMORY_LIMIT` and `NVIDIA_GPU_MEMORY_REQUEST`, which
//! NVIDIA's container toolkit reads, and the pod's annotations `nvidia.com/container.NAME.*`, of
//! which its node agent makes them.

use kubernetes_api::Quantity;

use super::{Foreign, ForeignCards, Names, unused};
use crate::{
    request::{
        ComputeShare, Dialect, MemoryLimit, PerCard, RequestError,
        selector::DeviceList,
        statements::{Statement, Statements},
        terms::Terms,
    },
    units::{Bytes, Percent},
};

const LIMIT: &str = "NVIDIA_GPU_MEMORY_LIMIT";
const REQUEST: &str = "NVIDIA_GPU_MEMORY_REQUEST";
/// The container's name and one of the keys below follow.
const ANNOTATIONS: &str = "nvidia.com/container.";
const MEMORY_LIMIT: &str = "gpu-memory.limit";
const MEMORY_REQUEST: &str = "gpu-memory.request";
const COMPUTE_PORTION: &str = "gpu-compute.portion";
const COMPUTE_MODE: &str = "gpu-compute.mode";
/// The scheduler's choice of cards.
const DEVICES: &str = "gpus.devices";
const KEYS: &[&str] = &[MEMORY_LIMIT, MEMORY_REQUEST, COMPUTE_PORTION, COMPUTE_MODE, DEVICES];
pub(super) const NAMES: Names = Names { variables: &["NVIDIA_GPU_MEMORY_"], is_annotation: is_own };
/// The container's name in its pod; containerd writes it.
const CONTAINER_NAME: &str = "io.kubernetes.cri.container-name";

/// The first statement of this language that asks for a share.
pub(super) fn selected_by<'a>(env: &Statements<'a>, annotations: &Statements<'a>) -> Option<Statement<'a>> {
    let annotated = || [MEMORY_LIMIT, MEMORY_REQUEST, COMPUTE_PORTION].iter().find_map(|key| own(annotations, key));
    annotated().or_else(|| env.any(LIMIT)).or_else(|| env.any(REQUEST))
}

pub(super) fn parse(
    said: Statement<'_>,
    env: &Statements<'_>,
    annotations: &Statements<'_>,
) -> Result<Foreign, RequestError> {
    let mut terms = Terms::new(said);
    let annotated = |key| own(annotations, key).into_iter().collect();
    let of_pod = memory((annotated(MEMORY_LIMIT), annotated(MEMORY_REQUEST)), quantity, &mut terms)?;
    let variables = (env.spoken(LIMIT).collect(), env.spoken(REQUEST).collect());
    let of_container = memory(variables, mebibytes, &mut terms)?;
    // Of both, the tighter: the agent writes the variables from the annotations.
    let limits = of_pod.iter().chain(&of_container).map(|(amount, _)| MemoryLimit::bytes(*amount));
    terms.memory = PerCard::same(limits.collect());
    terms.memory_said = of_pod.or(of_container).map(|(_, said)| said.into());
    if let Some(portion) = own(annotations, COMPUTE_PORTION) {
        terms.compute = PerCard::same(cap(portion)?);
        terms.compute_said = Some(portion.into());
    }
    if let Some(mode) = own(annotations, COMPUTE_MODE)
        && mode.word(&[("time-slicing", false), ("sm-sharing", true)])?
    {
        terms.warnings.push(format!("{}: containers take turns on a card all the same", super::AsWritten::from(mode)));
    }
    let cards = match own(annotations, DEVICES).filter(|devices| !devices.value.trim().is_empty()) {
        None => ForeignCards::Counted(1),
        Some(devices) => match devices.value.parse() {
            Ok(DeviceList::Devices(listed)) => ForeignCards::Listed(listed, devices.into()),
            Ok(_) | Err(_) => return Err(RequestError::invalid(devices, "a list of cards, such as GPU-...,GPU-...")),
        },
    };
    let by_annotation = said.name.starts_with(ANNOTATIONS);
    Ok(Foreign { dialect: Dialect::NvidiaFractions, terms, cards, by_annotation })
}

/// The annotation of this very container under a key.
fn own<'a>(annotations: &Statements<'a>, key: &str) -> Option<Statement<'a>> {
    let container = container_name(annotations)?;
    annotations.all(&format!("{ANNOTATIONS}{container}.{key}")).next()
}

/// Returns whether an annotation is one of this very container.
fn is_own(name: &str, annotations: &Statements<'_>) -> bool {
    let rest = name.strip_prefix(ANNOTATIONS);
    let key = rest.zip(container_name(annotations)).and_then(|(rest, own)| rest.strip_prefix(own)?.strip_prefix('.'));
    key.is_some_and(|key| KEYS.contains(&key))
}

/// The container's name in its pod.
pub(super) fn container_name<'a>(annotations: &Statements<'a>) -> Option<&'a str> {
    annotations.any(CONTAINER_NAME).map(|statement| statement.value)
}

/// Returns whether annotations give a share to this container (`Some(true)`) or to another one of
/// its pod; `None`: to none.
pub(super) fn means_this_container(annotations: &Statements<'_>) -> Option<bool> {
    let is_known = |rest: &str| KEYS.iter().any(|key| rest.strip_suffix(key).is_some_and(|name| name.ends_with('.')));
    let mut names = annotations.with_prefix(ANNOTATIONS).filter(|(_, rest)| is_known(rest)).map(|(name, _)| name);
    let first = names.next()?;
    Some(is_own(first, annotations) || names.any(|name| is_own(name, annotations)))
}

/// The amount that is held, and the statement of it: the limit, or a request without one.
type Held<'a> = Option<(Bytes, Statement<'a>)>;

/// Reads limits and requests of one source. Of several of a kind the least counts.
fn memory<'a>(
    (limits, requests): (Vec<Statement<'a>>, Vec<Statement<'a>>),
    read: impl Fn(Statement<'a>) -> Result<Bytes, RequestError>,
    terms: &mut Terms,
) -> Result<Held<'a>, RequestError> {
    let least = |statements: Vec<Statement<'a>>| -> Result<Held<'a>, RequestError> {
        let amounts = statements.into_iter().map(|statement| Ok((read(statement)?, statement)));
        Ok(amounts.collect::<Result<Vec<_>, RequestError>>()?.into_iter().min_by_key(|(amount, _)| *amount))
    };
    let (limit, request) = (least(limits)?, least(requests)?);
    if let (Some((limit, limit_said)), Some((request, request_said))) = (limit, request) {
        if request > limit {
            return Err(RequestError::contradiction(request_said, limit_said, "a request is at most its limit"));
        }
        if request < limit {
            terms.warnings.push(unused(request_said, limit_said));
        }
    }
    Ok(limit.or(request))
}

fn mebibytes(statement: Statement<'_>) -> Result<Bytes, RequestError> {
    let accepted = "a whole number of MiB above 0, such as 4096";
    let amount = Bytes::from_mib(statement.amount(1, accepted)?);
    amount.ok_or_else(|| RequestError::invalid(statement, accepted))
}

/// One of Kubernetes' quantities, rounded up to whole MiB as the node agent does.
pub(super) fn quantity(statement: Statement<'_>) -> Result<Bytes, RequestError> {
    let amount = Quantity::rounded_up(statement.value.trim()).ok().filter(|amount| amount.0 >= Bytes::MIB);
    let amount = amount.and_then(|amount| Bytes::from_mib(amount.0.div_ceil(Bytes::MIB)));
    amount.ok_or_else(|| RequestError::invalid(statement, "a quantity of at least 1Mi, such as 8Gi"))
}

/// The nearest whole percent, but 1 at the least; all of the card is no cap.
fn cap(statement: Statement<'_>) -> Result<ComputeShare, RequestError> {
    let portion = statement.portion()?;
    let percent = (portion.numerator * 100 + portion.denominator / 2) / portion.denominator;
    let percent = u8::try_from(percent.max(1)).ok().filter(|percent| *percent < 100).and_then(Percent::new);
    Ok(percent.map_or(ComputeShare::Unlimited, |percent| ComputeShare::Cap { percent, lifted_when_alone: false }))
}
