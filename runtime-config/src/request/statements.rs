//! The environment and the annotations as statements, `NAME=value`, that can be looked up by name.

use std::collections::{BTreeMap, HashSet};

use super::{RequestError, error::AsWritten, service_links};

/// One statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statement<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: &'a str,
}

impl From<Statement<'_>> for AsWritten {
    fn from(statement: Statement<'_>) -> Self {
        Self::new(statement.name, statement.value)
    }
}

/// Statements by name. A name may have been given several different values; nothing is decided by
/// their order.
#[derive(Debug, Default)]
pub(crate) struct Statements<'a> {
    values: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Statements<'a> {
    /// Reads `process.env`; entries without `=` say nothing, and links to Services nothing about
    /// GPUs.
    pub(crate) fn from_env(env: &'a [String]) -> Self {
        let mut read = Self::new(env.iter().filter_map(|entry| entry.split_once('=')));
        let services = service_links::services(&read.values);
        read.values.retain(|name, _| !service_links::is_link(name, &services));
        read
    }

    /// Reads annotations.
    pub(crate) fn from_annotations(annotations: &'a BTreeMap<String, String>) -> Self {
        Self::new(annotations.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }

    fn new(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        // By hash: there may be any number of them, also under one name, and comparing each with
        // all would take the host's time.
        let mut known = HashSet::new();
        for (name, value) in pairs {
            if known.insert((name, value)) {
                values.entry(name).or_default().push(value);
            }
        }
        Self { values }
    }

    /// Returns every statement under `name`.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = Statement<'a>> + use<'a> {
        let (name, values) = match self.values.get_key_value(name) {
            Some((name, values)) => (*name, values.clone()),
            None => ("", Vec::new()),
        };
        values.into_iter().map(move |value| Statement { name, value })
    }

    /// Returns those of [`Statements::all`] without empty values: shells and manifests leave a
    /// variable empty to say nothing.
    pub(crate) fn spoken(&self, name: &str) -> impl Iterator<Item = Statement<'a>> + use<'a> {
        self.all(name).filter(|statement| !statement.value.trim().is_empty())
    }

    /// The first non-empty statement under `name`, to name it in a message.
    pub(crate) fn any(&self, name: &str) -> Option<Statement<'a>> {
        self.spoken(name).next()
    }

    /// Returns the statement under a name where two different values have no common meaning.
    pub(crate) fn one(&self, name: &str) -> Result<Option<Statement<'a>>, RequestError> {
        one(self.spoken(name))
    }

    /// Reads every value under `name` and joins them, so that the tightest holds.
    pub(crate) fn joined<T>(
        &self,
        name: &str,
        read: impl Fn(Statement<'a>) -> Result<T, RequestError>,
        tighter: impl Fn(T, T) -> T,
    ) -> Result<Option<T>, RequestError> {
        joined(self.spoken(name), read, tighter)
    }

    /// Every name, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.values.keys().copied()
    }

    /// Every name that begins with `prefix`, in order, and what follows the prefix.
    pub(crate) fn with_prefix(&self, prefix: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.names().filter_map(move |name| name.strip_prefix(prefix).map(|rest| (name, rest)))
    }
}

/// Returns the one statement, as [`Statements::one`], of those at hand.
pub(crate) fn one<'a>(
    mut statements: impl Iterator<Item = Statement<'a>>,
) -> Result<Option<Statement<'a>>, RequestError> {
    let Some(first) = statements.next() else { return Ok(None) };
    let others: Vec<Statement<'_>> = statements.collect();
    if others.is_empty() {
        return Ok(Some(first));
    }
    let values = std::iter::once(first).chain(others).map(|statement| AsWritten::from(statement).value).collect();
    Err(RequestError::Ambiguous { name: first.name.to_owned(), values })
}

/// Joins statements, as [`Statements::joined`], of those at hand.
pub(crate) fn joined<'a, T>(
    statements: impl Iterator<Item = Statement<'a>>,
    read: impl Fn(Statement<'a>) -> Result<T, RequestError>,
    tighter: impl Fn(T, T) -> T,
) -> Result<Option<T>, RequestError> {
    let mut result = None;
    for statement in statements {
        let value = read(statement)?;
        result = Some(match result {
            Some(before) => tighter(before, value),
            None => value,
        });
    }
    Ok(result)
}

/// A part of a card, above 0 and up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Portion {
    pub(crate) numerator: u64,
    /// A power of ten.
    pub(crate) denominator: u64,
}

impl Portion {
    /// Most digits after the point.
    const PLACES: usize = 9;

    /// Reads `0.25`, `.5`, `1` and the like, exactly. `None`: it is none.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (whole, places) = text.split_once('.').unwrap_or((text, ""));
        let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(places) || places.len() > Self::PLACES {
            return None;
        }
        let denominator = 10_u64.checked_pow(u32::try_from(places.len()).ok()?)?;
        let numerator = format!("{whole}{places}").parse().ok()?;
        (1..=denominator).contains(&numerator).then_some(Self { numerator, denominator })
    }
}

impl<'a> Statement<'a> {
    /// A whole number, `least` to `most`.
    pub(crate) fn integer(self, least: u64, most: u64) -> Result<u64, RequestError> {
        let number = self.digits().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| RequestError::invalid(self, format!("a whole number from {least} to {most}")))
    }

    /// A whole number of something, `least` or more; `accepted` says of what.
    pub(crate) fn amount(self, least: u64, accepted: &str) -> Result<u64, RequestError> {
        let number = self.digits().filter(|number| *number >= least);
        number.ok_or_else(|| RequestError::invalid(self, accepted))
    }

    /// A decimal part of a card, above 0 and up to 1, such as 0.25.
    pub(crate) fn portion(self) -> Result<Portion, RequestError> {
        let accepted = "a part of a card, above 0 and up to 1, such as 0.25";
        Portion::read(self.value.trim()).ok_or_else(|| RequestError::invalid(self, accepted))
    }

    fn digits(self) -> Option<u64> {
        let value = self.value.trim();
        if value.bytes().all(|byte| byte.is_ascii_digit()) { value.parse().ok() } else { None }
    }

    /// `true` or `1`, `false` or `0`.
    pub(crate) fn boolean(self) -> Result<bool, RequestError> {
        match self.value.trim().to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(RequestError::invalid(self, "true, 1, false or 0")),
        }
    }

    /// Parses one of a few words.
    pub(crate) fn word<T: Copy>(self, words: &[(&str, T)]) -> Result<T, RequestError> {
        let value = self.value.trim();
        words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            RequestError::invalid(self, format!("one of {}", words.join(", ")))
        })
    }

    /// An absolute path in the container.
    pub(crate) fn absolute_path(self) -> Result<&'a str, RequestError> {
        if self.value.starts_with('/') && !self.value.contains('\0') {
            Ok(self.value)
        } else {
            Err(RequestError::invalid(self, "an absolute path in the container"))
        }
    }

    /// A comma-separated list, each item read by `read`; blanks around items are allowed, empty
    /// items are not.
    pub(crate) fn list<T>(self, read: impl Fn(&str) -> Option<T>, accepted: &str) -> Result<Vec<T>, RequestError> {
        let items = self.value.split(',').map(|item| read(item.trim())).collect::<Option<Vec<T>>>();
        items.ok_or_else(|| RequestError::invalid(self, accepted))
    }
}
