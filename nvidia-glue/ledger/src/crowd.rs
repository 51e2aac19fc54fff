//! Bounds on the number of containers that wait for room.

use std::fmt;

/// Most containers that wait on one node. Each of them tries again and again, under the ledger's
/// one lock, and visits all that are ahead of it: the work grows with their square.
pub(crate) const MAX_WAITERS: usize = 32;
/// Most of them that are one owner's.
pub(crate) const MAX_WAITERS_OF_OWNER: usize = 8;

/// As many containers wait as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowd {
    /// On this node.
    Node,
    Owner,
}

impl fmt::Display for Crowd {
    /// `32 containers of this node`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => write!(formatter, "{MAX_WAITERS} containers of this node"),
            Self::Owner => write!(formatter, "{MAX_WAITERS_OF_OWNER} containers of this namespace"),
        }
    }
}
