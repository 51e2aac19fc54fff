//! Processes that take part in the simulation.

use base::ProcessId;
use rustix::{process::Pid as ThreadId, thread::sched_getaffinity};

/// Returns whether a process that takes part in the simulation is there. A mediator sees no other
/// one in `/proc`, but the kernel answers of every number whether it is anybody's.
pub(super) fn is_there(process: ProcessId) -> bool {
    let is_anybodys = |pid: i32| ThreadId::from_raw(pid).is_some_and(|pid| sched_getaffinity(Some(pid)).is_ok());
    ProcessId::of(process.pid).map_or_else(|_| process.pid > 0 && is_anybodys(process.pid), |now| now == process)
}
