//! The engines of a simulated card, and the channels of all processes that share them.
//!
//! There is no processor: time is what an engine executes. Every process that simulates the driver
//! (each container's mediator) keeps the same account in a file for each card: at each event (a
//! channel comes, goes, is scheduled, taken off or put back, a slice changes, somebody asks) the
//! time since the last one is divided among those that had work ([`time`]). What a program has to
//! do, it writes into the card's node ([`doorbells`]).

mod doorbells;
mod file;
mod log;
mod time;

#[cfg(test)]
use std::sync::atomic::AtomicU64;
use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64 as Slice, Ordering},
    },
    thread,
    time::Duration,
};

use base::{ProcessId, real_time_ns};
use cards::{Card, SimulatedEdges};
use nix::time::{ClockId, clock_gettime};
use schedule::{Presence, Switch, SwitchBatch, SwitchLog, SwitchLogError};

pub(super) use self::time::Sample;
use self::{
    doorbells::Doorbells,
    file::ChannelFile,
    log::Log,
    time::{Channel, Channels, DEFAULT_SLICE_US},
};

/// Numbers of a card's channels, which are their tokens: 2048 for all engines together, as up to
/// Hopper, less those that the kernel has for itself (UVM two for each of eight copy engines, and
/// four to scrub, copy and watch).
const MOST_CHANNELS: u32 = 2048 - 20;

/// Clock of the engines.
#[derive(Debug, Clone)]
pub(super) enum Clock {
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// A test's.
    #[cfg(test)]
    Set(Arc<AtomicU64>),
}

impl Clock {
    fn now_ns(&self) -> u64 {
        match self {
            // The clock is there on every kernel, and starts at 0.
            Self::Monotonic => clock_gettime(ClockId::CLOCK_MONOTONIC)
                .map_or(0, |now| u64::try_from(now.tv_sec() * 1_000_000_000 + now.tv_nsec()).unwrap_or(0)),
            #[cfg(test)]
            Self::Set(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Sleeps for so long.
    fn pass(&self, time: Duration) {
        match self {
            Self::Monotonic if time.is_zero() => {}
            Self::Monotonic => thread::sleep(time),
            #[cfg(test)]
            Self::Set(now) => {
                now.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(0), Ordering::Relaxed);
            }
        }
    }
}

/// A channel group, however many handles it has.
#[derive(Debug)]
pub(super) struct Group {
    /// Among the groups of this process.
    id: u64,
    slice_us: Slice,
}

impl Group {
    /// Group with the default slice.
    pub(super) fn new() -> Arc<Self> {
        static NEXT: Slice = Slice::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, slice_us: Slice::new(DEFAULT_SLICE_US) })
    }

    pub(super) fn slice_us(&self) -> u64 {
        self.slice_us.load(Ordering::Relaxed)
    }
}

/// The engines of one card.
#[derive(Debug)]
pub(super) struct Engines {
    file: ChannelFile,
    doorbells: Doorbells,
    log: Log,
    own: ProcessId,
    clock: Clock,
    edges: SimulatedEdges,
}

/// A channel's place on its engine, which it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct RunlistEntry {
    engines: Arc<Engines>,
    group: Arc<Group>,
    token: u32,
}

/// Time that an engine gave a channel, and as of when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Executed {
    pub(super) executed_ns: u64,
    pub(super) at_ns: u64,
}

impl Engines {
    /// The engines of a card, with the file in `directory`; `node` stands for its `/dev/nvidiaN`,
    /// `own` is this process.
    pub(super) fn new(directory: &Path, card: &Card, node: File, own: ProcessId, clock: Clock) -> io::Result<Self> {
        Ok(Self {
            file: ChannelFile::new(directory, &card.uuid)?,
            doorbells: Doorbells(node),
            log: Log::new(directory, &card.uuid)?,
            own,
            clock,
            edges: card.simulated.unwrap_or_default(),
        })
    }

    /// Divides the time until now, then changes something.
    fn event<T>(&self, change: impl FnOnce(&mut Channels) -> T) -> io::Result<T> {
        self.file.locked(|card| {
            // Whoever died since the last event has left then.
            self.log.add(&card.leave())?;
            let end = card.channels.iter().map(|channel| channel.token.saturating_add(1)).max().unwrap_or(0);
            let submitted = self.doorbells.read(end.min(MOST_CHANNELS))?;
            let submitted = |token| submitted.get(token as usize).copied().unwrap_or_default();
            self.log.add(&card.advance(self.clock.now_ns(), submitted))?;
            let answer = change(card);
            self.log.add(&card.leave())?;
            Ok(answer)
        })?
    }

