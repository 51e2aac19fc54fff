//! Address spaces of the container's processes: their memory, and their UVM mappings.
//!
//! `/proc/PID/maps` and `/proc/PID/mem` are of the memory that the process had when they were
//! opened, whatever it executes afterwards. The first can be read while the process exists; the
//! second shows for ever whether anybody still has that memory.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use mediator::{AddressSpace, UvmMapping, is_for_want_of_room};
use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use sys::sync::lock;

use super::{
    broker::{Broker, ProcFile},
    proc_read_watchdog::ProcReadWatchdog,
};

/// Times that the threads of a process are listed anew: each may have ended by the time it is
/// asked.
const ROUNDS: usize = 16;

/// An address space that a session keeps open.
#[derive(Debug)]
pub(super) struct ProcessMemory {
    pid: i32,
    process: OwnedFd,
    fingerprint: ExecFingerprint,
    memory: File,
    maps: Mutex<File>,
    broker: Arc<Broker>,
    watchdog: Arc<ProcReadWatchdog>,
}

impl ProcessMemory {
    pub(super) fn open(
        pid: i32,
        thread: i32,
        broker: Arc<Broker>,
        watchdog: Arc<ProcReadWatchdog>,
    ) -> io::Result<Self> {
        let (process, _) = broker.process(pid)?;
        let fingerprint = ExecFingerprint::read(&broker, pid, &process)?;
        // The files of the first thread can be read for as long as there is another one.
        let open = |thread: i32| -> io::Result<(File, File)> {
            let maps = broker.file(pid, thread, ProcFile::Maps)?;
            Ok((broker.file(pid, thread, ProcFile::Memory)?, maps))
        };
        let first = open(pid).ok().filter(|(memory, _)| sys::memory_is_there(memory.as_fd()));
        let (memory, maps) = match first {
            Some(files) => files,
            None => open(first_that_has_memory(&broker, (pid, thread), &process)?)?,
        };
        // Both files are of one memory, unless the process has executed a program meanwhile.
        if ExecFingerprint::read(&broker, pid, &process)?.differs_from(fingerprint)
            || !sys::memory_is_there(memory.as_fd())
        {
            return Err(io::Error::other("the process executes another program"));
        }
        Ok(Self { pid, process, fingerprint, memory, maps: Mutex::new(maps), broker, watchdog })
    }
}

impl AddressSpace for ProcessMemory {
    fn is_there(&self) -> bool {
        sys::memory_is_there(self.memory.as_fd())
    }

    fn is_its_process_s(&self) -> io::Result<bool> {
        let fingerprint = ExecFingerprint::read(&self.broker, self.pid, &self.process);
        // The pid is the process's as long as the process is there.
        if has_ended(&self.process)? {
            return Ok(false);
        }
        Ok(!fingerprint?.differs_from(self.fingerprint))
    }

    fn uvm_mappings(&self) -> io::Result<Vec<UvmMapping>> {
        self.watchdog.watch(&[self.pid], || {
            let mut maps = lock(&self.maps);
            // The maps of a process that has ended, and that nobody has waited for, can still be
            // read as long as others have the memory.
            if has_ended(&self.process)? {
                return Err(io::ErrorKind::NotFound.into());
            }
            if let Ok(Some(mappings)) = maps.rewind().and_then(|()| parse_maps(&*maps)) {
                return Ok(mappings);
            }
            // The file is of a thread that has ended.
            let mappings = uvm_mappings(&self.broker, self.pid)?;
            if self.is_its_process_s()? { Ok(mappings) } else { Err(io::ErrorKind::NotFound.into()) }
        })
    }
}

/// Fingerprint of the program that a process executes: the addresses at which the kernel has put
/// its parts, which are others each time.
///
/// The fence keeps programs from choosing them (`PR_SET_MM`, `ADDR_NO_RANDOMIZE`). On a host
/// without address space randomisation (`randomize_va_space`) only the flag of processes that have
/// executed nothing since they were forked distinguishes programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExecFingerprint {
    /// True if it has executed nothing since it was forked; `None`: its first thread has ended, and
    /// every other one is marked as forked.
    is_forked: Option<bool>,
    /// Code, stack, data, heap, arguments, environment.
    begins: [u64; 6],
}

