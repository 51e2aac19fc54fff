//! Annotations `org.systemd.property.NAME`, which set properties of the container's scope as under
//! runc: `TimeoutStopSec: "30"`, `CollectMode: "'inactive-or-failed'"`, `After: "['nfs.service']"`.
//!
//! A value is written as in GVariant's text format, of which this is the part that properties of
//! units need: numbers, truth values, strings, and arrays of them.

use std::collections::HashMap;

use zbus::zvariant::{Array, ObjectPath, Signature, Value};

const PREFIX: &str = "org.systemd.property.";
/// egpu's own: where the container is, and which devices it may use.
const OWN: [&str; 4] = ["DeviceAllow", "DevicePolicy", "PIDs", "Slice"];
const MICROSECONDS: u64 = 1_000_000;

/// A property of a unit.
pub(crate) type Property = (String, Value<'static>);

/// An annotation that is no property.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum AnnotationError {
    #[error("annotation {PREFIX}{0}: the name of a property has three letters or more, and letters alone")]
    Name(String),
    /// A property that decides the container's cgroup.
    #[error("annotation {PREFIX}{0}: the runtime sets this property itself; leave it out")]
    Own(String),
    /// Its value.
    #[error(
        "annotation {PREFIX}{name}: {value:?} is no value ({reason}); write it as in `30`, `uint64 30`, `true`, `'text'` or `['a', 'b']`"
    )]
    Value { name: String, value: String, reason: String },
}

/// The properties that a container's annotations set, in the order of their names.
pub(crate) fn properties(annotations: &HashMap<String, String>) -> Result<Vec<Property>, AnnotationError> {
    let mut given: Vec<(&str, &str)> =
        annotations.iter().filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.as_str()))).collect();
    given.sort_unstable();
    given.into_iter().map(|(name, value)| property(name, value)).collect()
}

fn property(name: &str, text: &str) -> Result<Property, AnnotationError> {
    if name.len() < 3 || !name.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Err(AnnotationError::Name(name.to_owned()));
    }
    if OWN.contains(&name) {
        return Err(AnnotationError::Own(name.to_owned()));
    }
    let wrong = |reason| AnnotationError::Value { name: name.to_owned(), value: text.to_owned(), reason };
    let value = ValueParser { rest: text }.whole().map_err(wrong)?;
    // systemd's files have `TimeoutStopSec`, its bus `TimeoutStopUSec`.
    match name.strip_suffix("Sec").filter(|stem| stem.ends_with(|last: char| last.is_ascii_lowercase())) {
        Some(stem) => {
            let time = microseconds(&value).ok_or_else(|| wrong("it must be a number of seconds".to_owned()))?;
            Ok((format!("{stem}USec"), Value::from(time)))
        }
        None => Ok((name.to_owned(), value)),
    }
}

fn microseconds(value: &Value<'_>) -> Option<u64> {
    let seconds = match *value {
        Value::U8(number) => u64::from(number),
        Value::U16(number) => u64::from(number),
        Value::U32(number) => u64::from(number),
        Value::U64(number) => number,
        Value::I16(number) => u64::try_from(number).ok()?,
        Value::I32(number) => u64::try_from(number).ok()?,
        Value::I64(number) => u64::try_from(number).ok()?,
        Value::F64(number) => {
            return u64::try_from(std::time::Duration::try_from_secs_f64(number).ok()?.as_micros()).ok();
        }
        _ => return None,
    };
    seconds.checked_mul(MICROSECONDS)
}

/// The rest of a value that is left to read.
struct ValueParser<'text> {
    rest: &'text str,
}

