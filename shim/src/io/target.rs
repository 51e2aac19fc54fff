//! The destination that containerd names for a stream: a path, or a URI.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

use percent_encoding::percent_decode_str;

/// A parsed destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StreamTarget {
    /// Nowhere.
    None,
    /// A FIFO, or an existing file.
    Path(PathBuf),
    /// A file to make.
    File(PathBuf),
    /// A log driver to run.
    Binary(Binary),
}

/// A log driver: `binary:///path?key=value&...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binary {
    /// The program.
    pub(super) path: PathBuf,
    /// Keys and values of the query, one after the other.
    pub(super) arguments: Vec<OsString>,
    /// `binary-v2`: it must say that it is ready, ending is not enough.
    pub(super) must_say_ready: bool,
}

/// A destination that was refused.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// A URI that is not understood.
    #[error("scheme {scheme:?} of {uri:?} is not known; accepted are a path and fifo, file, binary and binary-v2 URIs")]
    Scheme {
        scheme: String,
        /// The URI as given.
        uri: String,
    },
    /// A URI without an absolute path.
    #[error("{uri:?} has no absolute path; write SCHEME:///PATH")]
    NoPath {
        /// The URI as given.
        uri: String,
    },
}

impl StreamTarget {
    pub(super) fn parse(text: &str) -> Result<Self, TargetError> {
        if text.is_empty() {
            return Ok(Self::None);
        }
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(Self::Path(text.into())) };
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = PathBuf::from(decoded(path));
        if !path.is_absolute() {
            return Err(TargetError::NoPath { uri: text.to_owned() });
        }
        match scheme {
            "fifo" => Ok(Self::Path(path)),
            "file" => Ok(Self::File(path)),
            "binary" | "binary-v2" => {
                let must_say_ready = scheme == "binary-v2";
                Ok(Self::Binary(Binary { path, arguments: arguments(query), must_say_ready }))
            }
            _ => Err(TargetError::Scheme { scheme: scheme.to_owned(), uri: text.to_owned() }),
        }
    }

    /// The file it is about, for a message.
    pub(super) fn into_path(self) -> PathBuf {
        match self {
            Self::None => PathBuf::new(),
            Self::Path(path) | Self::File(path) | Self::Binary(Binary { path, .. }) => path,
        }
    }
}

/// Returns the arguments as containerd's shim does: each key and its first value become arguments.
fn arguments(query: &str) -> Vec<OsString> {
    let mut seen = Vec::new();
    let mut arguments = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decoded(&key.replace('+', " ")), decoded(&value.replace('+', " ")));
        if !seen.contains(&key) {
            seen.push(key.clone());
            arguments.extend([key, value]);
        }
    }
    arguments
}

fn decoded(text: &str) -> OsString {
    OsString::from_vec(percent_decode_str(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(path: &str, arguments: &[&str], must_say_ready: bool) -> StreamTarget {
        let arguments = arguments.iter().map(OsString::from).collect();
        StreamTarget::Binary(Binary { path: path.into(), arguments, must_say_ready })
    }

    #[test]
    fn destinations() {
        for (text, expected) in [
            ("", StreamTarget::None),
            ("/run/fifo/1-stdout", StreamTarget::Path("/run/fifo/1-stdout".into())),
            ("fifo:///run/a%20b", StreamTarget::Path("/run/a b".into())),
            ("file:///var/log/c.log", StreamTarget::File("/var/log/c.log".into())),
            ("binary:///bin/logger", binary("/bin/logger", &[], false)),
            (
                "binary:///bin/logger?-f=/a%3Fb&x=1+2&flag",
                binary("/bin/logger", &["-f", "/a?b", "x", "1 2", "flag", ""], false),
            ),
            ("binary-v2:///bin/logger?k=v&k=w", binary("/bin/logger", &["k", "v"], true)),
        ] {
            assert_eq!(StreamTarget::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_refused() {
        assert!(matches!(StreamTarget::parse("npipe:///x"), Err(TargetError::Scheme { .. })));
        assert!(matches!(StreamTarget::parse("binary://relative"), Err(TargetError::NoPath { .. })));
        assert!(matches!(StreamTarget::parse("file://"), Err(TargetError::NoPath { .. })));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = StreamTarget::parse(&text);
        }
    }
}
