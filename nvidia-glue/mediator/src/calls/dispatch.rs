//! The way of one call: decode, check, act, answer.

use std::sync::atomic::Ordering;

use abi::{Call, Handle, Node, Status, Undecodable, decode, decode::Decoded, escapes::Action};
use base::Pid;
use driver::{DeviceFile, same_open_file};

use super::sequel::{Sequel, Undo};
use crate::{
    Answer, Caller, Session, Trapped, UnknownKind,
    in_flight::{CallEnd, InFlightCall, device_file, zeroes},
    locks::lock,
    session::failures::FailedCall,
};

/// Returns whether a command is one of those that a control file or a card's takes
/// (`NV_IOCTL_MAGIC`), by its bare number; else UVM's.
const fn is_escape(command: u32) -> bool {
    command >> 8 & 0xff == b'F' as u32
}

impl Session {
    /// The whole way of one call. May block for as long as the caller's memory does; any number of
    /// threads may be in it.
    pub fn handle(&self, caller: &dyn Caller, stopped: &Trapped) -> Answer {
        self.handle_with_sequel(caller, stopped).0
    }

    /// The same, and what to give to [`Session::answered`] once the answer is sent.
    pub fn handle_with_sequel(&self, caller: &dyn Caller, stopped: &Trapped) -> (Answer, Option<Sequel>) {
        let mut sequel = None;
        #[cfg(feature = "parking")]
        let _call = self.call_begins();
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        lock(&self.objects.accounts).thread_called(caller.thread());
        let answer = self.settle_pins_before_call(caller).and_then(|()| match *stopped {
            Trapped::Ioctl { fd, command, argument } => self.ioctl(caller, (fd, command, argument), &mut sequel),
            Trapped::Mmap { .. } => {
                self.mmap(caller, stopped, &mut sequel).inspect_err(|end| self.report_shortage(*end, "mmap", false))
            }
        });
        let answer = answer.unwrap_or_else(|end| match end {
            CallEnd::Errno(errno) => Answer::Errno(errno),
            CallEnd::Refused(_) if matches!(stopped, Trapped::Mmap { .. }) => Answer::Errno(libc::ENOMEM),
            CallEnd::OutOfOwnMemory(_) => Answer::Errno(libc::ENOMEM),
            CallEnd::Status(_) | CallEnd::Refused(_) | CallEnd::Insufficient(_) => Answer::Errno(libc::EINVAL),
            CallEnd::Kill => Answer::KillCaller,
        });
        if answer == Answer::KillCaller {
            self.counters.kills.fetch_add(1, Ordering::Relaxed);
        }
        (answer, sequel)
    }

    /// Returns the calling process, and reports it to the observer if it is new.
    pub(crate) fn known_caller(&self, caller: &dyn Caller) -> Result<Pid, CallEnd> {
        let pid = caller.pid()?;
        if !lock(&self.process_table).knows(pid) {
            let numbers = caller.numbers()?;
            if lock(&self.process_table).add(pid, numbers) {
                self.observer.new_process(pid);
            }
        }
        Ok(pid)
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        (fd, command, argument): (i32, u32, u64),
        sequel: &mut Option<Sequel>,
    ) -> Result<Answer, CallEnd> {
        // Not the driver's file, says a check that another thread of the caller may make wrong by
        // the time that the kernel looks: so it is never continued.
        let file = self.file_called(caller, fd, command)?.ok_or(CallEnd::Errno(libc::ENOTTY))?;
        let pid = self.known_caller(caller)?;
        let row = abi::row(self.abi, file.node, command).map_err(|error| self.undecodable(file.node, error))?;
        let mut args = zeroes(row.size());
        if !args.is_empty() {
            caller.read(argument, &mut args)?;
        }
        let Decoded { row, call } =
            decode(self.abi, file.node, command, &args).map_err(|error| self.undecodable(file.node, error))?;
        let mut flight = InFlightCall::new(caller, pid, file, (command, argument), (row, call), args);
        let result = self.has_room_for(&call).and_then(|()| self.act(&mut flight));
        if flight.row.status(&flight.args) == Some(Status::INVALID_CLIENT) {
            self.checks_clients.store(true, Ordering::Relaxed);
        }
        let made = std::mem::take(&mut flight.made);
        let pinning = flight.pinning;
        let undo = (!made.is_empty() || pinning.is_some()).then(|| Undo { file: flight.file.clone(), made, pinning });
        *sequel = undo.map(Sequel::Undo);
        self.report_shortage_of(&flight, &result);
        Ok(result.unwrap_or_else(|end| flight.end(end)))
    }

