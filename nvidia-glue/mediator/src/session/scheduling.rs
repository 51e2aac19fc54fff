//! Calls of the scheduler of a container.

use std::sync::Arc;

use schedule::{Gate, SwitchLog, SwitchLogError, meter::Measured};

use crate::{Seen, channels::gate::CardGate, locks::lock, session::Session, view::card_utilization::WRITTEN_EVERY_US};

impl Session {
    /// The container's channels, card by card in its order.
    pub fn gates(&self) -> Vec<Arc<dyn Gate>> {
        self.channels.gates().iter().map(|gate| Arc::clone(gate) as Arc<dyn Gate>).collect()
    }

    /// Returns whether channels can be taken off a card at all, which takes a card with firmware
    /// that schedules (GSP); asks the driver. `None`: no such card.
    pub fn can_close(&self, uuid: &str) -> Option<bool> {
        self.grant.by_uuid(uuid).and_then(|card| self.channels.gate(card)).map(CardGate::can_close)
    }

    /// While `true`, no call waits for a gate: the container is about to be paused, or to end.
    pub fn hurry(&self, hurried: bool) {
        self.channels.gates().iter().for_each(|gate| gate.hurry(hurried));
    }

    /// Sets the container's share of a card's time, in millionths, as its timetable has it. Cards
    /// that are not the container's are passed over.
    pub fn set_share(&self, uuid: &str, share_ppm: u32) {
        if let Some(card) = self.grant.by_uuid(uuid) {
            self.channels.set_share(card, share_ppm);
        }
    }

    /// The log of the context switches of one of the container's cards, of all containers on it.
    /// `None`: there is no such card, or its driver keeps no log. At most one for each card at a
    /// time.
    ///
    /// # Errors
    /// When the driver refuses it.
    pub fn switch_log(&self, uuid: &str) -> Result<Option<Box<dyn SwitchLog>>, SwitchLogError> {
        let card = self.grant.by_uuid(uuid).and_then(|card| self.grant.get(card));
        card.map_or(Ok(None), |card| self.driver.switch_log(&self.abi, &self.own, card.subdevice))
    }

    /// Notes what the container has used of the card `uuid` until now, and returns what that was.
    /// `in_doubt`: it may have stayed on the card without work, so that the driver is asked, once a
    /// second while it stays.
    pub fn measured(&self, uuid: &str, measured: Measured, in_doubt: bool) -> Seen {
        let utilization = self.grant.by_uuid(uuid).and_then(|card| self.view.utilization(card));
        utilization.map(|utilization| utilization.measured(measured, in_doubt)).unwrap_or_default()
    }

    /// Part of a time until now for which the card `uuid` was busy, in millionths, whosever work it
    /// was; `None`: not known. May ask the driver.
    pub fn card_busy_ppm(&self, uuid: &str, now_us: u64, span_us: (u64, u64)) -> Option<u32> {
        let utilization = self.grant.by_uuid(uuid).and_then(|card| self.view.utilization(card));
        utilization.and_then(|utilization| utilization.card_busy_ppm(now_us, span_us))
    }

    /// Tells the programs that want to know on their pages. To be called some times a second while
    /// there are programs.
    pub fn tell_utilization(&self) {
        let watched = lock(&self.objects.topology).watched();
        let utilizations = watched.into_iter().filter_map(|card| self.view.utilization(card));
        utilizations.for_each(|utilization| utilization.write_page(WRITTEN_EVERY_US));
    }
}
