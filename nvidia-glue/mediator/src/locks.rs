//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock, also where a thread has panicked with it: what it guards is whole after each step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
