//! A configuration file's text: which of its keys do not exist, and where a wrong value stands.

use std::{ops::Range, sync::LazyLock};

use serde::Deserialize as _;
use strsim::jaro_winkler;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use super::{Config, ConfigError, DEFAULT_TOML};

/// Similarity from which one name is suggested for another.
const SIMILAR: f64 = 0.8;

/// Every key with its default, as `default.toml` has them. Of simulated cards, which only its
/// example has, the first table has every key, and the last one those that have a default.
#[expect(clippy::expect_used, reason = "nothing but a file of this crate is read, and each of its tests reads it")]
pub(super) static EVERY_KEY: LazyLock<DeTable<'static>> =
    LazyLock::new(|| DeTable::parse(uncommented().leak()).expect("the default file is TOML").into_inner());

/// Returns the default file with the `#` taken off its keys and off its example, without its text:
/// that has a blank after its `#`, and the example's lines have three.
pub(super) fn uncommented() -> String {
    let mut text = String::new();
    let mut defaults_of_cards = "[[driver.simulated]]\n".to_owned();
    for line in DEFAULT_TOML.lines() {
        let example = line.strip_prefix("#   ");
        let line = example.unwrap_or(line);
        let key = line.strip_prefix('#');
        if key.is_some_and(|key| key.is_empty() || key.starts_with(' ')) {
            continue;
        }
        text.extend([key.unwrap_or(line), "\n"]);
        if example.is_some() {
            defaults_of_cards.extend([key.unwrap_or_default(), "\n"]);
        }
    }
    text + &defaults_of_cards
}

/// A file's text, all of whose keys exist and have values of the right types.
pub(super) struct Document<'text> {
    text: &'text str,
    origin: &'text str,
    /// The file's values, and the defaults of what it leaves out. Those have the place of the table
    /// that lacks them.
    root: DeTable<'text>,
}

impl<'text> Document<'text> {
    /// # Errors
    /// When the text is not TOML, has a key that does not exist, or a value of the wrong type.
    pub(super) fn parse(text: &'text str, origin: &'text str) -> Result<Self, ConfigError> {
        let root = DeTable::parse(text).map_err(|error| malformed(text, origin, &error))?.into_inner();
        let mut document = Self { text, origin, root };
        document.refuse_unknown(&document.root, &EVERY_KEY, "")?;
        complete(&mut document.root, &EVERY_KEY, &(0..text.len()));
        Ok(document)
    }

    /// # Errors
    /// For a value that is not accepted. The text of serde's error is what is.
    pub(super) fn decode(&self) -> Result<Config, ConfigError> {
        let root = Spanned::new(0..self.text.len(), self.root.clone());
        Config::deserialize(toml::Deserializer::from(root)).map_err(|error| {
            let found = values(&self.root, "").into_iter().find(|(_, value)| Some(value.span()) == error.span());
            match found {
                Some((key, _)) => self.value_error(&key, error.message()),
                None => malformed(self.text, self.origin, &error),
            }
        })
    }

    /// Returns an error about the value of `key` (`hami.default_cards`,
    /// `driver.simulated[0].count`). One that must be there and is not has its table's line.
    pub(super) fn value_error(&self, key: &str, accepted: &str) -> ConfigError {
        let values = values(&self.root, "");
        let find = |key| values.iter().find(|(name, _)| name == key).map(|(_, value)| *value);
        let table = || key.rsplit_once('.').and_then(|(table, _)| find(table));
        let value = find(key);
        ConfigError::Value {
            origin: self.origin.to_owned(),
            line: value.or_else(table).map(|value| line_at(self.text, value.span().start)),
            key: key.to_owned(),
            value: match value.map(Spanned::get_ref) {
                Some(DeValue::Integer(number)) => number.to_string(),
                Some(DeValue::Float(number)) => number.to_string(),
                Some(value) => format!("{:?}", value.as_str().unwrap_or_default()),
                None => "\"\"".to_owned(),
            },
            accepted: accepted.to_owned(),
        }
    }

