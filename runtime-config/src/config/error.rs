//! Errors of a configuration file.

use std::{io, path::PathBuf};

/// A configuration file that was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is there, or was named, and cannot be read.
    #[error("cannot read the configuration file {path}; `egpu config default` prints one to begin with", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A text that is not TOML, or a value of the wrong type.
    #[error("{origin}, line {line}: {message}")]
    Malformed {
        /// The file.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// The fault.
        message: String,
    },
    /// A key that egpu does not know.
    #[error("{origin}, line {line}: there is no key `{key}`{}; `egpu config default` lists all",
        .suggestion.as_ref().map(|near| format!(", did you mean `{near}`?")).unwrap_or_default())]
    UnknownKey {
        /// The file.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// The key with the tables it stands in: `driver.knd`.
        key: String,
        /// The nearest key that there is.
        suggestion: Option<String>,
    },
    /// A value that is not accepted.
    #[error("{origin}{}: {key} = {value} is not accepted; it must be {accepted}",
        .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Value {
        /// The file.
        origin: String,
        /// Counted from 1.
        line: Option<usize>,
        /// The key with the tables it stands in.
        key: String,
        /// The value as written.
        value: String,
        /// The accepted values.
        accepted: String,
    },
}
