//! The last minutes of each card, and of each container on each card.

use std::collections::{HashMap, VecDeque};

use runtime_config::Bytes;

use super::{frame::Frame, rows::RowKey};

/// Number of samples that are kept of each: fifteen minutes at one a second.
const KEPT: usize = 900;

/// One look; fields are `None` where nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sample {
    /// Part of the memory limit that is used, in percent.
    pub(super) memory: Option<f32>,
    /// Percent of the card's time.
    pub(super) achieved: Option<f32>,
    /// Part of the time for which it had work and not the card, in percent.
    pub(super) waited: Option<f32>,
}

/// Samples of everything that is there, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    series: HashMap<RowKey, VecDeque<Sample>>,
    /// Number of looks so far.
    looks: usize,
}

impl History {
    /// Adds what a frame shows, and forgets who is gone.
    pub(super) fn record(&mut self, frame: &Frame) {
        self.looks += 1;
        let cards = frame.cards.iter().map(|card| {
            let memory = card.memory_used_bytes.and_then(|used| percent_of(used, card.memory_total_bytes));
            (RowKey::Card(card.uuid.clone()), sample(memory, card.time.achieved_1s_percent, None))
        });
        let containers = frame.containers.iter().flat_map(|container| {
            container.cards.iter().map(|line| {
                let memory = line.memory_used_bytes.and_then(|used| percent_of(used, line.memory_limit_bytes));
                let sample = sample(memory, line.time.achieved_1s_percent, line.waited_1s_percent);
                (RowKey::Line(container.key.clone(), line.uuid.clone()), sample)
            })
        });
        let mut before = std::mem::take(&mut self.series);
        for (key, sample) in cards.chain(containers) {
            let mut samples = before.remove(&key).unwrap_or_default();
            samples.push_back(sample);
            if samples.len() > KEPT {
                samples.pop_front();
            }
            self.series.insert(key, samples);
        }
    }

    /// Returns the highest value in each of the last `columns` spans of `looks` looks each, the
    /// newest last. Spans begin at fixed looks, so that a column does not change once it is over.
    pub(super) fn columns(
        &self,
        key: &RowKey,
        columns: usize,
        looks: usize,
        value: fn(&Sample) -> Option<f32>,
    ) -> Vec<Option<f32>> {
        let mut highest = vec![None; columns];
        let Some(samples) = self.series.get(key) else { return highest };
        let newest = self.looks / looks;
        let first = self.looks + 1 - samples.len();
        for (position, sample) in samples.iter().enumerate() {
            let age = newest - (first + position) / looks;
            if let Some(column) = columns.checked_sub(age + 1)
                && let Some(highest) = highest.get_mut(column)
            {
                *highest = value(sample).max_with(*highest);
            }
        }
        highest
    }
}

/// The larger of two values that may be unknown.
trait MaxWith {
    fn max_with(self, other: Self) -> Self;
}

impl MaxWith for Option<f32> {
    fn max_with(self, other: Self) -> Self {
        match (self, other) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "percentages for a graph")]
fn sample(memory: Option<f64>, achieved: Option<f64>, waited: Option<f64>) -> Sample {
    let [memory, achieved, waited] = [memory, achieved, waited].map(|value| value.map(|value| value as f32));
    Sample { memory, achieved, waited }
}

/// Returns how many percent of `all` are `part`; `None`: there is nothing.
#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
pub(super) fn percent_of(part: Bytes, all: Bytes) -> Option<f64> {
    (all.0 > 0).then(|| part.0 as f64 * 100.0 / all.0 as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{test_support, usage::MemoryUsage};

    #[test]
    fn a_column_is_a_span_of_looks_and_who_is_gone_is_forgotten() {
        let mut frame = Frame::new(&test_support::node(), &MemoryUsage::nothing_runs(), None);
        let mut history = History::default();
        for achieved in [10.0, 30.0, 20.0, 5.0] {
            frame.cards[0].time.achieved_1s_percent = Some(achieved);
            history.record(&frame);
        }
        let key = RowKey::Card(frame.cards[0].uuid.clone());
        let columns = |history: &History, many, looks| history.columns(&key, many, looks, |sample| sample.achieved);
        assert_eq!(columns(&history, 5, 1), [None, Some(10.0), Some(30.0), Some(20.0), Some(5.0)]);
        assert_eq!(columns(&history, 3, 2), [Some(10.0), Some(30.0), Some(5.0)], "looks 1, 2 and 3, 4");
        assert_eq!(columns(&history, 2, 1), [Some(20.0), Some(5.0)]);
        frame.cards.clear();
        history.record(&frame);
        assert_eq!(columns(&history, 2, 1), [None, None]);
    }
}
