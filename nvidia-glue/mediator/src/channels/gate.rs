//! Taking a container's channels off a card and putting them back, from a client of the mediator's
//! own.
//!
//! `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS` names channels of any client by handle, so no file of
//! the container's is needed, and none is kept open (docs/driver-facts.md).
//!
//! **Order.** The scheduler's thread opens and closes; listener threads bring channels that have
//! just come to be in line. Who tells the driver something holds [`CardGate::acting`] from the
//! decision until it is done, as the card's firmware counts how often a channel was taken off
//! (docs/driver-facts.md): each is taken off once and put back once. So the scheduler may wait for
//! a listener's call, as it would in the driver, which makes one at a time; never for anything of
//! the container's.

mod calls;
#[cfg(feature = "parking")]
mod parking;
mod slices;
mod userd;

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use abi::{Abi, Handle, Status};
use account::ObjectName;
use base::Throttle;
use driver::{Driver, OwnClient};
use schedule::{Calls, Edge, EdgeError, Gate, Submitted};

pub(crate) use self::{
    slices::{DEFAULT_SLICE_US, MOST_SLICE_US},
    userd::Userd,
};
use crate::{
    Caller, CallerError,
    channels::{
        card_channels::CardChannels,
        gate::{
            calls::GateCallError,
            slices::chosen,
            userd::{Userds, all_of},
        },
    },
    grant::OwnCard,
    locks::lock,
};

/// The most channels that one call names: elements of `hChannelList`.
pub(crate) const MOST: usize = 64;

/// Longest wait of a schedule call for the gate: twice the longest period. What is closed for
/// longer lets it be scheduled, and takes it off right after: to take off what is not scheduled yet
/// has no effect (docs/driver-facts.md).
pub(crate) const MOST_WAIT: Duration = Duration::from_secs(1);
/// Period at which a waiting call checks its caller.
const LOOK: Duration = Duration::from_millis(20);

/// The container's channels on one card.
#[derive(Debug)]
pub(crate) struct CardGate {
    uuid: String,
    minor: u32,
    driver: Arc<dyn Driver>,
    abi: Abi,
    own: Arc<OwnClient>,
    /// The mediator's own of the card.
    device: Handle,
    subdevice: Handle,
    /// Held before `state`, while the driver is told where channels are to be.
    acting: Mutex<()>,
    state: Mutex<GateState>,
    /// Held before `state`.
    userds: Mutex<Userds>,
    opened: Condvar,
}

#[derive(Debug)]
struct GateState {
    channels: CardChannels,
    is_closed: bool,
    /// Nobody is to wait.
    is_hurried: bool,
    /// Set while a first channel is not reported.
    has_first: bool,
    /// Time slice that the scheduler has set; microseconds.
    slice_us: Option<u64>,
    /// Number of times that it has.
    slices: u64,
    /// Time for which calls of the program's were on their way while the gate was closed, each of
    /// which let channels work until they were taken off; and nobody has asked.
    overrun: Duration,
}

/// A call of the program's that may let channels work is on its way: no edge is made, and no other
/// such call, before it is over and what it has changed is where it is to be. So at most one of
/// them comes between an edge's instant and its call to the driver.
#[derive(Debug)]
pub(crate) struct GateGuard<'g> {
    gate: &'g CardGate,
    _acting: MutexGuard<'g, ()>,
    /// It began while the gate was closed.
    off_since: Option<Instant>,
}

impl GateGuard<'_> {
    /// See [`CardGate::bring`].
    pub(crate) fn bring(&self, names: &[ObjectName]) -> Result<(), EdgeError> {
        self.gate.act_alone(|_| names.to_vec()).map(drop)
    }

    /// The same after a call of the program's that may have put them back, or may have made them
    /// count from 0.
    pub(crate) fn bring_doubted(&self, names: &[ObjectName]) {
        self.gate.with(|channels| channels.doubt(names));
        // What is refused here is found by the next edge.
        let _ = self.bring(names);
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.off_since {
            let mut state = lock(&self.gate.state);
            state.overrun = state.overrun.saturating_add(since.elapsed());
        }
    }
}

impl GateState {
    /// Returns whether a call that is made until an instant has to wait, if the gate matters to it.
    fn has_to_wait(&self, until: Instant, matters: impl Fn(&CardChannels) -> bool) -> bool {
        self.is_closed && !self.is_hurried && Instant::now() < until && matters(&self.channels)
    }
}