    /// A new channel of a client; `None` when the card has too many. It has not been seen whether a
    /// card runs what joins a group that runs: here it does.
    pub(super) fn join(
        self: &Arc<Self>,
        (client, handle): (u32, u32),
        group: &Arc<Group>,
        engine: u32,
    ) -> io::Result<Option<Arc<RunlistEntry>>> {
        let token = self.event(|Channels { channels, .. }| {
            let mut taken: Vec<u32> = channels.iter().map(|channel| channel.token).collect();
            taken.sort_unstable();
            let free = (0..MOST_CHANNELS).zip(taken.iter().map(Some).chain(std::iter::repeat(None)));
            let token = free.into_iter().find(|(token, taken)| *taken != Some(token)).map(|(token, _)| token);
            let Some(token) = token else { return Ok(None) };
            self.doorbells.clear(token)?;
            let is_beside = |other: &Channel| other.owner == self.own && other.group == group.id;
            let scheduled = channels.iter().any(|other| is_beside(other) && other.scheduled);
            channels.push(Channel {
                owner: self.own,
                client,
                handle,
                token,
                group: group.id,
                engine,
                slice_us: group.slice_us(),
                scheduled,
                disabled: 0,
                submitted_ns: 0,
                executed_ns: 0,
            });
            Ok::<_, io::Error>(Some(token))
        })??;
        let runlist_entry = |token| RunlistEntry { engines: Arc::clone(self), group: Arc::clone(group), token };
        Ok(token.map(|token| Arc::new(runlist_entry(token))))
    }

    /// Takes channels off the card or puts them back, of whichever process; says whether all were
    /// found. With `rewind`, what they had to do is lost. It is done when the time is over that it
    /// takes.
    pub(super) fn disable(&self, named: &[(u32, u32)], off: bool, rewind: bool) -> io::Result<bool> {
        let SimulatedEdges { opening_us, closing_us, ramp_us, .. } = self.edges;
        self.clock.pass(Duration::from_micros(if off { closing_us } else { opening_us }));
        self.event(|Channels { channels, cold, .. }| {
            let mut all = true;
            for name in named {
                let mut found = false;
                for channel in channels.iter_mut().filter(|channel| (channel.client, channel.handle) == *name) {
                    found = true;
                    if !off && channel.disabled == 1 && ramp_us > 0 {
                        cold.insert(channel.key(), ramp_us.saturating_mul(1_000));
                    }
                    // As seen on a card: it counts, over all clients.
                    channel.disabled =
                        if off { channel.disabled.saturating_add(1) } else { channel.disabled.saturating_sub(1) };
                    if rewind {
                        channel.submitted_ns = channel.executed_ns;
                        self.doorbells.rewind(channel.token, channel.executed_ns)?;
                    }
                }
                all &= found;
            }
            Ok(all)
        })?
    }

    /// Waits with what everybody's calls need, as the driver does for channels that are not done in
    /// time.
    pub(super) fn hold(&self, time: Duration) -> io::Result<()> {
        self.file.locked(|_| self.clock.pass(time))
    }

    /// Sets a group's slice, for its channels to come, too.
    pub(super) fn set_slice(&self, group: &Group, slice_us: u64) -> io::Result<()> {
        group.slice_us.store(slice_us, Ordering::Relaxed);
        self.event(|Channels { channels, .. }| {
            let of_group = |channel: &&mut Channel| channel.owner == self.own && channel.group == group.id;
            channels.iter_mut().filter(of_group).for_each(|channel| channel.slice_us = slice_us);
        })
    }

    /// Returns the latest samples of the compute engine's load, the oldest first; instants are
    /// those of the host's real time, as the driver's are.
    pub(super) fn samples(&self) -> io::Result<Vec<Sample>> {
        let samples = self.event(|card| card.samples.clone())?;
        let ahead_ns = real_time_ns().saturating_sub(self.clock.now_ns());
        Ok(samples
            .into_iter()
            .map(|sample| Sample { at_ns: sample.at_ns.saturating_add(ahead_ns), ..sample })
            .collect())
    }

