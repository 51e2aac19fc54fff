//! Bytes in a trace: hexadecimal, without the long runs of zeros that the driver's large structs
//! mostly consist of.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Bytes, written as `{"length": 48, "hex": [[0, "0100d0c1"]]}`: pieces with their offsets; what
/// lies between them is zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TracedBytes(pub Vec<u8>);

/// Most bytes of a struct or buffer, more than any call has: a trace is a file that somebody may
/// have broken.
const MOST: usize = 1 << 21;
/// Zeros in a row that end a piece.
const GAP: usize = 16;

#[derive(Serialize, Deserialize)]
struct Written {
    length: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hex: Vec<(usize, String)>,
}

impl Serialize for TracedBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hex = pieces(&self.0).map(|(at, piece)| (at, hex::encode(piece))).collect();
        Written { length: self.0.len(), hex }.serialize(serializer)
    }
}

/// Non-zero runs of bytes, with their offsets.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + bytes.get(at..)?.iter().position(|byte| *byte != 0)?;
        let rest = bytes.get(start..)?;
        let gap = rest.windows(GAP).position(|window| window.iter().all(|byte| *byte == 0));
        let used = gap.or_else(|| rest.iter().rposition(|byte| *byte != 0).map(|last| last + 1))?;
        at = start + used;
        Some((start, rest.get(..used)?))
    })
}

impl<'de> Deserialize<'de> for TracedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        if written.length > MOST {
            return Err(D::Error::custom(format!("{} bytes in one place, at most {MOST} are", written.length)));
        }
        let mut bytes = vec![0; written.length];
        for (at, hex) in &written.hex {
            let piece = hex::decode(hex).map_err(D::Error::custom)?;
            let place = at.checked_add(piece.len()).and_then(|end| bytes.get_mut(*at..end));
            let Some(place) = place else {
                let message = format!("{} bytes at {at} of {}", piece.len(), written.length);
                return Err(D::Error::custom(message));
            };
            place.copy_from_slice(&piece);
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_runs_of_zeros_are_not_written() {
        let text = serde_json::to_string(&TracedBytes(vec![1, 0, 2, 0, 0])).unwrap();
        assert_eq!(text, r#"{"length":5,"hex":[[0,"010002"]]}"#);
        let mut sparse = vec![0; 40];
        (sparse[2], sparse[30]) = (7, 8);
        assert_eq!(serde_json::to_string(&TracedBytes(sparse)).unwrap(), r#"{"length":40,"hex":[[2,"07"],[30,"08"]]}"#);
        assert_eq!(serde_json::to_string(&TracedBytes(vec![0; 4])).unwrap(), r#"{"length":4}"#);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, why) in [
            (r#"{"length":1,"hex":[[0,"0102"]]}"#, "2 bytes at 0 of 1"),
            (r#"{"length":9,"hex":[[8,"0102"]]}"#, "2 bytes at 8 of 9"),
            (r#"{"length":3,"hex":[[18446744073709551615,"01"]]}"#, "of 3"),
            (r#"{"length":3,"hex":[[0,"01x"]]}"#, "Odd number"),
            (r#"{"length":99999999}"#, "at most"),
        ] {
            let error = serde_json::from_str::<TracedBytes>(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(runs in proptest::collection::vec((any::<u8>(), 1_usize..40), 0..20)) {
            let bytes: Vec<u8> = runs.iter().flat_map(|(byte, count)| std::iter::repeat_n(byte % 3, *count)).collect();
            let text = serde_json::to_string(&TracedBytes(bytes.clone())).unwrap();
            prop_assert_eq!(serde_json::from_str::<TracedBytes>(&text).unwrap().0, bytes);
        }
    }
}
