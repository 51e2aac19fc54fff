//! Managed memory against what processes have mapped.
//!
//! Address spaces are what has mappings, and they outlive processes: whoever is cloned with
//! `CLONE_VM` has the same one, and execution of another program leaves it. So what is kept is a
//! view of each address space that has, or could come to have, managed memory, taken while one of
//! its threads waits for an answer. It says when the last who had it is gone; before that nothing
//! of it is released unless it was read. One that lives while no process is known to have it, or
//! that cannot be read, stays charged, for what it may have besides, too. Memory that nobody
//! charged is charged when it is found; only where that is over the quota are those killed who have
//! it, and the container is ended if it outlives that.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use account::{Accounts, ManagedSync, Mapping, Mm};
use base::{Bytes, Pid};

use crate::{
    AddressSpace, Drift, DriftKind, Processes, UvmMapping, clock::Clock, locks::lock, processes::is_for_want_of_room,
};

/// Processes come while others are looked at. More rounds than that come of a container that forks
/// all the time.
const ROUNDS: usize = 8;
/// Time from which on a process is read once for all who share it.
const LARGE: Duration = Duration::from_millis(5);
/// Address spaces at once: a view of each keeps three files open.
pub(crate) const MOST: usize = if cfg!(test) { 48 } else { 16384 };
/// Longest work and duration of a scan.
const MOST_WORK: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);
/// Rest after a look of [`ManagedMemory::look_again`]: multiples of its duration, and the least.
const REST: u32 = 9;
const LEAST_REST: Duration = Duration::from_millis(5);
/// One that takes longer may have met a busy host; so many in a row have not.
const TOO_LONG: u32 = 2;
/// For those who are killed to be gone, and for a child that shares its parent's memory (`vfork`),
/// which has been killed, to execute its program.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// An address space with managed memory, or one that could come to have some.
#[derive(Debug, Clone)]
struct ManagedSpace {
    mm: Mm,
    /// Of whom it was first seen.
    pid: Pid,
    view: Arc<dyn AddressSpace>,
    /// Bytes that were mapped without being charged.
    uncharged: u64,
    uncharged_since: Option<Duration>,
    /// It lives, and cannot be read since then: nobody is known to have it.
    lost_since: Option<Duration>,
    /// Nobody has it any more; these were on the way out of it, or of another one, when that was
    /// seen.
    leavers: Option<BTreeSet<Pid>>,
}

impl ManagedSpace {
    /// Returns whether `pid` has it still.
    fn has_its_process(&self) -> std::io::Result<bool> {
        Ok(self.view.is_there() && self.view.is_its_process_s()?)
    }
}

/// All of the container's.
#[derive(Debug, Default)]
struct ManagedSpaces {
    all: BTreeMap<Mm, ManagedSpace>,
    last: u64,
}

impl ManagedSpaces {
    fn add(&mut self, pid: Pid, view: Arc<dyn AddressSpace>) -> Mm {
        self.last += 1;
        let mm = Mm(self.last);
        let space =
            ManagedSpace { mm, pid, view, uncharged: 0, uncharged_since: None, lost_since: None, leavers: None };
        self.all.insert(mm, space);
        mm
    }

    /// Those that were first seen of such processes, and that nobody has been seen to have left.
    fn of(&self, is_meant: impl Fn(Pid) -> bool) -> Vec<ManagedSpace> {
        self.all.values().filter(|space| is_meant(space.pid) && space.leavers.is_none()).cloned().collect()
    }

    /// Those that somebody has.
    fn living(&self) -> Vec<ManagedSpace> {
        self.all.values().filter(|space| space.leavers.is_none() && space.view.is_there()).cloned().collect()
    }

    /// The others.
    fn vanished(&self) -> Vec<ManagedSpace> {
        self.all.values().filter(|space| space.leavers.is_some() || !space.view.is_there()).cloned().collect()
    }

    fn was_read(&mut self, mm: Mm) {
        if let Some(space) = self.all.get_mut(&mm) {
            space.lost_since = None;
        }
    }

    /// Returns since when it cannot be read.
    fn is_lost(&mut self, mm: Mm, now: Duration) -> Duration {
        self.all.get_mut(&mm).map_or(now, |space| *space.lost_since.get_or_insert(now))
    }

