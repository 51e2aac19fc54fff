//! All channels of a container off the card, whatever their engines are, beside what the scheduler
//! does: the firmware counts.

use account::ObjectName;
use schedule::EdgeError;

use crate::{
    channels::gate::{CardGate, MOST, calls::DISABLE_CHANNELS_NAME},
    locks::lock,
};

impl CardGate {
    /// Takes off all channels that can do work, once more than they may be off already, and returns
    /// them.
    ///
    /// # Errors
    /// When the driver does not; then all are where they were.
    pub(crate) fn take_off(&self) -> Result<Vec<ObjectName>, EdgeError> {
        let _acting = lock(&self.acting);
        let mut names = self.with(|channels| channels.scheduled());
        self.retain_living(&mut names);
        for (at, chunk) in names.chunks(MOST).enumerate() {
            if let Err(failure) = self.name_channels(true, chunk) {
                self.name_on(names.get(..(at + 1) * MOST).unwrap_or(&names));
                return Err(self.error(DISABLE_CHANNELS_NAME, failure));
            }
        }
        Ok(names)
    }

    /// Puts back channels that [`CardGate::take_off`] has taken off, those that are still there.
    pub(crate) fn put_back(&self, names: &[ObjectName]) {
        let _acting = lock(&self.acting);
        self.name_on(names);
    }

    /// Names them one by one where the driver refuses several: one of them may be gone.
    fn name_on(&self, names: &[ObjectName]) {
        for chunk in names.chunks(MOST) {
            if self.name_channels(false, chunk).is_err() {
                for name in chunk {
                    if self.name_channels(false, std::slice::from_ref(name)).is_err() {
                        tracing::warn!(?name, card = self.uuid, "a channel is not put back onto its card");
                    }
                }
            }
        }
    }
}
