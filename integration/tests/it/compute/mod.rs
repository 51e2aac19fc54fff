//! Shares of a card's time hold, on simulated cards: programs have work without end, or now and
//! then, and read what the engines gave them (integration/rm-client/src/compute.rs). Everything
//! but the engines is as on real cards: registry, timetable, windows, steering.
//!
//! The machine may be slow and busy, so nothing is measured once: a program reports what it got
//! until now, again and again, and a share is right when it has been what was granted for some
//! seconds. Where nobody schedules, that never happens.
//!
//! A scheduler that comes too late misses a window, and does not make up for it: a busy machine
//! takes shares away, and adds to none. What is measured may wait for that; what was planned is
//! exact, and looked at besides ([`planned`]).

mod achieved;
mod attacks;
mod cards;
mod ends;
mod live;
mod lost;
mod policies;
mod shares;
mod utilization;

use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use integration::{Container, ContainerBuilder, Exec, Node, stdio::Stdio};

use crate::{attacks::rm_client, case::Case};

/// All of them. One version of containerd is enough: nothing here is about containerd.
pub(crate) fn cases() -> Vec<Case> {
    let all = [
        shares::cases(),
        policies::cases(),
        cards::cases(),
        ends::cases(),
        lost::cases(),
        live::cases(),
        attacks::cases(),
        achieved::cases(),
        utilization::cases(),
    ];
    let work = "the work is engine time of simulated cards";
    all.into_iter()
        .flatten()
        .map(|case| case.also_needing(rm_client).once().only_simulated(work).one_at_a_time())
        .collect()
}

/// For how long a share must have been right.
const LONG_ENOUGH: Duration = Duration::from_secs(3);
/// Until when it must have been. Other tests run beside this one.
const AT_LAST: Duration = Duration::from_secs(120);
/// Distance from it that a share may have, in points: what a program got is known as of an instant
/// of the engines' own time, but the stretch that is looked at does not begin and end where a
/// period does; and an edge that comes late on a busy machine is made up for in later windows.
const POINTS: f64 = 2.0;
/// Part of it that a busy machine takes besides: the end of a window that began late is not moved.
const LATE: f64 = 0.05;

/// A container with memory of card 0.
fn granted<'node>(node: &'node Node, id: &str, variables: &[(&str, &str)]) -> ContainerBuilder<'node> {
    node.container(id).env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "1024MiB").envs(variables)
}

/// One that works without end and reports what it got.
#[track_caller]
fn spinning<'node>(node: &'node Node, id: &str, variables: &[(&str, &str)]) -> Container<'node> {
    let container = granted(node, id, variables).args(SPIN).start().expect("a container with a share");
    container.stdio.value("working");
    container
}

/// A program that works for longer than any test, and reports how much it got at this interval.
pub(crate) const SPIN: &[&str] = &["rm-client", "spin", "600", "--every", "100ms"];

/// Another program of a container.
#[track_caller]
fn exec<'container>(container: &'container Container<'_>, id: &str, arguments: &[&str]) -> Exec<'container> {
    let exec = container.exec(id, arguments).start().expect("another process");
    exec.stdio.value("working");
    exec
}

/// A program's own figures at one instant.
#[derive(Debug, Clone)]
struct Sample {
    at_us: u64,
    /// Card by card.
    executed_us: Vec<u64>,
}

fn samples(stdio: &Stdio) -> Vec<Sample> {
    let text = stdio.stdout_so_far();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| {
        let mut numbers = line.strip_prefix("sample ")?.split(' ').map(|number| number.parse().expect("a number"));
        Some(Sample { at_us: numbers.next()?, executed_us: numbers.collect() })
    };
    complete.lines().filter_map(parse).collect()
}

