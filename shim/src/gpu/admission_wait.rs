//! Wait of one create for room, and its end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ledger::Patience;
use runtime_config::config;

/// Time that a create needs once it has room, of the time that its caller gives it.
const CREATE_TIME: Duration = Duration::from_secs(2);

/// Wait of one create for room, which others may end.
#[derive(Debug, Clone, Default)]
pub struct AdmissionWait {
    ended: Arc<AtomicBool>,
    /// The caller does not wait for an answer beyond this.
    deadline: Option<Instant>,
}

/// Guard that ends the wait when it is dropped.
#[derive(Debug)]
pub struct AdmissionWaitGuard(AdmissionWait);

impl Drop for AdmissionWaitGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl AdmissionWait {
    /// Begins the wait of a create request with `timeout_ns`, as ttrpc has it; 0: no limit.
    pub fn new(timeout_ns: i64) -> Self {
        let timeout = u64::try_from(timeout_ns).ok().filter(|timeout| *timeout > 0).map(Duration::from_nanos);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout.saturating_sub(CREATE_TIME)));
        Self { ended: Arc::default(), deadline }
    }

    /// Ends the wait, now or as soon as it would begin.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Returns a guard for the caller: the wait ends with it.
    pub fn ends_when_dropped(&self) -> AdmissionWaitGuard {
        AdmissionWaitGuard(self.clone())
    }

    /// Returns the limits of the wait for the ledger.
    pub(super) fn patience(&self, configured: config::AdmissionWait) -> Patience<'_> {
        let any_tenant = matches!(configured, config::AdmissionWait::AnyTenant(_));
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let most = left.map_or(configured.most(), |left| left.min(configured.most()));
        Patience { most, any_tenant, ended: &self.ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_kept_waiting_longer_than_it_waits() {
        let configured = config::AdmissionWait::AnyTenant(Duration::from_secs(30));
        let most = |timeout: Duration| {
            let wait = AdmissionWait::new(i64::try_from(timeout.as_nanos()).unwrap());
            wait.patience(configured).most
        };
        assert_eq!(most(Duration::ZERO), Duration::from_secs(30));
        assert_eq!(most(Duration::from_secs(120)), Duration::from_secs(30));
        assert!(most(Duration::from_secs(12)) <= Duration::from_secs(10));
        assert_eq!(most(Duration::from_secs(1)), Duration::ZERO);
    }
}