impl ValueParser<'_> {
    fn whole(mut self) -> Result<Value<'static>, String> {
        let kind = self.kind()?;
        let value = if self.take('[') { self.array(kind)? } else { self.scalar(kind.as_ref())? };
        match self.rest.trim_start() {
            "" => Ok(value),
            rest => Err(format!("{rest:?} comes after it")),
        }
    }

    /// The type, if it is said: `uint64`, or `@t`.
    fn kind(&mut self) -> Result<Option<Signature>, String> {
        if self.take('@') {
            let end = self.rest.find(char::is_whitespace).unwrap_or(self.rest.len());
            let (signature, rest) = self.rest.split_at(end);
            self.rest = rest;
            return Signature::try_from(signature).map(Some).map_err(|_| format!("{signature:?} is no type"));
        }
        let end = self.rest.find(|one: char| !one.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let kind = match word {
            "boolean" => Signature::Bool,
            "byte" => Signature::U8,
            "int16" => Signature::I16,
            "uint16" => Signature::U16,
            "int32" => Signature::I32,
            "uint32" => Signature::U32,
            "int64" => Signature::I64,
            "uint64" => Signature::U64,
            "double" => Signature::F64,
            "string" => Signature::Str,
            "objectpath" => Signature::ObjectPath,
            _ => return Ok(None),
        };
        self.rest = rest;
        Ok(Some(kind))
    }

    /// Reads an array after its `[`. All elements have the type that is said, or that of the first.
    fn array(&mut self, kind: Option<Signature>) -> Result<Value<'static>, String> {
        let mut element = match kind {
            None => None,
            Some(Signature::Array(child)) => Some(child.signature().clone()),
            Some(other) => return Err(format!("an array is no {other}")),
        };
        let mut elements = Vec::new();
        while !self.take(']') {
            if !elements.is_empty() && !self.take(',') {
                return Err("an array ends with ], and has commas between".to_owned());
            }
            let kind = self.kind()?.or(element);
            let value = self.scalar(kind.as_ref())?;
            element = Some(value.value_signature().clone());
            elements.push(value);
        }
        let element = element.ok_or_else(|| "an empty array needs its type, as in `@as []`".to_owned())?;
        let mut array = Array::new(&element);
        elements.into_iter().try_for_each(|value| array.append(value)).map_err(|error| error.to_string())?;
        Ok(Value::Array(array))
    }

    fn scalar(&mut self, kind: Option<&Signature>) -> Result<Value<'static>, String> {
        let quote = ['\'', '"'].into_iter().find(|quote| self.take(*quote));
        if let Some(quote) = quote {
            let text = self.string(quote)?;
            return match kind {
                None | Some(Signature::Str) => Ok(Value::from(text)),
                Some(Signature::ObjectPath) => {
                    ObjectPath::try_from(text).map(Value::from).map_err(|error| error.to_string())
                }
                Some(other) => Err(format!("a text is no {other}")),
            };
        }
        let end = self.rest.find(|one: char| one.is_whitespace() || ",[]".contains(one)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        scalar(word, kind).ok_or_else(|| match kind {
            Some(kind) => format!("{word:?} is no {kind}"),
            None => format!("{word:?} is no number, true or false, and texts have quotes"),
        })
    }

    /// Reads a string up to the quote that ends it.
    fn string(&mut self, quote: char) -> Result<String, String> {
        let mut text = String::new();
        let mut characters = self.rest.chars();
        while let Some(one) = characters.next() {
            match one {
                _ if one == quote => {
                    self.rest = characters.as_str();
                    return Ok(text);
                }
                '\\' => match characters.next() {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some(escaped @ ('\\' | '\'' | '"')) => text.push(escaped),
                    _ => return Err(r#"a \ stands before n, t, \, ' or " alone"#.to_owned()),
                },
                one => text.push(one),
            }
        }
        Err("a quote is missing".to_owned())
    }

    /// True if this comes next, which then is read.
    fn take(&mut self, one: char) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(one);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }
}