impl CardGate {
    pub(crate) fn new(
        card: &OwnCard,
        throttle: Throttle,
        driver: &Arc<dyn Driver>,
        abi: Abi,
        own: &Arc<OwnClient>,
    ) -> Self {
        let state = GateState {
            channels: CardChannels::new(throttle),
            is_closed: false,
            is_hurried: false,
            has_first: false,
            slice_us: None,
            slices: 0,
            overrun: Duration::ZERO,
        };
        Self {
            uuid: card.granted.uuid.clone(),
            minor: card.granted.minor,
            driver: Arc::clone(driver),
            abi,
            own: Arc::clone(own),
            device: card.device,
            subdevice: card.subdevice,
            acting: Mutex::default(),
            state: Mutex::new(state),
            userds: Mutex::default(),
            opened: Condvar::new(),
        }
    }

    /// Looks at the channels, or changes what is known of them. Not to be used within itself.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut CardChannels) -> T) -> T {
        work(&mut lock(&self.state).channels)
    }

    /// Returns whether the card can take channels off: a call that names none says so.
    pub(crate) fn can_close(&self) -> bool {
        !matches!(self.name_channels(true, &[]), Err(GateCallError::Refused(Status::NOT_SUPPORTED)))
    }

    /// A channel has come to be, maybe in a group that does work already: it obeys before that call
    /// is over.
    pub(crate) fn add_channel(&self, name: ObjectName, parent: Handle, engine: u32, userd: Option<Userd>) {
        self.add_userd(name, userd);
        let mut state = lock(&self.state);
        state.has_first |= state.channels.add_channel(name, parent, engine);
    }

    /// An object is a channel or a group no more.
    pub(crate) fn remove(&self, name: ObjectName) {
        self.with(|channels| channels.remove(name));
        self.remove_userds(name..=name);
    }

    /// A client is gone.
    pub(crate) fn remove_client(&self, client: Handle) {
        self.with(|channels| channels.remove_client(client));
        self.remove_userds(all_of(client));
    }

    /// Returns whether there is a first throttled channel, that is not reported.
    pub(crate) fn take_first(&self) -> bool {
        std::mem::take(&mut lock(&self.state).has_first)
    }

    /// Lets nobody wait for the gate any more, until they may again: the container is paused,
    /// or ends.
    pub(crate) fn hurry(&self, hurried: bool) {
        lock(&self.state).is_hurried = hurried;
        self.opened.notify_all();
    }

    /// Returns whether nobody is to wait.
    pub(crate) fn is_hurried(&self) -> bool {
        lock(&self.state).is_hurried
    }

    /// Waits while the gate is closed and it matters to who asks, until an instant: see
    /// [`MOST_WAIT`].
    pub(crate) fn wait(
        &self,
        caller: &dyn Caller,
        until: Instant,
        matters: impl Fn(&CardChannels) -> bool,
    ) -> Result<(), CallerError> {
        loop {
            let state = lock(&self.state);
            if !state.has_to_wait(until, &matters) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            drop(self.opened.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner));
            // No lock is held while the caller is looked at.
            if !caller.is_waiting() {
                return Err(CallerError::Gone);
            }
        }
    }

    /// A call that waited is made; `None`: the gate has closed meanwhile, and it has to wait again.
    /// Who holds locks of clients takes them before.
    pub(crate) fn enter(&self, until: Instant, matters: impl Fn(&CardChannels) -> bool) -> Option<GateGuard<'_>> {
        let acting = lock(&self.acting);
        let state = lock(&self.state);
        if state.has_to_wait(until, &matters) {
            return None;
        }
        let off_since = (state.is_closed && matters(&state.channels)).then(Instant::now);
        drop(state);
        Some(GateGuard { gate: self, _acting: acting, off_since })
    }

    /// Both.
    pub(crate) fn wait_and_enter(
        &self,
        caller: &dyn Caller,
        matters: impl Fn(&CardChannels) -> bool,
    ) -> Result<GateGuard<'_>, CallerError> {
        let until = Instant::now() + MOST_WAIT;
        loop {
            self.wait(caller, until, &matters)?;
            if let Some(turn) = self.enter(until, &matters) {
                return Ok(turn);
            }
        }
    }

    /// Returns whether it is closed, or about to be.
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed
    }

    /// Brings channels to where they are to be. What the driver refuses is found by the next edge,
    /// which names them again.
    pub(crate) fn bring(&self, names: &[ObjectName]) -> Result<(), EdgeError> {
        self.act(|_| names.to_vec()).map(drop)
    }

    /// Returns whether the program has made so many calls since they were last on that another one
    /// has to wait until they are.
    pub(crate) fn is_overdone(&self, names: &[ObjectName]) -> bool {
        let state = lock(&self.state);
        state.is_closed && state.channels.any_doubted(names)
    }

    fn set_closed(&self, is_closed: bool) -> Result<Edge, EdgeError> {
        lock(&self.state).is_closed = is_closed;
        let result = self.act(|channels| {
            let mut names = channels.at_the_gate();
            // Where it takes several calls, compute is the first to go and the last to come, in as
            // few of them as there can be.
            if !is_closed && names.len() > MOST {
                names.reverse();
            }
            names
        });
        if !is_closed {
            self.opened.notify_all();
        }
        result
    }

    /// Looks up who is named only once nobody else tells the driver anything.
    fn act(&self, names: impl FnOnce(&CardChannels) -> Vec<ObjectName>) -> Result<Edge, EdgeError> {
        let _acting = lock(&self.acting);
        self.act_alone(names)
    }

    /// The same for who holds [`CardGate::acting`].
    fn act_alone(&self, names: impl FnOnce(&CardChannels) -> Vec<ObjectName>) -> Result<Edge, EdgeError> {
        let (names, ons) = {
            let GateState { channels, is_closed, .. } = &*lock(&self.state);
            let names = names(channels);
            let ons = names.iter().map(|name| (*name, channels.ons(*name, *is_closed)));
            let ons: Vec<_> = ons.filter(|(_, times)| *times > 0).collect();
            (names, ons)
        };
        let mut edge = Edge { channels: ons.len(), calls: 0 };
        let mut put_back = Ok(());
        for round in 0..ons.iter().map(|(_, times)| *times).max().unwrap_or(0) {
            let on: Vec<_> = ons.iter().filter(|(_, times)| *times > round).map(|(name, _)| *name).collect();
            put_back = self.name_all(false, &on, &mut edge);
            if put_back.is_err() {
                break;
            }
        }
        let off: Vec<_> = {
            let GateState { channels, is_closed, .. } = &*lock(&self.state);
            names.into_iter().filter(|name| channels.lacks_off(*name, *is_closed)).collect()
        };
        edge.channels += off.len();
        self.name_all(true, &off, &mut edge).and(put_back).map(|()| edge)
    }
}

