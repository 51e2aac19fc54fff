//! What is gone without having said so: processes, clients whose file was closed, UVM files, unmapped managed memory.

use std::collections::HashMap;

use super::{
    Drift, DriftKind, Pid, Session,
    locks::{Name, lock},
};
use crate::{
    account::{Card, Mapping, Mm},
    rm::Handle,
};

/// Managed memory that was found mapped without being charged.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) bytes: u64,
    pub(super) pids: Vec<Pid>,
}

impl Session {
    /// Looks for what is gone, so that nothing is refused for its sake. Whoever waits for another thread's look that began later than
    /// its own question is done with that.
    pub(super) fn refresh(&self) {
        let before = *lock(&self.refreshing);
        let mut looks = lock(&self.refreshing);
        if *looks > before + 1 {
            return;
        }
        self.end_processes();
        let charged = lock(&self.accounts).charged_clients();
        self.drop_dead_clients(&charged);
        let files = lock(&self.accounts).charged_uvm_files();
        self.drop_unheld_uvm_files(|file| files.contains(&file));
        self.look_at_managed();
        *looks += 1;
    }

    /// What only lived with the process is let go of.
    pub fn process_ended(&self, pid: Pid) {
        let left = lock(&self.accounts).process_ended(pid);
        lock(&self.people).remove(pid);
        self.drop_dead_clients(&left.clients);
        self.drop_unheld_uvm_files(|_| true);
        if left.managed {
            self.look_at_managed();
        }
    }

    /// Those of which nobody has told yet that they have ended.
    pub(super) fn end_processes(&self) {
        let pids = lock(&self.people).pids();
        for pid in pids.into_iter().filter(|pid| !self.processes.is_running(*pid)) {
            self.process_ended(pid);
        }
    }

    /// Clients end with the control file that they live on, of whose end nobody is told.
    pub(super) fn drop_dead_clients(&self, clients: &[Handle]) {
        for &client in clients {
            self.locks.with(&[Name::Client(client)], || {
                // What cannot be said to be gone stays charged.
                if matches!(self.driver.client_exists(&self.own, client), Ok(false)) {
                    lock(&self.accounts).client_gone(client);
                    lock(&self.topology).remove(client, client);
                }
            });
        }
    }

    /// Compares the accounts of managed memory with what is mapped; what was mapped without being charged.
    pub(super) fn look_at_managed(&self) -> Found {
        self.locks.with(&[Name::Managed], || self.look_at_managed_locked())
    }

    fn look_at_managed_locked(&self) -> Found {
        let pending = lock(&self.accounts).pending_threads();
        for thread in pending.into_iter().filter(|thread| !self.processes.is_thread_running(*thread)) {
            lock(&self.accounts).thread_called(thread);
        }
        let mut sync = lock(&self.accounts).begin_sync();
        let mut found = Found::default();
        let Ok(pids) = self.processes.pids() else { return found };
        let mut spaces: HashMap<Mm, (Pid, Vec<Mapping>)> = HashMap::new();
        let mut complete = true;
        for pid in pids {
            let Ok(mappings) = self.processes.uvm_mappings(pid) else {
                // It is gone, or cannot be looked at: then nothing may be concluded from what is not seen.
                complete &= !self.processes.is_running(pid);
                continue;
            };
            let managed: Vec<Mapping> = mappings
                .into_iter()
                .filter(|mapping| mapping.offset == mapping.address)
                .map(|mapping| Mapping { start: mapping.address, length: mapping.length })
                .collect();
            if managed.is_empty() && !lock(&self.people).knows(pid) {
                continue;
            }
            let memory = lock(&self.people).address_space(pid, self.processes.as_ref());
            spaces.entry(memory).or_insert((pid, Vec::new())).1.extend(managed);
        }
        let mut accounts = lock(&self.accounts);
        for (memory, (pid, mapped)) in spaces {
            let drift = accounts.set_managed(&mut sync, memory, pid, &mapped);
            if !drift.found.is_empty() {
                found.pids.push(pid);
                found.bytes = drift.found.iter().fold(found.bytes, |sum, range| sum.saturating_add(range.length));
            }
        }
        if complete {
            accounts.finish_sync(sync);
        }
        found
    }

    /// Compares the accounts with what the driver and the processes say, lets go of what is gone, and tells the observer of
    /// differences.
    pub fn reconcile(&self) -> Vec<Drift> {
        self.end_processes();
        let clients: Vec<Handle> = lock(&self.accounts).clients().map(|(client, _)| client).collect();
        self.drop_dead_clients(&clients);
        self.drop_unheld_uvm_files(|_| true);
        self.drop_unheld_tokens(super::TRANSIT);
        let found = self.look_at_managed();
        let mut drifts = Vec::new();
        if found.bytes > 0 {
            let accounted = runtime_config::Bytes(0);
            let kind = DriftKind::Managed { accounted, mapped: runtime_config::Bytes(found.bytes) };
            drifts.push(Drift { kind, excess: true, pids: found.pids });
        }
        let cards: Vec<Card> = self.grant.iter().map(|(card, _)| card).collect();
        drifts.extend(cards.into_iter().filter_map(|card| self.compare_with_driver(card)));
        self.told(drifts)
    }
}
