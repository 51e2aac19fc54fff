//! The commands that put work on a card.

use std::{
    io::{Read, Write},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use rm_client::{
    Client, Device, RmError,
    compute::{Burst, Group, Progress, Worker, Workload},
    compute_attacks::{ATTACKS, Effect},
    processes, system,
};

use crate::Options;

/// Work, as the command line describes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkOptions {
    pub(crate) groups: usize,
    pub(crate) channels: usize,
    pub(crate) cards: usize,
    pub(crate) copy: bool,
    pub(crate) video: bool,
    /// A sample is printed so often.
    pub(crate) every: Option<Duration>,
}

impl Default for WorkOptions {
    fn default() -> Self {
        Self { groups: 1, channels: 1, cards: 1, copy: false, video: false, every: None }
    }
}

/// A time as people write it: seconds, or with `ms`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let seconds = match text.strip_suffix("ms") {
        Some(number) => number.parse::<f64>().ok()? / 1000.0,
        None => text.strip_suffix('s').unwrap_or(text).parse().ok()?,
    };
    Duration::try_from_secs_f64(seconds).ok()
}

pub(crate) fn time_of(text: &str) -> Result<Duration, RmError> {
    duration(text).ok_or_else(|| RmError::Nonsense { what: format!("`{text}` is no time: 5, 0.5s, 200ms") })
}

fn microseconds(time: Duration) -> u128 {
    time.as_micros()
}

/// `spin SECONDS`, `burst SECONDS WORK EVERY`.
pub(crate) fn work(options: &Options, seconds: &str, burst: Option<(&str, &str)>) -> Result<ExitCode, RmError> {
    let burst = burst
        .map(|(work, every)| Ok::<_, RmError>(Burst { work: time_of(work)?, every: time_of(every)? }))
        .transpose()?;
    let time = time_of(seconds)?;
    let WorkOptions { groups, channels, cards, copy, video, every } = options.work;
    let client = Client::open(&options.nodes)?;
    let places = options.card..options.card + cards;
    let devices: Vec<Device<'_>> = places.map(|card| client.device(card)).collect::<Result<_, _>>()?;
    let mut worker = Worker::start(&devices, Workload { groups, channels, copy, video, burst })?;
    if let Some(group) = worker.groups().next() {
        let Group { device, handle, channels } = group;
        let channel = channels.first().copied().unwrap_or_default();
        println!("handles {} {} {} {handle} {channel}", device.client.handle, device.device, device.subdevice);
    }
    println!("working=1");
    let end = Instant::now() + time;
    let (begin, mut last) = (worker.got()?, worker.got()?);
    let mut together = Duration::ZERO;
    while Instant::now() < end {
        let next = every.map_or(end, |every| (Instant::now() + every).min(end));
        worker.work_until(next)?;
        let got = worker.got()?;
        let gains = got.compute.iter().zip(&last.compute).map(|(now, before)| now.saturating_sub(*before));
        together += gains.min().unwrap_or_default();
        if every.is_some() {
            sample(&got);
        }
        last = got;
    }
    print_progress(&begin, &last, together);
    Ok(ExitCode::SUCCESS)
}

/// One line: an instant (`CLOCK_MONOTONIC`), and what each card has given until then, in
/// microseconds.
fn sample(got: &Progress) {
    let given: Vec<String> = got.compute.iter().map(|card| microseconds(*card).to_string()).collect();
    println!("sample {} {}", got.at_ns / 1000, given.join(" "));
}

fn print_progress(begin: &Progress, end: &Progress, together: Duration) {
    let wall = end.wall.saturating_sub(begin.wall);
    println!("wall_us={}", microseconds(wall));
    for (card, (executed, before)) in end.compute.iter().zip(&begin.compute).enumerate() {
        let executed = executed.saturating_sub(*before);
        let name = if card == 0 { "executed_us".to_owned() } else { format!("executed{card}_us") };
        println!("{name}={}", microseconds(executed));
        if card == 0 {
            println!("share_permille={}", per_mille(executed, wall));
        }
    }
    println!("copy_us={}", microseconds(end.copy.saturating_sub(begin.copy)));
    println!("video_us={}", microseconds(end.video.saturating_sub(begin.video)));
    println!("together_us={}", microseconds(together));
}

