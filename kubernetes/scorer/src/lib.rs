//! An extender of Kubernetes' scheduler that scores nodes by what claims hold of their cards.
//!
//! ```text
//! API server ── slices, claims, classes, bound pods ──> watch ──> cluster ──> placement
//! scheduler  ── POST /prioritize ──> server ──> request ────────────┘             │
//!            <──────────────────────────────── scores ────────────────────────────┘
//! ```
//! It only prefers: the scheduler itself decides which nodes have room, and goes on without it. A
//! call reads memory alone. It keeps nothing that is not read anew at the next start.
#![forbid(unsafe_code)]

mod cluster;
mod options;
mod placement;
mod prioritize;
mod request;
mod scorer;
mod server;
#[cfg(test)]
mod tests;
mod watch;

pub use options::Options;
pub use placement::Placement;
pub use scorer::{ScorerError, main_of};