impl Gate for CardGate {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn open(&self) -> Result<Edge, EdgeError> {
        self.set_closed(false)
    }

    fn close(&self) -> Result<Edge, EdgeError> {
        self.set_closed(true)
    }

    fn set_slice(&self, slice_us: Option<u64>) -> Result<(), EdgeError> {
        let groups = {
            let mut state = lock(&self.state);
            state.slice_us = slice_us;
            state.slices += 1;
            state.channels.slices()
        };
        let mut result = Ok(());
        for (group, program) in groups {
            let set = self.apply_slice(group, chosen(slice_us, program));
            if set.is_err() && !self.is_gone(group) {
                result = result.and(set);
            }
        }
        result
    }

    fn calls(&self) -> Calls {
        let (all, compute) = self.with(|channels| channels.count_at_the_gate());
        Calls { all: all.div_ceil(MOST), compute: compute.div_ceil(MOST) }
    }

    fn take_overrun_us(&self) -> u64 {
        let overrun = std::mem::take(&mut lock(&self.state).overrun);
        u64::try_from(overrun.as_micros()).unwrap_or(u64::MAX)
    }

    fn rotate(&self, on_card: Option<usize>) -> Result<Edge, EdgeError> {
        self.with(|channels| channels.rotate(on_card));
        self.act(CardChannels::at_the_gate)
    }

    fn submitted(&self) -> Option<Submitted> {
        self.read_userds()
    }

    fn channels(&self) -> usize {
        self.with(|channels| channels.throttled())
    }

    fn groups(&self) -> usize {
        self.with(|channels| channels.compute_groups())
    }
}