impl ExecFingerprint {
    fn read(broker: &Broker, pid: i32, process: &OwnedFd) -> io::Result<Self> {
        // A thread that has ended has no addresses, even if it was the first and the others go on.
        let ask = |thread| Ok(Self::parse(&io::read_to_string(broker.file(pid, thread, ProcFile::Stat)?)?));
        let find = || find(pid, || has_ended(process), || threads(broker, pid), ask);
        // A process in the middle of an execve has no addresses yet.
        let mut found = find();
        for _ in 0..ROUNDS {
            if found.is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
            found = find();
        }
        let (thread, program) = found?.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { is_forked: program.is_forked.filter(|_| thread == pid), ..program })
    }

    fn differs_from(self, before: Self) -> bool {
        self.begins != before.begins || (before.is_forked == Some(true) && self.is_forked == Some(false))
    }

    /// Parses `/proc/PID/stat`; `None`: it has no memory.
    fn parse(stat: &str) -> Option<Self> {
        const PF_FORKNOEXEC: u64 = 0x40;
        // The name before them may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // As proc_pid_stat(5) numbers them, from the state on, which is the third.
        let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        let begins = [field(26)?, field(28)?, field(45)?, field(47)?, field(48)?, field(50)?];
        (begins[1] != 0).then_some(Self { is_forked: Some(field(9)? & PF_FORKNOEXEC != 0), begins })
    }
}

/// Returns whether two processes have the same memory.
///
/// Processes whose first threads have ended would be the same by those threads: both have none.
pub(super) fn share_memory(broker: &Broker, one: i32, other: i32) -> io::Result<bool> {
    if !sys::share_memory(one, other)? {
        return Ok(false);
    }
    let thread = |pid: i32| first_that_has_memory(broker, (pid, pid), &broker.process(pid)?.0);
    sys::share_memory(thread(one)?, thread(other)?)
}

/// Lists the UVM mappings of a process; none if all its threads have ended.
///
/// To the kernel a thread that has ended has no memory, even if it was the first and the others go
/// on, so those are asked.
pub(super) fn uvm_mappings(broker: &Broker, pid: i32) -> io::Result<Vec<UvmMapping>> {
    let (process, _) = broker.process(pid)?;
    let ask = |thread| parse_maps(broker.file(pid, thread, ProcFile::Maps)?);
    let found = find(pid, || has_ended(&process), || threads(broker, pid), ask)?;
    Ok(found.map_or_else(Vec::new, |(_, mappings)| mappings))
}

/// Returns whether all threads of a process have left its memory although it has not ended: the
/// kernel is tearing it down.
pub(super) fn is_leaving(broker: &Broker, pid: i32) -> bool {
    match broker.process(pid) {
        Ok((process, _)) => {
            first_that_has_memory(broker, (pid, pid), &process).is_err() && !has_ended(&process).unwrap_or(false)
        }
        // Without an answer it must not be taken for gone.
        Err(error) => error.raw_os_error() != Some(libc::ESRCH),
    }
}

