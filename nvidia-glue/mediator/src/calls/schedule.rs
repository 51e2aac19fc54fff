//! The container's own scheduling controls. What a program asks for is remembered; what reaches the
//! driver is what its grant allows of that.

use std::{sync::Arc, time::Instant};

use abi::{
    Handle, Status,
    controls::{NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK, ScheduleKind},
    decode::Control,
    encode,
    params::{
        NV0080_CTRL_FIFO_IDLE_CHANNELS_PARAMS, NV0080_CTRL_GR_TPC_PARTITION_MODE_PARAMS as PartitionMode,
        NV83DE_CTRL_DEBUG_SET_EXCEPTION_MASK_PARAMS as ExceptionMask,
        NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS as DisableChannels, NVA06C_CTRL_PREEMPT_PARAMS,
        NVA06C_CTRL_TIMESLICE_PARAMS as Timeslice, NVA06F_CTRL_BIND_PARAMS, NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS,
        NVA06F_CTRL_STOP_CHANNEL_PARAMS,
    },
};
use account::ObjectName;
use schedule::EdgeError;

use crate::{
    Answer, Session,
    channels::{
        card_channels::{CardChannels, Engine},
        gate::{CardGate, DEFAULT_SLICE_US, GateGuard, MOST_SLICE_US, MOST_WAIT},
    },
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::named_locks::LockName,
    requirements::AllocAbort,
};

/// Exceptions that a debugger wants to hear of, where it has not said: all (ctrl83dedebug.h).
const ALL_EXCEPTIONS: u32 = 0xffff;
/// `NV83DE_CTRL_DEBUG_SET_EXCEPTION_MASK_FATAL`.
const FATAL: u32 = 1;

/// Longest time that the driver may wait for channels to have nothing to do, microseconds: it holds
/// the lock of each card meanwhile, for which others' turns wait.
pub(crate) const MOST_IDLE_US: u32 = 1_000;

const INVALID: CallEnd = CallEnd::Status(Status::INVALID_ARGUMENT);
const NOT_FOUND: CallEnd = CallEnd::Status(Status::OBJECT_NOT_FOUND);

impl Session {
    pub(crate) fn schedule(
        &self,
        flight: &mut InFlightCall<'_>,
        control: Control,
        kind: ScheduleKind,
    ) -> Result<Answer, CallEnd> {
        let name = ObjectName::new(control.client, control.object);
        match kind {
            ScheduleKind::DisableChannels => self.disable_channels(flight, name),
            ScheduleKind::ScheduleGroup | ScheduleKind::ScheduleChannel => self.gpfifo_schedule(flight, name),
            ScheduleKind::SetTimeslice => self.set_timeslice(flight, name),
            ScheduleKind::GetTimeslice => self.timeslice(flight, name),
            ScheduleKind::Bind => self.bind_channel(flight, name),
            ScheduleKind::Stop => self.stop_channel(flight, name),
            ScheduleKind::Reset => self.reset_channel(flight, name),
            ScheduleKind::Idle => self.idle_own_channels(flight),
            ScheduleKind::Suspend => self.suspend_context(flight),
            ScheduleKind::Resume => self.resume_context(flight),
            ScheduleKind::ExceptionMask => self.exception_mask(flight),
            ScheduleKind::DebuggerCopy => self.debugger_copy(flight),
            ScheduleKind::PartitionMode => self.partition_mode(flight, control.client),
            ScheduleKind::Preempt => self.preempt(flight, name),
            ScheduleKind::PreemptionMode => self.preemption_mode(flight, control.client),
            ScheduleKind::PreemptionBind => self.preemption_bind(flight),
        }
    }

