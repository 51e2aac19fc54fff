//! Marks of the points that a create, an exec and a delete pass: `scripts/timeline.py` turns them
//! into a timeline.
//!
//! Nothing is marked unless the environment variable `EGPU_SPANS` names a file. containerd hands it
//! to the shim, and the shim to its helper, workers and mediators. A mark is a line of the file:
//! monotonic time in microseconds, process group (the shim's), process, point, container.

use std::{env, fs::OpenOptions, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::PathBuf, sync::LazyLock};

use base::now_us;
use rustix::process::{getpgrp, getpid};

/// The variable that names the file.
const FILE: &str = "EGPU_SPANS";

static MARKS: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| env::var_os(FILE).filter(|path| !path.is_empty()).map(PathBuf::from));

/// Marks a point; `container` is empty where the process group shows whose it is.
///
/// The file is opened each time: none of the processes keeps a descriptor for it. One that cannot
/// reach the file any more, as a mediator in its own mount namespace, leaves no mark.
pub fn mark(point: &'static str, container: &str) {
    let Some(path) = &*MARKS else { return };
    let (group, process) = (getpgrp().as_raw_nonzero(), getpid().as_raw_nonzero());
    let line = format!("{} {group} {process} {} {container}\n", now_us(), point.replace(' ', "-"));
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).mode(0o600).open(path) {
        // One write, so that lines of several processes do not mix.
        let _ = file.write_all(line.as_bytes());
    }
}
