//! The shim's side of a mediator.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mediator_process::{
    Setup,
    message::{self, FromMediator, ToMediator},
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use runtime::{
    RuntimeClient, RuntimeError,
    reaper::{ProcessExit, Reaper},
};
use sys::frame;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    time::timeout,
};

/// Time for a mediator that frees all that its container has to free some of it.
///
/// The objects of a process with a context are freed in about a tenth of a second.
const FREE_LIMIT: Duration = Duration::from_secs(10);
/// Time for a mediator that has stalled, most likely for good: meanwhile the work of its container
/// stays on the card.
const STALLED_LIMIT: Duration = Duration::from_secs(1);
/// Time for a killed mediator to be gone: the driver takes back all that the container had
/// meanwhile.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Time for calls that are being handled to end before a pause.
const PAUSE_LIMIT: Duration = Duration::from_secs(3);

/// Error of starting or using a mediator.
#[derive(Debug, thiserror::Error)]
pub enum MediatorError {
    /// Its sockets cannot be made.
    #[error("cannot make the mediator's sockets")]
    Sockets(#[source] io::Error),
    /// It did not begin.
    #[error("the container's driver calls cannot be mediated")]
    Begin(#[source] Arc<RuntimeError>),
    /// It has ended already.
    #[error("the mediator {pid} has ended")]
    Ended { pid: i32 },
    /// Its socket fails.
    #[error("cannot send to the mediator {pid}")]
    Talk {
        pid: i32,
        #[source]
        source: io::Error,
    },
    /// The driver does not free memory of a container that has ended.
    #[error(
        "the mediator {pid} cannot free the objects of its ended container: {left}; end the processes that have files of the driver from it"
    )]
    StillHeld {
        pid: i32,
        /// The objects that are left.
        left: String,
    },
    /// It is stuck, most likely in the driver.
    #[error(
        "the mediator {pid} has not ended {seconds} s after SIGKILL; the objects of the container may still be held"
    )]
    Unkillable {
        pid: i32,
        /// Seconds that it was waited for.
        seconds: u64,
    },
}

/// A container's mediator. It ends when this is dropped, as its end of the socket then closes.
#[derive(Debug)]
pub struct Mediator {
    process: ledger::ProcessId,
    pidfd: OwnedFd,
    /// The socket that takes listeners.
    intake: OwnedFd,
    control: AsyncFd<OwnedFd>,
    exit: watch::Receiver<Option<ProcessExit>>,
    /// Set once it is ready, or cannot begin.
    began: watch::Receiver<Option<Result<(), Arc<RuntimeError>>>>,
    /// Its end was asked for.
    is_ending: AtomicBool,
    /// True if no call is being handled since the last [`ToMediator::Pause`]; set by the reader of
    /// messages.
    paused: watch::Sender<Option<bool>>,
    /// The last ping was not answered.
    is_silent: AtomicBool,
    /// Objects that it could not free at the last [`ToMediator::End`]; set by the reader of
    /// messages.
    left: watch::Sender<Option<String>>,
    /// Changes whenever it has said that it frees something; likewise.
    freeing: watch::Sender<()>,
}

impl Mediator {
    /// Has the helper fork a mediator. It becomes ready while the container is created; listeners
    /// wait in its socket until then.
    pub async fn start(
        runtime: &RuntimeClient,
        reaper: &Arc<Reaper>,
        setup: Setup,
    ) -> Result<Arc<Self>, MediatorError> {
        let pair = || {
            let made = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
            made.map_err(|error| MediatorError::Sockets(error.into()))
        };
        let ((intake, intake_end), (control, control_end)) = (pair()?, pair()?);
        let control = sys::nonblocking(control).map_err(MediatorError::Sockets)?;
        let expectation = reaper.expect();
        let asked = runtime.mediate(setup, vec![intake_end, control_end]).await;
        let (child, ready) = asked.map_err(|error| MediatorError::Begin(Arc::new(error)))?;
        // Before it is reaped: one that could not begin says why.
        let Ok(process) = ledger::ProcessId::of(child.pid) else {
            let pid = child.pid;
            child.end().await;
            return Err(MediatorError::Ended { pid });
        };
        let ended = expectation.claim(child.pid);
        drop(expectation);
        let (sender, exit) = watch::channel(None);
        tokio::spawn(async move {
            if let Ok(exit) = ended.await {
                sender.send_replace(Some(exit));
            }
        });
        let (sender, began) = watch::channel(None);
        tokio::spawn(async move { sender.send_replace(Some(ready.await.map_err(Arc::new))) });
        Ok(Arc::new(Self {
            process,
            pidfd: child.pidfd,
            intake,
            control,
            exit,
            began,
            is_ending: AtomicBool::new(false),
            paused: watch::Sender::new(None),
            is_silent: AtomicBool::new(false),
            left: watch::Sender::new(None),
            freeing: watch::Sender::new(()),
        }))
    }

