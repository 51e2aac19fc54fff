//! Failures of the driver to take channels off a card, or to put them back, and the fallback to
//! time slices.

use abi::Status;
use schedule::{EdgeError, pacer::Move};

/// Interval at which a failure is logged.
const LOG_INTERVAL_US: u64 = 60_000_000;
/// Periods without success after which time slices are what is left.
const PATIENCE_PERIODS: u64 = 10;
/// Interval at which a card with time slices only is tried again.
const RETRY_US: u64 = 60_000_000;
/// Interval of retries while the container is off the card, or the card is lost: it does no work at
/// all then.
const RESCUE_US: u64 = 1_000_000;
/// The longest that a container may be off a card that does not put it back. Its programs would
/// wait for ever without notice.
const MOST_OFF_US: u64 = 60_000_000;
/// `NV_ERR_GPU_IS_LOST`: the driver has notified all programs that their channels are gone.
const GPU_IS_LOST: Status = Status(0xf);

/// Failures of the edges of one card.
#[derive(Debug, Default)]
pub(super) struct EdgeFailures {
    /// Number of calls that failed.
    pub(super) failures: u64,
    /// Instant since which no edge succeeded.
    since_us: Option<u64>,
    logged_us: Option<u64>,
    retry_us: Option<u64>,
    /// Instant since which it is off a card that does not put it back.
    off_since_us: Option<u64>,
    /// Status with which the driver refuses, while only time slices are left.
    refused: Option<u32>,
}

/// Action after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureAction {
    /// Try again later.
    Retry,
    /// Fall back to time slices.
    Degrade,
}

impl EdgeFailures {
    /// Notes that an edge succeeded.
    pub(super) fn succeeded(&mut self) {
        self.since_us = None;
    }

    /// Notes that an edge failed, and logs that at intervals.
    pub(super) fn failed(&mut self, what: Move, error: &EdgeError, now_us: u64, period_us: u64) -> FailureAction {
        let since_us = *self.since_us.get_or_insert(now_us);
        let is_exhausted = now_us.saturating_sub(since_us) >= PATIENCE_PERIODS * period_us;
        if is_exhausted || is_hopeless(error) {
            return FailureAction::Degrade;
        }
        if self.logged_us.is_none_or(|logged_us| now_us.saturating_sub(logged_us) >= LOG_INTERVAL_US) {
            self.logged_us = Some(now_us);
            let what = match what {
                Move::Open => "put back on",
                Move::Close => "taken off",
            };
            let error: &dyn std::error::Error = error;
            tracing::warn!(error, "the container's channels cannot be {what} its card; retrying");
        }
        FailureAction::Retry
    }

    /// Notes that only time slices are left, or, unless it `is_back`, not even those. Returns
    /// whether that is new.
    pub(super) fn degrade(&mut self, error: &EdgeError, is_back: bool, now_us: u64) -> bool {
        let is_lost = matches!(error, EdgeError::Refused { status: GPU_IS_LOST, .. });
        self.refused = match error {
            EdgeError::Refused { status, .. } => Some(status.0),
            EdgeError::Call { .. } => None,
        };
        self.off_since_us = (!is_back && !is_lost).then(|| self.off_since_us.unwrap_or(now_us));
        self.degrade_for(now_us, if is_back && !is_lost { RETRY_US } else { RESCUE_US })
    }

    /// Notes that the card has only time slices, before anything was on it.
    pub(super) fn start_degraded(&mut self, now_us: u64) {
        self.degrade_for(now_us, RETRY_US);
    }

    fn degrade_for(&mut self, now_us: u64, retry_us: u64) -> bool {
        let is_new = self.retry_us.is_none();
        self.retry_us = Some(now_us.saturating_add(retry_us));
        self.since_us = None;
        is_new
    }

    /// Notes that the card works again. Returns whether that is new.
    pub(super) fn recover(&mut self) -> bool {
        (self.since_us, self.off_since_us, self.refused) = (None, None, None);
        self.retry_us.take().is_some()
    }

    /// Returns whether the container cannot go on: the card keeps it off, or was taken from the
    /// driver, and with it all objects of the mediator and the container there.
    pub(super) fn is_fatal(&self, error: &EdgeError, now_us: u64) -> bool {
        matches!(error, EdgeError::Refused { status: Status::OBJECT_NOT_FOUND, .. })
            || self.off_since_us.is_some_and(|since_us| now_us.saturating_sub(since_us) >= MOST_OFF_US)
    }

    pub(super) fn refused(&self) -> Option<u32> {
        self.refused
    }

    pub(super) fn is_degraded(&self) -> bool {
        self.retry_us.is_some()
    }

    /// Returns the instant at which a card with time slices only is to be tried again.
    pub(super) fn retry_us(&self) -> Option<u64> {
        self.retry_us
    }
}

/// Returns whether the edge cannot succeed later either.
pub(super) fn is_hopeless(error: &EdgeError) -> bool {
    matches!(error, EdgeError::Refused { status: Status::NOT_SUPPORTED, .. })
}
