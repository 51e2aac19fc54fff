//! Locks and monitors without a panic path.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks. A panic ends the process in release builds, so no lock is ever poisoned.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A monitor: a value under a lock, and the threads that wait for it to change.
#[derive(Debug, Default)]
pub(crate) struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    /// Changes the value, and wakes the threads that wait.
    pub(crate) fn update(&self, change: impl FnOnce(&mut T)) {
        change(&mut lock(&self.value));
        self.changed.notify_all();
    }

    /// Waits while `is_waiting` holds, and returns the value locked.
    pub(crate) fn wait_while(&self, is_waiting: impl FnMut(&mut T) -> bool) -> MutexGuard<'_, T> {
        self.changed.wait_while(lock(&self.value), is_waiting).unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Copy + PartialEq> Monitor<T> {
    /// Returns the value.
    pub(crate) fn get(&self) -> T {
        *lock(&self.value)
    }

    /// Sets the value, and wakes the threads that wait if it is another than before.
    pub(crate) fn set(&self, value: T) {
        if std::mem::replace(&mut *lock(&self.value), value) != value {
            self.changed.notify_all();
        }
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
}
