//! Telling the driver that managed memory is to stay on the host.
//!
//! The kernel makes a range when the caller gets to it, and nobody says when that is: so the driver
//! is told again and again from the answer on, until it knows the range, as a rule for a tenth of a
//! millisecond. What the card may have got of it before is charged, since the last look that found
//! nothing: a kernel that waits for the address has nothing within 500 us, and 57 MiB for each
//! millisecond after (docs/driver-facts.md).

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::Mutex,
    time::Duration,
};

use abi::{
    Status,
    decode::HOST_UUID,
    encode,
    layout::read_u32,
    params::{UVM_INITIALIZE_PARAMS, UVM_SET_PREFERRED_LOCATION_PARAMS as Set},
    uvm::{UVM_INITIALIZE, UVM_SET_PREFERRED_LOCATION, uvm_command},
};
use account::{Mapping, Mm, UvmFile};
use base::Bytes;
use driver::{DeviceFile, DriverCall};

use crate::{Session, locks::lock, memory::page_size, objects::named_locks::LockName};

/// From then on it is asked what is mapped, too: it may be a part, or of another file.
const PATIENCE: Duration = Duration::from_millis(1);
/// From then on it is left to the next reconciliation.
const LONGEST: Duration = Duration::from_secs(10);
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// Time in which a card that waits for an address gets nothing of what comes to be there.
const UNNOTICED: Duration = Duration::from_micros(500);
/// Charged for each microsecond after that.
const BYTES_PER_US: u64 = (128 << 20) / 1000;

/// Ranges that may be left so.
const MOST_LEFT: usize = 64;
/// `UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE`: the memory of such a file is nobody's, nor charged
/// to a cgroup.
const SHARED_BY_PROCESSES: u64 = 2;
/// Places in which it is asked for a part of a range.
const PROBES: u32 = 4;
const BLOCK: u64 = 2 << 20;
/// Pieces of a range that are tried, to find those that are there.
const MOST_PIECES: u32 = 2000;

/// A range that is about to be mapped and is to stay on the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Untold {
    pub(crate) mm: Mm,
    pub(crate) range: Mapping,
    pub(crate) file: UvmFile,
    /// Thread that maps it.
    pub(crate) thread: i32,
}

/// Ranges that were given up for the time being, each with when it was not there yet.
#[derive(Debug, Default)]
pub(crate) struct LeftUntold(Mutex<Vec<(Untold, Duration)>>);