/// Finds a thread of a process that has memory; `likely` is asked first.
fn first_that_has_memory(broker: &Broker, (pid, likely): (i32, i32), process: &OwnedFd) -> io::Result<i32> {
    let has_memory = |thread| {
        let memory = broker.file(pid, thread, ProcFile::Memory)?;
        Ok(sys::memory_is_there(memory.as_fd()).then_some(()))
    };
    let found = find(likely, || has_ended(process), || threads(broker, pid), has_memory)?;
    found.map(|(thread, _)| thread).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn threads(broker: &Broker, pid: i32) -> io::Result<Vec<i32>> {
    broker.threads(pid)
}

/// Finds the first thread for which `ask` has an answer.
///
/// A thread that is gone has none; that no file can be opened (`EMFILE`) is no answer of a thread.
fn find<T>(
    likely: i32,
    has_ended: impl Fn() -> io::Result<bool>,
    threads: impl Fn() -> io::Result<Vec<i32>>,
    ask: impl Fn(i32) -> io::Result<Option<T>>,
) -> io::Result<Option<(i32, T)>> {
    let ask = |thread: i32| match ask(thread) {
        Err(error) if is_for_want_of_room(&error) => Err(error),
        answer => Ok(answer.unwrap_or_default()),
    };
    for _ in 0..ROUNDS {
        if let Some(found) = ask(likely)? {
            return Ok(Some((likely, found)));
        }
        if has_ended()? {
            return Ok(None);
        }
        for thread in threads()? {
            if let Some(found) = ask(thread)? {
                return Ok(Some((thread, found)));
            }
        }
    }
    Err(io::Error::other("no thread of the process lives long enough to be read"))
}

/// Returns whether no thread of a process is left, reaped or not.
fn has_ended(pidfd: &OwnedFd) -> io::Result<bool> {
    Ok(poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)? > 0)
}

/// Parses the UVM mappings of `/proc/PID/maps`; `None`: there are no mappings at all, the memory is
/// gone.
///
/// UVM mappings are shared and lie at their own offset, as UVM demands and nothing else does,
/// whatever the name of the node in the container; so is whatever else is mapped of a file of that
/// name.
fn parse_maps(maps: impl Read) -> io::Result<Option<Vec<UvmMapping>>> {
    // A process maps as much as it likes: only what is looked for is kept.
    let mut lines = BufReader::with_capacity(64 << 10, maps);
    let (mut line, mut found, mut is_empty) = (Vec::new(), Vec::new(), true);
    while lines.read_until(b'\n', &mut line)? > 0 {
        is_empty = false;
        if is_shared(&line) {
            // A name need not be UTF-8.
            found.extend(uvm_mapping(&String::from_utf8_lossy(&line)));
        }
        line.clear();
    }
    Ok((!is_empty).then_some(found))
}

fn is_shared(line: &[u8]) -> bool {
    let permissions = line.split(|byte| *byte == b' ').nth(1);
    permissions.is_some_and(|permissions| permissions.ends_with(b"s"))
}

