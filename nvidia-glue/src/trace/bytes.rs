//! Bytes in a trace: hexadecimal, without the zeros at their end, which most of the driver's large structs consist of.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Bytes, written as `{"length": 48, "hex": "0100d0c1"}`: what `hex` leaves out at the end is zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TracedBytes(pub Vec<u8>);

/// More than any call's struct or buffer: a trace is a file that somebody may have broken.
const MOST: usize = 1 << 21;

#[derive(Serialize, Deserialize)]
struct Written {
    length: usize,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    hex: String,
}

impl Serialize for TracedBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let used = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let used = self.0.get(..used).unwrap_or_default();
        Written { length: self.0.len(), hex: hex::encode(used) }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TracedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        if written.length > MOST {
            return Err(D::Error::custom(format!("{} bytes in one piece, at most {MOST} are", written.length)));
        }
        let mut bytes = hex::decode(&written.hex).map_err(D::Error::custom)?;
        if bytes.len() > written.length {
            return Err(D::Error::custom(format!("{} bytes where {} are said", bytes.len(), written.length)));
        }
        bytes.resize(written.length, 0);
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zeros_at_the_end_are_not_written() {
        let text = serde_json::to_string(&TracedBytes(vec![1, 0, 2, 0, 0])).unwrap();
        assert_eq!(text, r#"{"length":5,"hex":"010002"}"#);
        assert_eq!(serde_json::to_string(&TracedBytes(vec![0; 4])).unwrap(), r#"{"length":4}"#);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, why) in [
            (r#"{"length":1,"hex":"0102"}"#, "2 bytes where 1 are said"),
            (r#"{"length":3,"hex":"01x"}"#, "Odd number"),
            (r#"{"length":99999999}"#, "at most"),
        ] {
            let error = serde_json::from_str::<TracedBytes>(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), zeros in 0_usize..50) {
            let mut bytes = bytes;
            bytes.resize(bytes.len() + zeros, 0);
            let text = serde_json::to_string(&TracedBytes(bytes.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<TracedBytes>(&text).unwrap().0, bytes);
        }
    }
}