impl Session {
    /// Tells the driver as soon as the range is there.
    pub(crate) fn tell_when_mapped(&self, untold: Untold) {
        let clock = self.reclaim_throttle.clock.as_ref();
        let began = clock.now();
        let mut clean = began;
        loop {
            let looked = clock.now();
            let elapsed = looked.saturating_sub(began);
            if self.is_settled(&untold, clean, elapsed >= PATIENCE) {
                return;
            }
            clean = looked;
            if elapsed >= LONGEST {
                self.leave_untold(untold, clean);
                return;
            }
            clock.wait((elapsed / 16).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
        }
    }

    /// The same of all ranges that were left.
    pub(crate) fn tell_left(&self) {
        let left = std::mem::take(&mut *lock(&self.left_untold.0));
        for (untold, clean) in left {
            let looked = self.reclaim_throttle.clock.now();
            if !self.is_settled(&untold, clean, true) {
                self.leave_untold(untold, looked);
            }
        }
    }

    /// Those who leave more than that are charged as if theirs were on the card.
    fn leave_untold(&self, untold: Untold, clean: Duration) {
        let mut left = lock(&self.left_untold.0);
        if left.len() < MOST_LEFT {
            return left.push((untold, clean));
        }
        drop(left);
        lock(&self.objects.accounts).managed_cannot_be_told(untold.mm, untold.range);
    }

    /// Tells the driver if the range is there. Returns whether that is all: it was told, or the
    /// range will never be there. `clean`: when it was not there yet. `looks`: what is mapped is
    /// looked at, too.
    fn is_settled(&self, untold: &Untold, clean: Duration, looks: bool) -> bool {
        let Untold { mm, range, file, thread } = *untold;
        // Asked before the look: what it has mapped, the look shows.
        let has_returned = looks && self.has_returned(thread);
        if self.tell(file, range) {
            let stray = self.stray_since(clean);
            lock(&self.objects.accounts).managed_was_told(mm, file, range, stray);
            return true;
        }
        if !looks && !self.is_cut(file, range) {
            return false;
        }
        match self.managed.mappings(mm) {
            // Nobody has it.
            None => true,
            Some(Err(_)) => false,
            Some(Ok(mapped)) => {
                let parts = parts_of(range, &mapped);
                if parts.is_empty() { has_returned } else { self.tell_parts(mm, range, &parts, clean) }
            }
        }
    }

    /// Returns whether a range of a file can be kept on the host for an address space: it is the
    /// file's own, whose memory its cgroup is charged for, and nothing is mapped there yet that
    /// could be taken for the range.
    ///
    /// Precondition: the file's lock.
    pub(crate) fn may_be_on_host(&self, id: UvmFile, mm: Mm, range: Mapping) -> bool {
        let Some(kept) = lock(&self.objects.files).uvm_file(id) else { return false };
        let Some((_, flags)) = kept.initialized.filter(|(of, flags)| *of == mm && flags & SHARED_BY_PROCESSES == 0)
        else {
            return false;
        };
        // With other flags than those that it has, the driver refuses to initialise it again.
        let mut args = encode!(UVM_INITIALIZE_PARAMS { flags: flags });
        let call = DriverCall { command: UVM_INITIALIZE, args: &mut args, buffers: &mut [], files: &[] };
        let has_flags = self.driver.ioctl(&kept.file, call).is_ok()
            && UVM_INITIALIZE_PARAMS::rmStatus.get(&args) == Some(Status::OK.0);
        let is_free = |mapped: Vec<Mapping>| parts_of(range, &mapped).is_empty();
        has_flags && self.managed.mappings(mm).and_then(Result::ok).is_some_and(is_free)
    }

    /// Returns whether part of a range is there, which is not there as a whole: in a few places,
    /// by chance. Who leaves so little that this does not find it has little.
    fn is_cut(&self, file: UvmFile, range: Mapping) -> bool {
        (0..PROBES).any(|_| {
            let page = RandomState::new().hash_one(()) % (range.length / page_size()).max(1);
            let start = range.start + page * page_size();
            if !self.tell(file, Mapping { start, length: page_size() }) {
                return false;
            }
            self.tell_pieces(file, range);
            true
        })
    }

    /// Tells the driver of what is there of a range, as far as it is in large pieces: the largest
    /// first.
    fn tell_pieces(&self, file: UvmFile, range: Mapping) {
        let mut pieces = VecDeque::from([range]);
        for _ in 0..MOST_PIECES {
            let Some(piece) = pieces.pop_front() else { return };
            let half = piece.length / 2 / BLOCK * BLOCK;
            if half > 0 && !self.tell(file, piece) {
                pieces.push_back(Mapping { length: half, ..piece });
                pieces.push_back(Mapping { start: piece.start + half, length: piece.length - half });
            }
        }
    }

    fn has_returned(&self, thread: i32) -> bool {
        !lock(&self.objects.accounts).is_mapping_managed(thread) || !self.processes.is_thread_running(thread)
    }

    /// Tells the driver of each part of a range, of whichever file it is. `false`: there are others
    /// by now.
    fn tell_parts(&self, mm: Mm, range: Mapping, parts: &[Mapping], clean: Duration) -> bool {
        let files = lock(&self.objects.files).uvm_of(mm);
        let file_of = |part: &Mapping| files.iter().copied().find(|file| self.tell(*file, *part));
        let mut told: Vec<Option<UvmFile>> = parts.iter().map(file_of).collect();
        told.dedup();
        if let [Some(file)] = *told.as_slice() {
            let stray = self.stray_since(clean);
            lock(&self.objects.accounts).managed_was_told(mm, file, range, stray);
            return true;
        }
        let now = self.managed.mappings(mm).and_then(Result::ok).unwrap_or_default();
        if parts_of(range, &now) != parts {
            return false;
        }
        // No honest program comes to this: it exchanges the file while it maps it.
        let charged = lock(&self.objects.accounts).managed_cannot_be_told(mm, range);
        self.managed.add_uncharged(mm, charged, self.reclaim_throttle.clock.now());
        true
    }

    /// Bytes that a card may have got of a range that was not there at `clean`.
    fn stray_since(&self, clean: Duration) -> Bytes {
        let window = self.reclaim_throttle.clock.now().saturating_sub(clean);
        let noticed = window.saturating_sub(UNNOTICED);
        Bytes(u64::try_from(noticed.as_micros()).unwrap_or(u64::MAX).saturating_mul(BYTES_PER_US))
    }

    /// Sets the preferred location of a range of a file to the host. `false`: the driver does not
    /// know the range, or not as a whole.
    fn tell(&self, id: UvmFile, range: Mapping) -> bool {
        self.objects.locks.with(&[LockName::Uvm(id)], || {
            let file = lock(&self.objects.files).uvm_file(id);
            file.is_some_and(|kept| self.prefer_host(&kept.file, range))
        })
    }

    fn prefer_host(&self, file: &DeviceFile, Mapping { start, length }: Mapping) -> bool {
        let mut args = encode!(Set {
            requestedBase: start,
            length: length,
            preferredLocation: HOST_UUID,
            // Whichever is near.
            preferredCpuNumaNode: -1,
        });
        let layout = uvm_command(UVM_SET_PREFERRED_LOCATION).and_then(|row| row.layout(self.abi));
        let Some(status_at) = layout.and_then(|layout| layout.status) else { return false };
        let call = DriverCall { command: UVM_SET_PREFERRED_LOCATION, args: &mut args, buffers: &mut [], files: &[] };
        let is_done = self.driver.ioctl(file, call).is_ok();
        is_done && read_u32(&args, usize::from(status_at)) == Some(Status::OK.0)
    }
}

/// Parts of a range that are mapped.
fn parts_of(range: Mapping, mapped: &[Mapping]) -> Vec<Mapping> {
    mapped.iter().filter_map(|part| range.common(*part)).collect()
}
