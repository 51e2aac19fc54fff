//! Freeing of objects: `NV_ESC_RM_FREE`, and what the caller never heard of.

use abi::{Handle, Status};
use account::ObjectName;

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::named_locks::LockName,
};

impl Session {
    /// Frees an object and all that goes with it; a client's own handle frees the client.
    pub(crate) fn free(
        &self,
        flight: &mut InFlightCall<'_>,
        client: Handle,
        object: Handle,
    ) -> Result<Answer, CallEnd> {
        self.check_client(client)?;
        flight.confirm()?;
        self.objects.locks.with(&[LockName::Client(client)], || -> Result<(), CallEnd> {
            // The driver would go on writing a channel's errors to where that was. No program that
            // was recorded does it.
            if lock(&self.objects.accounts).has_outside_notifiers(ObjectName::new(client, object)) {
                return Err(CallEnd::Status(Status::STATE_IN_USE));
            }
            let file = flight.file.clone();
            self.free_in_chunks(&file, client, object);
            self.free_known(client, object, || flight.execute(self.driver.as_ref())).map(|_| ())
        })?;
        flight.finish()
    }
}