/// A number without a type is an `int32`, or a `double` if it reads so.
fn scalar(word: &str, kind: Option<&Signature>) -> Option<Value<'static>> {
    let is_hexadecimal = word.starts_with("0x");
    let default = if word.contains(['.', 'e']) && !is_hexadecimal { Signature::F64 } else { Signature::I32 };
    let whole = || match word.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => word.parse::<i128>().ok(),
    };
    match (word, kind.unwrap_or(&default)) {
        ("true" | "false", Signature::Bool) => Some(Value::from(word == "true")),
        ("true" | "false", _) if kind.is_none() => Some(Value::from(word == "true")),
        (_, Signature::U8) => u8::try_from(whole()?).ok().map(Value::from),
        (_, Signature::I16) => i16::try_from(whole()?).ok().map(Value::from),
        (_, Signature::U16) => u16::try_from(whole()?).ok().map(Value::from),
        (_, Signature::I32) => i32::try_from(whole()?).ok().map(Value::from),
        (_, Signature::U32) => u32::try_from(whole()?).ok().map(Value::from),
        (_, Signature::I64) => i64::try_from(whole()?).ok().map(Value::from),
        (_, Signature::U64) => u64::try_from(whole()?).ok().map(Value::from),
        (_, Signature::F64) => word.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: &str) -> Result<Vec<Property>, AnnotationError> {
        let annotations = HashMap::from([
            (format!("{PREFIX}{name}"), value.to_owned()),
            ("io.kubernetes.cri.container-type".to_owned(), "container".to_owned()),
        ]);
        properties(&annotations)
    }

    #[test]
    fn values_read_as_systemd_wants_them() {
        let rows: [(&str, &str, &str, Value<'_>); 15] = [
            ("CollectMode", "'inactive-or-failed'", "CollectMode", "inactive-or-failed".into()),
            ("Description", r#""it's \"mine\"""#, "Description", "it's \"mine\"".into()),
            ("TimeoutStopUSec", "uint64 123456789", "TimeoutStopUSec", 123_456_789_u64.into()),
            ("TimeoutStopUSec", "@t 5", "TimeoutStopUSec", 5_u64.into()),
            ("TimeoutStopSec", "5", "TimeoutStopUSec", 5_000_000_u64.into()),
            ("TimeoutStopSec", "double 0.5", "TimeoutStopUSec", 500_000_u64.into()),
            ("TimeoutStopSec", "1.5", "TimeoutStopUSec", 1_500_000_u64.into()),
            // Of these only the end of the word is the same.
            ("StartLimitUSec", "7", "StartLimitUSec", 7_i32.into()),
            ("Sec", "7", "Sec", 7_i32.into()),
            ("DefaultDependencies", " true ", "DefaultDependencies", true.into()),
            ("Delegate", "boolean false", "Delegate", false.into()),
            ("CPUWeight", "uint64 0x20", "CPUWeight", 32_u64.into()),
            ("After", "['a.service', 'b.service']", "After", vec!["a.service", "b.service"].into()),
            ("After", "@as []", "After", Vec::<&str>::new().into()),
            ("AllowedCPUs", "[byte 3,1]", "AllowedCPUs", vec![3_u8, 1].into()),
        ];
        for (name, text, property, value) in rows {
            assert_eq!(
                of(name, text),
                Ok(vec![(property.to_owned(), value.try_to_owned().unwrap().into())]),
                "{name} {text}"
            );
        }
        assert_eq!(properties(&HashMap::new()), Ok(vec![]));
    }

    #[test]
    fn what_is_no_property_is_refused_with_its_name() {
        for (name, text, wanted) in [
            ("", "1", "three letters"),
            ("Ab", "1", "three letters"),
            ("Memory_Max", "1", "letters alone"),
            ("Slice", "'other.slice'", "the runtime sets this property itself"),
            ("PIDs", "[uint32 1]", "the runtime sets this property itself"),
            ("CollectMode", "inactive", "texts have quotes"),
            ("CollectMode", "'inactive", "a quote is missing"),
            ("CollectMode", r"'\x'", "stands before"),
            ("TasksMax", "", r#""" is no number"#),
            ("TasksMax", "byte 256", r#""256" is no"#),
            ("TasksMax", "uint64 -1", r#""-1" is no"#),
            ("TasksMax", "1 2", r#""2" comes after it"#),
            ("TasksMax", "boolean 1", r#""1" is no"#),
            ("TasksMax", "@? 1", "is no type"),
            ("TasksMax", "uint64 [1]", "an array is no"),
            ("After", "[]", "needs its type"),
            ("After", "['a' 'b']", "commas between"),
            ("After", "['a', 1]", r#""1" is no"#),
            ("After", "[['a']]", r#""" is no number"#),
            ("After", "['a'", "commas between"),
            ("TimeoutStopSec", "'long'", "a number of seconds"),
            ("TimeoutStopSec", "-1", "a number of seconds"),
        ] {
            let refused = of(name, text).unwrap_err().to_string();
            assert!(refused.contains(wanted) && refused.contains(name), "{name} {text}: {refused}");
        }
    }
}
