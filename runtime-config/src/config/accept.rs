//! Kinds of values: a function for each, which a field of [`Config`](super::Config) names in
//! `deserialize_with`, says what is accepted and reads it.
//!
//! The text of an error is what is accepted, and nothing else: [`Document`](super::Document) adds
//! the file, the line, the key and the value.

use std::{fmt::Display, path::PathBuf, time::Duration};

use base::{CardPolicies, CardPolicy, ComputeShare, MAX_PERIOD_US, MIN_PERIOD_US, Period};
use jiff::SignedDuration;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, IntoDeserializer},
};

use super::{AdmissionWait, MemoryScaling};
use crate::{
    driver_capabilities::DriverCapabilities,
    memory_limit::MemoryLimit,
    units::{Bytes, Percent},
};

/// The accepted names of a simulated card.
pub(super) const MODEL: &str = "1 to 96 printable characters";
/// The accepted sizes of a simulated card's memory.
pub(super) const CARD_MEMORY: &str = "whole KiB from 64MiB to 1024GiB, such as \"32768MiB\"";
/// Characters of the beginning of a UUID. It has 36 after `GPU-`; the last 12 number the card.
const MAX_UUID_PREFIX: usize = 27;

/// Says which whole numbers are accepted.
pub(super) fn whole_numbers(least: i64, most: i64) -> String {
    format!("a whole number from {least} to {most}")
}

pub(super) fn whole<'de, const LEAST: i64, const MOST: i64, T: TryFrom<i64>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = i64::deserialize(deserializer).ok().filter(|value| (LEAST..=MOST).contains(value));
    value.and_then(|value| value.try_into().ok()).ok_or_else(|| D::Error::custom(whole_numbers(LEAST, MOST)))
}

/// Accepts a number; its range is in hundredths, as a generic parameter cannot be a fraction.
pub(super) fn hundredths<'de, const LEAST: u32, const MOST: u32, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<f64, D::Error> {
    let (least, most) = (f64::from(LEAST) / 100.0, f64::from(MOST) / 100.0);
    let value = f64::deserialize(deserializer).ok().filter(|value| (least..=most).contains(value));
    value.ok_or_else(|| D::Error::custom(format_args!("a number from {least:?} to {most:?}")))
}

pub(super) fn memory_scaling<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MemoryScaling, D::Error> {
    let factor = f64::deserialize(deserializer).ok().and_then(MemoryScaling::new);
    factor.ok_or_else(|| D::Error::custom("a number from 1.0 to 16.0"))
}

/// Accepts what `read` makes something of.
fn text<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    accepted: impl Display,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    read(&text).ok_or_else(|| D::Error::custom(accepted))
}

/// Accepts the names of an enum's variants, as serde has them.
pub(super) fn name<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    T::deserialize(text.as_str().into_deserializer()).map_err(|NotAName(accepted)| D::Error::custom(accepted))
}

/// Text that names no variant of an enum, with the list of those that there are.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotAName(String);

impl Error for NotAName {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }

    fn unknown_variant(_: &str, names: &'static [&'static str]) -> Self {
        let mut quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let last = quoted.pop().unwrap_or_default();
        Self(format!("{} or {last}", quoted.join(", ")))
    }
}

/// Accepts `"1s"`, `"500ms"`, `"1m 30s"`.
pub(super) fn time_ms<'de, const LEAST: u64, const MOST: u64, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let (least, most) = (Duration::from_millis(LEAST), Duration::from_millis(MOST));
    let shown = |limit: Duration| SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
    let accepted = format_args!("a time from \"{:#}\" to \"{:#}\", such as \"500ms\"", shown(least), shown(most));
    text(deserializer, accepted, |text| duration(text).filter(|time| (least..=most).contains(time)))
}

fn duration(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok().and_then(|parsed| Duration::try_from(parsed).ok())
}

pub(super) fn period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
    let accepted = "\"auto\", or a time from \"20ms\" to \"500ms\", such as \"100ms\"";
    text(deserializer, accepted, |text| match text {
        "auto" => Some(Period::Auto),
        time => {
            let us = u64::try_from(duration(time)?.as_micros()).ok();
            us.filter(|us| (MIN_PERIOD_US..=MAX_PERIOD_US).contains(us)).map(Period::Us)
        }
    })
}

pub(super) fn admission_wait<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AdmissionWait, D::Error> {
    text(deserializer, "\"leaving\", or a time from \"0s\" to \"100s\"", |text| match text {
        "leaving" => Some(AdmissionWait::Leaving),
        time => duration(time).filter(|time| *time <= AdmissionWait::LONGEST).map(AdmissionWait::AnyTenant),
    })
}

pub(super) fn absolute_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    text(deserializer, "an absolute path", |text| {
        Some(PathBuf::from(text)).filter(|path| path.is_absolute() && !text.contains('\0'))
    })
}

pub(super) fn group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let is_accepted = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-$".contains(&byte);
    text(deserializer, "a group's name or number, or \"\"", |text| {
        text.bytes().all(is_accepted).then(|| text.to_owned())
    })
}

pub(super) fn capabilities<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DriverCapabilities, D::Error> {
    let all = DriverCapabilities::all();
    text(deserializer, format_args!("a comma-separated list of {}", all.names()), |text| {
        DriverCapabilities::parse_list(text, all).ok()
    })
}

pub(super) fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CardPolicy, D::Error> {
    text(deserializer, format_args!("one of {}", CardPolicy::names()), CardPolicy::named)
}

pub(super) fn policies<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CardPolicies, D::Error> {
    text(deserializer, format_args!("a comma-separated list of {}", CardPolicy::names()), CardPolicies::parse_list)
}

pub(super) fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MemoryLimit, D::Error> {
    text(deserializer, "\"6GiB\" or \"40%\"", |text| text.parse().ok())
}

pub(super) fn compute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ComputeShare, D::Error> {
    text(deserializer, "\"1%\" to \"100%\", or \"none\"", |text| match text {
        "none" => Some(ComputeShare::Unlimited),
        percent => percent.parse().ok().map(|percent| ComputeShare::Cap { percent, lifted_when_alone: false }),
    })
}

pub(super) fn amount_or_no_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    text(deserializer, "an amount such as \"5000MiB\", or \"0\"", |text| match text {
        "0" => Some(None),
        amount => amount.parse().ok().filter(|amount: &Bytes| amount.floor_to_kib().0 > 0).map(Some),
    })
}

pub(super) fn percent_or_no_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Percent>, D::Error> {
    whole::<0, 100, u8, _>(deserializer).map(Percent::new)
}

pub(super) fn model<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    text(deserializer, MODEL, |text| {
        let is_printable = (1..=96).contains(&text.len()) && !text.chars().any(char::is_control);
        is_printable.then(|| text.to_owned())
    })
}

pub(super) fn card_memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let range = Bytes(64 * Bytes::MIB)..=Bytes(1024 * Bytes::GIB);
    text(deserializer, CARD_MEMORY, |text| {
        text.parse().ok().filter(|memory: &Bytes| range.contains(memory) && memory.floor_to_kib() == *memory)
    })
}

pub(super) fn uuid_prefix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let accepted = format_args!("GPU- and hexadecimal digits and dashes, at most {MAX_UUID_PREFIX} characters");
    text(deserializer, accepted, |text| {
        let digits = text.strip_prefix("GPU-").filter(|digits| !digits.is_empty() && text.len() <= MAX_UUID_PREFIX)?;
        digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-').then(|| Some(text.to_owned()))
    })
}

pub(super) fn numa_node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    whole::<0, 1023, u32, _>(deserializer).map(Some)
}
