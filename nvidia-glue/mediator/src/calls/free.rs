//! Freeing of objects: `NV_ESC_RM_FREE`, and what the caller never heard of.

use abi::{Handle, Status};
use account::ObjectName;
use driver::DeviceFile;

use super::{
    in_flight::{CallEnd, InFlightCall},
    object_alloc::AllocatedObject,
};
use crate::{
    Answer, Session,
    locks::{LockName, lock},
};

impl Session {
    /// Frees an object and all that goes with it; a client's own handle frees the client.
    pub(crate) fn free(
        &self,
        flight: &mut InFlightCall<'_>,
        client: Handle,
        object: Handle,
    ) -> Result<Answer, CallEnd> {
        self.own_client(client)?;
        flight.confirm()?;
        self.locks.with(&[LockName::Client(client)], || -> Result<(), CallEnd> {
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

    /// Frees what the caller will never hear of.
    pub(crate) fn unmake(&self, file: &DeviceFile, made: AllocatedObject) {
        self.locks.with(&[LockName::Client(made.client)], || self.unmake_locked(file, made));
    }

    /// Frees an object that the caller will never hear of.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn unmake_locked(&self, file: &DeviceFile, made: AllocatedObject) {
        let AllocatedObject { client, object } = made;
        // If the driver refuses, the object is still there, and is charged until its client goes.
        if self.raw(file, client).free(object).is_ok_and(Status::is_ok) {
            self.forget(client, object);
        }
    }

    /// An object is gone, and what went with it.
    pub(crate) fn forget(&self, client: Handle, object: Handle) {
        let freed = lock(&self.objects.accounts).free(client, object);
        let mut topology = lock(&self.objects.topology);
        topology.remove(client, object);
        if client == object {
            lock(&self.objects.files).remove_client(client);
            self.channels.remove_client_from_gates(client);
        }
        // Groups go with other objects than their parents, too. A client that is not known has
        // nothing.
        for name in freed.map(|freed| freed.channels).unwrap_or_default() {
            topology.remove(name.client, name.object);
            self.channels.remove_from_gates(name);
        }
    }
}