/// `7f0000200000-7f0000400000 rw-s 7f0000200000 00:06 397    /dev/nvidia-uvm`
fn uvm_mapping(line: &str) -> Option<UvmMapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (address, end) = (number(start)?, number(end)?);
    let offset = number(fields.nth(1)?)?;
    let inode = fields.nth(1)?;
    let name = fields.next().and_then(|path| path.rsplit('/').next());
    if inode == "0" || (offset != address && name != Some("nvidia-uvm")) {
        return None;
    }
    Some(UvmMapping { address, length: end.checked_sub(address)?, offset })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn broker() -> Arc<Broker> {
        Broker::of_tests(Vec::new())
    }

    /// A process that sleeps, and has got that far: while it executes its program, the kernel
    /// reports changing addresses.
    fn sleeper() -> std::process::Child {
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        waits(child.id().cast_signed(), libc::SYS_clock_nanosleep);
        child
    }

    /// Waits until the process is in that call, with 0 as its first argument.
    fn waits(pid: i32, call: libc::c_long) {
        let said = || fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
        while !said().starts_with(&format!("{call} 0x0 ")) {
            thread::yield_now();
        }
    }

    #[test]
    fn it_is_read_from_whichever_thread_is_left() {
        let find = |threads: &[(i32, &'static str)], has_ended| {
            let ask = |thread| {
                let text = threads.iter().find(|(of, _)| *of == thread).map(|(_, text)| *text);
                text.map(|text| Some(text).filter(|text| !text.is_empty()))
                    .ok_or_else(|| io::ErrorKind::NotFound.into())
            };
            find(10, || Ok(has_ended), || Ok(threads.iter().map(|(thread, _)| *thread).collect()), ask).ok()
        };
        assert_eq!(find(&[(10, "of 10")], false), Some(Some((10, "of 10"))));
        // It has ended.
        assert_eq!(find(&[(10, ""), (11, ""), (12, "of 12")], false), Some(Some((12, "of 12"))));
        assert_eq!(find(&[(11, ""), (12, "of 12")], false), Some(Some((12, "of 12"))));
        let nothing = [(10, ""), (11, ""), (12, "")];
        assert_eq!(find(&nothing, false), None, "one that is there has something");
        assert_eq!(find(&nothing, true), Some(None));
        let full = |_| Err::<Option<()>, _>(io::Error::from_raw_os_error(libc::EMFILE));
        let ask = super::find(10, || Ok(true), || Ok(vec![10]), full);
        assert_eq!(ask.unwrap_err().raw_os_error(), Some(libc::EMFILE), "it is not known to be gone");
    }

    #[test]
    fn who_has_the_same_memory_is_said_of_those_that_have_some() {
        let own = nix::unistd::getpid().as_raw();
        assert!(share_memory(&broker(), own, own).unwrap());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(!share_memory(&broker(), own, pid).unwrap());
        let pidfd = sys::pidfd_open(pid).unwrap();
        child.kill().unwrap();
        while !has_ended(&pidfd).unwrap() {
            std::thread::yield_now();
        }
        // Nobody has waited for it yet.
        assert!(share_memory(&broker(), pid, pid).is_err());
        assert_eq!(uvm_mappings(&broker(), pid).unwrap(), []);
        child.wait().unwrap();
        assert!(uvm_mappings(&broker(), pid).is_err());
    }

    #[test]
    fn memory_is_there_until_its_last_owner_has_left_it() {
        let watchdog = || Arc::new(ProcReadWatchdog::new().unwrap());
        let own = nix::unistd::getpid().as_raw();
        let memory = ProcessMemory::open(own, own, broker(), watchdog()).unwrap();
        assert!(memory.is_there() && memory.is_its_process_s().unwrap());
        assert!(memory.uvm_mappings().is_ok());
        // Waits for a line, and executes another program.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line; exec sleep 1000"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        waits(pid, libc::SYS_read);
        let before = ProcessMemory::open(pid, pid, broker(), watchdog()).unwrap();
        assert!(before.is_there() && before.is_its_process_s().unwrap());
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
        waits(pid, libc::SYS_clock_nanosleep);
        assert!(!before.is_there() && !before.is_its_process_s().unwrap());
        assert!(before.uvm_mappings().is_err());
        let after = ProcessMemory::open(pid, pid, broker(), watchdog()).unwrap();
        assert!(after.is_there() && after.is_its_process_s().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!after.is_there() && !after.is_its_process_s().unwrap());
    }

    #[test]
    fn a_program_is_identified_by_where_it_begins() {
        let stat = |flags: u64, places: [u64; 6]| {
            let fields: Vec<String> = (3..=52)
                .map(|field| match ([26, 28, 45, 47, 48, 50].iter().position(|of| *of == field), field) {
                    (Some(place), _) => places[place].to_string(),
                    (None, 3) => "S".to_owned(),
                    (None, 9) => flags.to_string(),
                    (None, other) => other.to_string(),
                })
                .collect();
            ExecFingerprint::parse(&format!("7 (a) b (c) {}\n", fields.join(" ")))
        };
        let places = [1, 2, 3, 4, 5, 6];
        let (forked, executed) = (stat(0x40_0040, places).unwrap(), stat(0x40_0100, places).unwrap());
        assert!(executed.differs_from(forked), "all of it may be where it was");
        assert!(!executed.differs_from(executed) && !forked.differs_from(forked));
        // Its first thread has ended.
        assert!(!ExecFingerprint { is_forked: None, ..forked }.differs_from(forked));
        for place in 0..6 {
            let mut others = places;
            others[place] += 16;
            assert!(stat(0x40_0100, others).unwrap().differs_from(executed), "{place}");
        }
        assert_eq!(stat(0x40_0000, [1, 0, 3, 4, 5, 6]), None, "of a thread that has ended");
        assert_eq!(ExecFingerprint::parse("7 (a"), None);
    }

    /// A program counts as started as soon as its descriptors are closed, and has no addresses
    /// then.
    #[test]
    fn programs_that_have_just_been_executed_have_a_fingerprint() {
        let broker = broker();
        for _ in 0..200 {
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            let pid = child.id().cast_signed();
            let ask = ExecFingerprint::read(&broker, pid, &sys::pidfd_open(pid).unwrap());
            child.kill().unwrap();
            child.wait().unwrap();
            ask.unwrap();
        }
    }

    #[test]
    fn every_thread_reports_the_same_addresses() {
        let own = nix::unistd::getpid().as_raw();
        let ask = std::thread::spawn(move || {
            let thread = nix::unistd::gettid().as_raw();
            let stat = fs::read_to_string(format!("/proc/{own}/task/{thread}/stat")).unwrap();
            ExecFingerprint::parse(&stat).unwrap().begins
        });
        assert_eq!(
            ask.join().unwrap(),
            ExecFingerprint::read(&broker(), own, &sys::pidfd_open(own).unwrap()).unwrap().begins
        );
    }

    #[test]
    fn who_has_ended_and_was_not_waited_for_has_no_memory() {
        let mut child = sleeper();
        let pid = child.id().cast_signed();
        let memory = ProcessMemory::open(pid, pid, broker(), Arc::new(ProcReadWatchdog::new().unwrap())).unwrap();
        assert!(memory.is_its_process_s().unwrap() && !is_leaving(&broker(), pid));
        child.kill().unwrap();
        while !has_ended(&memory.process).unwrap() {
            std::thread::yield_now();
        }
        assert!(!memory.is_its_process_s().unwrap() && !is_leaving(&broker(), pid));
        assert_eq!(memory.uvm_mappings().unwrap_err().kind(), io::ErrorKind::NotFound);
        child.wait().unwrap();
        assert!(!is_leaving(&broker(), pid));
    }

    #[test]
    fn uvm_mappings_are_found_by_their_offset_whatever_the_node_is_called() {
        let maps = b"\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
7f0000200000-7f0000400000 rw-s 7f0000200000 00:06 397                    /dev/nvidia-uvm
7f0000600000-7f0000a00000 rw-s 7f0000600000 00:52 12                     /tmp/my node
7f0001000000-7f0001001000 r--s 00001000 fe:00 77                         /etc/ld.so.cache
7f0001800000-7f0001801000 rw-s 7f0001800000 fe:00 77                     /tmp/\xff
7f0002000000-7f0002001000 rw-s 00000000 00:06 397                        /dev/nvidia-uvm
7f0003000000-7f0003001000 rw-s 00000000 00:01 5                          /dev/zero (deleted)
7f0004000000-7f0004001000 rw-p 7f0004000000 fe:00 5                      /private
nonsense
7f00-6f00 rw-s 7f00 00:06 397 /dev/nvidia-uvm
";
        let found = parse_maps(&maps[..]).unwrap().unwrap();
        let found: Vec<(u64, u64)> = found.iter().map(|found| (found.address, found.length)).collect();
        let expected = [0x7f00_0020_0000, 0x7f00_0060_0000, 0x7f00_0180_0000, 0x7f00_0200_0000];
        assert_eq!(found.iter().map(|(address, _)| *address).collect::<Vec<_>>(), expected);
        assert_eq!(found.iter().map(|(_, length)| *length).collect::<Vec<_>>(), [0x20_0000, 0x40_0000, 0x1000, 0x1000]);
        assert_eq!(parse_maps(&b""[..]).unwrap(), None, "the memory is gone");
    }
}
