//! Locks and monitors without a panic path.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// Locks. A panic ends the process in release builds, so no lock is ever poisoned.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A monitor: a value under a lock, and the threads that wait for it to change.
#[derive(Debug, Default)]
pub struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    pub const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    /// Adds work for one thread to the value, and wakes one of those that wait.
    pub fn update(&self, change: impl FnOnce(&mut T)) {
        change(&mut lock(&self.value));
        self.changed.notify_one();
    }

    /// Waits while `is_waiting` holds, and returns the value locked.
    pub fn wait_while(&self, is_waiting: impl FnMut(&mut T) -> bool) -> MutexGuard<'_, T> {
        self.changed.wait_while(lock(&self.value), is_waiting).unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Copy + PartialEq> Monitor<T> {
    /// Returns the value.
    pub fn get(&self) -> T {
        *lock(&self.value)
    }

    /// Sets the value, and wakes the threads that wait if it is another than before.
    pub fn set(&self, value: T) {
        if std::mem::replace(&mut *lock(&self.value), value) != value {
            self.changed.notify_all();
        }
    }
}

/// A flag that many threads raise and one waits for. Raising a raised flag takes no lock.
#[derive(Debug, Default)]
pub struct Flag {
    is_raised: AtomicBool,
    /// Held while the flag is raised, and from the waiting thread's look at it until it sleeps.
    raised: Monitor<()>,
}

impl Flag {
    /// Raises the flag, and wakes the thread that waits.
    ///
    /// No wake-up is lost: a raise that changes the flag holds the lock, so it comes before the
    /// waiting thread's look or after that has gone to sleep. One that finds the flag raised leaves
    /// the wake-up to the thread that raised it. A [`Flag::lower`] after that sees what the raising
    /// thread did before: lowered earlier, the flag would have been found so.
    pub fn raise(&self) {
        if !self.is_raised.load(Ordering::SeqCst) {
            self.raised.update(|()| self.is_raised.store(true, Ordering::SeqCst));
        }
    }

    /// Lowers the flag. Work whose raise found it raised is to be looked for afterwards.
    pub fn lower(&self) {
        self.is_raised.store(false, Ordering::SeqCst);
    }

    /// Waits until the flag is raised.
    pub fn wait(&self) {
        drop(self.raised.wait_while(|()| !self.is_raised.load(Ordering::SeqCst)));
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn a_waiting_thread_sees_every_change() {
        let queue = Arc::new(Monitor::new(Vec::new()));
        let waiting = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.wait_while(|queue| queue.len() < 2).clone()
        });
        queue.update(|queue| queue.push(1));
        queue.update(|queue| queue.push(2));
        assert_eq!(waiting.join().unwrap(), [1, 2]);
    }

    #[test]
    fn a_waiting_thread_is_woken_by_set() {
        let flag = Arc::new(Monitor::new(false));
        let waiting = thread::spawn({
            let flag = Arc::clone(&flag);
            move || *flag.wait_while(|is_set| !*is_set)
        });
        flag.set(true);
        assert!(waiting.join().unwrap() && flag.get());
    }

    #[test]
    fn each_update_lets_one_thread_go_on() {
        let queue = Monitor::new(Vec::new());
        thread::scope(|scope| {
            let waiting = [(); 2].map(|()| scope.spawn(|| queue.wait_while(|queue| queue.is_empty()).pop()));
            queue.update(|queue| queue.push(1));
            queue.update(|queue| queue.push(1));
            assert_eq!(waiting.map(|thread| thread.join().unwrap()), [Some(1); 2]);
        });
    }

    #[test]
    fn no_raise_of_a_flag_is_lost() {
        const ITEMS: usize = 20_000;
        let (flag, items) = (Flag::default(), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for item in 0..ITEMS {
                        lock(&items).push(item);
                        flag.raise();
                    }
                });
            }
            // Hangs if one is lost.
            let mut taken = 0;
            while taken < 2 * ITEMS {
                flag.wait();
                flag.lower();
                taken += lock(&items).drain(..).count();
            }
        });
    }
}
