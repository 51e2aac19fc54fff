//! A configuration file's text: where a key stands in it, and which of its keys do not exist.

use strsim::jaro_winkler;
use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue},
};

use super::{ConfigError, wire};

/// Similarity from which one name is suggested for another.
const SIMILAR: f64 = 0.8;

/// A file's text, parsed but not yet understood.
pub(super) struct Document<'text> {
    text: &'text str,
    origin: &'text str,
    root: DeTable<'text>,
}

impl<'text> Document<'text> {
    /// # Errors
    /// When the text is not TOML.
    pub(super) fn parse(text: &'text str, origin: &'text str) -> Result<Self, ConfigError> {
        let root = DeTable::parse(text).map_err(|error| malformed(text, origin, &error))?.into_inner();
        Ok(Self { text, origin, root })
    }

    /// The file with its types.
    ///
    /// # Errors
    /// For a key that does not exist or a value of the wrong type.
    pub(super) fn decode(&self) -> Result<wire::File, ConfigError> {
        // A file without an example of every key cannot happen; with an empty table every key would
        // be unknown.
        let known = Table::try_from(wire::File::with_every_key()).unwrap_or_default();
        self.refuse_unknown(&self.root, &known, "")?;
        toml::from_str(self.text).map_err(|error| malformed(self.text, self.origin, &error))
    }

    /// An error about the value of `key` (`hami.default_cards`, `driver.simulated[0].count`), with
    /// the line where it is set, if it is.
    pub(super) fn value_error(&self, key: &str, value: &str, accepted: String) -> ConfigError {
        ConfigError::Value {
            origin: self.origin.to_owned(),
            line: self.line_of(key),
            key: key.to_owned(),
            value: value.to_owned(),
            accepted,
        }
    }

    fn refuse_unknown(&self, table: &DeTable<'_>, known: &Table, prefix: &str) -> Result<(), ConfigError> {
        for (key, value) in table {
            let name = key.get_ref();
            let Some(expected) = known.get(name.as_ref()) else {
                return Err(ConfigError::UnknownKey {
                    origin: self.origin.to_owned(),
                    line: line_at(self.text, key.span().start),
                    key: format!("{prefix}{name}"),
                    suggestion: nearest(name, known.keys().map(String::as_str)).map(|near| format!("{prefix}{near}")),
                });
            };
            self.refuse_other_type(&format!("{prefix}{name}"), value, expected)?;
            let prefix = format!("{prefix}{name}.");
            match (value.get_ref(), expected) {
                (DeValue::Table(inner), Value::Table(known)) => self.refuse_unknown(inner, known, &prefix)?,
                (DeValue::Array(items), Value::Array(known)) => {
                    let Some(Value::Table(known)) = known.first() else { continue };
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
    fn refuse_other_type(&self, key: &str, value: &Spanned<DeValue<'_>>, example: &Value) -> Result<(), ConfigError> {
        let accepted = match (value.get_ref(), example) {
            (DeValue::String(_), Value::String(_))
            | (DeValue::Integer(_), Value::Integer(_) | Value::Float(_))
            | (DeValue::Float(_), Value::Float(_))
            | (DeValue::Boolean(_), Value::Boolean(_))
            | (DeValue::Table(_), Value::Table(_))
            | (DeValue::Array(_), Value::Array(_)) => return Ok(()),
            (_, Value::String(text)) if text.is_empty() => "text in quotation marks".to_owned(),
            (_, Value::String(text)) => format!("text in quotation marks, such as {text:?}"),
            (_, Value::Integer(number)) => format!("a whole number without quotation marks, such as {number}"),
            (_, Value::Float(number)) => format!("a number without quotation marks, such as {number:?}"),
            (_, Value::Boolean(_)) => "true or false, without quotation marks".to_owned(),
            (_, Value::Array(_)) => format!("tables that begin with [[{key}]]"),
            (_, Value::Table(_) | Value::Datetime(_)) => format!("a table that begins with [{key}]"),
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

    fn line_of(&self, key: &str) -> Option<usize> {
        let mut table = &self.root;
        let mut steps = key.split('.').peekable();
        while let Some(step) = steps.next() {
            let (name, index) = match step.strip_suffix(']').and_then(|step| step.split_once('[')) {
                Some((name, index)) => (name, index.parse::<usize>().ok()),
                None => (step, None),
            };
            let value: &Spanned<DeValue<'_>> = table.get(name)?;
            if steps.peek().is_none() {
                return Some(line_at(self.text, value.span().start));
            }
            let value = match index {
                Some(index) => value.get_ref().as_array()?.get(index)?,
                None => value,
            };
            table = match value.get_ref().as_table() {
                Some(inner) if steps.peek().is_some_and(|next| inner.contains_key(*next) || next.contains('[')) => {
                    inner
                }
                // A key that is missing where it must stand: the table's own line.
                _ => return Some(line_at(self.text, value.span().start)),
            };
        }
        None
    }
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