    /// `GPFIFO_SCHEDULE` of a channel or a group: waits for the window, and obeys if it has closed
    /// meanwhile.
    fn gpfifo_schedule(&self, flight: &mut InFlightCall<'_>, name: ObjectName) -> Result<Answer, CallEnd> {
        let enables = NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS::bEnable.get(flight.params()).is_some_and(|flag| flag != 0);
        let gate = self.channels.gate_of(name).ok_or(NOT_FOUND)?;
        if !enables {
            flight.execute(self.driver.as_ref())?;
            return flight.finish();
        }
        // Nobody could set its time slice.
        let is_bare = gate.with(|channels| channels.is_bare_compute(name));
        if is_bare && gate.sets_slices() {
            return Err(CallEnd::Status(Status::NOT_SUPPORTED));
        }
        let (until, matters) = (Instant::now() + MOST_WAIT, |channels: &CardChannels| channels.any_throttled(name));
        loop {
            gate.wait(flight.caller, until, matters)?;
            let is_done =
                self.objects.locks.with(&[LockName::Client(name.client)], || match gate.enter(until, matters) {
                    Some(turn) => self.schedule_locked(flight, (gate, turn), name).map(|()| true),
                    None => Ok(false),
                });
            if is_done? {
                return flight.finish();
            }
        }
    }

