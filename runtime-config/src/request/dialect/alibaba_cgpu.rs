//! Alibaba cGPU: `ALIYUN_COM_GPU_*` without eGPU's switch. Memory as a ratio per card, compute in
//! slices of the card.

use super::{
    Foreign, ForeignCards, Names,
    alibaba_egpu::{CONTAINER, DEVICE},
    takes_limits_off,
};
use crate::{
    config::Config,
    request::{
        CardPolicy, ComputeShare, Dialect, Isolation, MemoryLimit, PerCard, RequestError,
        selector::DeviceList,
        statements::{Statement, Statements},
        terms::Terms,
    },
    units::{Bytes, Weight},
};

const WEIGHT: &str = "ALIYUN_COM_GPU_SCHD_WEIGHT";
const DEVICES: &str = "ALIYUN_COM_GPU_VISIBLE_DEVICES";
const DISABLE: &str = "CGPU_DISABLE";
/// Variables that eGPU does not know.
pub(super) const OWN: &[&str] = &[WEIGHT, DEVICES];
pub(super) const NAMES: Names = Names { variables: &["ALIYUN_COM_GPU_", DISABLE], is_annotation: |_, _| false };
/// The vendor's most slices for one container, whatever `max_inst` is.
const MOST_SLICES: u16 = 16;

/// The first variable of this language that is set.
pub(super) fn selected_by<'a>(env: &Statements<'a>) -> Result<Option<Statement<'a>>, RequestError> {
    if let Some(statement) = [CONTAINER, DEVICE, WEIGHT, DEVICES].into_iter().find_map(|name| env.any(name)) {
        return Ok(Some(statement));
    }
    for statement in env.spoken(DISABLE) {
        if statement.boolean()? {
            return Ok(Some(statement));
        }
    }
    Ok(None)
}

pub(super) fn parse(said: Statement<'_>, env: &Statements<'_>, config: &Config) -> Result<Foreign, RequestError> {
    let mut terms = Terms::new(said);
    if let Some((memory, said)) = memory(env)? {
        terms.memory = memory;
        terms.memory_said = Some(said.into());
    }
    if takes_limits_off(DISABLE, env, config)? {
        terms.isolation = Some(Isolation::None);
    }
    let most = config.max_inst.min(MOST_SLICES);
    let weight = env.joined(WEIGHT, |statement| slices(statement, most), Ord::min)?;
    if let Some(weight) = weight {
        terms.compute = PerCard::same(ComputeShare::Weight(weight));
        terms.compute_said = env.any(WEIGHT).map(Into::into);
        if weight > Weight::ONE {
            terms.policy_of_weights = Some(CardPolicy::Weighted);
        }
    }
    let cards = match env.one(DEVICES)? {
        None => ForeignCards::Visible,
        Some(devices) => match devices.value.parse() {
            Ok(DeviceList::Devices(shared)) => ForeignCards::Shared(shared, devices.into()),
            Ok(DeviceList::All) => ForeignCards::Visible,
            Ok(DeviceList::Void | DeviceList::None) | Err(_) => {
                return Err(RequestError::invalid(devices, "the shared cards, such as 0,1, or all"));
            }
        },
    };
    Ok(Foreign { dialect: Dialect::AlibabaCgpu, terms, cards, by_annotation: false })
}

fn slices(statement: Statement<'_>, most: u16) -> Result<Weight, RequestError> {
    let count = statement.integer(1, most.into())?;
    u16::try_from(count)
        .ok()
        .and_then(Weight::new)
        .ok_or_else(|| RequestError::invalid(statement, format!("a whole number from 1 to {most}")))
}

/// Limits card by card, and what set them.
type Memory<'a> = (PerCard<Vec<MemoryLimit>>, Statement<'a>);

/// `None`: the quota is disabled, the card's whole memory counts.
fn memory<'a>(env: &Statements<'a>) -> Result<Option<Memory<'a>>, RequestError> {
    let device = env.one(DEVICE)?;
    let denominator = device.map(|device| device.amount(1, "a whole number above 0")).transpose()?;
    let Some(container) = env.one(CONTAINER)? else { return Ok(None) };
    let accepted =
        "whole numbers separated by commas, one for each card; zeros only at the end, where they switch the quota off";
    let number =
        |item: &str| if item.bytes().all(|byte| byte.is_ascii_digit()) { item.parse::<u64>().ok() } else { None };
    let shares = container.list(number, accepted)?;
    if let Some(zero) = shares.iter().position(|share| *share == 0) {
        return if shares.iter().skip(zero).all(|share| *share == 0) {
            Ok(None)
        } else {
            Err(RequestError::invalid(container, accepted))
        };
    }
    let reserved = Bytes(0);
    let limits = shares.into_iter().map(|numerator| match denominator {
        None => Ok(vec![MemoryLimit::OfCardInGib { numerator, reserved }]),
        Some(denominator) if numerator <= denominator => {
            Ok(vec![MemoryLimit::Ratio { numerator, denominator, reserved }])
        }
        Some(denominator) => Err(RequestError::invalid(container, format!("at most {DEVICE}, which is {denominator}"))),
    });
    let mut limits = limits.collect::<Result<Vec<_>, _>>()?;
    let memory = match (limits.pop(), limits.is_empty()) {
        (Some(only), true) => PerCard::same(only),
        (Some(last), false) => {
            limits.push(last.clone());
            PerCard::listed_then(limits, last)
        }
        (None, _) => return Ok(None),
    };
    Ok(Some((memory, container)))
}
