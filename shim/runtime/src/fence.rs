//! The filter that a container's processes get on top of their own seccomp profile.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use fence::{Action, Arch, program};
use sys::{
    SeccompInstruction,
    frame::{self, FrameError},
};

/// A filter that is not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// NVIDIA has no driver for it.
    #[error("driver calls cannot be mediated on this machine: NVIDIA has no driver for it")]
    Machine,
    /// The kernel.
    #[error("cannot install the seccomp filter")]
    Install(#[source] io::Error),
    /// The pid namespace that identifies the container's processes.
    #[error("cannot open the pid namespace of the container's process")]
    Namespace(#[source] io::Error),
    /// The mediator.
    #[error("cannot hand the driver calls over to the mediator; it may have ended")]
    HandOver(#[source] FrameError),
}

/// A program ready to be installed, and the receiver of the calls that it stops.
#[derive(Debug)]
pub(crate) struct Filter {
    program: Vec<SeccompInstruction>,
    /// The mediator's intake; `None`: nobody, the calls fail.
    intake: Option<OwnedFd>,
}

impl Filter {
    /// Returns the filter of a container whose driver calls are mediated (`intake`), or that was
    /// granted no GPU (`fence`: the driver's calls answer as if there were no driver); none for one
    /// that has whole cards.
    pub(crate) fn new(fence: bool, intake: Option<OwnedFd>) -> Result<Option<Self>, FilterError> {
        let action = match (&intake, fence) {
            (Some(_), _) => Action::UserNotification,
            (None, true) => Action::NOT_A_DRIVER,
            (None, false) => return Ok(None),
        };
        let Some(arch) = Arch::native() else {
            return if intake.is_some() { Err(FilterError::Machine) } else { Ok(None) };
        };
        let instructions = program(arch, action).into_iter();
        let program = instructions.map(|i| SeccompInstruction { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
        Ok(Some(Self { program, intake }))
    }

    /// Installs it on the calling process, a forked child whose copy of the intake this closes.
    /// Needs CAP_SYS_ADMIN: before any capability is dropped.
    pub(crate) fn install(&self) -> Result<(), FilterError> {
        let Some(intake) = &self.intake else {
            return sys::install_seccomp_filter(&self.program).map_err(FilterError::Install);
        };
        let listener = sys::install_seccomp_listener(&self.program).map_err(FilterError::Install)?;
        frame::send(intake.as_fd(), &listener, &[]).map_err(FilterError::HandOver)?;
        sys::close_fd_of(intake);
        Ok(())
    }

    /// Registers init's pid namespace with the mediator's broker, before init executes anything of
    /// the container's: processes in it are the container's. `pidfd` is init's.
    pub(crate) fn admit(&self, init: i32, pidfd: BorrowedFd<'_>) -> Result<(), FilterError> {
        let Some(intake) = &self.intake else { return Ok(()) };
        let namespace = File::open(format!("/proc/{init}/ns/pid")).map_err(FilterError::Namespace)?;
        if !sys::is_there(pidfd) {
            // Its number may have been another process's by then.
            return Err(FilterError::Namespace(io::ErrorKind::NotFound.into()));
        }
        frame::send(intake.as_fd(), &namespace.into(), &[]).map_err(FilterError::HandOver)
    }
}

/// Takes the intake off the descriptors that came beside an operation.
pub(crate) fn take_intake(mediated: bool, fds: &mut Vec<OwnedFd>) -> Option<OwnedFd> {
    if mediated { fds.pop() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_mediated_or_fenced_gets_a_filter() {
        let intake = || Some(std::fs::File::open("/dev/null").unwrap().into());
        let is_there = |fence, intake| Filter::new(fence, intake).unwrap().is_some();
        assert!(!is_there(false, None), "whole cards need none");
        assert_eq!([is_there(true, None), is_there(false, intake())], [Arch::native().is_some(); 2]);
        let programs = [(true, None), (true, intake())].map(|(fence, intake)| Filter::new(fence, intake).unwrap());
        let [fenced, mediated] = programs.map(|filter| filter.map(|filter| filter.program.len()));
        assert!(fenced < mediated, "a listener is told of mappings, too");
    }
}
