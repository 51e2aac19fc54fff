//! Parsers of values on the command line, whose errors say what is accepted.

use std::{net::SocketAddr, time::Duration};

use base::RefusalCode;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::{SignedDuration, Timestamp};
use runtime_config::{
    Percent, Weight,
    config::{MAX_PERIOD_US, MIN_PERIOD_US, Period},
    request::{CardPolicy, ComputeShare, MemoryLimit, PerCard, Priority},
};

/// The shortest interval between two frames.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn duration(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok().and_then(|parsed| Duration::try_from(parsed).ok())
}

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let parsed = duration(text).filter(|parsed| *parsed >= MIN_INTERVAL);
    parsed.ok_or_else(|| "a time of 100ms or more is accepted, such as 2s".to_owned())
}

/// Parses an instant, or the time since it.
pub(super) fn since(text: &str) -> Result<Timestamp, String> {
    let ago = || Timestamp::now().checked_sub(SignedDuration::try_from(duration(text)?).ok()?).ok();
    let instant = text.parse().ok().or_else(ago);
    instant.ok_or_else(|| "a time ago is accepted, such as 10m, or an instant, 2026-01-31T12:00:00Z".to_owned())
}

/// Parses the period of a card.
pub(super) fn period(text: &str) -> Result<Period, String> {
    if text == "auto" {
        return Ok(Period::Auto);
    }
    let micros = duration(text).and_then(|parsed| u64::try_from(parsed.as_micros()).ok());
    let parsed = micros.filter(|us| (MIN_PERIOD_US..=MAX_PERIOD_US).contains(us));
    let parsed = parsed.map(Period::Us);
    parsed.ok_or_else(|| "auto is accepted, or a time from 20ms to 500ms, such as 50ms".to_owned())
}

/// Parses an address to serve at.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    // As other exporters take them.
    let text = match text.split_once(':') {
        Some(("", port)) => format!("0.0.0.0:{port}"),
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    text.parse().map_err(|_| {
        "an IP address and a port are accepted, such as 127.0.0.1:9402, or :9402 for all addresses".to_owned()
    })
}

/// Parses a number of frames.
pub(super) fn repetitions(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "a whole number above 0 is accepted".to_owned())
}

pub(super) fn memory(text: &str) -> Result<PerCard<MemoryLimit>, String> {
    per_card(text, |item| item.parse().ok())
        .ok_or_else(|| "an amount is accepted, such as 6GiB (or MiB, KiB, B), a percentage up to 100%, such as 40%, or one for each card: 3GiB,4GiB".to_owned())
}

pub(super) fn compute(text: &str) -> Result<PerCard<ComputeShare>, String> {
    let share = |item: &str| match item {
        "none" => Some(ComputeShare::Unlimited),
        item => {
            let percent: Percent = item.parse().ok()?;
            Some(ComputeShare::Cap { percent, lifted_when_alone: false })
        }
    };
    per_card(text, share).ok_or_else(|| "1% to 100% or `none` is accepted, or one for each card: 30%,50%".to_owned())
}

pub(super) fn weight(text: &str) -> Result<PerCard<ComputeShare>, String> {
    let share = |item: &str| item.parse().ok().and_then(Weight::new).map(ComputeShare::Weight);
    per_card(text, share).ok_or_else(|| "1 to 1000 is accepted, or one for each card: 1,2".to_owned())
}

pub(super) fn priority(text: &str) -> Result<Priority, String> {
    match text {
        "high" => Ok(Priority::High),
        "low" => Ok(Priority::Low),
        _ => Err("high or low is accepted".to_owned()),
    }
}

pub(super) fn policy(text: &str) -> Result<CardPolicy, String> {
    CardPolicy::named(text).ok_or_else(|| format!("one of {} is accepted", CardPolicy::names()))
}

/// Parses the name of a policy; completions know them all.
pub(super) fn policy_parser() -> impl TypedValueParser<Value = CardPolicy> {
    PossibleValuesParser::new(CardPolicy::NAMES).try_map(|name| policy(&name))
}

/// Parses the code of a refusal; completions know them all.
pub(super) fn refusal_code() -> impl TypedValueParser<Value = RefusalCode> {
    PossibleValuesParser::new(RefusalCode::ALL.iter().map(|code| code.name()))
        .try_map(|name| RefusalCode::named(&name).ok_or("`egpu explain` lists the codes"))
}

/// Parses one value for all cards, or a list.
fn per_card<T>(text: &str, read: impl Fn(&str) -> Option<T>) -> Option<PerCard<T>> {
    if !text.contains(',') {
        return read(text.trim()).map(PerCard::same);
    }
    let listed: Option<Vec<T>> = text.split(',').map(|item| read(item.trim())).collect();
    listed.map(PerCard::exactly)
}

#[cfg(test)]
mod tests {
    use runtime_config::Bytes;

    use super::*;

    #[test]
    fn one_value_or_one_for_each_card() {
        let gib = |count| MemoryLimit::bytes(Bytes(count * Bytes::GIB));
        assert_eq!(memory("6GiB"), Ok(PerCard::same(gib(6))));
        assert_eq!(memory("3GiB, 4GiB"), Ok(PerCard::exactly(vec![gib(3), gib(4)])));
        let cap = |percent| ComputeShare::Cap { percent: Percent::new(percent).unwrap(), lifted_when_alone: false };
        assert_eq!(compute("30%"), Ok(PerCard::same(cap(30))));
        assert_eq!(compute("none"), Ok(PerCard::same(ComputeShare::Unlimited)));
        assert_eq!(compute("30%,none"), Ok(PerCard::exactly(vec![cap(30), ComputeShare::Unlimited])));
        assert_eq!(weight("2"), Ok(PerCard::same(ComputeShare::Weight(Weight::new(2).unwrap()))));
        for wrong in ["", ",", "0GiB", "6", "101%", "3GiB,", "-1GiB"] {
            assert!(memory(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["", "0%", "101%", "no", "30%,"] {
            assert!(compute(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["", "0", "1001", "2%", "-1"] {
            assert!(weight(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn times_have_their_ranges() {
        assert_eq!(period("50ms"), Ok(Period::Us(50_000)));
        assert_eq!(period("auto"), Ok(Period::Auto));
        for (text, expected) in
            [(":9402", "0.0.0.0:9402"), ("localhost:9402", "127.0.0.1:9402"), ("[::1]:80", "[::1]:80")]
        {
            assert_eq!(address(text).map(|address| address.to_string()), Ok(expected.to_owned()));
        }
        assert!(address("localhost").is_err() && address("host:9402").is_err());
        for wrong in ["", "50", "19ms", "501ms", "-50ms", "1h"] {
            assert!(period(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(interval("2s"), Ok(Duration::from_secs(2)));
        assert!(interval("99ms").is_err());
    }

    #[test]
    fn names_are_the_configurations() {
        assert_eq!(policy("soft"), Ok(CardPolicy::Soft));
        assert!(policy("Soft").unwrap_err().contains("fair, preemptive"));
        assert_eq!(priority("low"), Ok(Priority::Low));
        assert!(priority("0").is_err());
    }
}