    /// Schedules, and counts what can do work from when the driver has executed it: an edge that
    /// names a channel before that may leave it in a state in which it never runs (580.159.04).
    fn schedule_locked(
        &self,
        flight: &mut InFlightCall<'_>,
        (gate, turn): (&CardGate, GateGuard<'_>),
        name: ObjectName,
    ) -> Result<(), CallEnd> {
        if !flight.execute(self.driver.as_ref())?.is_ok() {
            return Ok(());
        }
        let names = gate.with(|channels| {
            channels.schedule(name);
            channels.below(name).unwrap_or_default()
        });
        // What is refused here is found by the next edge.
        let _ = turn.bring(&names);
        drop(turn);
        if let Some(group) = gate.with(|channels| channels.group_handle(name)).filter(|_| gate.sets_slices()) {
            gate.bring_slice(group);
        }
        Ok(())
    }

    /// The driver would stop anybody's channels for anybody. A program stops and starts its own,
    /// and none in the off time.
    fn disable_channels(&self, flight: &mut InFlightCall<'_>, subdevice: ObjectName) -> Result<Answer, CallEnd> {
        let names = self.named_channels(flight.params())?;
        let card = lock(&self.objects.topology).subdevice_card(subdevice.client, subdevice.object).ok_or(NOT_FOUND)?;
        let gate = self.channels.gate(card).ok_or(NOT_FOUND)?;
        if !gate.with(|channels| names.iter().all(|name| channels.has_channel(*name))) {
            return Err(CallEnd::Status(Status::INVALID_CHANNEL));
        }
        let disables = DisableChannels::bDisable.get(flight.params()).is_some_and(|flag| flag != 0);
        gate.with(|channels| channels.want(&names, !disables));
        let status = match gate.bring(&names) {
            Ok(()) => return answer(flight, Status::OK),
            Err(EdgeError::Refused { status, .. }) => status,
            Err(EdgeError::Call { .. }) => Status::INVALID_STATE,
        };
        // The next edge brings them to where they are to be then.
        gate.with(|channels| channels.want(&names, true));
        Err(CallEnd::Status(status))
    }

    /// Returns the channels that `NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS` names, if they are the
    /// container's.
    fn named_channels(&self, params: &[u8]) -> Result<Vec<ObjectName>, CallEnd> {
        // What is answered here is refused here, as the driver would.
        let whole = Some(params).filter(|params| params.len() == DisableChannels::SIZE).ok_or(INVALID)?;
        let count = DisableChannels::numChannels.get(whole).and_then(|count| usize::try_from(count).ok());
        let clients = DisableChannels::hClientList.get(whole).ok_or(INVALID)?;
        let channels = DisableChannels::hChannelList.get(whole).ok_or(INVALID)?;
        let count = count.filter(|count| *count <= channels.len()).ok_or(INVALID)?;
        let pairs = clients.into_iter().zip(channels).take(count);
        let names: Vec<_> = pairs.map(|(client, channel)| ObjectName::new(client, channel)).collect();
        let accounts = lock(&self.objects.accounts);
        let is_own = |name: &ObjectName| accounts.knows_client(name.client);
        if names.iter().all(is_own) { Ok(names) } else { Err(CallEnd::Status(Status::INVALID_CLIENT)) }
    }

    /// Remembered, and applied while the scheduler leaves slices to the program, up to a bound.
    fn set_timeslice(&self, flight: &mut InFlightCall<'_>, group: ObjectName) -> Result<Answer, CallEnd> {
        let gate = self.channels.gate_of(group).ok_or(NOT_FOUND)?;
        let asked = Timeslice::timesliceUs.get(flight.params()).ok_or(INVALID)?;
        if asked == 0 || !gate.with(|channels| channels.has_group(group)) {
            return Err(INVALID);
        }
        let (_, slices) = gate.slice_of(group);
        if gate.sets_slices() {
            gate.with(|channels| channels.set_program_slice(group, asked));
            return answer(flight, Status::OK);
        }
        let _ = Timeslice::timesliceUs.set(flight.params_mut(), asked.min(MOST_SLICE_US));
        let status = flight.execute(self.driver.as_ref());
        let _ = Timeslice::timesliceUs.set(flight.params_mut(), asked);
        if status?.is_ok() {
            gate.with(|channels| channels.set_program_slice(group, asked));
            if gate.slice_of(group).1 != slices {
                gate.bring_slice(group);
            }
        }
        flight.finish()
    }

    /// Answers with what the program has set, whatever is in force.
    fn timeslice(&self, flight: &mut InFlightCall<'_>, group: ObjectName) -> Result<Answer, CallEnd> {
        let gate = self.channels.gate_of(group).ok_or(NOT_FOUND)?;
        let known = gate.with(|channels| channels.program_slice(group));
        let Some(slice_us) = known.or_else(|| gate.sets_slices().then_some(DEFAULT_SLICE_US)) else {
            flight.execute(self.driver.as_ref())?;
            return flight.finish();
        };
        if !Timeslice::timesliceUs.set(flight.params_mut(), slice_us) {
            return Err(INVALID);
        }
        answer(flight, Status::OK)
    }

    /// `BIND` chooses a channel's engine. One in a group that does work may do work from then on.
    fn bind_channel(&self, flight: &mut InFlightCall<'_>, name: ObjectName) -> Result<Answer, CallEnd> {
        let gate = self.channels.gate_of(name).ok_or(NOT_FOUND)?;
        let engine = Engine::of_type(NVA06F_CTRL_BIND_PARAMS::engineType.get(flight.params()).unwrap_or(0));
        let below = gate.with(|channels| {
            let below = channels.below(name).unwrap_or_default();
            below.iter().for_each(|channel| channels.works_on(*channel, engine));
            below.first().map_or(below.clone(), |channel| channels.beside(*channel))
        });
        let turn = gate.wait_and_enter(flight.caller, |channels| channels.any_at_work(&below))?;
        may_be_doubted(gate, &below)?;
        if flight.execute(self.driver.as_ref())?.is_ok() {
            turn.bring_doubted(&below);
        }
        drop(turn);
        flight.finish()
    }

    /// `NVA06F_CTRL_STOP_CHANNEL_PARAMS` {bImmediate}: at once. Else the driver waits, with locks
    /// that everybody's calls need, until the channel has nothing to do, which one that is off the
    /// card never has.
    fn stop_channel(&self, flight: &mut InFlightCall<'_>, name: ObjectName) -> Result<Answer, CallEnd> {
        let asked = flight.params().to_vec();
        let _ = NVA06F_CTRL_STOP_CHANNEL_PARAMS::bImmediate.set(flight.params_mut(), 1);
        self.execute_and_bring(flight, name)?;
        flight.params_mut().copy_from_slice(&asked);
        flight.finish()
    }

    fn reset_channel(&self, flight: &mut InFlightCall<'_>, name: ObjectName) -> Result<Answer, CallEnd> {
        self.execute_and_bring(flight, name)?;
        flight.finish()
    }

    /// A channel is stopped or reset by its owner; should that put it back, it obeys at once.
    fn execute_and_bring(&self, flight: &mut InFlightCall<'_>, name: ObjectName) -> Result<(), CallEnd> {
        let gate = self.channels.gate_of(name).ok_or(NOT_FOUND)?;
        let turn = gate.wait_and_enter(flight.caller, |channels| channels.any_throttled(name))?;
        may_be_doubted(gate, &[name])?;
        flight.execute(self.driver.as_ref())?;
        turn.bring_doubted(&[name]);
        Ok(())
    }

    /// `NV0080_CTRL_FIFO_IDLE_CHANNELS_PARAMS`: channels of the calling client.
    fn idle_own_channels(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let timeout = NV0080_CTRL_FIFO_IDLE_CHANNELS_PARAMS::timeout;
        let asked = timeout.get(flight.params()).ok_or(INVALID)?;
        let _ = timeout.set(flight.params_mut(), asked.min(MOST_IDLE_US));
        flight.execute(self.driver.as_ref())?;
        let _ = timeout.set(flight.params_mut(), asked);
        flight.finish()
    }

    /// A context that is off the card is suspended by keeping its channels off; one that is on it
    /// by stopping its multiprocessors, and then it stays there. So the container is off the card
    /// for as long as the driver takes, and nobody puts it back meanwhile: not another thread of
    /// the program's, and not one that has suspended something else.
    fn suspend_context(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        // In the order of cards, as by whoever takes several. None has to be waited for.
        let turns =
            self.channels.gates().iter().filter_map(|gate| Some((gate, gate.enter(Instant::now(), |_| false)?)));
        let off: Vec<_> = turns.map(|(gate, turn)| (gate, turn, gate.with(|channels| channels.wanted()))).collect();
        let want = |wanted| {
            let bring = |(gate, turn, names): &(&Arc<CardGate>, GateGuard<'_>, Vec<ObjectName>)| {
                gate.with(|channels| channels.want(names, wanted));
                turn.bring(names)
            };
            // Each, whatever becomes of the others.
            off.iter().map(bring).fold(Ok(()), Result::and)
        };
        let result = match want(false) {
            Ok(()) => flight.execute(self.driver.as_ref()).map(drop),
            // What cannot be taken off the card is not suspended.
            Err(_) => Err(CallEnd::Status(Status::NOT_SUPPORTED)),
        };
        let _ = want(true);
        drop(off);
        result.and_then(|()| flight.finish())
    }

    /// Leaves fatal exceptions out: who asks for them puts the recovery from them off, of any
    /// channel of the card, and the context that failed stays there meanwhile.
    fn exception_mask(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let asked = ExceptionMask::exceptionMask.get(flight.params()).ok_or(INVALID)?;
        let _ = ExceptionMask::exceptionMask.set(flight.params_mut(), asked & !FATAL);
        flight.execute(self.driver.as_ref())?;
        let _ = ExceptionMask::exceptionMask.set(flight.params_mut(), asked);
        flight.finish()
    }

    /// The driver copies at most a MiB for the debugger, in the container's time.
    fn debugger_copy(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let until = Instant::now() + MOST_WAIT;
        for gate in self.channels.gates() {
            gate.wait(flight.caller, until, |channels| channels.throttled() > 0)?;
        }
        flight.execute(self.driver.as_ref())?;
        flight.finish()
    }

    /// Mutes a new debugger's session: what it has not asked for yet it does not have either. One
    /// that cannot be muted is unmade.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn mute_debugger(&self, flight: &InFlightCall<'_>, made: ObjectName) -> Result<(), AllocAbort> {
        let raw = self.raw(&flight.file, made.client);
        let params = encode!(ExceptionMask { exceptionMask: ALL_EXCEPTIONS & !FATAL }).to_vec();
        let muted = raw.control(made.object, NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK, params);
        match muted {
            // A card whose driver does not know it has nothing to put off.
            Ok((Status::OK | Status::NOT_SUPPORTED, _)) => Ok(()),
            _ => {
                self.unmake_locked(&flight.file, made);
                Err(CallEnd::Insufficient("the driver does not mute a debugger's session").into())
            }
        }
    }