    /// The log of switches, from now on.
    pub(super) fn switches(self: &Arc<Self>) -> io::Result<Switches> {
        let next = self.event(|card| card.switches)?;
        Ok(Switches { engines: Arc::clone(self), next })
    }

    fn own(&self, token: u32) -> impl Fn(&&mut Channel) -> bool {
        move |channel| channel.token == token && channel.owner == self.own
    }
}

impl RunlistEntry {
    /// Returns its group.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// The number that the program knows its doorbell by.
    pub(super) const fn token(&self) -> u32 {
        self.token
    }

    /// Puts it on the run list. There is no way off it but [`Engines::disable`]: what a program
    /// takes off, the driver puts back when there is work.
    pub(super) fn schedule(&self) -> io::Result<()> {
        self.engines.event(|Channels { channels, .. }| {
            for channel in channels.iter_mut().filter(self.engines.own(self.token)) {
                // As seen on a card: who was taken off before it was ever on is on now.
                if !channel.scheduled {
                    channel.disabled = 0;
                }
                channel.scheduled = true;
            }
        })
    }

    /// Puts it back on the run list, however often it was taken off.
    pub(super) fn put_back(&self) -> io::Result<()> {
        let own = self.engines.own(self.token);
        self.engines
            .event(|Channels { channels, .. }| channels.iter_mut().filter(own).for_each(|channel| channel.disabled = 0))
    }

    /// Removes the channel: it has no work any more, and gets none.
    pub(super) fn leave(&self) {
        let left = self.engines.event(|Channels { channels, .. }| {
            channels.retain(|channel| channel.token != self.token || channel.owner != self.engines.own);
        });
        if let Err(error) = left {
            let path = self.engines.file.path.display().to_string();
            tracing::warn!(%error, path, "a simulated channel does not leave its engine");
        }
    }

    /// Writes the time that it got until now to its doorbell, where the program finds it.
    pub(super) fn tell(&self) -> io::Result<()> {
        let Executed { executed_ns, at_ns } = self.executed()?;
        self.engines.doorbells.tell(self.token, executed_ns, at_ns)
    }

    /// Returns the time that it got until now.
    pub(super) fn executed(&self) -> io::Result<Executed> {
        self.engines.event(|Channels { channels, at_ns, .. }| {
            let own = channels.iter_mut().find(self.engines.own(self.token));
            Executed { executed_ns: own.map_or(0, |channel| channel.executed_ns), at_ns: *at_ns }
        })
    }
}

/// Reads the log of a card's switches.
#[derive(Debug)]
pub(super) struct Switches {
    engines: Arc<Engines>,
    next: u64,
}

impl Switches {
    fn read(&mut self, into: &mut Vec<Switch>) -> io::Result<SwitchBatch> {
        let next = self.next;
        let (found, end) = self.engines.event(|card| {
            let kept = next.max(card.switches.saturating_sub(log::KEPT))..card.switches;
            let found: io::Result<Vec<_>> =
                kept.filter_map(|number| self.engines.log.get(number).transpose()).collect();
            found.map(|found| (found, card.switches))
        })??;
        let all = end.saturating_sub(next);
        self.next = end;
        let read = found.len() as u64;
        into.extend(found.into_iter().map(|switch| Switch {
            at_ns: switch.at_ns,
            process: switch.group.pid.cast_unsigned(),
            context: context(switch.group),
            presence: if switch.on { Presence::On } else { Presence::Off },
        }));
        Ok(SwitchBatch { lost: all.saturating_sub(read) })
    }
}

/// A number for a group's context. Several groups of a card have the same one only by chance, and
/// those of a process never.
fn context(group: time::GroupKey) -> u32 {
    let [low, high] = [group.group & 0xffff, u64::from(group.pid.cast_unsigned()) & 0xffff];
    u32::try_from(high << 16 | low).unwrap_or(0)
}

impl SwitchLog for Switches {
    fn take(&mut self, into: &mut Vec<Switch>) -> Result<SwitchBatch, SwitchLogError> {
        self.read(into).map_err(|source| SwitchLogError::Call { call: "the log of a simulated card", source })
    }
}

impl Drop for RunlistEntry {
    fn drop(&mut self) {
        self.leave();
    }
}
