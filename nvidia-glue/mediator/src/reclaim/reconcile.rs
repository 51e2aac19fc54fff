//! The accounts against the driver's own: what it says that the mediator, which owns every client
//! of the container, has of a card.

use abi::controls::NV2080_CTRL_CMD_GPU_GET_PID_INFO;
use account::Card;
use base::Bytes;

use crate::{
    Drift, DriftKind, Session,
    locks::lock,
    mediator_pid,
    memory::managed::PATIENCE,
    view::processes::{ask_owned_by, owned_by},
};

impl Session {
    /// A difference, if there is one that counts: the driver has handed out more than is accounted.
    /// Less is as it should be: what a freed handle leaves mapped, context buffers and managed
    /// memory are in the accounts and not in the driver's answer.
    pub(crate) fn compare_with_driver(&self, card: Card) -> Option<Drift> {
        // Calls go on meanwhile: what is made between the two looks at the accounts is in the
        // answer or not.
        let before = lock(&self.objects.accounts).card(card).ok()?;
        let driver = self.driver_truth(card)?;
        let after = lock(&self.objects.accounts).card(card).ok()?;
        let accounted = before.used.max(after.used);
        if driver <= accounted {
            return None;
        }
        let kind = DriftKind::Card { card: self.grant.uuid(card).to_owned(), accounted, driver, limit: after.limit };
        Some(Drift { kind, excess: driver > after.limit, pids: Vec::new() })
    }

    /// Returns the reason to end the container: those who have too much of a card were killed, and
    /// it is there still, since others have their files.
    pub(crate) fn lasting_excess(&self, drifts: &[Drift]) -> Option<String> {
        let is_excess = |drift: &&Drift| drift.excess && matches!(drift.kind, DriftKind::Card { .. });
        let excess = drifts.iter().find(is_excess);
        let mut since = lock(&self.over_since);
        let Some(drift) = excess else {
            *since = None;
            return None;
        };
        let now = self.reclaim_throttle.clock.now();
        let lasted = now.saturating_sub(*since.get_or_insert(now));
        (lasted >= PATIENCE).then(|| format!("what its processes had too much is still there: {:?}", drift.kind))
    }

    /// Returns the memory that the driver reports; `None` when it does not.
    pub(crate) fn driver_truth(&self, card: Card) -> Option<Bytes> {
        let subdevice = self.grant.get(card)?.subdevice;
        let raw = self.raw(&self.own.control, self.own.client);
        let (status, params) =
            raw.control(subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, ask_owned_by(mediator_pid())).ok()?;
        if status.is_ok() { owned_by(&params) } else { None }
    }
}
