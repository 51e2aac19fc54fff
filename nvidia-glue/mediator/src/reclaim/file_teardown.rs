//! Giving up of files of which a duplicate is kept: what hangs on them is ended in the driver
//! first, as nobody knows who else may have them by then (in a socket on its way, or in another
//! container, which no grant reaches).

use std::{collections::BTreeSet, time::Duration};

use abi::{
    Handle, Node, Status,
    params::{
        UVM_FREE_PARAMS, UVM_FREE_PARAMS_525, UVM_UNREGISTER_CHANNEL_PARAMS, UVM_UNREGISTER_CHANNEL_PARAMS_525,
        UVM_UNREGISTER_GPU_PARAMS,
    },
    uvm::{UVM_CLEAN_UP_ZOMBIE_RESOURCES, UVM_FREE, UVM_UNREGISTER_CHANNEL, UVM_UNREGISTER_GPU},
};
use account::UvmFile;
use base::Pid;
use driver::{DeviceFile, DriverCall};

use crate::{
    Session,
    in_flight::{CallEnd, errno},
    locks::lock,
    objects::{
        named_locks::LockName,
        open_files::{ControlFile, RetainedControlFile, RetainedUvmFile},
    },
};

/// The driver did not let go of everything that it has given the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the driver still has {clients} clients of the container, and does not free them")]
pub struct StillHeld {
    /// Clients that it does not say are gone.
    pub clients: usize,
}

impl Session {
    /// Returns whether some process of the container has that open file; `likely` is asked first.
    pub(crate) fn is_held(&self, file: &std::fs::File, likely: Pid) -> bool {
        /// More rounds than that come of a container that forks all the time, which gains nothing
        /// by it.
        const ROUNDS: usize = 8;
        let has = |pid: Pid| matches!(self.processes.has_open_file(pid, file), Ok(true));
        if has(likely) {
            return true;
        }
        let mut looked_at = BTreeSet::from([likely]);
        for _ in 0..ROUNDS {
            // When nobody can be asked, it is as if it were held: what is charged stays charged.
            let Ok(pids) = self.processes.pids() else { return true };
            let new: Vec<Pid> = pids.into_iter().filter(|pid| looked_at.insert(*pid)).collect();
            if new.iter().any(|pid| has(*pid)) {
                return true;
            }
            // Who forks and ends before he is looked at has left it to one who was not in the list.
            if new.is_empty() {
                return false;
            }
        }
        true
    }

