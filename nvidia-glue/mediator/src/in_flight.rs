//! One ioctl on its way: private copies of all that it consists of, and where each came from.

use std::{cell::RefCell, fs::File, io, sync::Arc, time::Duration};

use abi::{
    Call, Handle, Status,
    decode::Row,
    layout::{Descriptor, Direction, Pointer, read_u64},
};
use account::{Card, ObjectName, Refusal};
use base::{Bytes, Pid};
use driver::{Buffer, DeviceFile, Driver, DriverCall, FileField, Holder};

use crate::{Answer, Caller, CallerError};

/// Reason why a call goes no further. What it has done until then must be undone by whoever ends
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// The system call fails with this.
    Errno(i32),
    /// The driver's struct gets this status, and the system call succeeds, as with the driver's own
    /// refusals.
    Status(Status),
    /// The accounts refuse it, with the status that the driver would have.
    Refused(Refusal),
    /// The driver's struct gets [`Status::INSUFFICIENT_RESOURCES`], for this reason.
    Insufficient(&'static str),
    /// The driver's struct gets [`Status::NO_MEMORY`]: the mediator itself has as much as it may.
    OutOfOwnMemory(Bytes),
    /// The caller is to be killed.
    Kill,
}

impl From<CallerError> for CallEnd {
    fn from(error: CallerError) -> Self {
        Self::Errno(match error {
            // Nobody hears it.
            CallerError::Gone => libc::EINTR,
            CallerError::Fault { .. } => libc::EFAULT,
            CallerError::BadDescriptor { .. } => libc::EBADF,
            CallerError::Other(_) => libc::EIO,
        })
    }
}

impl From<Refusal> for CallEnd {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

thread_local! {
    /// Memory of calls that are done, for the next: the longest argument is beyond what the
    /// allocator has at hand.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}
/// Buffers of a call with parameters.
const MOST_SPARE: usize = 4;
/// Twice the longest argument.
const LONGEST_SPARE: usize = 18 << 10;

/// So many zeroes.
pub(crate) fn zeroes(length: usize) -> Vec<u8> {
    let mut bytes = spare();
    bytes.resize(length, 0);
    bytes
}

fn copy_of(bytes: &[u8]) -> Vec<u8> {
    let mut copy = spare();
    copy.extend_from_slice(bytes);
    copy
}

fn spare() -> Vec<u8> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

fn give_back(mut bytes: Vec<u8>) {
    bytes.clear();
    if bytes.capacity() <= LONGEST_SPARE {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MOST_SPARE {
                spare.push(bytes);
            }
        });
    }
}

impl Drop for InFlightCall<'_> {
    fn drop(&mut self) {
        let Self { args, original, buffers, origins, .. } = self;
        let of_buffers =
            buffers.drain(..).map(|buffer| buffer.bytes).chain(origins.drain(..).map(|origin| origin.original));
        of_buffers.chain([std::mem::take(args), std::mem::take(original)]).for_each(give_back);
    }
}

/// A call on its way.
pub(crate) struct InFlightCall<'a> {
    pub(crate) caller: &'a dyn Caller,
    /// Calling process.
    pub(crate) pid: Pid,
    /// The file that it is made on.
    pub(crate) file: DeviceFile,
    command: u32,
    address: u64,
    pub(crate) row: Row,
    pub(crate) call: Call,
    /// The struct that goes to the driver.
    pub(crate) args: Vec<u8>,
    original: Vec<u8>,
    /// Copies of what pointers point to; the parameters of an allocation or control are the first.
    pub(crate) buffers: Vec<Buffer>,
    origins: Vec<Origin>,
    /// Files that descriptors name.
    pub(crate) files: Vec<FileField>,
    /// Nothing was looked at since [`InFlightCall::confirm`].
    is_confirmed: bool,
    returned: i32,
    /// The driver was asked, and refused.
    pub(crate) has_failed: bool,
    /// Parameters as the driver was given them.
    #[cfg(feature = "parking")]
    pub(crate) asked: Vec<u8>,
    /// Work of the driver's on a card that the call has caused.
    pub(crate) driver_time: Option<(Card, Duration)>,
    /// Objects that were made for the caller, to be unmade should it never hear of it.
    pub(crate) made: Vec<ObjectName>,
    /// Memory that the kernel is to pin for the caller, by its handle in the staging client.
    pub(crate) pinning: Option<Handle>,
}

