//! A strict reader of Prometheus' text format, version 0.0.4
//! (prometheus.io/docs/instrumenting/exposition_formats), for what `egpu metrics` prints. It takes
//! less than Prometheus does: no comments but HELP and TYPE, no time stamps.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its family.
    pub name: String,
    /// Labels that tell it apart.
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// The samples of a whole text.
///
/// # Panics
/// Where Prometheus would refuse it, or the names do not follow its conventions.
#[track_caller]
pub fn parse(text: &str) -> Vec<Sample> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line has no end: {text:?}");
    let (mut samples, mut families, mut seen) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let mut current: Option<(String, String)> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, _) = help.split_once(' ').unwrap_or_else(|| panic!("no text: {line}"));
            assert!(families.insert(name.to_owned()), "twice: {line}");
            let of = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            let of = of.unwrap_or_else(|| panic!("no type: {line}")).to_owned();
            assert!(["gauge", "counter", "histogram"].contains(&of.as_str()), "{line}: {of}");
            assert_eq!(name.ends_with("_total"), of == "counter", "{line}");
            assert!(lines.peek().is_some_and(|next| next.starts_with(name)), "a family without samples: {line}");
            current = Some((name.to_owned(), of));
            continue;
        }
        let (name, of) = current.as_ref().unwrap_or_else(|| panic!("no family: {line}"));
        let sample = sample(line);
        let suffixes: &[&str] = if of == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        let suffix = sample.name.strip_prefix(name.as_str()).filter(|suffix| suffixes.contains(suffix));
        assert!(suffix.is_some(), "outside its family: {line}");
        assert_eq!(suffix == Some("_bucket"), sample.labels.contains_key("le"), "{line}");
        assert!(sample.value.is_finite() && (of == "gauge" || sample.value >= 0.0), "{line}");
        assert!(seen.insert((sample.name.clone(), sample.labels.clone())), "twice: {line}");
        samples.push(sample);
    }
    samples
}

#[track_caller]
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, mut rest) = line.split_at(end);
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit())
    };
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, quoted) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
            assert!(is_name(label), "{label:?} in {line}");
            let (value, after) = unquoted(quoted).unwrap_or_else(|| panic!("no end of {label}: {line}"));
            assert_eq!(labels.insert(label.to_owned(), value), None, "{label} twice: {line}");
            rest = after;
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').unwrap_or_else(|| panic!("no end of the labels: {line}"));
    }
    let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok());
    Sample { name: name.to_owned(), labels, value: value.unwrap_or_else(|| panic!("no value: {line}")) }
}

/// The text up to the closing quote, and what is behind that.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let (mut text, mut characters) = (String::new(), quoted.char_indices());
    loop {
        match characters.next()? {
            (at, '"') => return Some((text, quoted.get(at + 1..)?)),
            (_, '\\') => match characters.next()?.1 {
                'n' => text.push('\n'),
                escaped @ ('\\' | '"') => text.push(escaped),
                _ => return None,
            },
            (_, character) => text.push(character),
        }
    }
}

/// The value of the one sample with these labels, beside others; `None` where there is none.
#[track_caller]
pub fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has =
        |sample: &&Sample| labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|is| is == value));
    let mut found = samples.iter().filter(|sample| sample.name == name).filter(has);
    let value = found.next().map(|sample| sample.value);
    assert_eq!(found.next(), None, "{name} {labels:?} is more than one");
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unescaped() {
        let text = "# HELP a_bytes Some.\n# TYPE a_bytes gauge\na_bytes{b=\"x\\\"}\\n\\\\,\",c=\"\"} 3\na_bytes 2.5\n";
        let samples = parse(text);
        assert_eq!(samples[0].labels["b"], "x\"}\n\\,");
        assert_eq!(value(&samples, "a_bytes", &[("c", "")]), Some(3.0));
        assert_eq!(samples[1].value, 2.5);
    }

    #[test]
    fn what_prometheus_would_refuse_is_refused() {
        let head = "# HELP a A.\n# TYPE a gauge\n";
        for wrong in [
            "a 1\n",
            "# HELP a A.\na 1\n",
            "# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n",
            "# HELP a A.\n# TYPE a histogram\na 1\n",
            "# HELP a A.\n# TYPE a histogram\na_bucket 1\n",
            "# HELP a A.\n# TYPE a counter\na 1\n",
            &format!("{head}b 1\n"),
            &format!("{head}a 1\na 2\n"),
            &format!("{head}a{{b=\"x}} 1\n"),
            &format!("{head}a{{b=\"x\\y\"}} 1\n"),
            &format!("{head}a NaN\n"),
            &format!("{head}a one\n"),
            &format!("{head}a 1"),
            head,
        ] {
            assert!(std::panic::catch_unwind(|| parse(wrong)).is_err(), "{wrong:?}");
        }
    }
}
