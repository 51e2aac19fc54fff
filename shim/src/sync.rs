//! Locking without a panic path.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. A panic ends the process in release builds, so there is never a poisoned lock to mind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
