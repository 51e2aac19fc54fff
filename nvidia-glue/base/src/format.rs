//! Formats of the files that the builds of egpu on a node have in common.
//!
//! Each such file says two numbers: `format`, in which it was written, and `version`, the oldest
//! format whose readers may act on it. A format that only adds fields keeps the version: who does
//! not know the fields does without them, and keeps them where it writes such a file anew
//! ([`keep_unknown`]). Anything else is an incompatible format, whose version is its own number.
//! Two builds share a node if each knows the other's version; a build that meets an incompatible
//! one grants nothing beside it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Set in a build for one test, which stands for the next version of egpu.
pub const IS_NEXT: bool = cfg!(feature = "next-format");

/// Format in which this build writes a kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Its number.
    pub number: u32,
    /// Oldest format whose readers may act on such a file.
    pub version: u32,
}

/// Numbers that a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFormat {
    /// Oldest format whose readers may act on it.
    #[serde(default = "first")]
    pub version: u32,
    /// Format in which it was written.
    #[serde(default = "first")]
    pub format: u32,
}

/// The format of files that do not say one.
pub fn first() -> u32 {
    1
}

/// A file of a format that does not go together with this build's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{written}, and this egpu has {own}")]
pub struct FormatError {
    /// Format of the file.
    written: WrittenFormat,
    /// Format of this build.
    own: WrittenFormat,
}

impl fmt::Display for WrittenFormat {
    /// `format 3, for readers of format 2 or later`
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "format {}, for readers of format {} or later", self.format, self.version)
    }
}

impl Format {
    /// Format `number`, on which readers from `version` on may act.
    pub const fn new(number: u32, version: u32) -> Self {
        Self { number: if IS_NEXT { number + 1 } else { number }, version }
    }

    /// Numbers of a file in this format.
    pub const fn written(self) -> WrittenFormat {
        WrittenFormat { version: self.version, format: self.number }
    }

    /// Checks that this build may act on a file.
    ///
    /// # Errors
    /// When its version is newer than this format.
    pub fn check_reads(self, written: WrittenFormat) -> Result<(), FormatError> {
        self.check(written, written.version <= self.number)
    }

    /// Checks that this build and the one that has written a file may share a node: each may act on
    /// what the other writes.
    ///
    /// # Errors
    /// When one of them may not.
    pub fn check_shares(self, written: WrittenFormat) -> Result<(), FormatError> {
        self.check(written, written.version <= self.number && self.version <= written.format)
    }

    fn check(self, written: WrittenFormat, is_fine: bool) -> Result<(), FormatError> {
        if is_fine { Ok(()) } else { Err(FormatError { written, own: self.written() }) }
    }
}

/// Adds to `new` the fields of `old` that this build does not know. `known` is `old` as this build
/// has read it. Entries of lists belong together by their position, where there are as many.
pub fn keep_unknown(old: &Value, known: &Value, new: &mut Value) {
    match (old, known, new) {
        (Value::Object(old), Value::Object(known), Value::Object(new)) => {
            for (name, value) in old {
                match (known.get(name), new.get_mut(name)) {
                    (None, None) => drop(new.insert(name.clone(), value.clone())),
                    (Some(known), Some(new)) => keep_unknown(value, known, new),
                    _ => {}
                }
            }
        }
        (Value::Array(old), Value::Array(known), Value::Array(new))
            if old.len() == known.len() && old.len() == new.len() =>
        {
            for ((old, known), new) in old.iter().zip(known).zip(new) {
                keep_unknown(old, known, new);
            }
        }
        _ => {}
    }
}

/// Serializes the content of a file.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn to_vec(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    if IS_NEXT { serde_json::to_vec(&to_value(value)?) } else { serde_json::to_vec(value) }
}

/// Serializes the content of a file that people read, too.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn to_vec_pretty(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    if IS_NEXT { serde_json::to_vec_pretty(&to_value(value)?) } else { serde_json::to_vec_pretty(value) }
}

/// Serializes the content of a file, for changes before it is written.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn to_value(value: &impl Serialize) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(value)?;
    if IS_NEXT {
        add_next_fields(&mut value);
    }
    Ok(value)
}

/// Adds fields that no format has yet, as the next one may.
fn add_next_fields(value: &mut Value) {
    let Value::Object(fields) = value else { return };
    if let Some(Value::Array(cards)) = fields.get_mut("cards") {
        cards.iter_mut().for_each(add_next_fields);
    }
    fields.insert("next_format".to_owned(), Value::Bool(true));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(format: u32, version: u32) -> WrittenFormat {
        WrittenFormat { version, format }
    }

    #[test]
    fn builds_share_a_node_if_each_may_act_on_what_the_other_writes() {
        let own = Format { number: 5, version: 3 };
        let fine = [written(5, 3), written(3, 1), written(9, 5)];
        assert!(fine.into_iter().all(|written| own.check_shares(written).is_ok()));
        assert!(own.check_shares(written(6, 6)).is_err(), "made for later readers");
        assert!(own.check_shares(written(2, 1)).is_err(), "its readers would not understand ours");
        assert!(own.check_reads(written(2, 1)).is_ok());
        let error = own.check_reads(written(7, 6)).unwrap_err().to_string();
        assert_eq!(
            error,
            "format 7, for readers of format 6 or later, and this egpu has format 5, for readers of format 3 or later"
        );
    }

    #[test]
    fn a_file_that_says_nothing_is_of_the_first_format() {
        assert_eq!(serde_json::from_str::<WrittenFormat>("{}").unwrap(), written(1, 1));
        assert_eq!(serde_json::from_str::<WrittenFormat>(r#"{"version":1,"new":2}"#).unwrap(), written(1, 1));
    }

    #[test]
    fn unknown_fields_are_kept_at_every_depth_and_known_ones_changed() {
        let old = json!({ "a": 1, "new": 2, "cards": [{ "b": 1, "new": 3 }], "share": { "cap": { "new": 4 } } });
        let known = json!({ "a": 1, "cards": [{ "b": 1 }], "share": { "cap": {} } });
        let mut new = json!({ "a": 9, "cards": [{ "b": 2 }], "share": { "weight": 2 }, "added": 1 });
        keep_unknown(&old, &known, &mut new);
        let kept = json!({ "a": 9, "cards": [{ "b": 2, "new": 3 }], "share": { "weight": 2 }, "added": 1, "new": 2 });
        assert_eq!(new, kept);
        let mut shorter = json!({ "cards": [] });
        keep_unknown(&old, &known, &mut shorter);
        assert_eq!(shorter, json!({ "cards": [], "new": 2 }), "a field that this build removes stays away");
    }
}
