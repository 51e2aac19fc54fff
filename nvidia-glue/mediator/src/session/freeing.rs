//! Large frees in pieces: the driver frees all that hangs from an object under one lock, for which
//! every other container's calls wait.

use abi::{Handle, Status};
use account::ObjectName;
use driver::DeviceFile;

use crate::{Session, locks::lock, objects::named_locks::LockName};

/// So many objects go at once: a CUDA context has some hundred and fifty. Each takes the driver
/// some ten microseconds, of which its lock is held for most.
const MOST: usize = 512;

impl Session {
    /// Frees most of what a free of `object` would take with it, if that is much; then `object`
    /// itself is left to be freed.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn free_in_chunks(&self, file: &DeviceFile, client: Handle, object: Handle) {
        let pieces = lock(&self.objects.accounts).chunks_to_free(client, object, MOST);
        let mut has_freed = false;
        // What had to wait for a channel has another turn.
        for &piece in pieces.iter().chain(&pieces) {
            let is_ready = {
                let (accounts, name) = (lock(&self.objects.accounts), ObjectName::new(client, piece));
                accounts.object(name).is_some() && !accounts.has_outside_notifiers(name)
            };
            if !is_ready {
                continue;
            }
            match self.free_known(client, piece, || self.raw(file, client).free(piece)) {
                Ok(Status::OK) => {
                    has_freed = true;
                    self.observer.freed();
                }
                // One that the driver does not free by itself goes with the whole, or is not freed
                // at all.
                Ok(_) if has_freed => {}
                // The client is gone, or none of this file's.
                _ => return,
            }
        }
    }

    /// Frees an object of the client by `free`, and forgets it.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn free_known<E>(
        &self,
        client: Handle,
        object: Handle,
        free: impl FnOnce() -> Result<Status, E>,
    ) -> Result<Status, E> {
        let status = free()?;
        if status.is_ok() {
            self.forget(client, object);
        }
        Ok(status)
    }

    /// Frees what the caller will never hear of.
    pub(crate) fn unmake(&self, file: &DeviceFile, made: ObjectName) {
        self.objects.locks.with(&[LockName::Client(made.client)], || self.unmake_locked(file, made));
    }

    /// Frees an object that the caller will never hear of.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn unmake_locked(&self, file: &DeviceFile, made: ObjectName) {
        let ObjectName { client, object } = made;
        // If the driver refuses, the object is still there, and is charged until its client goes.
        if self.raw(file, client).free(object).is_ok_and(Status::is_ok) {
            self.forget(client, object);
        }
    }

    /// An object is gone, and what went with it.
    pub(crate) fn forget(&self, client: Handle, object: Handle) {
        // Groups go with other objects than their parents, too.
        let channels = lock(&self.objects.accounts).channels_freed_with(ObjectName::new(client, object));
        // What the gates keep of them in the driver goes before it is charged no more.
        if client == object {
            self.channels.remove_client_from_gates(client);
        }
        channels.iter().for_each(|name| self.channels.remove_from_gates(*name));
        // A client that is not known has nothing.
        let _ = lock(&self.objects.accounts).free(client, object);
        let mut topology = lock(&self.objects.topology);
        topology.remove(client, object);
        channels.iter().for_each(|name| topology.remove(name.client, name.object));
        if client == object {
            lock(&self.objects.files).remove_client(client);
        }
    }

    /// Forgets whatever had the handle of a new object before.
    pub(crate) fn replace_handle(&self, name: ObjectName) {
        self.channels.replace_userd_memory(name);
        let is_handle_used = {
            let mut topology = lock(&self.objects.topology);
            let is_handle_used = topology.card_of(name.client, name.object).is_some();
            topology.remove(name.client, name.object);
            is_handle_used
        };
        // The gates are left alone where they have nothing to do with it: who opens and closes them
        // should find them free.
        if is_handle_used {
            self.channels.remove_from_gates(name);
        }
    }
}
