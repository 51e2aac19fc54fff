//! Tests that make processes and tests that mind when a file is closed do not meet.
//!
//! Until it executes its program, a new process has all files of this one open, those of other
//! tests too: a simulated driver sees no last close then, and a program that was just written
//! cannot be executed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tests that no process must be made beside.
static HOLDERS: Mutex<usize> = Mutex::new(0);
static NONE_LEFT: Condvar = Condvar::new();

fn holders() -> MutexGuard<'static, usize> {
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While there is one, no test makes a process. A test may have several.
#[derive(Debug)]
pub struct NoForks(());

impl NoForks {
    /// Holds off forks from now on.
    pub fn hold() -> Self {
        *holders() += 1;
        Self(())
    }
}

impl Drop for NoForks {
    fn drop(&mut self) {
        *holders() -= 1;
        NONE_LEFT.notify_all();
    }
}

/// Creates a process, which must have executed its program when this is done. Not to be called by
/// who holds [`NoForks`].
pub fn fork<T>(make: impl FnOnce() -> T) -> T {
    let alone = NONE_LEFT.wait_while(holders(), |holders| *holders > 0).unwrap_or_else(PoisonError::into_inner);
    let made = make();
    drop(alone);
    made
}
