//! Work that waits for a disk or a lock, on a thread of its own: a create that waits for the
//! ledger's lock must not keep other containers of the pod from being watched or given back.
//!
//! tokio's own pool panics where the node has no room for its first thread.

use std::{io, thread, time::Duration};

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

/// Threads at a time; further work waits for one to end.
const MOST_THREADS: u32 = 32;

static THREADS: Semaphore = Semaphore::const_new(MOST_THREADS as usize);

/// Does the work, and returns what comes of it.
///
/// # Errors
/// When no thread can be made.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let permit = THREADS.acquire().await.map_err(io::Error::other)?;
    let (sender, receiver) = oneshot::channel();
    // The receiver is gone where nobody waits for it any more.
    start(permit, move || drop(sender.send(work())))?;
    receiver.await.map_err(|_| io::Error::other("the thread panicked"))
}

/// Begins the work at once where a thread is free, and does not wait for it.
pub fn detached(work: impl FnOnce() + Send + 'static) {
    let begun = match THREADS.try_acquire() {
        Ok(permit) => start(permit, work),
        Err(_) => {
            tokio::spawn(blocking(work));
            Ok(())
        }
    };
    if let Err(error) = begun {
        tracing::warn!(%error, "cannot start a thread; what it was to write is left out");
    }
}

fn start(permit: SemaphorePermit<'static>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        work();
        drop(permit);
    };
    thread::Builder::new().name("blocking".to_owned()).spawn(run).map(drop)
}

/// Waits until all work is done, but not longer than `limit`: a thread may be at a disk that never
/// answers.
pub async fn finish(limit: Duration) {
    let _ = tokio::time::timeout(limit, THREADS.acquire_many(MOST_THREADS)).await;
}

#[cfg(test)]
mod tests {
    use testing::refused_calls;

    use super::*;

    #[test]
    fn a_node_without_room_for_a_thread_is_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let test = move || {
            let error = runtime.block_on(blocking(|| ())).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
            runtime.block_on(async { detached(|| ()) });
        };
        if !refused_calls::with(&["clone", "clone3"], None, libc::EAGAIN, test) {
            eprintln!("skipped: a_node_without_room_for_a_thread_is_an_error: needs root");
        }
    }

    #[tokio::test]
    async fn detached_work_is_done_before_the_end() {
        let (sender, receiver) = std::sync::mpsc::channel();
        for number in 0..2 * MOST_THREADS {
            let sender = sender.clone();
            detached(move || {
                thread::sleep(Duration::from_millis(1));
                sender.send(number).unwrap();
            });
        }
        assert_eq!(blocking(|| 7).await.unwrap(), 7);
        finish(Duration::from_secs(60)).await;
        assert_eq!(receiver.try_iter().count(), 2 * MOST_THREADS as usize);
    }
}
