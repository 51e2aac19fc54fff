//! Locks by name, so that what is done to one thing is done in one order, by the driver and in the
//! accounts.

use std::sync::{Arc, Mutex, MutexGuard};

use abi::Handle;
use account::{ExportFile, UvmFile};

use crate::{locks::lock, objects::open_files::ControlFile};

/// Thing that can be locked. Several are locked in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LockName {
    /// An open control file, and which clients are on it.
    Control(ControlFile),
    /// A client, and all its objects.
    Client(Handle),
    /// An open UVM file, and all its ranges.
    Uvm(UvmFile),
    /// A file that objects are exported to.
    Export(ExportFile),
}

/// Locks by name. One exists for as long as somebody holds or wants it: there are a few for each
/// thread that is in a call, and no more.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    wanted: Mutex<Vec<(LockName, Arc<Mutex<()>>)>>,
}

impl Locks {
    /// Does `work` while `names` are locked. Must not be used within itself, nor while a caller's
    /// memory is touched.
    pub(crate) fn with<T>(&self, names: &[LockName], work: impl FnOnce() -> T) -> T {
        let mut names = names.to_vec();
        names.sort_unstable();
        names.dedup();
        let locks: Vec<Arc<Mutex<()>>> = {
            let mut wanted = lock(&self.wanted);
            names.iter().map(|name| wanted_lock(&mut wanted, *name)).collect()
        };
        let guards: Vec<MutexGuard<'_, ()>> = locks.iter().map(|mutex| lock(mutex)).collect();
        let result = work();
        drop(guards);
        drop(locks);
        lock(&self.wanted).retain(|(name, mutex)| !names.contains(name) || Arc::strong_count(mutex) > 1);
        result
    }
}

fn wanted_lock(wanted: &mut Vec<(LockName, Arc<Mutex<()>>)>, name: LockName) -> Arc<Mutex<()>> {
    if let Some((_, mutex)) = wanted.iter().find(|(other, _)| *other == name) {
        return Arc::clone(mutex);
    }
    let mutex = Arc::default();
    wanted.push((name, Arc::clone(&mutex)));
    mutex
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time_in_any_order_of_names() {
        let locks = Locks::default();
        let (one, two) = (LockName::Client(Handle(1)), LockName::Client(Handle(2)));
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
