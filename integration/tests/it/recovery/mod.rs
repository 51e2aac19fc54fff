//! Deaths at bad moments: of containerd, of the shim, of its helper. Nothing stays, no grant
//! outlives its container.

mod containerd_restart;
mod kills;
mod orphans;
mod state;

use crate::case::Case;

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    [containerd_restart::cases(), kills::cases(), orphans::cases(), state::cases()].into_iter().flatten().collect()
}