    fn add_uncharged(&mut self, mm: Mm, bytes: u64, since: Duration) {
        if let Some(space) = self.all.get_mut(&mm).filter(|_| bytes > 0) {
            space.uncharged = space.uncharged.saturating_add(bytes);
            space.uncharged_since.get_or_insert(since);
        }
    }

    /// Forgets what was found: it is charged by now, and fits.
    fn forgive(&mut self, mm: Mm) {
        if let Some(space) = self.all.get_mut(&mm) {
            (space.uncharged, space.uncharged_since) = (0, None);
        }
    }
}

/// Managed memory that was found mapped without being charged.
#[derive(Debug, Default)]
struct UnchargedMemory {
    bytes: u64,
    pids: BTreeSet<Pid>,
    /// More is charged by now than may be.
    is_over: bool,
}

/// Outcome of scans.
#[derive(Debug, Default)]
struct ScanProgress {
    /// So many in a row have come to no end.
    too_long: AtomicU32,
    /// None has come to its end since then, for want of files or memory: a host may lack them for a
    /// moment.
    starved_since: Mutex<Option<Duration>>,
}

/// State of one scan.
struct ManagedScan {
    sync: ManagedSync,
    began: Duration,
    worked: Duration,
    /// Processes whose memory was read, and those of them of which there is much.
    read: BTreeSet<Pid>,
    large: Vec<Pid>,
    /// It was given up for want of files or memory.
    is_starved: bool,
    /// Those who perhaps have an address space of which it is not known who has it.
    perhaps: BTreeMap<Mm, BTreeSet<Pid>>,
}

impl ManagedScan {
    fn new(sync: ManagedSync, clock: &dyn Clock) -> Self {
        Self {
            sync,
            began: clock.now(),
            worked: clock.worked(),
            read: BTreeSet::new(),
            large: Vec::new(),
            is_starved: false,
            perhaps: BTreeMap::new(),
        }
    }
}

/// Environment of a scan.
pub(crate) struct ScanEnv<'a> {
    pub(crate) accounts: &'a Mutex<Accounts>,
    pub(crate) processes: &'a dyn Processes,
    pub(crate) clock: &'a dyn Clock,
}

/// The container's managed memory: address spaces that have some, and what scans of them have
/// found.
#[derive(Debug, Default)]
pub(crate) struct ManagedMemory {
    /// Held while it is asked who shares memory with whom.
    sharing: Mutex<()>,
    /// Held by a scan.
    scanning: Mutex<()>,
    /// Address spaces with managed memory.
    spaces: Mutex<ManagedSpaces>,
    /// Memory that was found and is not reported yet.
    uncharged: Mutex<BTreeMap<Mm, UnchargedMemory>>,
    progress: ScanProgress,
    /// Time from which on a process may be looked at again because it asks what is free.
    next_look: Mutex<Duration>,
}

