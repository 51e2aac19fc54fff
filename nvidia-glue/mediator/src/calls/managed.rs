//! `mmap` of `/dev/nvidia-uvm`: how managed memory comes to be.

use abi::Node;
use account::{Accounts, Contended, ManagedReservation, Mm, Refusal, UvmFile};
use base::{Bytes, Pid};

use super::sequel::Sequel;
use crate::{
    Answer, Caller, CallerError, Session, Trapped,
    in_flight::{CallEnd, driver_file, errno},
    locks::lock,
    memory::page_size,
    objects::named_locks::LockName,
    session::managed_on_host::Untold,
};

impl Session {
    /// A shared mapping at an offset: managed memory if it is of a UVM file. Charged before the
    /// kernel makes it.
    pub(crate) fn mmap(
        &self,
        caller: &dyn Caller,
        stopped: &Trapped,
        sequel: &mut Option<Sequel>,
    ) -> Result<Answer, CallEnd> {
        let Trapped::Mmap { address, length, flags, fd, offset } = *stopped else {
            return Err(CallEnd::Errno(libc::EINVAL));
        };
        // Whose file it is, another thread may change before the kernel looks; where it goes,
        // nobody. UVM maps managed memory only where address and offset are the same. Where nothing
        // is fixed, the kernel rounds the address down to a page.
        let is_there = address - address % page_size() == offset;
        let file = match driver_file(self.driver.as_ref(), caller, fd) {
            Ok(file) => file,
            Err(end) if is_there => return Err(end),
            // The kernel finds no file either; should it by then, a scan finds the mapping.
            Err(_) => return self.mmap_of_another(caller, flags, (offset, length)),
        };
        let Some(file) = file.filter(|file| file.node == Node::Uvm) else {
            // A program that maps another file has no reason to choose the offset as the address.
            // One that leaves the address to the kernel has: what comes of that is left to scans.
            return if is_there {
                Err(CallEnd::Errno(libc::EINVAL))
            } else {
                self.mmap_of_another(caller, flags, (offset, length))
            };
        };
        if !is_there && is_placed(flags) {
            return Err(CallEnd::Errno(libc::EINVAL));
        }
        let pid = self.known_caller(caller)?;
        let id = self.known_uvm_file(&file, pid)?;
        let length = length.checked_next_multiple_of(page_size()).ok_or(CallEnd::Errno(libc::ENOMEM))?;
        offset.checked_add(length).ok_or(CallEnd::Errno(libc::ENOMEM))?;
        let memory = self.managed.address_space(self.processes.as_ref(), pid, caller.thread()).map_err(errno)?;
        if !caller.is_waiting() {
            return Err(CallerError::Gone.into());
        }
        self.has_room_for_mapping()?;
        let reservation = self.reserve_mapping((id, pid), offset, Bytes(length))?;
        let on_host = reservation.on_host();
        let answer = self.commit_mapping(id, reservation, (memory, caller.thread()))?;
        *sequel = on_host.map(|range| Sequel::Tell(Untold { mm: memory, range, file: id, thread: caller.thread() }));
        Ok(answer)
    }

    /// Room for a mapping: on the cards, or on the host where those have none.
    fn reserve_mapping(
        &self,
        (file, pid): (UvmFile, Pid),
        start: u64,
        length: Bytes,
    ) -> Result<ManagedReservation, CallEnd> {
        let on_cards = self.ask_for_room(|accounts| accounts.reserve_managed(pid, start, length));
        let Err(refusal @ Refusal::OverQuota(_)) = on_cards else {
            return on_cards.map_err(|refusal| self.refused(pid, refusal));
        };
        // What it has unmapped since the last look is not there any more.
        self.managed.look_again(&self.scan_env(), pid);
        // That is the host's memory already.
        let is_pool = lock(&self.objects.accounts).pools(file).iter().any(|(base, _)| *base == start);
        let on_host = || self.ask_for_room(|accounts| accounts.reserve_managed_on_host(pid, start, length)).ok();
        (!is_pool).then(on_host).flatten().ok_or_else(|| self.refused(pid, refusal))
    }

    /// The kernel is about to map managed memory of a file at an address, for a thread: not one
    /// that was given up meanwhile.
    pub(crate) fn commit_mapping(
        &self,
        id: UvmFile,
        reservation: ManagedReservation,
        (memory, thread): (Mm, i32),
    ) -> Result<Answer, CallEnd> {
        self.objects.locks.with(&[LockName::Uvm(id)], || {
            let is_known = lock(&self.objects.files).knows_uvm(id);
            let may_be = match reservation.on_host() {
                Some(range) => self.may_be_on_host(id, memory, range),
                None => true,
            };
            let mut accounts = lock(&self.objects.accounts);
            if !is_known || !may_be {
                accounts.cancel_managed(reservation);
                return Err(CallEnd::Errno(if is_known { libc::ENOMEM } else { libc::EBADF }));
            }
            let is_alone = accounts.commit_managed(reservation, memory, id, thread);
            is_alone.map(|()| Answer::Continue).map_err(|Contended| CallEnd::Errno(libc::EAGAIN))
        })
    }

    /// Of a file that is not UVM's, unless another thread exchanges it: then, where the kernel may
    /// place it, it can be managed memory that nobody has charged. So it is known from now on in
    /// whose memory to look for it, whoever has that by then.
    fn mmap_of_another(&self, caller: &dyn Caller, flags: u32, (start, length): (u64, u64)) -> Result<Answer, CallEnd> {
        if !is_placed(flags) {
            let of = (caller.pid()?, caller.thread());
            let memory = self.managed.address_space(self.processes.as_ref(), of.0, of.1).map_err(errno)?;
            let length = length.checked_next_multiple_of(page_size()).ok_or(CallEnd::Errno(libc::ENOMEM))?;
            let ask = |accounts: &mut Accounts| accounts.may_map_managed(memory, of, start, length);
            let answer = ask(&mut lock(&self.objects.accounts));
            if answer.is_err() {
                self.managed.scan(&self.scan_env());
                self.reserve(of.0, ask)?;
            }
        }
        Ok(Answer::Continue)
    }
}

/// Returns whether a mapping goes where it is asked to, or nowhere.
fn is_placed(flags: u32) -> bool {
    let placed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
    flags & placed.cast_unsigned() != 0
}
