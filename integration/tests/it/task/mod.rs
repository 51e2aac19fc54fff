//! The Task service, call by call. All of it must hold for runc's shim as well.

mod cgroups;
mod exec;
mod failures;
mod ids;
mod io;
mod lifecycle;
mod mounts;
mod resources;
mod user_namespaces;

use crate::case::Case;

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    [
        lifecycle::cases(),
        io::cases(),
        exec::cases(),
        mounts::cases(),
        cgroups::cases(),
        resources::cases(),
        user_namespaces::cases(),
        failures::cases(),
        ids::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