    /// Waits until it is ready to take listeners.
    ///
    /// # Errors
    /// When it cannot begin; then it is killed.
    pub async fn ready(&self) -> Result<(), MediatorError> {
        let mut began = self.began.clone();
        let began = began.wait_for(Option::is_some).await.ok().and_then(|began| began.clone());
        began
            .unwrap_or(Err(Arc::new(RuntimeError::WorkerDied { operation: "the start of the mediator" })))
            .inspect_err(|_| self.kill())
            .map_err(MediatorError::Begin)
    }

    /// Returns its process.
    pub fn process(&self) -> ledger::ProcessId {
        self.process
    }

    /// Returns an end of the socket that takes listeners, for the helper.
    pub fn intake(&self) -> Result<OwnedFd, MediatorError> {
        self.intake.try_clone().map_err(MediatorError::Sockets)
    }

    /// Announces the cgroups of another container, before that has processes.
    pub fn add_cgroups(&self, cgroups: &[PathBuf]) -> Result<(), MediatorError> {
        let sent = frame::send_value(&self.intake, &cgroups, &[]);
        sent.map_err(|error| MediatorError::Talk { pid: self.process.pid, source: io::Error::other(error) })
    }

    /// Waits for its end; returns `None` if that was asked for.
    pub async fn unexpected_end(&self) -> Option<ProcessExit> {
        let exit = self.wait().await;
        if self.is_ending.load(Ordering::Relaxed) { None } else { exit }
    }

    /// Waits for its end, asked for or not.
    pub async fn ended(&self) {
        self.wait().await;
    }

    async fn wait(&self) -> Option<ProcessExit> {
        let mut exit = self.exit.clone();
        exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit)
    }

    /// Returns whether it still runs.
    pub fn is_running(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// Ends it, after all processes of its container.
    ///
    /// It frees what the driver has given them, whoever may have their files by now, and this
    /// returns once that is gone, however long it takes. One that frees nothing for [`FREE_LIMIT`]
    /// is killed: then what depends on files in other processes stays.
    ///
    /// # Errors
    /// [`MediatorError::StillHeld`] if the driver does not free everything: it stays, keeps the
    /// files, and can be asked again.
    pub async fn end(&self) -> Result<(), MediatorError> {
        self.end_within(FREE_LIMIT).await
    }

    /// Ends a mediator that has stalled, and does not wait for it for long.
    pub async fn end_stalled(&self) -> Result<(), MediatorError> {
        self.end_within(STALLED_LIMIT).await
    }

    async fn end_within(&self, limit: Duration) -> Result<(), MediatorError> {
        self.is_ending.store(true, Ordering::Relaxed);
        self.left.send_replace(None);
        let mut left = self.left.subscribe();
        let asked = async {
            // A mediator that is gone takes no message, and is found gone below.
            let _ = self.send(ToMediator::End).await;
            tokio::select! {
                _ = self.wait() => None,
                left = left.wait_for(Option::is_some) => left.ok().and_then(|left| left.clone()),
            }
        };
        let mut freeing = self.freeing.subscribe();
        tokio::pin!(asked);
        let ended = loop {
            let comes_on = async {
                tokio::select! {
                    left = &mut asked => Some(left),
                    _ = freeing.changed() => None,
                }
            };
            match timeout(limit, comes_on).await {
                Ok(None) => {}
                Ok(Some(left)) => break Ok(left),
                Err(elapsed) => break Err(elapsed),
            }
        };
        match ended {
            Ok(None) => {}
            Ok(Some(left)) => return Err(MediatorError::StillHeld { pid: self.process.pid, left }),
            Err(_) => {
                tracing::warn!(
                    mediator = self.process.pid,
                    "the mediator does not free the objects of its container, and is killed"
                );
            }
        }
        self.kill();
        match timeout(END_LIMIT, self.wait()).await {
            Ok(_) => Ok(()),
            Err(_) => Err(MediatorError::Unkillable { pid: self.process.pid, seconds: END_LIMIT.as_secs() }),
        }
    }

    fn kill(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // It may have ended already.
        let _ = sys::pidfd_send_signal(self.pidfd.as_fd(), libc::SIGKILL);
    }

    /// Returns the next message and the descriptor that came with it; `None` when there are no
    /// more.
    ///
    /// For one reader, which must not stop: [`Mediator::pause`], [`Mediator::end`] and
    /// [`Mediator::is_silent`] need it.
    pub async fn next(&self) -> Option<(FromMediator, Option<OwnedFd>)> {
        loop {
            let received = self.control.async_io(Interest::READABLE, |socket| message::receive(socket.as_fd())).await;
            match received {
                Ok(Some((FromMediator::Paused { all }, _))) => {
                    self.paused.send_replace(Some(all));
                }
                Ok(Some((FromMediator::StillHeld { text }, _))) => {
                    self.left.send_replace(Some(text));
                }
                Ok(Some((FromMediator::Pong, _))) => self.is_silent.store(false, Ordering::Relaxed),
                Ok(Some((FromMediator::Freeing, _))) => {
                    self.is_silent.store(false, Ordering::Relaxed);
                    self.freeing.send_replace(());
                }
                Ok(message) => return message,
                // Kills may be queued behind it.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(%error, mediator = self.process.pid, "a message of the mediator cannot be parsed");
                }
                Err(error) => {
                    tracing::warn!(%error, mediator = self.process.pid, "cannot read from the mediator");
                    return None;
                }
            }
        }
    }

    /// Pauses it: it finishes the calls that it handles, and takes up none. `false`: not all of
    /// them ended in time.
    pub async fn pause(&self) -> Result<bool, MediatorError> {
        self.paused.send_replace(None);
        let mut paused = self.paused.subscribe();
        self.send(ToMediator::Pause).await?;
        let answer = timeout(PAUSE_LIMIT, paused.wait_for(Option::is_some)).await;
        Ok(answer.ok().and_then(Result::ok).and_then(|all| *all).unwrap_or(false))
    }

    /// Resumes it: it takes up calls again.
    pub async fn resume(&self) -> Result<(), MediatorError> {
        self.send(ToMediator::Resume).await
    }

    /// Sends a ping.
    pub async fn ping(&self) -> Result<(), MediatorError> {
        self.is_silent.store(true, Ordering::Relaxed);
        self.send(ToMediator::Ping).await
    }

    /// Returns whether it has not answered the last [`Mediator::ping`].
    pub fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    async fn send(&self, message: ToMediator) -> Result<(), MediatorError> {
        let talk = |source| MediatorError::Talk { pid: self.process.pid, source };
        let sent = self.control.async_io(Interest::WRITABLE, |socket| message::send(socket.as_fd(), &message, None));
        sent.await.map_err(talk)
    }
}

