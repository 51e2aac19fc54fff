//! Large frees in pieces: the driver frees all that hangs from an object under one lock, for which
//! every other container's calls wait.

use abi::{Handle, Status};
use account::ObjectName;
use driver::DeviceFile;

use crate::{Session, locks::lock};

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
                Ok(Status::OK) => has_freed = true,
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
}
