//! Waiting for more events, for an interruption, or for the reader of stdout to go.

use std::{io, os::fd::AsFd as _, path::Path};

use ledger::event_log;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify},
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

/// Wait for more events.
#[derive(Debug)]
pub(super) struct EventWait {
    directory: Inotify,
    signals: SignalFd,
}

impl EventWait {
    /// Begins to watch. To be called before the files are read, so that nothing is missed; from
    /// here on SIGINT and SIGTERM are for [`EventWait::for_more`].
    pub(super) fn begin(directory: &Path) -> io::Result<Self> {
        event_log::make_directory(directory)?;
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let changes = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        watch.add_watch(directory, changes | AddWatchFlags::IN_ONLYDIR)?;
        let ending: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        ending.thread_block()?;
        let signals = SignalFd::with_flags(&ending, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { directory: watch, signals })
    }

    /// Waits. `false`: it was interrupted, or the reader of stdout is gone.
    pub(super) fn for_more(&self) -> io::Result<bool> {
        let stdout = io::stdout();
        let mut watched = [
            PollFd::new(self.directory.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            // Reported in any case: the reader of a pipe has gone.
            PollFd::new(stdout.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut watched, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [changed, signalled, unread] = watched.map(|fd| fd.any().unwrap_or(true));
        if signalled || unread {
            return Ok(false);
        }
        if !changed {
            return Ok(true);
        }
        match self.directory.read_events() {
            // The directory is gone, and its watch with it.
            Ok(events) => Ok(!events.iter().any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED))),
            Err(Errno::EAGAIN) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_and_a_directory_that_goes_end_the_wait() {
        let state = tempfile::tempdir().unwrap();
        let directory = event_log::directory(state.path());
        let wait = EventWait::begin(&directory).unwrap();
        std::fs::write(directory.join(event_log::CURRENT), "x\n").unwrap();
        assert!(wait.for_more().unwrap());
        std::fs::remove_file(directory.join(event_log::CURRENT)).unwrap();
        std::fs::remove_dir(&directory).unwrap();
        assert!(!wait.for_more().unwrap());
    }
}
