//! Alibaba eGPU: `AMP_VGPU_ENABLE=1`, bytes or a ratio per card, a percentage of its time.
//!
//! Over its memory a process is ended, after the script if there is one.

use super::{Foreign, ForeignCards, Names};
use crate::{
    request::{
        ComputeShare, Dialect, MemoryLimit, OverMemory, PerCard, RequestError,
        statements::{Statement, Statements},
        terms::Terms,
    },
    units::{Bytes, Percent},
};

const SWITCH: &str = "AMP_VGPU_ENABLE";
const BYTES: &str = "GPU_MEM_PER_DEVICE";
const RESERVED: &str = "ALIYUN_COM_GPU_MEM_RESERVED";
pub(super) const CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
pub(super) const DEVICE: &str = "ALIYUN_COM_GPU_MEM_DEV";
const UTILIZATION: &str = "GPU_UTIL_PER_DEVICE";
const SCRIPT: &str = "ALIYUN_COM_GPU_OOM_SCRIPT";
pub(super) const NAMES: Names =
    Names { variables: &["AMP_", "ALIYUN_COM_GPU_", BYTES, UTILIZATION], is_annotation: |_, _| false };
/// Taken off unless [`RESERVED`] says otherwise, in MiB.
const DEFAULT_RESERVED_MIB: u64 = 10;
/// Largest percentage with compute control.
const MOST_CONTROLLED_PERCENT: u64 = 95;

/// The switch, where it is on.
pub(super) fn selected_by<'a>(env: &Statements<'a>) -> Result<Option<Statement<'a>>, RequestError> {
    match env.one(SWITCH)? {
        Some(statement) => match statement.value.trim() {
            "1" => Ok(Some(statement)),
            "0" => Ok(None),
            _ => Err(RequestError::invalid(statement, "1, or 0 for off")),
        },
        None => Ok(None),
    }
}

/// Variables that mean something only with the switch: said for the log when it is off.
pub(in crate::request) fn without_switch(env: &Statements<'_>) -> Vec<String> {
    let names = [BYTES, UTILIZATION, RESERVED, SCRIPT];
    let ignored = names.into_iter().filter(|name| env.any(name).is_some());
    ignored.map(|name| format!("{name} is ignored: it has a meaning only with {SWITCH}=1")).collect()
}

pub(super) fn parse(switch: Statement<'_>, env: &Statements<'_>) -> Result<Foreign, RequestError> {
    for name in super::alibaba_cgpu::OWN {
        if let Some(statement) = env.any(name) {
            let reason = format!("{name} belongs to cGPU, {SWITCH}=1 selects eGPU; take one of them away");
            return Err(RequestError::contradiction(switch, statement, reason));
        }
    }
    let mut terms = Terms::new(switch);
    if let Some((limits, said)) = memory(env)? {
        terms.memory = PerCard::same(limits);
        terms.memory_said = Some(said.into());
    }
    let compute = env.joined(UTILIZATION, utilization, |one, other| {
        // Only caps and their absence occur, so that the two can be compared.
        one.tighter(other).unwrap_or(one)
    })?;
    terms.compute = PerCard::same(compute.unwrap_or(ComputeShare::Unlimited));
    terms.compute_said = env.any(UTILIZATION).map(Into::into);
    terms.over_memory = OverMemory::Kill;
    if let Some(script) = env.one(SCRIPT)? {
        terms.oom_script = Some((script.absolute_path()?.into(), script.into()));
    }
    Ok(Foreign { dialect: Dialect::AlibabaEgpu, terms, cards: ForeignCards::Visible, by_annotation: false })
}

fn utilization(statement: Statement<'_>) -> Result<ComputeShare, RequestError> {
    let percent = statement.amount(0, "a whole number of percent, such as 50; 0 and above 95: no limit")?;
    if percent > MOST_CONTROLLED_PERCENT {
        return Ok(ComputeShare::Unlimited);
    }
    Ok(match u8::try_from(percent).ok().and_then(Percent::new) {
        Some(percent) => ComputeShare::Cap { percent, lifted_when_alone: false },
        None => ComputeShare::Unlimited,
    })
}

fn memory<'a>(env: &Statements<'a>) -> Result<Option<(Vec<MemoryLimit>, Statement<'a>)>, RequestError> {
    let reserved = env.joined(RESERVED, mebibytes, Ord::max)?;
    let reserved = reserved.unwrap_or(Bytes(DEFAULT_RESERVED_MIB * Bytes::MIB));
    let ratio = ratio(env, reserved)?;
    let Some(bytes) = env.any(BYTES) else { return Ok(ratio) };
    if let Some((_, said)) = ratio {
        let reason = "memory is given in bytes or as a ratio, not both";
        return Err(RequestError::contradiction(bytes, said, reason));
    }
    let limit = |statement: Statement<'a>| {
        let amount = Bytes(statement.amount(1, "a whole number of bytes above 0, such as 2147483648")?);
        let limit = MemoryLimit::Bytes { amount, reserved };
        // What the card has does not matter to an amount in bytes.
        if limit.resolve(amount).is_none() {
            let accepted =
                format!("more bytes than the {reserved} that {RESERVED} takes off (default {DEFAULT_RESERVED_MIB}MiB)");
            return Err(RequestError::invalid(statement, accepted));
        }
        Ok(vec![limit])
    };
    let limits = env.joined(BYTES, limit, |one, other| [one, other].concat())?.unwrap_or_default();
    Ok(Some((limits, bytes)))
}

fn mebibytes(statement: Statement<'_>) -> Result<Bytes, RequestError> {
    let count = statement.amount(0, "a whole number of MiB, such as 10")?;
    Bytes::from_mib(count).ok_or_else(|| RequestError::invalid(statement, "a number of MB below 2^44"))
}

fn ratio<'a>(env: &Statements<'a>, reserved: Bytes) -> Result<Option<(Vec<MemoryLimit>, Statement<'a>)>, RequestError> {
    let (container, device) = (env.one(CONTAINER)?, env.one(DEVICE)?);
    let Some(container) = container else {
        return match device {
            None => Ok(None),
            Some(device) => Err(RequestError::invalid(
                device,
                format!("accompanied by {CONTAINER}, how much of it the container gets"),
            )),
        };
    };
    let numerator = container.amount(1, "a whole number above 0")?;
    let Some(device) = device else {
        return Ok(Some((vec![MemoryLimit::OfCardInGib { numerator, reserved }], container)));
    };
    let denominator = device.amount(1, "a whole number above 0")?;
    if numerator > denominator {
        return Err(RequestError::invalid(container, format!("at most {DEVICE}, which is {denominator}")));
    }
    Ok(Some((vec![MemoryLimit::Ratio { numerator, denominator, reserved }], container)))
}
