//! Refusals of what a container asks for.

/// A spec or process that cannot be run as it asks to be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) String);
