//! Locks by name, so that what is done to one thing is done in one order, by the driver and in the accounts.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::open_files::ControlFile;
use crate::{
    account::{ExportFile, UvmFile},
    rm::Handle,
};

/// What can be locked. Several are locked in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Name {
    /// An open control file, and which clients are on it.
    Control(ControlFile),
    /// A client, and all its objects.
    Client(Handle),
    /// An open UVM file, and all its ranges.
    Uvm(UvmFile),
    /// A file that objects are exported to.
    Export(ExportFile),
    /// The container's managed memory, when it is looked at.
    Managed,
}

/// Locks by name. One exists for as long as somebody holds or wants it.
#[derive(Debug, Default)]
pub(super) struct Locks {
    wanted: Mutex<HashMap<Name, Arc<Mutex<()>>>>,
}

/// The lock, also where a thread has panicked with it: what it guards is whole after each step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locks {
    /// Does `work` while `names` are locked. Must not be used within itself, nor while a caller's memory is touched.
    pub(super) fn with<T>(&self, names: &[Name], work: impl FnOnce() -> T) -> T {
        let names: BTreeSet<Name> = names.iter().copied().collect();
        let locks: Vec<Arc<Mutex<()>>> = {
            let mut wanted = lock(&self.wanted);
            names.iter().map(|name| Arc::clone(wanted.entry(*name).or_default())).collect()
        };
        let guards: Vec<MutexGuard<'_, ()>> = locks.iter().map(|mutex| lock(mutex)).collect();
        let result = work();
        drop(guards);
        drop(locks);
        let mut wanted = lock(&self.wanted);
        for name in names {
            if wanted.get(&name).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
                wanted.remove(&name);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time_in_any_order_of_names() {
        let locks = Locks::default();
        let (one, two) = (Name::Client(Handle(1)), Name::Client(Handle(2)));
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for names in [[one, two], [two, one], [one, one]] {
                let (locks, inside) = (&locks, &inside);
                scope.spawn(move || {
                    for _ in 0..1000 {
                        locks.with(&names, || {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        assert!(lock(&locks.wanted).is_empty(), "locks are not kept");
    }
}