    /// The number of a control file. If there are too many, those that nobody has any more are
    /// looked for first.
    pub(crate) fn known_control(&self, file: &DeviceFile, pid: Pid) -> Result<ControlFile, CallEnd> {
        let known = lock(&self.objects.files).control(file, pid);
        match known {
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                self.drop_unheld_control_files(|_| true);
                let known = lock(&self.objects.files).control(file, pid);
                known.map_err(|error| match error.raw_os_error() {
                    Some(libc::EMFILE) => {
                        CallEnd::Insufficient("the container has as many control files open as it may")
                    }
                    _ => errno(error),
                })
            }
            known => known.map_err(errno),
        }
    }

    /// Control files that no process has any more: the driver would free their clients with the
    /// last descriptor, which may be somebody else's by now.
    pub(crate) fn drop_unheld_control_files(&self, which: impl Fn(&BTreeSet<Handle>) -> bool) {
        let mut unheld = lock(&self.objects.files).all_controls();
        unheld.retain(|kept| which(&kept.clients) && !self.is_held(&kept.file.file, kept.opener));
        self.end_control_files(&unheld);
    }

    fn end_control_files(&self, files: &[RetainedControlFile]) {
        let clients = files.iter().flat_map(|kept| &kept.clients).copied().collect();
        self.channels.take_clients_off_cards(&clients);
        files.iter().for_each(|kept| self.end_control_file(kept.id));
    }

    /// Frees the clients of a file. What the driver does not free is kept, and stays charged.
    fn end_control_file(&self, id: ControlFile) {
        // Nobody makes a client on it any more who has not been waited for.
        let taken = self.objects.locks.with(&[LockName::Control(id)], || lock(&self.objects.files).take_control(id));
        let Some(mut kept) = taken else { return };
        kept.clients.retain(|client| !self.end_client(&kept.file, *client));
        if !kept.clients.is_empty() {
            lock(&self.objects.files).put_back_control(kept);
        }
    }

    /// Frees a client. Returns whether it is gone.
    fn end_client(&self, file: &DeviceFile, client: Handle) -> bool {
        self.objects.locks.with(&[LockName::Client(client)], || {
            self.free_in_chunks(file, client, client);
            // Whether that was of use, the next question tells.
            let _ = self.raw(file, client).free(client);
            let is_gone = self.drop_if_dead(client);
            self.observer.freed();
            is_gone
        })
    }

    /// UVM files that no process has any more, neither open nor mapped. Their memory is freed here,
    /// so that it does not matter who may still have such a file in a socket; then the file is
    /// closed.
    pub(crate) fn drop_unheld_uvm_files(&self, which: impl Fn(UvmFile) -> bool) {
        for kept in self.uvm_files_in_order() {
            if which(kept.id) && !self.is_held(&kept.file.file, kept.opener) {
                self.end_uvm_file(&kept, false);
            }
        }
    }

    /// Those that keep others come first.
    fn uvm_files_in_order(&self) -> Vec<RetainedUvmFile> {
        let mut all = lock(&self.objects.files).all_uvm();
        let accounts = lock(&self.objects.accounts);
        all.sort_by_key(|kept| !accounts.is_uvm_mm_file(kept.id));
        all
    }

    /// Frees all memory of a file and closes it. Where the driver does not free it, the file is
    /// kept, and what is there stays charged; at the container's end (`is_last`) it is closed all
    /// the same: unified memory refuses everything once it has met an error that it takes for fatal
    /// (`uvm_global_get_status`), and what only the container had goes with the file then.
    pub(crate) fn end_uvm_file(&self, kept: &RetainedUvmFile, is_last: bool) {
        let id = kept.id;
        self.objects.locks.with(&[LockName::Uvm(id)], || {
            // Mapped; maybe only since it was looked for, by somebody who has had it from a socket.
            if !is_last && lock(&self.objects.accounts).is_uvm_file_kept(id) {
                return;
            }
            let (ranges, pools) = {
                let accounts = lock(&self.objects.accounts);
                (accounts.external_ranges(id), accounts.pools(id))
            };
            for (base, length) in ranges.into_iter().chain(pools) {
                if self.free_uvm_range(&kept.file, base, length) {
                    self.observer.freed();
                    lock(&self.objects.accounts).free_range(id, base);
                }
            }
            if self.uvm_call(&kept.file, UVM_CLEAN_UP_ZOMBIE_RESOURCES, |_| {}).is_some_and(Status::is_ok) {
                lock(&self.objects.accounts).drop_zombies(id);
            }
            let channels = lock(&self.objects.accounts).registered_channels(id);
            for channel in channels {
                let status = self.uvm_call(&kept.file, UVM_UNREGISTER_CHANNEL, |args| {
                    use UVM_UNREGISTER_CHANNEL_PARAMS as Params;
                    use UVM_UNREGISTER_CHANNEL_PARAMS_525 as Params525;
                    let (client, object) = match args.len() {
                        Params::SIZE => (Params::hClient, Params::hChannel),
                        _ => (Params525::hClient, Params525::hChannel),
                    };
                    let _ = client.set(args, channel.client) && object.set(args, channel.object);
                });
                if status.is_some_and(Status::is_ok) {
                    lock(&self.objects.accounts).unregister_channel(id, channel);
                }
            }
            // Its page tables, and whatever is left.
            let mut is_off_cards = true;
            for (number, card) in self.grant.iter() {
                let status = self.uvm_call(&kept.file, UVM_UNREGISTER_GPU, |args| {
                    if let Some(uuid) = card.uuid {
                        let _ = UVM_UNREGISTER_GPU_PARAMS::gpu_uuid.set(args, uuid);
                    }
                });
                // A card that it does not have: nothing of it can be there.
                if status.is_some_and(|status| status.is_ok() || status == Status::INVALID_DEVICE) {
                    lock(&self.objects.accounts).uvm_card_gone(id, number);
                } else {
                    is_off_cards = false;
                }
            }
            if is_last && !is_off_cards {
                tracing::warn!(
                    "unified memory could not be taken off a card; it goes with the last descriptor of its file"
                );
            }
            if !lock(&self.objects.accounts).uvm_file_holds(id) || is_last {
                lock(&self.objects.files).remove_uvm(id);
                lock(&self.objects.accounts).uvm_file_gone(id);
            }
        });
    }

    /// `UVM_FREE` on a file of the container's.
    fn free_uvm_range(&self, file: &DeviceFile, base: u64, length: u64) -> bool {
        let status = self.uvm_call(file, UVM_FREE, |args| {
            let _ = UVM_FREE_PARAMS::base.set(args, base);
            // There the length must be right.
            if args.len() == UVM_FREE_PARAMS_525::SIZE {
                let _ = UVM_FREE_PARAMS_525::length.set(args, length);
            }
        });
        status.is_some_and(Status::is_ok)
    }

    /// A call of the mediator's own on a file of the container's; what the driver says, `None`: it
    /// took no such call.
    fn uvm_call(&self, file: &DeviceFile, command: u32, fill: impl FnOnce(&mut [u8])) -> Option<Status> {
        let row = abi::row(self.abi, Node::Uvm, command).ok()?;
        let mut args = vec![0; row.size()];
        fill(&mut args);
        let call = DriverCall { command, args: &mut args, buffers: &mut [], files: &[] };
        self.driver.ioctl(file, call).ok()?;
        Some(row.status(&args).unwrap_or(Status::OK))
    }

    /// The container has ended: frees all that the driver has given it, whoever may have its files.
    /// No client can be made from then on. May be called again after an error, to try again.
    ///
    /// # Errors
    /// When the driver has not let go of everything; what is left is still charged, and goes with
    /// the last descriptor of its file.
    pub fn end(&self) -> Result<(), StillHeld> {
        lock(&self.objects.files).end();
        let controls = lock(&self.objects.files).all_controls();
        self.end_control_files(&controls);
        // Whatever is still mapped is moved off the cards; no process is looked into, as one that
        // lives could make that wait.
        self.uvm_files_in_order().iter().for_each(|kept| self.end_uvm_file(kept, true));
        let is_staging_left = self.end_staging();
        self.host_mappings.log_left(&self.objects.accounts);
        self.tell_shortages(Duration::MAX);
        let left: usize = lock(&self.objects.files).all_controls().iter().map(|kept| kept.clients.len()).sum();
        match left + usize::from(is_staging_left) {
            0 => Ok(()),
            clients => Err(StillHeld { clients }),
        }
    }
}
