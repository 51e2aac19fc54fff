//! Containers that use egpu: while there is one, nothing is taken away. Without the shim's program
//! containerd could neither stop nor clean up after them.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use egpu_shim::{info::BINARY, registry::Registry};
use ledger::{ContainerName, Ledger};
use runtime_config::Config;

use super::error::InstallError;

/// Time in which the shim of a container that was just deleted ends; it takes milliseconds.
const ENDING: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(20);

/// Refuses if there is any.
pub(super) fn refuse() -> Result<(), InstallError> {
    let mut names = holders()?;
    for note in Registry::of_this_node().iter().flat_map(Registry::notes) {
        names.insert(format!("{}/{}", note.namespace, note.id));
    }
    // Of another state directory, or of another containerd.
    let known = |id: &str| names.iter().any(|name| name.contains(id));
    let unknown = || -> Vec<String> { shims().into_iter().filter(|id| !known(id)).collect() };
    let (deadline, mut shims) = (Instant::now() + ENDING, unknown());
    while names.is_empty() && !shims.is_empty() && Instant::now() < deadline {
        sleep(RETRY);
        shims = unknown();
    }
    names.extend(shims);
    if names.is_empty() { Ok(()) } else { Err(InstallError::InUse { names: names.into_iter().collect() }) }
}

/// Names the containers that hold cards.
fn holders() -> Result<BTreeSet<String>, InstallError> {
    // One that cannot be read is in nobody's way; its containers' shims run all the same.
    let config = Config::load(None).unwrap_or_default();
    if !config.state_dir.is_dir() {
        return Ok(BTreeSet::new());
    }
    let records = Ledger::open(&config.state_dir).and_then(|ledger| ledger.records());
    let records = records.map_err(|error| InstallError::Containers(Box::new(error)))?;
    Ok(records.iter().map(|record| ContainerName::from(record).to_string()).collect())
}

/// Names what running shims were started for. By their arguments: a shim runs through a read-only
/// mount of its own, which has no place in the tree.
fn shims() -> BTreeSet<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| shim_of(&fs::read(process.path().join("cmdline")).ok()?)).collect()
}

fn shim_of(cmdline: &[u8]) -> Option<String> {
    let mut arguments = cmdline.split(|byte| *byte == 0);
    let program = Path::new(std::ffi::OsStr::from_bytes(arguments.next()?));
    (program.file_name()? == BINARY).then_some(())?;
    let id = arguments.skip_while(|argument| *argument != b"-id").nth(1)?;
    Some(String::from_utf8_lossy(id).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shims_are_known_by_their_arguments() {
        for (line, id) in [
            ("/usr/bin/containerd-shim-egpu-v1 -namespace k8s.io -id web -address /a", Some("web")),
            ("containerd-shim-egpu-v1 -info", None),
            ("containerd-shim-runc-v2 -id web", None),
            ("", None),
        ] {
            let cmdline: Vec<u8> = line.split(' ').flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
            assert_eq!(shim_of(&cmdline).as_deref(), id, "{line}");
        }
    }
}