/// Percent of a card's time that a program got in the last `over`, which began at `from` or later;
/// `None`: it has not printed for so long yet.
fn share(stdio: &Stdio, card: usize, from_us: u64, over: Duration) -> Option<f64> {
    let samples = samples(stdio);
    let last = samples.last()?;
    let over_us = u64::try_from(over.as_micros()).ok()?;
    let first = samples.iter().rev().find(|sample| sample.at_us + over_us <= last.at_us)?;
    let got = last.executed_us[card] - first.executed_us[card];
    #[allow(clippy::cast_precision_loss, reason = "a share in percent")]
    let percent = got as f64 * 100.0 / (last.at_us - first.at_us) as f64;
    (first.at_us >= from_us).then_some(percent)
}

/// Share that a program is to get: its streams, and percent of the first of its cards.
pub(crate) type Expected<'a> = (&'a Stdio, f64);

/// Returns the range that is taken for a share of so many percent.
fn around(percent: f64) -> RangeInclusive<f64> {
    percent * (1.0 - LATE) - POINTS..=percent + POINTS
}

/// Waits until all have had what they are to have for long enough, at the same time.
#[track_caller]
pub(crate) fn until_shares(what: &str, expected: &[Expected<'_>]) {
    until_within(what, &expected.iter().map(|(stdio, percent)| (*stdio, around(*percent))).collect::<Vec<_>>());
}

/// The same with a range for each.
#[track_caller]
fn until_within(what: &str, expected: &[(&Stdio, RangeInclusive<f64>)]) {
    let from_us = now_us();
    let deadline = Instant::now() + AT_LAST;
    loop {
        let shares: Vec<Option<f64>> =
            expected.iter().map(|(stdio, _)| share(stdio, 0, from_us, LONG_ENOUGH)).collect();
        let right = |(share, (_, range)): (&Option<f64>, &(&Stdio, RangeInclusive<f64>))| {
            share.is_some_and(|share| range.contains(&share))
        };
        if shares.iter().zip(expected).all(right) {
            return;
        }
        let wanted: Vec<_> = expected.iter().map(|(_, range)| range).collect();
        assert!(Instant::now() < deadline, "{what}: {shares:?} %, not {wanted:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Checks the timetable of card 0, which does not depend on how busy this machine is: each of these
/// containers has so many percent of each period, and no instant belongs to two of them.
#[track_caller]
pub(crate) fn planned(node: &Node, expected: &[(&str, f64)]) {
    let mut owned = Vec::new();
    for (id, percent) in expected {
        let turn = node.egpu_json(&["inspect", id])["turn"].take();
        let period_us = turn["period_us"].as_u64().unwrap_or_else(|| panic!("{id} has no turn: {turn}"));
        let windows = match &turn["cards"][0]["pass"] {
            pass if pass == "free" || pass["turns"].is_u64() => vec![(0, period_us)],
            pass => {
                let windows = pass["windows"].as_array().unwrap_or_else(|| panic!("{id} has no windows: {turn}"));
                let edge = |window: &serde_json::Value, name: &str| window[name].as_u64().expect("an edge");
                windows.iter().map(|window| (edge(window, "start_us"), edge(window, "end_us"))).collect()
            }
        };
        let length_us: u64 = windows.iter().map(|(start_us, end_us)| end_us - start_us).sum();
        #[allow(clippy::cast_precision_loss, reason = "microseconds of a period")]
        let (length, whole) = (length_us as f64, period_us as f64 * percent / 100.0);
        assert!((length - whole).abs() <= 1.0, "{id}: {length_us} us of {period_us} us are not {percent} %");
        owned.extend(windows);
    }
    owned.sort_unstable();
    assert!(owned.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two own the same time: {owned:?}");
}

/// Number of tries for a check that is made over a few seconds.
const TIMES: u32 = 5;

/// Returns the last failure, if every attempt fails. A busy machine may be late with an edge, or
/// with all of a few seconds; a defence that is not there is missing each time.
fn each_time(mut wrong: impl FnMut() -> Option<String>) -> Option<String> {
    (1..TIMES).try_fold(wrong()?, |_, _| wrong())
}

/// `CLOCK_MONOTONIC`, as the programs have it.
fn now_us() -> u64 {
    schedule::now_us()
}

/// Ends containers.
fn end<'node>(containers: impl IntoIterator<Item = Container<'node>>) {
    for container in containers {
        container.end();
    }
}
