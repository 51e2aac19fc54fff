//! Sees to it that there is a zygote: one that ends before its shim is replaced.
//!
//! The shim has threads by then, and a fork of it could not run libcontainer. So the replacement is
//! this program once more, executed as a zygote, with its end of the socket as stdin. Workers that
//! the old one has forked are the shim's children, and go on.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, OwnedFd},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sys::frame;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{RuntimeClient, Zygote};
use crate::reaper::Reaper;

/// One that lived this long was no failure to start.
const HEALTHY_RUN: Duration = Duration::from_secs(10);
/// Wait before the next try after one that ended sooner; doubled each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// Time for the last one to be reaped.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Watches over the zygote of one client.
#[derive(Debug)]
pub struct ZygoteSupervisor {
    client: Arc<RuntimeClient>,
    /// Its end is no news any more.
    ending: Arc<AtomicBool>,
    ended: JoinHandle<()>,
}

impl ZygoteSupervisor {
    /// Keeps the client's zygote from now on. `arguments` are those with which this program is a
    /// zygote. To be called on the thread that lives as long as the shim: a zygote dies with the
    /// thread that has started it.
    pub fn new(client: Arc<RuntimeClient>, reaper: Arc<Reaper>, arguments: Vec<String>) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        client.set_supervised();
        let exit = reaper.expect().claim(client.zygote_pid());
        let ended = tokio::spawn({
            let (client, ending) = (Arc::clone(&client), Arc::clone(&ending));
            async move {
                let (mut exit, mut began, mut backoff) = (exit, Instant::now(), FIRST_BACKOFF);
                while let Ok(ended) = exit.await {
                    if ending.load(Ordering::Relaxed) {
                        return;
                    }
                    tracing::error!(
                        pid = client.zygote_pid(),
                        status = ended.status,
                        "the helper has ended; starting another"
                    );
                    if began.elapsed() < HEALTHY_RUN {
                        sleep(backoff).await;
                        backoff = (backoff * 2).min(LONGEST_BACKOFF);
                    } else {
                        backoff = FIRST_BACKOFF;
                    }
                    began = Instant::now();
                    exit = loop {
                        let expectation = reaper.expect();
                        match start(&arguments).and_then(|zygote| Ok((zygote.pid, client.replace(zygote)?))) {
                            Ok((pid, ())) => break expectation.claim(pid),
                            Err(error) => {
                                tracing::error!(%error, "cannot start a helper");
                                drop(expectation);
                                sleep(backoff).await;
                                backoff = (backoff * 2).min(LONGEST_BACKOFF);
                            }
                        }
                        if ending.load(Ordering::Relaxed) {
                            return;
                        }
                    };
                }
            }
        });
        Self { client, ending, ended }
    }

    /// Ends the zygote and waits, so that no dead child is left to whoever adopts the shim's.
    pub async fn end(self) {
        self.ending.store(true, Ordering::Relaxed);
        // It may have ended already.
        let _ = sys::pidfd_open(self.client.zygote_pid())
            .and_then(|zygote: OwnedFd| sys::pidfd_send_signal(zygote.as_fd(), libc::SIGKILL));
        let _ = timeout(END_LIMIT, self.ended).await;
    }
}

/// Executes this program as a zygote. The running program, through the mount that it runs from, and
/// not what an upgrade may have put in its place.
fn start(arguments: &[String]) -> io::Result<Zygote> {
    let (ours, theirs) = frame::pair()?;
    let name = std::env::args_os().next().unwrap_or_else(|| OsString::from("containerd-shim-egpu-v1"));
    let mut command = Command::new("/proc/self/exe");
    std::os::unix::process::CommandExt::arg0(&mut command, name);
    command.args(arguments);
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    // The reaper waits for it, not the standard library.
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok(Zygote { socket: ours, pid })
}
