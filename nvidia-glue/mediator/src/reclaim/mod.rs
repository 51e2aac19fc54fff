//! Reclaiming of what is gone without having said so: processes, clients whose file was closed, UVM
//! files, unmapped managed memory.

mod exports;
pub(crate) mod file_teardown;
mod pins;
mod reconcile;

use std::{collections::BTreeSet, time::Duration};

use abi::Handle;
use account::Card;
use base::Pid;

use crate::{Drift, Session, locks::lock, objects::named_locks::LockName};

/// Things that processes which have ended may have left.
#[derive(Debug, Default)]
pub struct ExitedProcesses {
    clients: BTreeSet<Handle>,
    managed: bool,
}

impl ExitedProcesses {
    /// The same of several processes.
    pub fn add(&mut self, other: Self) {
        self.clients.extend(other.clients);
        self.managed |= other.managed;
    }
}

impl Session {
    /// Reclaims what is gone, so that nothing is refused for its sake. May have to wait: see
    /// [`crate::session::reclaim_throttle`].
    pub(crate) fn reclaim(&self) {
        self.reclaim_throttle.run(|| self.reclaim_now());
    }

    fn reclaim_now(&self) {
        self.end_processes();
        let charged = lock(&self.objects.accounts).charged_clients();
        self.drop_unheld_control_files(|clients| charged.iter().any(|client| clients.contains(client)));
        self.drop_dead_clients(&charged);
        self.managed.scan(&self.scan_env());
        self.look_at_what_is_pinned();
        let files = lock(&self.objects.accounts).charged_uvm_files();
        self.drop_unheld_uvm_files(|file| files.contains(&file));
        // Somebody is about to be refused: memory that only exports hold, to files that no process
        // has, does not wait for who may come for it.
        self.drop_unheld_tokens([crate::TRANSIT[0], Duration::ZERO]);
        self.host_mappings.drop_gone(&self.objects.accounts);
    }

    /// Returns whether a client is charged whose process has ended: its file is perhaps being
    /// closed just now, by the kernel or by a thread of the mediator's that still works on its last
    /// call.
    pub(crate) fn has_exiting_owner(&self) -> bool {
        let owners: Vec<Pid> = {
            let accounts = lock(&self.objects.accounts);
            accounts.charged_clients().into_iter().filter_map(|client| accounts.owner(client)).collect()
        };
        owners.into_iter().any(|owner| !self.processes.is_running(owner))
    }

    /// Lets go of what only lived with a process. May have to wait for other processes of the
    /// container.
    pub fn process_ended(&self, pid: Pid) {
        let left = self.process_exited(pid);
        self.reclaim_after_exit(&left);
    }

    /// The process is known no more, and another one may have its pid. What it leaves is to be
    /// given to [`Session::reclaim_after_exit`]. Waits for nobody.
    pub fn process_exited(&self, pid: Pid) -> ExitedProcesses {
        let left = lock(&self.objects.accounts).process_ended(pid);
        lock(&self.process_table).remove(pid);
        ExitedProcesses { clients: left.clients.into_iter().collect(), managed: left.managed }
    }

    /// Lets go of what processes have left, unless others have it. May have to wait for processes
    /// of the container.
    pub fn reclaim_after_exit(&self, left: &ExitedProcesses) {
        let clients: Vec<Handle> = left.clients.iter().copied().collect();
        self.drop_unheld_control_files(|_| true);
        self.drop_dead_clients(&clients);
        // What a UVM file keeps of it is let go of with the file.
        if left.managed {
            self.managed.drop_gone_address_spaces(&self.scan_env());
        }
        self.drop_unheld_uvm_files(|_| true);
    }

    /// Ends processes whose end nobody has reported yet.
    pub(crate) fn end_processes(&self) {
        let pids = lock(&self.process_table).pids();
        for pid in pids.into_iter().filter(|pid| !self.processes.is_running(*pid)) {
            self.process_ended(pid);
        }
    }

    /// Clients that the driver has ended for reasons of its own.
    pub(crate) fn drop_dead_clients(&self, clients: &[Handle]) {
        for &client in clients {
            self.objects.locks.with(&[LockName::Client(client)], || self.drop_if_dead(client));
        }
    }

    /// Lets go of a client that is gone; whether it is.
    ///
    /// Precondition: it is locked.
    pub(crate) fn drop_if_dead(&self, client: Handle) -> bool {
        // What cannot be said to be gone stays charged.
        let is_gone = matches!(self.driver.client_exists(&self.own, client), Ok(false));
        if is_gone {
            // What the gates keep of it goes before it is charged no more.
            self.channels.remove_client_from_gates(client);
            lock(&self.objects.accounts).client_gone(client);
            lock(&self.objects.files).remove_client(client);
            lock(&self.objects.topology).remove(client, client);
        }
        is_gone
    }

    /// Lets go of what is gone, then compares as [`Session::compare`] does: what two threads of the
    /// mediator do, one after the other.
    #[cfg(test)]
    pub(crate) fn reconcile(&self) -> Vec<Drift> {
        self.look_for_closed_files();
        self.compare()
    }

    /// Lets go of what is gone with its processes and files. May take long: for each file that is
    /// kept, each that a process has open is looked at, and processes have as many as they like.
    pub fn look_for_closed_files(&self) {
        self.end_processes();
        self.drop_unheld_control_files(|_| true);
        let clients: Vec<Handle> = lock(&self.objects.accounts).clients().map(|(client, _)| client).collect();
        self.drop_dead_clients(&clients);
        self.managed.scan(&self.scan_env());
        self.drop_unheld_uvm_files(|_| true);
        self.drop_unheld_tokens(crate::TRANSIT);
    }

    /// Compares the accounts with what the driver says and with what processes have mapped, and
    /// tells the observer of differences. Does not wait for [`Session::look_for_closed_files`].
    pub fn compare(&self) -> Vec<Drift> {
        self.managed.scan(&self.scan_env());
        self.settle_staging();
        self.tell_shortages(self.reclaim_throttle.clock.now());
        if lock(&self.objects.accounts).has_freed_while_mapped() {
            self.host_mappings.drop_gone(&self.objects.accounts);
        }
        let mut drifts: Vec<Drift> = self.managed.take_uncharged().into_iter().collect();
        let cards: Vec<Card> = self.grant.iter().map(|(card, _)| card).collect();
        drifts.extend(cards.into_iter().filter_map(|card| self.compare_with_driver(card)));
        let lasting = self.lasting_excess(&drifts);
        let is_over_quota = lock(&self.objects.accounts).is_over_limit();
        if let Some(why) = self.managed.must_end(self.reclaim_throttle.clock.now(), is_over_quota).or(lasting) {
            self.observer.end_container(&why);
        }
        self.tell_left();
        self.report_drifts(drifts)
    }

    /// Returns whether something is held that only [`Session::look_for_closed_files`] can find
    /// gone: it is to be called, though no process makes calls.
    pub fn holds_anything(&self) -> bool {
        let keeps_files = {
            let files = lock(&self.objects.files);
            files.has_controls() || !files.all_tokens().is_empty()
        };
        let keeps_client = self.pinned.staging.get().is_some_and(|staging| lock(&staging.client).is_some());
        let accounts = lock(&self.objects.accounts);
        keeps_files
            || keeps_client
            || accounts.cards().any(|(_, usage)| usage.used.0 > 0 || usage.fabric.0 > 0)
            || accounts.has_freed_while_mapped()
            || accounts.may_be_mapped()
    }
}