    fn refuse_unknown(&self, table: &DeTable<'_>, known: &DeTable<'_>, prefix: &str) -> Result<(), ConfigError> {
        for (key, value) in table {
            let name = key.get_ref();
            let Some(expected) = known.get(name.as_ref()).map(Spanned::get_ref) else {
                return Err(ConfigError::UnknownKey {
                    origin: self.origin.to_owned(),
                    line: line_at(self.text, key.span().start),
                    key: format!("{prefix}{name}"),
                    suggestion: nearest(name, known.keys().map(|key| key.get_ref().as_ref()))
                        .map(|near| format!("{prefix}{near}")),
                });
            };
            self.refuse_other_type(&format!("{prefix}{name}"), value, expected)?;
            let prefix = format!("{prefix}{name}.");
            match (value.get_ref(), expected) {
                (DeValue::Table(inner), DeValue::Table(known)) => self.refuse_unknown(inner, known, &prefix)?,
                (DeValue::Array(items), DeValue::Array(known)) => {
                    let Some(DeValue::Table(known)) = known.first().map(Spanned::get_ref) else { continue };
                    for table in items.iter().filter_map(|item| item.get_ref().as_table()) {
                        self.refuse_unknown(table, known, &prefix)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// `example` is a value of the type that the key has.
    fn refuse_other_type(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        example: &DeValue<'_>,
    ) -> Result<(), ConfigError> {
        let accepted = match (value.get_ref(), example) {
            (DeValue::String(_), DeValue::String(_))
            | (DeValue::Integer(_), DeValue::Integer(_) | DeValue::Float(_))
            | (DeValue::Float(_), DeValue::Float(_))
            | (DeValue::Boolean(_), DeValue::Boolean(_))
            | (DeValue::Table(_), DeValue::Table(_)) => return Ok(()),
            (DeValue::Array(items), DeValue::Array(_)) if items.iter().all(|item| item.get_ref().is_table()) => {
                return Ok(());
            }
            (_, DeValue::String(text)) if text.is_empty() => "text in quotation marks".to_owned(),
            (_, DeValue::String(text)) => format!("text in quotation marks, such as {text:?}"),
            (_, DeValue::Integer(number)) => format!("a whole number without quotation marks, such as {number}"),
            (_, DeValue::Float(number)) => format!("a number without quotation marks, such as {number}"),
            (_, DeValue::Boolean(_)) => "true or false, without quotation marks".to_owned(),
            (_, DeValue::Array(_)) => format!("tables that begin with [[{key}]]"),
            (_, DeValue::Table(_) | DeValue::Datetime(_)) => format!("a table that begins with [{key}]"),
        };
        let written = self.text.get(value.span()).unwrap_or_default();
        Err(ConfigError::Value {
            origin: self.origin.to_owned(),
            line: Some(line_at(self.text, value.span().start)),
            key: key.to_owned(),
            value: written.lines().next().unwrap_or_default().to_owned(),
            accepted,
        })
    }
}

/// Inserts what a table, whose place is `span`, leaves out.
fn complete(table: &mut DeTable<'_>, defaults: &DeTable<'static>, span: &Range<usize>) {
    for (key, default) in defaults {
        let value = table.entry(key.clone()).or_insert_with(|| {
            let value = match default.get_ref() {
                DeValue::Table(_) => DeValue::Table(DeTable::new()),
                DeValue::Array(_) => DeValue::Array(DeArray::new()),
                value => value.clone(),
            };
            Spanned::new(span.clone(), value)
        });
        let span = value.span();
        match (value.get_mut(), default.get_ref()) {
            (DeValue::Table(table), DeValue::Table(defaults)) => complete(table, defaults, &span),
            (DeValue::Array(tables), DeValue::Array(kinds)) => {
                let Some(DeValue::Table(defaults)) = kinds.last().map(Spanned::get_ref) else { continue };
                for table in tables.iter_mut() {
                    let span = table.span();
                    if let DeValue::Table(table) = table.get_mut() {
                        complete(table, defaults, &span);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Returns each value below `table` with its key, which begins with `prefix`; what a table has
/// comes before the table.
pub(super) fn values<'a, 'text>(table: &'a DeTable<'text>, prefix: &str) -> Vec<(String, &'a Spanned<DeValue<'text>>)> {
    let mut all = Vec::new();
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        let items = value.get_ref().as_array().into_iter().flatten().enumerate();
        let places = items.map(|(index, item)| (format!("{key}[{index}]"), item));
        for (key, value) in places.chain([(key.clone(), value)]) {
            if let Some(table) = value.get_ref().as_table() {
                all.extend(values(table, &format!("{key}.")));
            }
            all.push((key, value));
        }
    }
    all
}

/// The one of `names` that `name` was probably meant to be.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names
        .map(|candidate| (jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= SIMILAR)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

fn malformed(text: &str, origin: &str, error: &toml::de::Error) -> ConfigError {
    ConfigError::Malformed {
        origin: origin.to_owned(),
        line: error.span().map_or(1, |span| line_at(text, span.start)),
        message: error.message().to_owned(),
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
