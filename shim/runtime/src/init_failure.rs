//! Failures of libcontainer's init in words: its own messages name the step at best.

use base::error_chain;
use libcontainer::{process::init::error::InitProcessError, syscall::SyscallError};
use nix::errno::Errno;
use oci_spec::runtime::{Process, Scheduler, Spec};

use super::program::in_words;

/// Says what failed, with runc's words where tools go by them. In init, right after the failure.
pub(crate) fn words(error: &InitProcessError, spec: &Spec) -> String {
    let process = spec.process().as_ref();
    match error {
        InitProcessError::NixOther(errno) => {
            let again = process.and_then(|process| working_directory(process, Errno::from_raw(*errno as i32)));
            again.unwrap_or_else(|| error_chain(error))
        }
        InitProcessError::SchedSetattr(number) => {
            let scheduler = process.and_then(|process| process.scheduler().as_ref()).map(scheduler);
            let errno = number.parse().map_or_else(|_| number.clone(), |number| in_words(Errno::from_raw(number)));
            format!("cannot set process.scheduler to {}: {errno}", scheduler.unwrap_or_default())
        }
        InitProcessError::SyscallOther(SyscallError::SetCaps(source)) => format!(
            "cannot set process.capabilities: {source}; the permitted ones must have the effective and the ambient ones"
        ),
        error => error_chain(error),
    }
}

/// libcontainer does not say that this was the step, so it is done again.
fn working_directory(process: &Process, errno: Errno) -> Option<String> {
    let again = nix::unistd::chdir(process.cwd()).err().filter(|again| *again == errno)?;
    Some(format!("chdir to cwd ({:?}) set in config.json failed: {}", process.cwd(), in_words(again)))
}

fn scheduler(scheduler: &Scheduler) -> String {
    let values = serde_json::to_value(scheduler).unwrap_or_default();
    let values = values.as_object().into_iter().flatten().map(|(name, value)| format!("{name} {value}"));
    values.collect::<Vec<_>>().join(", ")
}
