//! Locks of files (`flock`) that are waited for, but not for ever.

use std::{
    fs::{File, TryLockError},
    io::{self, ErrorKind},
    ops::{Deref, DerefMut},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::waiting_thread::WaitingThreads;

static THREADS: WaitingThreads = WaitingThreads::new();

/// Pauses before a thread waits, which costs more than most holders take.
const FIRST_RETRIES: [Duration; 4] =
    [Duration::from_micros(50), Duration::from_micros(200), Duration::from_micros(500), Duration::from_millis(1)];
/// Pause between two tries of whoever has no thread.
const RETRY: Duration = Duration::from_millis(2);

/// A file that is locked for as long as this is there. A copy of the descriptor in a process that
/// is being made does not keep the lock.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Waits for the exclusive lock, however long.
    ///
    /// # Errors
    /// When the file cannot be locked.
    pub fn wait(file: File) -> io::Result<Self> {
        loop {
            match file.lock() {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                locked => return locked.map(|()| Self(file)),
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // The file is closed next, and that frees it as well.
        let _ = self.0.unlock();
    }
}

impl Deref for FileLock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl DerefMut for FileLock {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.0
    }
}

/// Takes the exclusive lock of a file. Whoever waits for long gets it as soon as it is free, in
/// order.
///
/// The kernel has no such wait with a limit, so a thread waits; one whose caller has given up gives
/// the lock up, too, once it has it. Without a thread the lock is tried again and again.
///
/// # Errors
/// `TimedOut` where another process holds it for longer than `patience`.
pub fn lock_exclusive(file: File, patience: Duration) -> io::Result<FileLock> {
    let deadline = Instant::now() + patience;
    let mut file = match try_lock_exclusive(file)? {
        Ok(lock) => return Ok(lock),
        Err(file) => file,
    };
    for pause in FIRST_RETRIES {
        file = match lock_after(pause, file)? {
            Ok(lock) => return Ok(lock),
            Err(file) => file,
        };
    }
    if let Some(waiting) = wait_in_thread(&file) {
        let left = deadline.saturating_duration_since(Instant::now());
        return waiting.recv_timeout(left).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    }
    while Instant::now() < deadline {
        file = match lock_after(RETRY, file)? {
            Ok(lock) => return Ok(lock),
            Err(file) => file,
        };
    }
    Err(ErrorKind::TimedOut.into())
}

/// Tries once more after a pause.
fn lock_after(pause: Duration, file: File) -> io::Result<Result<FileLock, File>> {
    thread::sleep(pause);
    try_lock_exclusive(file)
}

/// Has a thread wait for the lock; `None`: there can be no further one.
fn wait_in_thread(file: &File) -> Option<mpsc::Receiver<io::Result<FileLock>>> {
    let file = file.try_clone().ok()?;
    THREADS.start(move || FileLock::wait(file)).ok()
}

/// Takes the exclusive lock of a file, or gives the file back where another process has it.
///
/// # Errors
/// When the file cannot be locked.
pub fn try_lock_exclusive(file: File) -> io::Result<Result<FileLock, File>> {
    match file.try_lock() {
        Ok(()) => Ok(Ok(FileLock(file))),
        Err(TryLockError::WouldBlock) => Ok(Err(file)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting_thread::MOST_THREADS;

    #[test]
    fn a_lock_that_is_held_is_waited_for_and_not_for_ever() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = |patience| lock_exclusive(File::open(file.path()).unwrap(), patience);
        let held = lock(Duration::ZERO).unwrap();
        for _ in 0..MOST_THREADS + 4 {
            let late = lock(Duration::from_millis(1)).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::TimedOut);
        }
        assert_eq!(THREADS.count(), MOST_THREADS, "those who came too late are bounded");
        let next = thread::scope(|scope| {
            let waiter = scope.spawn(|| lock(Duration::from_secs(60)));
            drop(held);
            waiter.join().unwrap()
        });
        drop(next.unwrap());
        // Nor do those that came too late keep it.
        lock(Duration::from_secs(60)).unwrap();
    }
}
