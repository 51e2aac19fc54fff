//! Channels: which there are, when they are on the card, and what they may ask of it.

pub(crate) mod card_channels;
pub(crate) mod driver_time;
pub(crate) mod gate;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use abi::{Handle, classes::EngineKind};
use account::{Card, ObjectName};

use crate::{
    Caller, CallerError, Observer,
    channels::{
        card_channels::{CardChannels, Engine},
        driver_time::DriverTime,
        gate::{CardGate, GateGuard, MOST_WAIT, Userd},
    },
    clock::Clock,
};

/// Part of an object in scheduling, as the gate of its card sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SchedulingRole {
    /// A channel group of an `NV2080_ENGINE_TYPE_*`.
    Group(u32),
    /// A channel, by its own word of such an engine; and its USERD.
    Channel(u32, Option<Userd>),
    /// A duplicate of what may be a group.
    Duplicate(ObjectName),
}

/// The container's channels on its cards, and the driver time that they cost.
#[derive(Debug)]
pub(crate) struct Channels {
    /// By the cards' numbers.
    gates: Vec<Arc<CardGate>>,
    /// By the cards' numbers.
    driver_times: Vec<DriverTime>,
    /// That the driver does not make a context preemptible was logged.
    preemption_mode_reported: AtomicBool,
}

impl Channels {
    pub(crate) fn new(gates: Vec<Arc<CardGate>>) -> Self {
        let driver_times = gates.iter().map(|_| DriverTime::default()).collect();
        Self { gates, driver_times, preemption_mode_reported: AtomicBool::new(false) }
    }

    /// Returns the gates, card by card in the container's order.
    pub(crate) fn gates(&self) -> &[Arc<CardGate>] {
        &self.gates
    }

    pub(crate) fn gate(&self, card: Card) -> Option<&CardGate> {
        self.gates.get(usize::from(card.0)).map(AsRef::as_ref)
    }

    /// Tells the gate of a card what an object is to it.
    pub(crate) fn register_with_gate(
        &self,
        made: ObjectName,
        parent: Handle,
        card: Option<Card>,
        role: Option<SchedulingRole>,
    ) {
        let (Some(role), Some(gate)) = (role, card.and_then(|card| self.gate(card))) else { return };
        match role {
            SchedulingRole::Group(engine) => gate.with(|channels| channels.add_group(made, engine)),
            SchedulingRole::Duplicate(source) => gate.with(|channels| channels.add_duplicate(made, source)),
            SchedulingRole::Channel(engine, userd) => gate.add_channel(made, parent, engine, userd),
        }
    }

    /// The gate of the card that a channel or a group is on. One that is not known is not scheduled
    /// by anybody.
    pub(crate) fn gate_of(&self, name: ObjectName) -> Option<&CardGate> {
        let is_here = |gate: &&CardGate| gate.with(|channels| channels.below(name).is_some());
        self.gates.iter().map(AsRef::as_ref).find(is_here)
    }

    /// An object is a channel or a group no more, whatever it was.
    pub(crate) fn remove_from_gates(&self, name: ObjectName) {
        for gate in &self.gates {
            gate.remove(name);
        }
    }

    /// An object is new: memory of that name, in which USERDs may be, is there no more.
    pub(crate) fn replace_userd_memory(&self, name: ObjectName) {
        self.gates.iter().for_each(|gate| gate.replace_userd_memory(name));
    }

    /// A client is gone.
    pub(crate) fn remove_client_from_gates(&self, client: Handle) {
        for gate in &self.gates {
            gate.remove_client(client);
        }
    }

    /// Nobody uses these clients any more, and they are about to be freed, one after the other:
    /// what they have on the cards is taken off at once.
    ///
    /// To free a context takes the driver a tenth of a second. Until then the dead would share the
    /// cards with the living; and as the driver, busy with it, does not come to empty its log of
    /// context switches, it writes a line into the kernel's log each time that one is full (Xid 13,
    /// "FECS Exception: Logging error"; 1065 lines in two seconds when 16 processes were killed,
    /// H200, 580.159.04).
    pub(crate) fn take_clients_off_cards(&self, clients: &BTreeSet<Handle>) {
        for gate in &self.gates {
            let names = gate.with(|channels| {
                let names = channels.of_clients(clients);
                channels.want(&names, false);
                names
            });
            // What stays on for want of an answer goes with its client.
            let _ = gate.bring(&names);
        }
    }

    /// An object of a class has come to be in what may be a channel.
    pub(crate) fn works_on(&self, channel: ObjectName, kind: EngineKind) {
        if let (Some(engine), Some(gate)) = (Engine::of_kind(kind), self.gate_of(channel)) {
            let beside = gate.with(|channels| {
                channels.works_on(channel, engine);
                channels.beside(channel)
            });
            let _ = gate.bring(&beside);
        }
    }

    /// A channel is about to be made in what may be a group.
    pub(crate) fn wait_to_attach(&self, caller: &dyn Caller, group: ObjectName) -> Result<(), CallerError> {
        let Some(gate) = self.gate_of(group) else { return Ok(()) };
        let until = Instant::now() + MOST_WAIT;
        gate.wait(caller, until, |channels| channels.is_at_work(group))
    }

    /// It is made now: the gate may have closed since, and stands still until it is known. `None`:
    /// in what does no work.
    pub(crate) fn begin_attach(&self, group: ObjectName) -> Option<GateGuard<'_>> {
        let gate = self.gate_of(group)?;
        let is_at_work = |channels: &CardChannels| channels.has_scheduled(group);
        gate.with(|channels| is_at_work(channels)).then(|| gate.enter(Instant::now(), is_at_work)).flatten()
    }

    /// A call has had the driver work on `card` for about `cost`: waits until the container may use
    /// as much.
    pub(crate) fn wait_for_driver_time(&self, card: Card, cost: Duration, clock: &dyn Clock) {
        let used = self.driver_times.get(usize::from(card.0));
        if let (Some(used), Some(gate)) = (used, self.gate(card)) {
            used.wait(cost, clock, || gate.is_hurried());
        }
    }

    /// Sets the container's share of a card's time, in millionths.
    pub(crate) fn set_share(&self, card: Card, share_ppm: u32) {
        if let Some(used) = self.driver_times.get(usize::from(card.0)) {
            used.set_share(share_ppm);
        }
    }

    /// Returns whether nobody has heard yet that the driver does not make a context preemptible; by
    /// this question one has.
    pub(crate) fn is_preemption_news(&self) -> bool {
        !self.preemption_mode_reported.swap(true, Ordering::Relaxed)
    }

    /// Tells the observer of the first channel of a card. No lock is held.
    pub(crate) fn report_first_channels(&self, observer: &dyn Observer) {
        for gate in &self.gates {
            if gate.take_first() {
                observer.first_channel(schedule::Gate::uuid(gate.as_ref()));
            }
        }
    }
}