    /// `NV0080_CTRL_GR_TPC_PARTITION_MODE_PARAMS`: on which multiprocessors the work of one group
    /// runs. The tables of these are the kernel's.
    fn partition_mode(&self, flight: &mut InFlightCall<'_>, client: Handle) -> Result<Answer, CallEnd> {
        let group = PartitionMode::hChannelGroup.get(flight.params()).ok_or(INVALID)?;
        let group = ObjectName::new(client, group);
        // Nobody makes something else of the handle meanwhile.
        self.objects.locks.with(&[LockName::Client(client)], || {
            let gate = self.channels.gate_of(group).ok_or(NOT_FOUND)?;
            if gate.with(|channels| channels.has_group(group)) {
                flight.execute(self.driver.as_ref())
            } else {
                Err(NOT_FOUND)
            }
        })?;
        flight.finish()
    }

    /// Resumes a context; what a debugger's object puts back obeys at once.
    fn resume_context(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let (until, matters) = (Instant::now() + MOST_WAIT, |channels: &CardChannels| channels.throttled() > 0);
        let turns = loop {
            for gate in self.channels.gates() {
                gate.wait(flight.caller, until, matters)?;
            }
            // In the order of cards, by whoever takes several; if one has closed meanwhile, it is
            // waited for without the others.
            let turns: Option<Vec<_>> =
                self.channels.gates().iter().map(|gate| Some((gate, gate.enter(until, matters)?))).collect();
            if let Some(turns) = turns {
                break turns;
            }
        };
        for (gate, _) in &turns {
            may_be_doubted(gate, &gate.with(|channels| channels.at_the_gate()))?;
        }
        flight.execute(self.driver.as_ref())?;
        for (gate, turn) in &turns {
            turn.bring_doubted(&gate.with(|channels| channels.at_the_gate()));
        }
        drop(turns);
        flight.finish()
    }