/// Origin of a buffer.
struct Origin {
    address: u64,
    original: Vec<u8>,
    /// Bytes of it that the caller has; the rest is padding.
    present: usize,
    direction: Direction,
}

impl<'a> InFlightCall<'a> {
    pub(crate) fn new(
        caller: &'a dyn Caller,
        pid: Pid,
        file: DeviceFile,
        (command, address): (u32, u64),
        (row, call): (Row, Call),
        args: Vec<u8>,
    ) -> Self {
        Self {
            caller,
            pid,
            file,
            command,
            address,
            row,
            call,
            original: copy_of(&args),
            args,
            buffers: Vec::new(),
            origins: Vec::new(),
            files: Vec::new(),
            is_confirmed: false,
            returned: 0,
            has_failed: false,
            #[cfg(feature = "parking")]
            asked: Vec::new(),
            driver_time: None,
            made: Vec::new(),
            pinning: None,
        }
    }

    /// Asks whether what was looked at so far is of the call that is handled. To be asked before
    /// anything is decided that lasts: a reservation, a denial, the driver's own execution.
    ///
    /// Once is enough, however much was copied before: a call that still waits has waited all the
    /// time since it was received, with its thread and its thread's memory its own, and its number
    /// is never another's. What is decided afterwards is decided on the copies, and whether
    /// somebody still hears the answer is asked before the caller's memory is written to
    /// ([`InFlightCall::finish`], [`InFlightCall::end`]).
    pub(crate) fn confirm(&mut self) -> Result<(), CallEnd> {
        if !self.is_confirmed {
            if !self.caller.is_waiting() {
                return Err(CallerError::Gone.into());
            }
            self.is_confirmed = true;
        }
        Ok(())
    }

    /// Copies `length` bytes, to which the pointer at `offset` of `holder` points; all must be
    /// there.
    pub(crate) fn copy(
        &mut self,
        holder: Holder,
        offset: usize,
        address: u64,
        length: usize,
        direction: Direction,
    ) -> Result<(), CallEnd> {
        let mut bytes = zeroes(length);
        if length > 0 {
            self.is_confirmed = false;
            self.caller.read(address, &mut bytes)?;
        }
        self.push(holder, offset, bytes, Origin { address, original: Vec::new(), present: length, direction });
        Ok(())
    }

    /// Copies what is there of parameters that are at most `most` bytes long; nobody says how long
    /// they are.
    pub(crate) fn copy_unsized(&mut self, offset: usize, address: u64, most: usize) -> Result<(), CallEnd> {
        let mut bytes = zeroes(most);
        self.is_confirmed = false;
        let present = self.caller.read_up_to(address, &mut bytes)?;
        if present == 0 && most > 0 {
            return Err(CallEnd::Errno(libc::EFAULT));
        }
        // Nothing is left of a copy that came to a gap.
        bytes.get_mut(present..).unwrap_or_default().fill(0);
        let origin = Origin { address, original: Vec::new(), present, direction: Direction::InOut };
        self.push(Holder::Args, offset, bytes, origin);
        Ok(())
    }

    fn push(&mut self, holder: Holder, offset: usize, bytes: Vec<u8>, mut origin: Origin) {
        origin.original = copy_of(&bytes);
        self.buffers.push(Buffer { holder, offset, bytes });
        self.origins.push(origin);
    }