    /// The file that a call is made on, if it is one of the driver's. Most are made on the file
    /// that the process used before, of which a duplicate is kept: to ask whether it is that costs
    /// less than to ask which node it is, and it is known again by the duplicate.
    fn file_called(&self, caller: &dyn Caller, fd: i32, command: u32) -> Result<Option<DeviceFile>, CallEnd> {
        let file = caller.file(fd)?;
        let pid = caller.pid()?;
        let likely = lock(&self.objects.files).likely(pid, is_escape(command));
        if let Some(likely) = likely
            && same_open_file(&likely.file, &file).unwrap_or(false)
        {
            return Ok(Some(likely));
        }
        device_file(self.driver.as_ref(), file)
    }

    fn act(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        if let Call::Uvm(call) = flight.call {
            return self.uvm(flight, call);
        }
        match flight.row.action() {
            Action::Refuse(status, _) => Err(CallEnd::Status(status)),
            Action::Continue(_) => match flight.call {
                Call::AllocMemory(alloc) => self.alloc_memory(flight, alloc),
                _ => self.continue_call(flight),
            },
            Action::Execute => {
                let answer = self.execute(flight);
                if flight.has_failed {
                    self.failures.wait(FailedCall::at(flight.call), self.reclaim_throttle.clock.as_ref());
                }
                if let Some((card, cost)) = flight.driver_time.take() {
                    self.channels.wait_for_driver_time(card, cost, self.reclaim_throttle.clock.as_ref());
                }
                answer
            }
        }
    }

    /// The kernel executes it, or the driver does where it is not in the kernel.
    pub(crate) fn continue_call(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let descriptors = flight.row.descriptors();
        // Only a driver outside the kernel looks at these.
        let named = flight.duplicate_files(self.driver.as_ref(), driver::Holder::Args, descriptors);
        match flight.execute_in_callers_place(self.driver.as_ref()) {
            None => Ok(Answer::Continue),
            Some(_) if named.is_err() => Err(CallEnd::Errno(libc::EBADF)),
            Some(result) => result.and_then(|()| flight.finish()),
        }
    }

    fn execute(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        match flight.call {
            Call::Alloc(alloc) => self.alloc(flight, alloc),
            Call::Free(free) => self.free(flight, free.client, free.object),
            Call::Control(control) => self.control(flight, control),
            Call::VidHeap(heap) => self.vid_heap(flight, heap),
            Call::Dup(dup) => self.dup(flight, dup),
            Call::Share(share) => self.share(flight, share),
            Call::AllocContextDma(alloc) => self.alloc_context_dma(flight, alloc),
            Call::AllocObject(alloc) => self.alloc_without_params(flight, alloc),
            Call::IdleChannels(idle) => self.idle_channels(flight, idle),
            Call::CardInfo => self.card_info(flight),
            Call::CardStatus { domain, bus, slot } => self.card_status(flight, domain, bus, slot),
            Call::CheckVersion => self.check_version(flight),
            Call::AttachGpus => self.attach_gpus(flight),
            Call::MapMemory(map) => self.map_memory(flight, map),
            Call::UnmapMemory(unmap) => self.unmap_memory(flight, unmap),
            Call::UpdateMapping(update) => self.on_client(flight, update.client),
            Call::MapDma(map) => self.map_dma(flight, map),
            Call::UnmapDma(map) => self.unmap_dma(flight, map),
            Call::BindContextDma { client, .. } => self.on_client(flight, client),
            Call::AllocOsEvent(event) => self.alloc_os_event(flight, event),
            Call::FreeOsEvent(event) => self.free_os_event(flight, event),
            // It is made of the caller's own pages, which only the kernel finds, and only in the
            // caller's place.
            Call::AllocMemory(_) => Err(CallEnd::Status(Status::NOT_SUPPORTED)),
            Call::Uvm(call) => self.uvm(flight, call),
            Call::RegisterFd { .. } => self.register_file(flight),
            Call::Other => self.pass(flight),
        }
    }

    /// Executes a call that decides nothing, in a client of the container's.
    pub(crate) fn on_client(&self, flight: &mut InFlightCall<'_>, client: Handle) -> Result<Answer, CallEnd> {
        self.check_client(client)?;
        self.pass(flight)
    }

    /// Executes a call as it stands.
    pub(crate) fn pass(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        self.execute_row(flight)?;
        flight.finish()
    }

    /// Executes a call with what its row says of pointers and descriptors; the driver's verdict.
    pub(crate) fn execute_row(&self, flight: &mut InFlightCall<'_>) -> Result<Status, CallEnd> {
        let row = flight.row;
        flight.copy_pointers(driver::Holder::Args, row.pointers())?;
        flight.duplicate_files(self.driver.as_ref(), driver::Holder::Args, row.descriptors())?;
        flight.execute(self.driver.as_ref())
    }

    /// Bytes that are no call of the driver's.
    fn undecodable(&self, node: Node, error: Undecodable) -> CallEnd {
        if let Undecodable::Unknown { command } = error {
            let kind = match node {
                Node::Uvm => UnknownKind::Uvm(command),
                Node::Control | Node::Card(_) => UnknownKind::Escape(command & 0xff),
            };
            self.count_unknown(kind, false);
        }
        CallEnd::Errno(error.errno())
    }
}
