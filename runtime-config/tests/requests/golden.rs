//! The parts that the tables are made of.

use std::fmt::Write;

use runtime_config::{
    Config,
    request::{
        CardRequest, ComputeShare, ContainerRequest, GpuRequest, Isolation, MemoryLimit, OverMemory, PerCard,
        Placement, Priority, Share, Source, parse,
    },
};

/// A container that says `said`: names with a `/` and those that begin with `io.` or `gpu-` are
/// annotations, all others variables.
pub(crate) fn source(said: &[&str]) -> Source {
    let mut source = Source::default();
    for statement in said {
        match statement.split_once('=') {
            Some((name, value)) if name.contains('/') || name.starts_with("io.") || name.starts_with("gpu-") => {
                source.annotations.insert(name.to_owned(), value.to_owned());
            }
            _ => source.env.push((*statement).to_owned()),
        }
    }
    source
}

/// A configuration that differs from the defaults.
pub(crate) fn config(text: &str) -> Config {
    Config::from_toml(text, "test").unwrap()
}

/// Outcome of parsing `source`: `summary` of a request, `nothing`, or `refused: ` and the message.
pub(crate) fn outcome(source: &Source, config: &Config) -> String {
    match parse(source, config) {
        Ok(ContainerRequest::Gpu(request)) => summary(&request),
        Ok(ContainerRequest::None { .. }) => "nothing".to_owned(),
        Ok(other) => panic!("{other:?}: no claims in these tables"),
        Err(error) => format!("refused: {error}"),
    }
}

/// Checks a table. An expectation that begins with `refused: ` may stop early.
pub(crate) fn check(config: &Config, table: &[(&[&str], &str)]) {
    for (said, expected) in table {
        check_source(&source(said), config, expected);
    }
}

/// Checks one container.
pub(crate) fn check_source(source: &Source, config: &Config, expected: &str) {
    let outcome = outcome(source, config);
    let matches = if expected.starts_with("refused: ") { outcome.starts_with(expected) } else { outcome == expected };
    assert!(matches, "{:?} {:?}\n  expected {expected}\n  but got  {outcome}", source.env, source.annotations);
}

/// The request in short: cards, share, and whatever is not as usual.
pub(crate) fn summary(request: &GpuRequest) -> String {
    let mut text = cards(&request.cards);
    if request.whole_cards != CardRequest::None {
        write!(text, " whole:{}", cards(&request.whole_cards)).unwrap();
    }
    if let Some(within) = &request.within {
        write!(text, " within:{}", cards(within)).unwrap();
    }
    match &request.share {
        Share::Exclusive => text.push_str(" exclusive"),
        Share::Monitor => text.push_str(" monitor"),
        Share::Part { memory, compute, isolation } => {
            write!(text, " mem {} time {}", per_card(memory, |l| limits(l)), per_card(compute, share)).unwrap();
            match isolation {
                Isolation::Full => {}
                Isolation::Memory => text.push_str(" isolation:memory"),
                Isolation::None => text.push_str(" isolation:none"),
            }
        }
    }
    if let Some(policy) = request.policy {
        write!(text, " policy:{policy}").unwrap();
    }
    if request.over_memory == OverMemory::Kill {
        text.push_str(" kill");
    }
    if let Some(amount) = request.pinned_memory {
        write!(text, " pinned:{amount}").unwrap();
    }
    if let Some(script) = &request.oom_script {
        write!(text, " script:{}", script.display()).unwrap();
    }
    if request.priority == Priority::Low {
        text.push_str(" low");
    }
    if request.placement == Placement::Spread {
        text.push_str(" spread");
    }
    if let Some(group) = &request.group {
        write!(text, " group:{group}").unwrap();
    }
    if !request.live_update {
        text.push_str(" frozen");
    }
    text
}

fn cards(request: &CardRequest) -> String {
    match request {
        CardRequest::None => "none".to_owned(),
        CardRequest::All => "all".to_owned(),
        CardRequest::Count(count) => format!("any {count}"),
        CardRequest::Devices(devices) => devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        CardRequest::PresentNodes { cards, capabilities } => format!("nodes{cards:?}{capabilities:?}"),
    }
}

/// `a` for every card, `a|b` for exactly two, `a|b*` for the first and all others.
fn per_card<T>(values: &PerCard<T>, show: impl Fn(&T) -> String) -> String {
    let shown: Vec<String> = values.values().map(show).collect();
    let continues = shown.len() > 1 && values.exact_len().is_none();
    format!("{}{}", shown.join("|"), if continues { "*" } else { "" })
}

fn limits(limits: &[MemoryLimit]) -> String {
    if limits.is_empty() {
        return "whole".to_owned();
    }
    let shown = limits.iter().map(|limit| {
        let (amount, reserved) = match limit {
            MemoryLimit::Bytes { amount, reserved } => (amount.to_string(), reserved),
            MemoryLimit::Ratio { numerator, denominator, reserved } => (format!("{numerator}/{denominator}"), reserved),
            MemoryLimit::OfCardInGib { numerator, reserved } => (format!("{numerator}/card"), reserved),
        };
        if reserved.0 == 0 { amount } else { format!("{amount}-{reserved}") }
    });
    shown.collect::<Vec<_>>().join("&")
}

fn share(share: &ComputeShare) -> String {
    match share {
        ComputeShare::Unlimited => "free".to_owned(),
        ComputeShare::Cap { percent, lifted_when_alone: false } => percent.to_string(),
        ComputeShare::Cap { percent, lifted_when_alone: true } => format!("{percent}-if-contended"),
        ComputeShare::Weight(weight) => format!("w{weight}"),
    }
}
