//! What becomes of a card whose channels the driver does not take off, or does not put back.

use nvidia_glue::{
    rm::Status,
    schedule::{EdgeError, pacer::Move},
};

/// How often the shim is told.
const LOG_INTERVAL_US: u64 = 60_000_000;
/// For so many periods without success, an edge is tried again; then time slices are what is left.
const PATIENCE_PERIODS: u64 = 10;
/// How often a card that has only its time slices is tried again.
const RETRY_US: u64 = 60_000_000;
/// The same while the container is off it, or the card is lost: then it does no work at all.
const RESCUE_US: u64 = 1_000_000;
/// For so long a container may be off a card that does not put it back. Its programs would wait for ever, and nothing tells them.
const MOST_OFF_US: u64 = 60_000_000;
/// `NV_ERR_GPU_IS_LOST`: the driver has told all programs that their channels are over.
const GPU_IS_LOST: Status = Status(0xf);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct EdgeFailures {
    /// Calls that failed, in all.
    pub(super) failures: u64,
    /// Since when nothing succeeded.
    since_us: Option<u64>,
    logged_us: Option<u64>,
    retry_us: Option<u64>,
    /// Since when it is off a card that does not put it back.
    off_since_us: Option<u64>,
    /// With what the driver refuses while only time slices are left.
    refused: Option<u32>,
}

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureAction {
    /// Try again, later.
    Retry,
    /// Time slices are left.
    Degrade,
}

impl EdgeFailures {
    /// A move was made. Whether that is news.
    pub(super) fn succeeded(&mut self) {
        self.since_us = None;
    }

    /// A move was given up. Tells the shim now and then.
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
            tracing::warn!(error, "the container's channels cannot be {what} its card; it is tried again");
        }
        FailureAction::Retry
    }

    /// Only time slices are left, or, unless it `is_back`, not even those. Whether it was otherwise before.
    pub(super) fn degrade(&mut self, error: &EdgeError, is_back: bool, now_us: u64) -> bool {
        let is_lost = matches!(error, EdgeError::Refused { status: GPU_IS_LOST, .. });
        self.refused = match error {
            EdgeError::Refused { status, .. } => Some(status.0),
            EdgeError::Call { .. } => None,
        };
        self.off_since_us = (!is_back && !is_lost).then(|| self.off_since_us.unwrap_or(now_us));
        self.degrade_for(now_us, if is_back && !is_lost { RETRY_US } else { RESCUE_US })
    }

    /// The card was found to have only time slices, before anything was on it.
    pub(super) fn start_degraded(&mut self, now_us: u64) {
        self.degrade_for(now_us, RETRY_US);
    }

    fn degrade_for(&mut self, now_us: u64, retry_us: u64) -> bool {
        let is_new = self.retry_us.is_none();
        self.retry_us = Some(now_us.saturating_add(retry_us));
        self.since_us = None;
        is_new
    }

    /// The card can be used as it should. Whether it could not before.
    pub(super) fn recover(&mut self) -> bool {
        (self.since_us, self.off_since_us, self.refused) = (None, None, None);
        self.retry_us.take().is_some()
    }

    /// Whether there is no hope for the container: the card keeps it off, or was taken from the driver, and with it all that the
    /// mediator and the container had there.
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

    /// When a card that has only its time slices is to be tried again.
    pub(super) fn retry_us(&self) -> Option<u64> {
        self.retry_us
    }
}

/// It will not succeed later either.
pub(super) fn is_hopeless(error: &EdgeError) -> bool {
    matches!(error, EdgeError::Refused { status: Status::NOT_SUPPORTED, .. })
}
