//! Prometheus' text format, version 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).
//!
//! node_exporter's textfile collector reads this one, and not OpenMetrics, in which a counter's
//! family has another name than its samples.

use std::{collections::HashSet, fmt::Write as _};

/// The longest label value, in characters; pods are named by their users.
const MAX_VALUE: usize = 256;

/// Text of an exposition, while it is built.
#[derive(Debug, Default)]
pub(super) struct Exposition(String);

/// Type of a family's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// Goes up and down.
    Gauge,
    /// Grows only, until it begins again.
    Counter,
}

/// Counts of a sample by its size.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Histogram {
    /// Upper bounds, ascending, and the number of those that are no larger and above the bound
    /// before.
    pub(super) buckets: Vec<(f64, u64)>,
    /// Number of those above all bounds.
    pub(super) above: u64,
    pub(super) sum: Value,
}

/// Names and values that distinguish a family's samples, `a="b",c="d"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Labels(String);

/// A sample's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Value(String);

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self(value.to_string())
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self(value.to_string())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self(u8::from(value).to_string())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self(value.to_string())
    }
}

impl Value {
    /// Converts microseconds to seconds.
    pub(super) fn seconds(us: u64) -> Self {
        Self(format!("{}.{:06}", us / 1_000_000, us % 1_000_000))
    }

    /// Converts a percentage to a ratio.
    pub(super) fn ratio(percent: f64) -> Self {
        Self(format!("{:.6}", percent / 100.0))
    }
}

impl Labels {
    pub(super) fn new(labels: &[(&str, &str)]) -> Self {
        labels.iter().fold(Self::default(), |all, (name, value)| all.and(name, value))
    }

    /// Adds a label. `name` is a word of egpu's; a label without a value counts as none.
    #[must_use]
    pub(super) fn and(mut self, name: &str, value: &str) -> Self {
        if value.is_empty() {
            return self;
        }
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
        self.0.push_str("=\"");
        for character in value.chars().take(MAX_VALUE) {
            match character {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                _ => self.0.push(character),
            }
        }
        self.0.push('"');
        self
    }

    /// Adds a label if its value is known.
    #[must_use]
    pub(super) fn and_if(self, name: &str, value: Option<&str>) -> Self {
        self.and(name, value.unwrap_or_default())
    }
}

impl Exposition {
    /// Writes one family; nothing without a sample. Repeated labels would make the whole text
    /// invalid: the first counts.
    pub(super) fn family(
        &mut self,
        (name, of): (&str, Type),
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Value)>,
    ) {
        let mut seen = HashSet::new();
        for (labels, Value(value)) in samples {
            if seen.contains(&labels) {
                continue;
            }
            // Writing to a string cannot fail.
            if seen.is_empty() {
                let of = match of {
                    Type::Gauge => "gauge",
                    Type::Counter => "counter",
                };
                let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {of}");
            }
            self.sample(name, &labels, &value);
            seen.insert(labels);
        }
    }

    /// Writes one family of histograms, as [`Exposition::family`] does.
    pub(super) fn histograms(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels, Histogram)>,
    ) {
        let mut seen = HashSet::new();
        for (labels, Histogram { buckets, above, sum: Value(sum) }) in samples {
            if seen.contains(&labels) {
                continue;
            }
            if seen.is_empty() {
                let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} histogram");
            }
            let mut count: u64 = 0;
            let buckets = buckets.into_iter().map(|(bound, own)| (bound.to_string(), own));
            for (bound, own) in buckets.chain([("+Inf".to_owned(), above)]) {
                count = count.saturating_add(own);
                self.sample(&format!("{name}_bucket"), &labels.clone().and("le", &bound), &count.to_string());
            }
            self.sample(&format!("{name}_sum"), &labels, &sum);
            self.sample(&format!("{name}_count"), &labels, &count.to_string());
            seen.insert(labels);
        }
    }

    fn sample(&mut self, name: &str, labels: &Labels, value: &str) {
        // Writing to a string cannot fail.
        let _ = match labels.0.as_str() {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_breaks_out_of_a_label() {
        let labels = Labels::new(&[("pod", "a\"} 1\nforged 2\\"), ("container", "")]).and_if("mig", None).and("x", "y");
        let mut text = Exposition::default();
        text.family(("some_bytes", Type::Gauge), "Some.", [(labels, 3u64.into())]);
        assert_eq!(
            text.into_text(),
            "# HELP some_bytes Some.\n# TYPE some_bytes gauge\nsome_bytes{pod=\"a\\\"} 1\\nforged 2\\\\\",x=\"y\"} 3\n"
        );
        assert!(Labels::new(&[("pod", &"x".repeat(5000))]).0.len() < 300);
    }

    #[test]
    fn a_family_without_samples_is_none_and_the_same_labels_come_once() {
        let mut text = Exposition::default();
        text.family(("nothing", Type::Gauge), "None.", []);
        let twice = [(Labels::default(), Value::from(true)), (Labels::default(), Value::from(false))];
        text.family(("once_total", Type::Counter), "Once.", twice);
        assert_eq!(text.into_text(), "# HELP once_total Once.\n# TYPE once_total counter\nonce_total 1\n");
    }

    #[test]
    fn a_histograms_buckets_are_cumulative() {
        let histogram = Histogram { buckets: vec![(0.00025, 4), (0.5, 3)], above: 2, sum: Value::seconds(1_500_000) };
        let mut text = Exposition::default();
        text.histograms("wait_seconds", "Waits.", [(Labels::new(&[("id", "a")]), histogram)]);
        assert_eq!(
            text.into_text(),
            "# HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\n\
             wait_seconds_bucket{id=\"a\",le=\"0.00025\"} 4\nwait_seconds_bucket{id=\"a\",le=\"0.5\"} 7\n\
             wait_seconds_bucket{id=\"a\",le=\"+Inf\"} 9\n\
             wait_seconds_sum{id=\"a\"} 1.500000\nwait_seconds_count{id=\"a\"} 9\n"
        );
    }

    #[test]
    fn values_are_exact() {
        assert_eq!(Value::seconds(9_000_001).0, "9.000001");
        assert_eq!(Value::ratio(9.87).0, "0.098700");
        assert_eq!(Value::from(u64::MAX).0, "18446744073709551615");
        assert_eq!(Value::from(2.5).0, "2.5");
    }
}