    /// `NVA06C_CTRL_PREEMPT_PARAMS` {bWait, bManualTimeout, timeoutUs@4}. The driver waits with
    /// locks that everybody's calls need, and resets what does not leave in time: how long that is,
    /// it says itself.
    fn preempt(&self, flight: &mut InFlightCall<'_>, group: ObjectName) -> Result<Answer, CallEnd> {
        self.channels.gate_of(group).ok_or(NOT_FOUND)?;
        let asked = flight.params().to_vec();
        let _ = NVA06C_CTRL_PREEMPT_PARAMS::bManualTimeout.set(flight.params_mut(), 0);
        let _ = NVA06C_CTRL_PREEMPT_PARAMS::timeoutUs.set(flight.params_mut(), 0);
        flight.execute(self.driver.as_ref())?;
        flight.params_mut().copy_from_slice(&asked);
        flight.finish()
    }
}

/// Refuses a call that may put channels back, of which there have been too many since they were
/// last on the card. Only who has waited as long as calls do comes so far.
fn may_be_doubted(gate: &CardGate, names: &[ObjectName]) -> Result<(), CallEnd> {
    if gate.is_overdone(names) { Err(CallEnd::Status(Status::INVALID_STATE)) } else { Ok(()) }
}

/// Answers in the driver's place.
fn answer(flight: &mut InFlightCall<'_>, status: Status) -> Result<Answer, CallEnd> {
    let row = flight.row;
    if row.set_status(&mut flight.args, status) { flight.finish() } else { Err(CallEnd::Errno(libc::EINVAL)) }
}
