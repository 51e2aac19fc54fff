//! Changes on the node: of the ledger, of CDI files, of the cards' settings and health.

use std::{
    io::{self, ErrorKind},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::{net::unix::pipe::Receiver, time::timeout};

/// Interval at which everything is looked at without a change: for errors in the kernel's log, the
/// configuration file, directories that were lost, and containers whose end no file tells.
pub(crate) const LOOK: Duration = Duration::from_secs(5);
/// Pause in which further changes come: those of one admission are told once.
const GATHER: Duration = Duration::from_millis(10);

/// A watch over directories.
#[derive(Debug)]
pub(crate) struct LocalChanges {
    inotify: Inotify,
    /// The same, to wait for and to read from. tokio reads any descriptor as it reads a pipe.
    events: Receiver,
    directories: Vec<(PathBuf, AddWatchFlags)>,
}

impl LocalChanges {
    /// Watches what matters in the state directory, and the directory of CDI files.
    pub(crate) fn watch(state_dir: &Path, cdi_dir: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let whole = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
        let directories = vec![
            (state_dir.join("ledger"), whole),
            (cdi_dir.to_owned(), whole | AddWatchFlags::IN_DELETE_SELF),
            (state_dir.join("simulated"), whole | AddWatchFlags::IN_MODIFY),
        ];
        let events = Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?;
        Ok(Self { inotify, events, directories })
    }

    /// Waits for a change, or for the time to look again.
    pub(crate) async fn next(&self) -> io::Result<()> {
        self.renew();
        if let Ok(ready) = timeout(LOOK, self.events.readable()).await {
            ready?;
            tokio::time::sleep(GATHER).await;
            self.drain()?;
        }
        Ok(())
    }

    /// Reads the events away: each of them means that everything is looked at.
    fn drain(&self) -> io::Result<()> {
        let mut events = [0; 4096];
        loop {
            match self.events.try_read(&mut events) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Watches what has come to be since. A directory that is watched already is left as it is.
    fn renew(&self) {
        for (directory, flags) in &self.directories {
            // One that is missing is watched when it is there.
            let _ = self.inotify.add_watch(directory, *flags | AddWatchFlags::IN_ONLYDIR);
        }
    }
}
