//! Log of who has the compute engine of the container's cards.

use schedule::{SwitchLog, SwitchLogError};

use crate::Session;

impl Session {
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
}