#[cfg(test)]
mod tests {
    use mediator_process::message::KillReason;

    use super::*;

    /// A mediator that is the process `pid`, and the other end of its control socket.
    fn mediator(pid: i32, exit: watch::Receiver<Option<ProcessExit>>) -> (Mediator, OwnedFd) {
        let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let ((control, other), (intake, _)) = (pair(), pair());
        let mediator = Mediator {
            process: ledger::ProcessId::of(pid).unwrap(),
            pidfd: sys::pidfd_open(pid).unwrap(),
            intake,
            control: sys::nonblocking(control).unwrap(),
            exit,
            began: watch::channel(None).1,
            is_ending: AtomicBool::new(false),
            paused: watch::Sender::new(None),
            is_silent: AtomicBool::new(false),
            left: watch::Sender::new(None),
            freeing: watch::Sender::new(()),
        };
        (mediator, other)
    }

    /// Time passes only while all wait.
    #[tokio::test(start_paused = true)]
    async fn who_frees_something_is_not_killed_however_long_it_takes() {
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (ended, exit) = watch::channel(None);
        let (mediator, other) = mediator(i32::try_from(process.id()).unwrap(), exit);
        let mediator = Arc::new(mediator);
        let reader = Arc::clone(&mediator);
        tokio::spawn(async move { while reader.next().await.is_some() {} });
        let freed = async {
            for _ in 0..10 {
                tokio::time::sleep(FREE_LIMIT / 2).await;
                message::send(other.as_fd(), &FromMediator::Freeing, None).unwrap();
            }
            let is_there = process.try_wait().unwrap().is_none();
            ended.send_replace(Some(ProcessExit { status: 0, at: std::time::SystemTime::now() }));
            is_there
        };
        let (end, is_there) = tokio::join!(mediator.end(), freed);
        end.unwrap();
        assert!(is_there, "killed while it freed");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    #[tokio::test]
    async fn what_comes_after_a_message_that_is_not_understood_is_heard() {
        let pid = nix::unistd::getpid().as_raw();
        let (mediator, other) = mediator(pid, watch::channel(None).1);
        let kill =
            FromMediator::Kill { pid, pid_in_container: 1, reason: KillReason::Drift(String::new()), suppressed: None };
        // Too long to arrive whole, and of another version.
        let long = FromMediator::Log { warning: true, text: "x".repeat(60_000) };
        message::send(other.as_fd(), &long, None).unwrap();
        message::send(other.as_fd(), &"Unheard-of", None).unwrap();
        message::send(other.as_fd(), &kill, Some(mediator.pidfd.as_fd())).unwrap();
        assert!(matches!(mediator.next().await, Some((message, Some(_))) if message == kill));
        drop(other);
        assert!(mediator.next().await.is_none());
    }
}
