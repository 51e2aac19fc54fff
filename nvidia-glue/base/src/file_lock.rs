//! Locks of files (`flock`) that are waited for, but not for ever.

use std::{
    fs::File,
    io::{self, ErrorKind},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

/// Stack of a thread that waits.
const STACK: usize = 64 << 10;

/// Takes the exclusive lock of a file. Whoever waits gets it as soon as it is free, in order.
///
/// The kernel has no such wait with a limit, so a thread waits; one whose caller has given up gives
/// the lock up, too, once it has it.
///
/// # Errors
/// `TimedOut` where another process holds it for longer than `patience`.
pub fn lock_exclusive(file: File, patience: Duration) -> io::Result<Flock<File>> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => return Ok(lock),
        Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => file,
        Err((_, error)) => return Err(error.into()),
    };
    let (sender, receiver) = mpsc::sync_channel(1);
    // Nobody is there to be told once the caller has given up: the lock is dropped with the
    // message.
    let wait = move || drop(sender.send(wait_for(file)));
    thread::Builder::new().name("lock".to_owned()).stack_size(STACK).spawn(wait)?;
    receiver.recv_timeout(patience).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

fn wait_for(mut file: File) -> io::Result<Flock<File>> {
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusive) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EINTR)) => file,
            Err((_, error)) => return Err(error.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_is_waited_for_and_not_for_ever() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = |patience| lock_exclusive(File::open(file.path()).unwrap(), patience);
        let held = lock(Duration::ZERO).unwrap();
        let late = lock(Duration::from_millis(1)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let next = thread::scope(|scope| {
            let waiter = scope.spawn(|| lock(Duration::from_secs(60)));
            drop(held);
            waiter.join().unwrap()
        });
        drop(next.unwrap());
        // Nor does the one that came too late keep it.
        lock(Duration::from_secs(60)).unwrap();
    }
}
