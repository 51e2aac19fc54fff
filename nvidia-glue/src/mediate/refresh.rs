//! What is gone without having said so: processes, clients whose file was closed, UVM files, unmapped managed memory.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

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
    pub(super) pids: BTreeSet<Pid>,
}

/// What processes that have ended may have left.
#[derive(Debug, Default)]
pub struct Left {
    clients: BTreeSet<Handle>,
    managed: bool,
}

impl Left {
    /// The same of several processes.
    pub fn add(&mut self, other: Self) {
        self.clients.extend(other.clients);
        self.managed |= other.managed;
    }
}

impl Session {
    /// Looks for what is gone, so that nothing is refused for its sake. May have to wait: see [`super::looks`].
    pub(super) fn refresh(&self) {
        self.looks.look(|| self.look_for_what_is_gone());
    }

    fn look_for_what_is_gone(&self) {
        self.end_processes();
        let charged = lock(&self.accounts).charged_clients();
        self.drop_unheld_control_files(|clients| charged.iter().any(|client| clients.contains(client)));
        self.drop_dead_clients(&charged);
        self.look_at_managed();
        self.look_at_what_is_pinned();
        let files = lock(&self.accounts).charged_uvm_files();
        self.drop_unheld_uvm_files(|file| files.contains(&file));
        // Somebody is about to be refused: memory that only exports hold, to files that no process has, does not wait for who may come for it.
        self.drop_unheld_tokens([super::TRANSIT[0], Duration::ZERO]);
        self.drop_gone_host_mappings();
    }

    /// Whether a client is charged whose process has ended: its file is perhaps being closed just now, by the kernel or by a thread of the
    /// mediator's that still works on its last call.
    pub(super) fn waits_for_the_dead(&self) -> bool {
        let owners: Vec<Pid> = {
            let accounts = lock(&self.accounts);
            accounts.charged_clients().into_iter().filter_map(|client| accounts.owner(client)).collect()
        };
        owners.into_iter().any(|owner| !self.processes.is_running(owner))
    }

    /// What only lived with the process is let go of. May have to wait for other processes of the container.
    pub fn process_ended(&self, pid: Pid) {
        let left = self.process_left(pid);
        self.look_after(&left);
    }

    /// The process is known no more, and another one may have its pid. What it leaves is to be given to [`Session::look_after`]. Waits for
    /// nobody.
    pub fn process_left(&self, pid: Pid) -> Left {
        let left = lock(&self.accounts).process_ended(pid);
        lock(&self.people).remove(pid);
        Left { clients: left.clients.into_iter().collect(), managed: left.managed }
    }

    /// Lets go of what processes have left, unless others have it. May have to wait for processes of the container.
    pub fn look_after(&self, left: &Left) {
        let clients: Vec<Handle> = left.clients.iter().copied().collect();
        self.drop_unheld_control_files(|_| true);
        self.drop_dead_clients(&clients);
        // What a UVM file keeps of it is let go of with the file.
        if left.managed {
            self.look_at_managed();
        }
        self.drop_unheld_uvm_files(|_| true);
    }

    /// The address space of a process, shared with whoever shares it now.
    pub(super) fn address_space(&self, pid: Pid) -> Mm {
        // Not the people's lock, which every call takes: a process can make the kernel wait with its answer.
        let _one_at_a_time = lock(&self.address_spaces);
        let others = lock(&self.people).in_address_spaces(pid);
        let shared = |other: Pid| self.processes.share_memory(pid, other).unwrap_or(false);
        let sharers: Vec<Mm> =
            others.into_iter().filter(|(other, _)| shared(*other)).map(|(_, memory)| memory).collect();
        lock(&self.people).address_space(pid, &sharers)
    }

    /// Those of which nobody has told yet that they have ended.
    pub(super) fn end_processes(&self) {
        let pids = lock(&self.people).pids();
        for pid in pids.into_iter().filter(|pid| !self.processes.is_running(*pid)) {
            self.process_ended(pid);
        }
    }

    /// Clients that the driver has ended for reasons of its own.
    pub(super) fn drop_dead_clients(&self, clients: &[Handle]) {
        for &client in clients {
            self.locks.with(&[Name::Client(client)], || self.drop_if_dead(client));
        }
    }

    /// Lets go of a client that is gone; whether it is. For whoever has it locked.
    pub(super) fn drop_if_dead(&self, client: Handle) -> bool {
        // What cannot be said to be gone stays charged.
        let is_gone = matches!(self.driver.client_exists(&self.own, client), Ok(false));
        if is_gone {
            lock(&self.accounts).client_gone(client);
            lock(&self.files).remove_client(client);
            lock(&self.topology).remove(client, client);
            self.client_leaves_gates(client);
        }
        is_gone
    }

    /// Compares the accounts of managed memory with what is mapped. What was mapped without being charged is charged from then on, and
    /// told in the next reconciliation, whoever found it.
    pub(super) fn look_at_managed(&self) {
        let found = self.locks.with(&[Name::Managed], || self.look_at_managed_locked());
        let mut all = lock(&self.found);
        all.bytes = all.bytes.saturating_add(found.bytes);
        all.pids.extend(found.pids);
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
            let memory = self.address_space(pid);
            spaces.entry(memory).or_insert((pid, Vec::new())).1.extend(managed);
        }
        let mut accounts = lock(&self.accounts);
        for (memory, (pid, mapped)) in spaces {
            let drift = accounts.set_managed(&mut sync, memory, pid, &mapped);
            if !drift.found.is_empty() {
                found.pids.insert(pid);
                found.bytes = drift.found.iter().fold(found.bytes, |sum, range| sum.saturating_add(range.length));
            }
        }
        if complete {
            accounts.finish_sync(sync);
        }
        found
    }

    /// Lets go of what is gone, then compares as [`Session::compare`] does: what two threads of the mediator do, one after the other.
    #[cfg(test)]
    pub(super) fn reconcile(&self) -> Vec<Drift> {
        self.look_for_closed_files();
        self.compare()
    }

    /// Lets go of what is gone with its processes and files. May take long: for each file that is kept, each that a process has open is looked at,
    /// and processes have as many as they like.
    pub fn look_for_closed_files(&self) {
        self.end_processes();
        self.drop_unheld_control_files(|_| true);
        let clients: Vec<Handle> = lock(&self.accounts).clients().map(|(client, _)| client).collect();
        self.drop_dead_clients(&clients);
        self.look_at_managed();
        self.drop_unheld_uvm_files(|_| true);
        self.drop_unheld_tokens(super::TRANSIT);
    }

    /// Compares the accounts with what the driver says and with what processes have mapped, and tells the observer of differences. Does not
    /// wait for [`Session::look_for_closed_files`].
    pub fn compare(&self) -> Vec<Drift> {
        self.look_at_managed();
        self.look_at_what_is_pinned();
        if lock(&self.accounts).has_freed_while_mapped() {
            self.drop_gone_host_mappings();
        }
        let found = std::mem::take(&mut *lock(&self.found));
        let mut drifts = Vec::new();
        if found.bytes > 0 {
            let accounted = runtime_config::Bytes(0);
            let kind = DriftKind::Managed { accounted, mapped: runtime_config::Bytes(found.bytes) };
            drifts.push(Drift { kind, excess: true, pids: found.pids.into_iter().collect() });
        }
        let cards: Vec<Card> = self.grant.iter().map(|(card, _)| card).collect();
        drifts.extend(cards.into_iter().filter_map(|card| self.compare_with_driver(card)));
        self.told(drifts)
    }
}
