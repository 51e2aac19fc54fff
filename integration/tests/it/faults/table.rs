//! Results of the faults, by step, process and kind.

use std::{collections::BTreeMap, fmt};

use integration::injector::Fault;

use super::{Outcome, Step, Trial};

/// Counts of outcomes.
#[derive(Debug, Default)]
struct Row {
    tried: u32,
    not_reached: u32,
    success: u32,
    clean_error: u32,
    lost: u32,
    violations: u32,
}

/// All trials so far.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<(Step, bool, String, &'static str), Row>,
    violations: Vec<String>,
}

impl Table {
    pub(super) fn add(&mut self, trial: &Trial, outcome: Outcome) {
        let kind = if trial.fault == Fault::Kill { "SIGKILL" } else { "error" };
        let row = self.rows.entry((trial.step, trial.has_share, trial.point.role.clone(), kind)).or_default();
        row.tried += 1;
        match outcome {
            Outcome::NotReached => row.not_reached += 1,
            Outcome::Success => row.success += 1,
            Outcome::CleanError => row.clean_error += 1,
            Outcome::Lost => row.lost += 1,
            Outcome::Violation(why) => {
                row.violations += 1;
                println!("VIOLATION {trial}: {why}");
                self.violations.push(format!("{trial}: {why}"));
            }
        }
    }

    pub(super) fn tried(&self) -> u32 {
        self.rows.values().map(|row| row.tried).sum()
    }

    pub(super) fn violations(&self) -> &[String] {
        &self.violations
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "| step | share | process | injected | times | success | clean error | process lost | not reached | violations |"
        )?;
        writeln!(formatter, "|---|---|---|---|---|---|---|---|---|---|")?;
        for ((step, has_share, role, kind), row) in &self.rows {
            let Row { tried, not_reached, success, clean_error, lost, violations } = row;
            let share = if *has_share { "yes" } else { "no" };
            writeln!(
                formatter,
                "| {step:?} | {share} | {role} | {kind} | {tried} | {success} | {clean_error} | {lost} | {not_reached} | {violations} |"
            )?;
        }
        Ok(())
    }
}
