//! Root clients that come to be.

use abi::{Handle, Node, params::NVOS64_PARAMETERS};
use account::ObjectName;

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::named_locks::LockName,
};

impl Session {
    /// A new client: the mediator's own to the driver, the caller's to the accounts. Its file is
    /// kept from before it is there, for it would outlive the mediator in a file that the container
    /// has handed to somebody else.
    pub(crate) fn alloc_root(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        // The driver makes one on a card's file too, on which it takes no call to free it. No
        // program was seen to want it.
        if flight.file.node != Node::Control {
            return Err(CallEnd::Errno(libc::EINVAL));
        }
        flight.confirm()?;
        let reservation = self.reserve(flight.pid, |accounts| accounts.reserve_client(flight.pid))?;
        let client = match self.make_client(flight) {
            Ok(Some(client)) => client,
            refused => {
                lock(&self.objects.accounts).cancel_client(reservation);
                refused?;
                return flight.finish();
            }
        };
        self.objects.locks.with(&[LockName::Client(client)], || {
            let mut accounts = lock(&self.objects.accounts);
            // The driver gave the handle away: whoever had it is gone.
            accounts.client_gone(client);
            accounts.commit_client(reservation, client);
            drop(accounts);
            lock(&self.objects.topology).remove(client, client);
            self.channels.remove_client_from_gates(client);
        });
        self.finish_object(flight, Some(ObjectName { client, object: client }))
    }

    /// `None`: the driver refused, with its status in the struct.
    fn make_client(&self, flight: &mut InFlightCall<'_>) -> Result<Option<Handle>, CallEnd> {
        /// Another thread of the process may have just been refused the first client of the file,
        /// or freed the last.
        const ATTEMPTS: usize = 3;
        for _ in 0..ATTEMPTS {
            let file = self.known_control(&flight.file, flight.pid)?;
            let made = self.objects.locks.with(&[LockName::Control(file)], || {
                if !lock(&self.objects.files).knows_control(file) {
                    return None;
                }
                let status = flight.execute(self.driver.as_ref());
                let mut files = lock(&self.objects.files);
                let made = status.map(|status| {
                    let client = NVOS64_PARAMETERS::hObjectNew.get(&flight.args).unwrap_or(Handle::NONE);
                    status.is_ok().then_some(client)
                });
                if let Ok(Some(client)) = made {
                    files.add_client(file, client);
                }
                files.remove_unused_control(file);
                Some(made)
            });
            if let Some(made) = made {
                return made;
            }
        }
        Err(CallEnd::Errno(libc::EBADF))
    }
}