    /// Copies what the pointers of `holder` point to.
    pub(crate) fn copy_pointers<'p>(
        &mut self,
        holder: Holder,
        pointers: impl IntoIterator<Item = &'p Pointer>,
    ) -> Result<(), CallEnd> {
        for pointer in pointers {
            let bytes = self.bytes(holder).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
            let offset = usize::from(pointer.at);
            if read_u64(bytes, offset).is_none() {
                return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
            }
            let Some(address) = pointer.address(bytes) else { continue };
            let length = pointer.length.of(bytes).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
            self.copy(holder, offset, address, length, pointer.direction)?;
        }
        Ok(())
    }

    /// Duplicates the files that the descriptors of `holder` name. Only the driver's own files may
    /// be named.
    pub(crate) fn duplicate_files(
        &mut self,
        driver: &dyn Driver,
        holder: Holder,
        descriptors: &[Descriptor],
    ) -> Result<(), CallEnd> {
        for descriptor in descriptors {
            let bytes = self.bytes(holder).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
            let Some(number) = descriptor.number(bytes) else { continue };
            let file = self.named_file(driver, number)?.ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
            self.files.push(FileField { holder, offset: usize::from(descriptor.at), file });
        }
        Ok(())
    }

    /// The caller's file of that number, if it is one of the driver's.
    pub(crate) fn named_file(&mut self, driver: &dyn Driver, fd: i32) -> Result<Option<DeviceFile>, CallEnd> {
        self.is_confirmed = false;
        driver_file(driver, self.caller, fd)
    }

    fn bytes(&self, holder: Holder) -> Option<&[u8]> {
        match holder {
            Holder::Args => Some(&self.args),
            Holder::Buffer(index) => self.buffers.get(index).map(|buffer| buffer.bytes.as_slice()),
        }
    }

    /// The bytes that a field is in, and its offset there.
    pub(crate) fn field(&self, (holder, at): (Holder, usize)) -> Option<(&[u8], usize)> {
        self.bytes(holder).map(|bytes| (bytes, at))
    }

    /// The parameters of an allocation or control; empty when it has none.
    /// See [`InFlightCall::asked`].
    #[cfg(feature = "parking")]
    pub(crate) fn keep_params(&mut self) {
        self.asked = self.params().to_vec();
    }

    pub(crate) fn params(&self) -> &[u8] {
        self.buffers.first().map(|buffer| buffer.bytes.as_slice()).unwrap_or_default()
    }

    /// The same, to be changed.
    pub(crate) fn params_mut(&mut self) -> &mut [u8] {
        self.buffers.first_mut().map(|buffer| buffer.bytes.as_mut_slice()).unwrap_or_default()
    }

    fn driver_call(&mut self) -> DriverCall<'_> {
        DriverCall { command: self.command, args: &mut self.args, buffers: &mut self.buffers, files: &self.files }
    }

    /// Has the driver execute it on the copies; its verdict.
    pub(crate) fn execute(&mut self, driver: &dyn Driver) -> Result<Status, CallEnd> {
        self.confirm()?;
        let file = self.file.clone();
        self.has_failed = true;
        self.returned = driver.ioctl(&file, self.driver_call()).map_err(errno)?;
        let status = self.row.status(&self.args).unwrap_or(Status::OK);
        self.has_failed = !status.is_ok();
        Ok(status)
    }

    /// Has a driver that is not in the kernel execute a call that the kernel's own executes in the
    /// caller's place; `None`: let the kernel do it.
    pub(crate) fn execute_in_callers_place(&mut self, driver: &dyn Driver) -> Option<Result<(), CallEnd>> {
        if let Err(end) = self.confirm() {
            return Some(Err(end));
        }
        if !driver.is_in_kernel() {
            // As the kernel would, whatever was looked at before.
            if let Err(error) = self.caller.read_again(self.address, &mut self.args) {
                return Some(Err(error.into()));
            }
            self.original.clone_from(&self.args);
        }
        let file = self.file.clone();
        let result = driver.in_callers_place(&file, self.driver_call())?;
        Some(result.map(|returned| self.returned = returned).map_err(errno))
    }

    /// Has the caller's own struct say something else from `at` on, for a call that the kernel
    /// reads from there.
    pub(crate) fn rewrite(&mut self, at: usize, bytes: &[u8]) -> Result<(), CallEnd> {
        self.write_if_waiting(&mut false, self.address, at, bytes)?;
        for copy in [&mut self.args, &mut self.original] {
            if let Some(place) = copy.get_mut(at..at.saturating_add(bytes.len())) {
                place.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Sets the driver's verdict in its place.
    pub(crate) fn set_status(&mut self, status: Status) {
        if let Some(place) = self.row.status_at().and_then(|at| self.args.get_mut(at..at + 4)) {
            place.copy_from_slice(&status.0.to_le_bytes());
        }
        self.has_failed = !status.is_ok();
    }

    /// Writes back what has changed: buffers first, then the struct with its status.
    pub(crate) fn finish(&self) -> Result<Answer, CallEnd> {
        let mut is_asked = false;
        for (buffer, origin) in self.buffers.iter().zip(&self.origins) {
            if origin.direction == Direction::In {
                continue;
            }
            let Some((at, changed)) = changed(&origin.original, &buffer.bytes) else { continue };
            if at + changed.len() > origin.present {
                return Err(CallEnd::Errno(libc::EFAULT));
            }
            self.write_if_waiting(&mut is_asked, origin.address, at, changed)?;
        }
        if let Some((at, changed)) = changed(&self.original, &self.args) {
            self.write_if_waiting(&mut is_asked, self.address, at, changed)?;
        }
        Ok(Answer::Return(self.returned.into()))
    }

    /// A thread that does not wait uses its memory for something else by now. Asked once, right
    /// before the first byte is written: where there is none, the answer itself tells.
    fn write_if_waiting(&self, is_asked: &mut bool, base: u64, at: usize, bytes: &[u8]) -> Result<(), CallEnd> {
        if !std::mem::replace(is_asked, true) && !self.caller.is_waiting() {
            return Err(CallerError::Gone.into());
        }
        let address = u64::try_from(at).ok().and_then(|at| base.checked_add(at));
        let address = address.ok_or(CallEnd::Errno(libc::EFAULT))?;
        Ok(self.caller.write(address, bytes)?)
    }

    /// Ends the call when it goes no further.
    pub(crate) fn end(&self, end: CallEnd) -> Answer {
        let status = match end {
            CallEnd::Errno(errno) => return Answer::Errno(errno),
            CallEnd::Kill => return Answer::KillCaller,
            CallEnd::Status(status) => status,
            CallEnd::Refused(refusal) => refusal.status(),
            CallEnd::Insufficient(_) => Status::INSUFFICIENT_RESOURCES,
            CallEnd::OutOfOwnMemory(_) => Status::NO_MEMORY,
        };
        let Some(at) = self.row.status_at() else { return Answer::Errno(errno_of(status)) };
        match self.write_if_waiting(&mut false, self.address, at, &status.0.to_le_bytes()) {
            Ok(()) => Answer::Return(0),
            Err(CallEnd::Errno(errno)) => Answer::Errno(errno),
            Err(_) => Answer::Errno(libc::EIO),
        }
    }
}

/// The caller's file of that number, if it is one of the driver's.
pub(crate) fn driver_file(driver: &dyn Driver, caller: &dyn Caller, fd: i32) -> Result<Option<DeviceFile>, CallEnd> {
    device_file(driver, caller.file(fd)?)
}

/// The file, if it is one of the driver's.
pub(crate) fn device_file(driver: &dyn Driver, file: File) -> Result<Option<DeviceFile>, CallEnd> {
    let node = driver.node_of(&file).map_err(errno)?;
    Ok(node.map(|node| DeviceFile { node, file: Arc::new(file) }))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn errno(error: io::Error) -> CallEnd {
    CallEnd::Errno(error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    }))
}

/// For calls whose struct has no status.
fn errno_of(status: Status) -> i32 {
    match status {
        Status::NO_MEMORY => libc::ENOMEM,
        Status::INSUFFICIENT_PERMISSIONS => libc::EPERM,
        _ => libc::EINVAL,
    }
}

/// The part in which two copies of one length differ, and where it starts. The longest struct has
/// 9264 bytes, most of which never differ: pieces are compared as a whole before bytes are.
fn changed<'a>(before: &[u8], after: &'a [u8]) -> Option<(usize, &'a [u8])> {
    const PIECE: usize = 256;
    let differ = |(before, after): (&[u8], &[u8])| before != after;
    let mut pieces = before.chunks(PIECE).zip(after.chunks(PIECE));
    let first_piece = pieces.position(differ)?;
    let last_piece = pieces.rposition(differ).map_or(first_piece, |further| first_piece + 1 + further);
    let (from, to) = (first_piece * PIECE, (last_piece + 1) * PIECE);
    let to = to.min(before.len()).min(after.len());
    let (before, within) = (before.get(from..to)?, after.get(from..to)?);
    let first = before.iter().zip(within).position(|(before, after)| before != after)?;
    let last = before.iter().zip(within).rposition(|(before, after)| before != after)?;
    Some((from + first, within.get(first..=last)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_written() {
        assert_eq!(changed(b"abcdef", b"abcdef"), None);
        assert_eq!(changed(b"abcdef", b"abXdYf"), Some((2, b"XdY".as_slice())));
        assert_eq!(changed(b"", b""), None);
        let before = vec![0; 1000];
        for (first, last) in [(0, 0), (0, 999), (255, 256), (256, 511), (300, 300), (511, 800), (999, 999)] {
            let mut after = before.clone();
            (after[first], after[last]) = (1, 2);
            assert_eq!(changed(&before, &after), Some((first, &after[first..=last])), "{first} to {last}");
        }
    }
}