fn per_mille(part: Duration, whole: Duration) -> u128 {
    part.as_nanos() * 1000 / whole.as_nanos().max(1)
}

/// `storm SECONDS N`: N processes work at once, each as its own client; what they got together is
/// written.
pub(crate) fn storm(options: &Options, seconds: &str, count: usize) -> Result<ExitCode, RmError> {
    let time = time_of(seconds)?;
    let WorkOptions { groups, channels, copy, video, .. } = options.work;
    let (mut reader, writer) = std::io::pipe().map_err(system("a pipe"))?;
    let child = |_| -> (i32, Box<dyn std::any::Any>) {
        let outcome = Client::open(&options.nodes).and_then(|client| {
            let devices = [client.device(options.card)?];
            let mut worker = Worker::start(&devices, Workload { groups, channels, copy, video, burst: None })?;
            worker.work_until(Instant::now() + time)?;
            let got = worker.got()?;
            let executed = got.compute.iter().sum::<Duration>();
            let nanoseconds = u64::try_from(executed.as_nanos()).unwrap_or(u64::MAX);
            let mut pipe = writer.try_clone().map_err(system("a pipe"))?;
            pipe.write_all(&nanoseconds.to_le_bytes()).map_err(system("telling what was executed"))
        });
        (outcome.map_or_else(|error| i32::from(crate::number_of(&error)), |()| 0), Box::new(()))
    };
    println!("working=1");
    let start = Instant::now();
    let codes = processes::at_once(count, child).map_err(system("children"))?;
    let wall = start.elapsed();
    drop(writer);
    let mut numbers = Vec::new();
    reader.read_to_end(&mut numbers).map_err(system("hearing what was executed"))?;
    let executed = numbers.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).sum();
    println!("worked={}", codes.iter().filter(|code| **code == 0).count());
    println!("wall_us={}", microseconds(wall));
    println!("executed_us={}", microseconds(Duration::from_nanos(executed)));
    println!("share_permille={}", per_mille(Duration::from_nanos(executed), wall));
    Ok(ExitCode::SUCCESS)
}

/// `steal NAME SECONDS`: works, and tries all the time to get more than its share, or to take
/// others' away.
pub(crate) fn steal(options: &Options, name: &str, seconds: &str) -> Result<ExitCode, RmError> {
    let (_, attack) = ATTACKS
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| RmError::Nonsense { what: format!("there is no attack `{name}`; `steal list` names them") })?;
    let time = time_of(seconds)?;
    let client = Client::open(&options.nodes)?;
    let devices = [client.device(options.card)?];
    let mut worker =
        Worker::start(&devices, Workload { groups: 1, channels: 1, copy: false, video: false, burst: None })?;
    let mut effect = Effect::default();
    println!("working=1");
    let begin = worker.got()?;
    let end = Instant::now() + time;
    while Instant::now() < end {
        for group in worker.groups() {
            attack(group, &mut effect)?;
        }
        // A hostile program may have all the processor time that it is given; a test machine has
        // little.
        thread::sleep(Duration::from_micros(500));
    }
    worker.work_until(end)?;
    let mut got = worker.got()?;
    if let Some(card) = got.compute.first_mut() {
        *card += effect.executed;
    }
    println!("tried={}", effect.tried);
    println!("accepted={}", effect.accepted);
    print_progress(&begin, &got, Duration::ZERO);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, time) in [("5", Some(5000)), ("0.5s", Some(500)), ("200ms", Some(200)), ("x", None), ("-1", None)] {
            assert_eq!(duration(text), time.map(Duration::from_millis), "{text}");
        }
    }
}
