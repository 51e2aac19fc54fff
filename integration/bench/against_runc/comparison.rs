//! Rounds of one workload, and what they come to.

use std::{thread, time::Duration};

use integration::Node;
use serde::Serialize;

use crate::{
    runtimes::{Role, Runtime},
    workloads::{self, Workload},
};

const WARM_UP: usize = 2;
/// Rest before many containers at a time, whose processors are to be idle: containerd cleans up
/// after the runtime before for a while, and the same one is always before.
const REST: Duration = Duration::from_millis(150);
/// Aim in place of one below the floor, by the floor.
const ABOVE_FLOOR: f64 = 1.15;

/// A comparison to be made.
#[derive(Debug)]
pub(crate) struct Plan {
    pub name: &'static str,
    /// Ratio to runc that is aimed at.
    pub aim: Option<f64>,
    pub rounds: usize,
    pub workload: Workload,
}

/// One comparison's result.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    pub name: &'static str,
    pub unit: &'static str,
    pub columns: Vec<Column>,
    /// The ratio that egpu's must not exceed: the aim, or the floor and 15 %, if that is more.
    pub aim: Option<f64>,
}

/// A runtime's part.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Column {
    pub runtime: String,
    /// Median.
    pub value: f64,
    /// Median of the rounds' ratios to runc.
    pub ratio: f64,
    /// First and third quartile of these.
    pub spread: (f64, f64),
}

impl Comparison {
    /// egpu's column, the first.
    pub(crate) fn egpu(&self) -> &Column {
        self.columns.first().expect("egpu is always compared")
    }

    pub(crate) fn is_met(&self) -> bool {
        self.aim.is_none_or(|aim| self.egpu().ratio <= aim)
    }
}

impl Plan {
    /// Measures it for all runtimes in turn.
    pub(crate) fn measure(&self, node: &Node, runtimes: &[Runtime]) -> Comparison {
        let mut timed: Vec<Timed<'_>> = runtimes.iter().map(Timed::new).collect();
        if let Workload::RunBeside(_) = self.workload {
            // One runtime after the other: the containers that idle are many.
            timed.retain(|timed| timed.runtime.role != Role::Floor);
            for timed in &mut timed {
                self.rounds(node, std::slice::from_mut(timed));
            }
        } else {
            self.rounds(node, &mut timed);
        }
        self.comparison(&timed)
    }

    fn rounds(&self, node: &Node, timed: &mut [Timed<'_>]) {
        let idle: Vec<_> = timed.iter().map(|timed| self.workload.set_up(node, timed.runtime)).collect();
        for round in 0..WARM_UP + self.rounds {
            for turn in 0..timed.len() {
                let place = (round + turn) % timed.len();
                let (Some(timed), Some(idle)) = (timed.get_mut(place), idle.get(place)) else { continue };
                let id = format!("bench{round}x{place}");
                if let Workload::Burst(_) | Workload::BurstWithGpu(_) = self.workload {
                    thread::sleep(REST);
                }
                let time = self.workload.time(node, timed.runtime, idle, &id).as_secs_f64() * 1e3;
                if round >= WARM_UP {
                    timed.ms.push(time);
                }
            }
        }
        idle.iter().for_each(|idle| workloads::stop(node, idle));
    }

    fn comparison(&self, timed: &[Timed<'_>]) -> Comparison {
        let of = |role| timed.iter().find(|timed| timed.runtime.role == role);
        let runc = &of(Role::Runc).expect("runc is always timed").ms;
        let floor = of(Role::Floor).map(|floor| median(ratios(&floor.ms, runc)) * ABOVE_FLOOR);
        let columns = timed.iter().map(|timed| {
            let ratios = ratios(&timed.ms, runc);
            Column {
                runtime: timed.runtime.name.clone(),
                value: median(timed.ms.clone()),
                ratio: median(ratios.clone()),
                spread: (quantile(ratios.clone(), 0.25), quantile(ratios, 0.75)),
            }
        });
        let aim = self.aim.map(|aim| floor.map_or(aim, |floor| aim.max(floor)));
        Comparison { name: self.name, unit: "ms", columns: columns.collect(), aim }
    }
}

/// A runtime and its rounds so far.
struct Timed<'a> {
    runtime: &'a Runtime,
    ms: Vec<f64>,
}

impl<'a> Timed<'a> {
    fn new(runtime: &'a Runtime) -> Self {
        Self { runtime, ms: Vec::new() }
    }
}

fn ratios(values: &[f64], runc: &[f64]) -> Vec<f64> {
    values.iter().zip(runc).map(|(value, runc)| value / runc).collect()
}

/// Returns the median.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// Returns a quantile, between two values by their distance.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place among a few values")]
fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = part * (values.len() - 1) as f64;
    let (lower, upper) = (values[place.floor() as usize], values[place.ceil() as usize]);
    lower + (upper - lower) * place.fract()
}