impl ManagedMemory {
    /// The address space of a process, shared with whoever shares it; `thread` is one of the
    /// process's. May have to wait for processes.
    ///
    /// # Errors
    /// When the process is gone, or there are too many open files.
    pub(crate) fn address_space(&self, processes: &dyn Processes, pid: Pid, thread: i32) -> std::io::Result<Mm> {
        // Not the lock of them all: a process can make the kernel wait with its answer.
        let _one_at_a_time = lock(&self.sharing);
        // A process that has one already, as most have, costs no comparison with any other.
        let own = lock(&self.spaces).of(|of| of == pid);
        for space in own {
            if space.has_its_process()? {
                return Ok(space.mm);
            }
        }
        let shares = |other: Pid| processes.share_memory(pid, other).unwrap_or(false);
        let others = lock(&self.spaces).of(|of| of != pid);
        for space in others {
            if shares(space.pid) && space.has_its_process()? {
                return Ok(space.mm);
            }
        }
        if lock(&self.spaces).all.len() >= MOST {
            return Err(std::io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let view = processes.address_space(pid, thread)?;
        Ok(lock(&self.spaces).add(pid, view))
    }

    /// Compares the accounts of managed memory with what is mapped. What was mapped without being
    /// charged is charged from then on, and reported in the next reconciliation, whoever found it.
    pub(crate) fn scan(&self, env: &ScanEnv<'_>) {
        let _one_at_a_time = lock(&self.scanning);
        self.scan_locked(env);
    }

    /// Lets go of what was mapped where nobody is any more.
    pub(crate) fn drop_gone_address_spaces(&self, env: &ScanEnv<'_>) {
        let _one_at_a_time = lock(&self.scanning);
        let mut sync = lock(env.accounts).begin_sync();
        lock(&self.spaces).living().iter().for_each(|space| sync.stays(space.mm));
        self.drop_vanished_spaces(env, &mut sync);
        lock(env.accounts).finish_sync(sync);
    }

    /// Forgets address spaces that nobody has any more. The driver has what was mapped there until
    /// the kernel has taken all of it away, which the last who leaves waits for, and which can
    /// last: so long they stay.
    fn drop_vanished_spaces(&self, env: &ScanEnv<'_>, sync: &mut ManagedSync) {
        let vanished = lock(&self.spaces).vanished();
        if vanished.is_empty() {
            return;
        }
        let is_leaving = |pid: &Pid| env.processes.is_leaving(*pid);
        let leaving = if vanished.iter().any(|space| space.leavers.is_none()) {
            env.processes.pids().ok().map(|pids| pids.into_iter().filter(is_leaving).collect::<BTreeSet<Pid>>())
        } else {
            None
        };
        for space in vanished {
            let left = match space.leavers {
                Some(before) => Some(before.into_iter().filter(is_leaving).collect()),
                None => leaving.clone(),
            };
            let mut spaces = lock(&self.spaces);
            if left.as_ref().is_some_and(BTreeSet::is_empty) {
                spaces.all.remove(&space.mm);
                continue;
            }
            sync.stays(space.mm);
            if let Some(space) = spaces.all.get_mut(&space.mm) {
                space.leavers = left;
            }
        }
    }

    /// Looks for what a process that asks what is free has unmapped; what others have stays
    /// charged. Waits for no scan, which a process can make last: then, and if it has just been
    /// done, the answer is as of the last one.
    pub(crate) fn look_again(&self, env: &ScanEnv<'_>, pid: Pid) {
        let Ok(_one_at_a_time) = self.scanning.try_lock() else { return };
        let mut own = lock(&self.spaces).of(|of| of == pid);
        own.retain(|space| lock(env.accounts).has_any_managed(space.mm));
        let began = env.clock.now();
        if own.is_empty() || began < *lock(&self.next_look) {
            return;
        }
        let mut scan = ManagedScan::new(lock(env.accounts).begin_sync(), env.clock);
        lock(&self.spaces).all.keys().for_each(|mm| scan.sync.stays(*mm));
        own.iter().all(|space| self.scan_space(env, &mut scan, space));
        lock(env.accounts).finish_sync(scan.sync);
        let now = env.clock.now();
        *lock(&self.next_look) = now.saturating_add((now.saturating_sub(began) * REST).max(LEAST_REST));
    }

    /// Does `work` as if another thread scanned.
    #[cfg(test)]
    pub(crate) fn while_scanning(&self, work: impl FnOnce()) {
        let _scan = lock(&self.scanning);
        work();
    }

    fn scan_locked(&self, env: &ScanEnv<'_>) {
        let (began, worked) = (env.clock.now(), env.clock.worked());
        let pending = lock(env.accounts).pending_threads();
        for thread in pending.into_iter().filter(|thread| !env.processes.is_thread_running(*thread)) {
            lock(env.accounts).thread_called(thread);
        }
        let clock = env.clock;
        let sync = lock(env.accounts).begin_sync();
        let mut scan = ManagedScan { began, worked, ..ManagedScan::new(sync, clock) };
        // All who have charges are among them: none comes to have some of which there was no view
        // before.
        let living = lock(&self.spaces).living();
        living.iter().for_each(|space| scan.sync.stays(space.mm));
        self.drop_vanished_spaces(env, &mut scan.sync);
        let is_done = living.iter().all(|space| self.scan_space(env, &mut scan, space))
            && self.scan_other_processes(env, &mut scan);
        lock(env.accounts).finish_sync(scan.sync);
        let ScanProgress { too_long, starved_since } = &self.progress;
        if is_done {
            too_long.store(0, Ordering::SeqCst);
            *lock(starved_since) = None;
        } else if scan.is_starved {
            lock(starved_since).get_or_insert(clock.now());
        } else {
            too_long.fetch_add(1, Ordering::SeqCst);
        }
        self.find_excess(env, scan.perhaps);
    }

    fn has_time(env: &ScanEnv<'_>, scan: &ManagedScan) -> bool {
        let clock = env.clock;
        let (lasted, worked) = (clock.now().saturating_sub(scan.began), clock.worked().saturating_sub(scan.worked));
        lasted <= LONGEST && worked <= MOST_WORK
    }

    /// `false`: there is no time left.
    fn scan_space(&self, env: &ScanEnv<'_>, scan: &mut ManagedScan, space: &ManagedSpace) -> bool {
        if !Self::has_time(env, scan) {
            return false;
        }
        let before = env.clock.worked();
        let read = space.view.uvm_mappings();
        // What is gone by now may have been read in part.
        if !space.view.is_there() {
            return true;
        }
        let now = env.clock.now();
        let mappings = match read {
            Ok(mappings) => mappings,
            Err(error) if is_for_want_of_room(&error) => {
                scan.is_starved = true;
                return false;
            }
            Err(_) => {
                let since = lock(&self.spaces).is_lost(space.mm, now);
                if now.saturating_sub(since) >= PATIENCE {
                    let possible = lock(env.accounts).charge_possible(space.mm);
                    lock(&self.spaces).add_uncharged(space.mm, possible.0, since);
                }
                return true;
            }
        };
        let mapped = managed(&mappings);
        let drift = lock(env.accounts).set_managed(&mut scan.sync, space.mm, space.pid, &mapped);
        let uncharged = drift.found.iter().fold(0, |sum: u64, range| sum.saturating_add(range.length));
        let mut spaces = lock(&self.spaces);
        spaces.was_read(space.mm);
        spaces.add_uncharged(space.mm, uncharged, now);
        drop(spaces);
        // One of which that cannot be told now is read by its pid, too.
        if space.view.is_its_process_s().unwrap_or(false) {
            scan.read.insert(space.pid);
            if env.clock.worked().saturating_sub(before) >= LARGE {
                scan.large.push(space.pid);
            }
        }
        true
    }

    /// Processes of which nothing is known. `false`: there is no time left.
    fn scan_other_processes(&self, env: &ScanEnv<'_>, scan: &mut ManagedScan) -> bool {
        let mut known: BTreeSet<Mm> = lock(&self.spaces).all.keys().copied().collect();
        for _ in 0..ROUNDS {
            let Ok(pids) = env.processes.pids() else {
                scan.is_starved = true;
                return false;
            };
            let new: Vec<Pid> = pids.into_iter().filter(|pid| scan.read.insert(*pid)).collect();
            if new.is_empty() {
                break;
            }
            for pid in new {
                if !Self::has_time(env, scan) {
                    return false;
                }
                let shares = |other: &Pid| env.processes.share_memory(pid, *other).unwrap_or(false);
                if scan.large.iter().any(shares) {
                    continue;
                }
                let before = env.clock.worked();
                let mappings = match env.processes.uvm_mappings(pid) {
                    Ok(mappings) => mappings,
                    Err(error) if is_for_want_of_room(&error) => {
                        scan.is_starved = true;
                        return false;
                    }
                    // It is gone.
                    Err(_) => continue,
                };
                if env.clock.worked().saturating_sub(before) >= LARGE {
                    scan.large.push(pid);
                }
                let mapped = managed(&mappings);
                if mapped.is_empty() {
                    continue;
                }
                // A child that shares the memory of a parent who has ended, or executed another
                // program: it is charged.
                if let Some(mm) = self.left_with(env, &mapped) {
                    scan.perhaps.entry(mm).or_default().insert(pid);
                    continue;
                }
                let Ok(mm) = self.address_space(env.processes, pid, pid.0) else { continue };
                let space = lock(&self.spaces).all.get(&mm).cloned();
                if let Some(space) = space.filter(|_| known.insert(mm)) {
                    self.scan_space(env, scan, &space);
                }
            }
        }
        true
    }

    /// An address space of which it is not known who has it, and to which all of that is charged.
    fn left_with(&self, env: &ScanEnv<'_>, mapped: &[Mapping]) -> Option<Mm> {
        let mut spaces = lock(&self.spaces).living();
        spaces.retain(|space| lock(env.accounts).has_managed(space.mm, mapped));
        spaces.into_iter().find(|space| !space.has_its_process().unwrap_or(true)).map(|space| space.mm)
    }

    /// At each look again, as long as it is there and over the quota: who has it is to be killed,
    /// all of them.
    fn find_excess(&self, env: &ScanEnv<'_>, mut perhaps: BTreeMap<Mm, BTreeSet<Pid>>) {
        let living = lock(&self.spaces).living();
        let is_over = lock(env.accounts).is_over_limit();
        for space in living.into_iter().filter(|space| space.uncharged > 0) {
            let mut pids = perhaps.remove(&space.mm).unwrap_or_default();
            let has_its_process = space.has_its_process().unwrap_or(true);
            // Where nobody is named, all would be meant.
            if has_its_process || pids.is_empty() {
                pids.insert(space.pid);
            }
            if has_its_process {
                let all = env.processes.pids().unwrap_or_default();
                let shares = |pid: &Pid| env.processes.share_memory(*pid, space.pid).unwrap_or(false);
                pids.extend(all.into_iter().filter(shares));
            }
            lock(&self.uncharged).insert(space.mm, UnchargedMemory { bytes: space.uncharged, pids, is_over });
            if !is_over {
                lock(&self.spaces).forgive(space.mm);
            }
        }
    }

    /// Managed memory that is mapped in an address space now. `None`: nobody has it.
    pub(crate) fn mappings(&self, mm: Mm) -> Option<std::io::Result<Vec<Mapping>>> {
        let space = lock(&self.spaces).all.get(&mm).cloned()?;
        Some(space.view.uvm_mappings().map(|mappings| managed(&mappings)))
    }

    /// Notes what came to be charged because nothing could be done about it.
    pub(crate) fn add_uncharged(&self, mm: Mm, bytes: Bytes, since: Duration) {
        lock(&self.spaces).add_uncharged(mm, bytes.0, since);
    }

    /// Returns the memory that was found since the last time.
    pub(crate) fn take_uncharged(&self) -> Option<Drift> {
        let found = std::mem::take(&mut *lock(&self.uncharged));
        if found.is_empty() {
            return None;
        }
        let mapped = found.values().fold(0, |sum: u64, found| sum.saturating_add(found.bytes));
        let kind = DriftKind::Managed { accounted: Bytes(0), mapped: Bytes(mapped) };
        let excess = found.values().any(|found| found.is_over);
        let pids: BTreeSet<Pid> = found.into_values().flat_map(|found| found.pids).collect();
        Some(Drift { kind, excess, pids: pids.into_iter().collect() })
    }

    /// Returns the reason to end the container, if there is one. `is_over_quota`: more is charged
    /// than may be.
    pub(crate) fn must_end(&self, now: Duration, is_over_quota: bool) -> Option<String> {
        let is_over = |since: Option<Duration>| since.is_some_and(|since| now.saturating_sub(since) >= PATIENCE);
        let living = lock(&self.spaces).living();
        let seconds = PATIENCE.as_secs();
        if let Some(space) = living.iter().find(|space| is_over_quota && is_over(space.uncharged_since)) {
            let (pid, uncharged) = (space.pid.0, Bytes(space.uncharged));
            return Some(format!(
                "with {uncharged} of managed memory that process {pid} did not account for, it has more than its quota for {seconds} s"
            ));
        }
        if is_over(*lock(&self.progress.starved_since)) {
            return Some(format!("for {seconds} s it could not be seen what its processes have mapped"));
        }
        (self.progress.too_long.load(Ordering::SeqCst) >= TOO_LONG)
            .then(|| "what its processes have mapped is too much to be looked at".to_owned())
    }
}

/// Managed memory lies at its own offset.
fn managed(mappings: &[UvmMapping]) -> Vec<Mapping> {
    let managed = mappings.iter().filter(|mapping| mapping.offset == mapping.address);
    managed.map(|mapping| Mapping { start: mapping.address, length: mapping.length }).collect()
}
