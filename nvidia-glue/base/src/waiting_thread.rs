//! Threads that wait for what the kernel has no time limit for: a lock, a disk that hangs.

use std::{
    io::{self, ErrorKind},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Stack of such a thread.
const STACK: usize = 64 << 10;
/// Threads of one kind at most: those whose callers have given up stay as long as they wait.
pub(crate) const MOST_THREADS: usize = 16;

/// Threads of one kind.
#[derive(Debug, Default)]
pub struct WaitingThreads {
    running: AtomicUsize,
}

impl WaitingThreads {
    /// Creates a kind without threads.
    pub const fn new() -> Self {
        Self { running: AtomicUsize::new(0) }
    }

    /// Runs `work` in a thread, and waits for it no longer than `patience`; the thread goes on.
    ///
    /// # Errors
    /// `TimedOut` where it takes longer; `ResourceBusy` where there are too many such threads. Or
    /// when the thread cannot be made.
    pub fn run<T: Send + 'static>(
        &'static self,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        self.start(work)?.recv_timeout(patience).map_err(|_| ErrorKind::TimedOut.into())
    }

    /// Starts a thread.
    pub(crate) fn start<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<mpsc::Receiver<T>> {
        let counted = CountedThread::new(&self.running).ok_or(ErrorKind::ResourceBusy)?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let run = move || {
            let _counted = counted;
            // Nobody is there to be told once the caller has given up: the result goes with the
            // message.
            drop(sender.send(work()));
        };
        thread::Builder::new().name("wait".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(receiver)
    }

    /// Returns the number of threads.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }
}

/// One of [`MOST_THREADS`].
struct CountedThread(&'static AtomicUsize);

impl CountedThread {
    fn new(running: &'static AtomicUsize) -> Option<Self> {
        let more = |threads| (threads < MOST_THREADS).then_some(threads + 1);
        running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(running))
    }
}

impl Drop for CountedThread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_not_waited_for() {
        static THREADS: WaitingThreads = WaitingThreads::new();
        let (never, ends) = mpsc::channel::<()>();
        let error = THREADS.run(Duration::from_millis(1), move || ends.recv()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(THREADS.run(Duration::from_secs(60), || 3).unwrap(), 3);
        drop(never);
    }
}
