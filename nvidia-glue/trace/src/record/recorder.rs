//! System calls of threads as events of a trace.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    time::{Duration, Instant},
};

use abi::{Abi, Node};
use fence::{Arch, NotifiedCall};

use super::{
    capture::{Captured, Memory},
    files::OpenFiles,
    sink::Sink,
    text,
};
use crate::{Event, Header, Ioctl, Line, TracedFile};

/// Turns system calls into events.
#[derive(Debug)]
pub(super) struct Recorder {
    abi: Abi,
    started: Instant,
    threads: HashMap<i32, Thread>,
    files: OpenFiles,
    /// Processes that have had one of them: the others' doings are not of interest.
    users: HashSet<i32>,
    /// Mappings of UVM, by process: address and length.
    mappings: HashMap<i32, Vec<(u64, u64)>>,
    sink: Sink,
}

#[derive(Debug)]
struct Thread {
    /// Its process.
    pid: i32,
    /// The system call that it is in.
    pending: Option<Pending>,
}

#[derive(Debug)]
enum Pending {
    Open,
    Close { first: i32, last: i32 },
    Duplicate { from: i32 },
    Ioctl { file: u32, command: u32, at: Duration, captured: Box<Captured> },
    Mmap { at: Duration, mmap: Mmap },
    Munmap { at: Duration, address: u64, length: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Mmap {
    file: u32,
    address: u64,
    length: u64,
    protection: u32,
    flags: u32,
    offset: u64,
}

impl Recorder {
    pub(super) fn new(abi: Abi, mut sink: Sink, header: &Header) -> io::Result<Self> {
        sink.header(header)?;
        Ok(Self {
            abi,
            started: Instant::now(),
            threads: HashMap::new(),
            files: OpenFiles::default(),
            users: HashSet::new(),
            mappings: HashMap::new(),
            sink,
        })
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.sink.finish()
    }

    /// Adds a thread that has stopped for the first time.
    pub(super) fn begun(&mut self, tid: i32) {
        self.threads.entry(tid).or_insert_with(|| Thread { pid: process_of(tid), pending: None });
    }

    /// Records that a thread has made another one, or a process.
    pub(super) fn made(&mut self, tid: i32, child: i32) -> io::Result<()> {
        self.begun(child);
        let (parent, child) = (self.pid(tid), self.pid(child));
        if parent == child {
            return Ok(());
        }
        // A child's mappings of UVM are not copied (VM_DONTCOPY).
        if !self.files.inherited(parent, child) {
            return Ok(());
        }
        self.users.insert(child);
        self.emit(tid, self.started.elapsed(), Event::Fork { child })
    }

    /// Records that a thread's process has executed another program; `former` is the thread that
    /// has become its only one.
    pub(super) fn executed(&mut self, tid: i32, former: i32) -> io::Result<()> {
        if former != tid {
            self.threads.remove(&former);
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.pending = None;
        }
        let pid = self.pid(tid);
        self.mappings.remove(&pid);
        if !self.users.contains(&pid) {
            return Ok(());
        }
        let now = self.started.elapsed();
        self.emit(tid, now, Event::Exec)?;
        let closed = self.files.executed(pid);
        self.closed(tid, now, closed)
    }

    /// Records that a thread has ended.
    pub(super) fn ended(&mut self, tid: i32) -> io::Result<()> {
        let Some(thread) = self.threads.remove(&tid) else { return Ok(()) };
        // The first thread's end is reported last.
        if thread.pid != tid {
            return Ok(());
        }
        self.mappings.remove(&tid);
        if !self.users.remove(&tid) {
            return Ok(());
        }
        let now = self.started.elapsed();
        self.emit(tid, now, Event::Exit)?;
        let closed = self.files.ended(tid);
        self.closed(tid, now, closed)
    }

    /// Captures a system call that a thread is about to make.
    pub(super) fn entered(&mut self, tid: i32, audit_arch: u32, number: u64, arguments: [u64; 6]) {
        let pending = self.pending(tid, audit_arch, number, arguments);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.pending = pending;
        }
    }

    fn pending(&mut self, tid: i32, audit_arch: u32, number: u64, arguments: [u64; 6]) -> Option<Pending> {
        let [first, second, third, ..] = arguments;
        let arch = Arch::native()?;
        let number = i32::try_from(number).ok()?;
        match arch.call(audit_arch, number) {
            Some(NotifiedCall::Ioctl) => return self.ioctl(tid, descriptor(first), low(second), third),
            Some(NotifiedCall::Mmap { offset_unit }) => return self.mmap(tid, arguments, offset_unit),
            None => {}
        }
        // 32-bit programs open files by other numbers; theirs are found when they are used.
        arch.call(audit_arch, NATIVE_IOCTL)?;
        Some(match i64::from(number) {
            libc::SYS_openat | libc::SYS_openat2 => Pending::Open,
            libc::SYS_close => Pending::Close { first: descriptor(first), last: descriptor(first) },
            libc::SYS_close_range if third == 0 => {
                let last = i32::try_from(second & 0xffff_ffff).unwrap_or(i32::MAX);
                Pending::Close { first: descriptor(first), last }
            }
            libc::SYS_dup | libc::SYS_dup3 => Pending::Duplicate { from: descriptor(first) },
            libc::SYS_fcntl if [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC].contains(&descriptor(second)) => {
                Pending::Duplicate { from: descriptor(first) }
            }
            libc::SYS_munmap => Pending::Munmap { at: self.started.elapsed(), address: first, length: second },
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => Pending::Open,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => Pending::Duplicate { from: descriptor(first) },
            _ => return None,
        })
    }

    fn ioctl(&mut self, tid: i32, fd: i32, command: u32, argument: u64) -> Option<Pending> {
        let (file, node) = self.file(tid, fd)?;
        let at = self.started.elapsed();
        let memory = Memory::of(tid).ok()?;
        let captured = Captured::before(&memory, self.abi, node, command, argument);
        Some(Pending::Ioctl { file, command, at, captured: Box::new(captured) })
    }

    fn mmap(&mut self, tid: i32, arguments: [u64; 6], offset_unit: u64) -> Option<Pending> {
        let [address, length, protection, flags, fd, offset] = arguments;
        if low(flags) & libc::MAP_ANONYMOUS.cast_unsigned() != 0 {
            return None;
        }
        let (file, _) = self.file(tid, descriptor(fd))?;
        let (protection, flags) = (low(protection), low(flags));
        let offset = offset.wrapping_mul(offset_unit);
        let mmap = Mmap { file, address, length, protection, flags, offset };
        Some(Pending::Mmap { at: self.started.elapsed(), mmap })
    }

    /// The driver's file behind a descriptor. One that is seen for the first time was passed to the
    /// process, or is older than it.
    fn file(&mut self, tid: i32, fd: i32) -> Option<(u32, Node)> {
        let seen = self.files.find(self.pid(tid), fd)?;
        let node = self.files.node(seen.file)?.clone();
        self.users.insert(self.pid(tid));
        if seen.is_new {
            // What cannot be written now cannot be written at the next event either, which says so.
            let _ = self.emit(tid, self.started.elapsed(), Event::Open { file: seen.file, node: node.name });
        }
        Some((seen.file, node.node))
    }

    /// Records the return of a system call.
    pub(super) fn returned(&mut self, tid: i32, result: i64) -> io::Result<()> {
        let Some(pending) = self.threads.get_mut(&tid).and_then(|thread| thread.pending.take()) else { return Ok(()) };
        let pid = self.pid(tid);
        let now = self.started.elapsed();
        match pending {
            Pending::Open => {
                let opened = i32::try_from(result).ok().filter(|fd| *fd >= 0).and_then(|fd| self.files.opened(pid, fd));
                let node = opened.and_then(|file| self.files.node(file)).map(|node| node.name.clone());
                if let (Some(file), Some(node)) = (opened, node) {
                    self.users.insert(pid);
                    self.emit(tid, now, Event::Open { file, node })?;
                }
                Ok(())
            }
            Pending::Close { first, last } => {
                let closed = self.files.closed(pid, first, last);
                self.closed(tid, now, closed)
            }
            Pending::Duplicate { from } => {
                let to = i32::try_from(result).ok().filter(|fd| *fd >= 0);
                let closed = to.map(|to| self.files.duplicated(pid, from, to)).unwrap_or_default();
                self.closed(tid, now, closed)
            }
            Pending::Ioctl { file, command, at, captured } => self.called(tid, file, command, at, &captured, result),
            Pending::Mmap { at, mmap } => self.mapped(tid, at, mmap, result),
            Pending::Munmap { at, address, length } if result == 0 => self.unmapped(tid, at, address, length),
            Pending::Munmap { .. } => Ok(()),
        }
    }

    fn called(
        &mut self,
        tid: i32,
        file: u32,
        command: u32,
        at: Duration,
        captured: &Captured,
        result: i64,
    ) -> io::Result<()> {
        let memory = Memory::of(tid).ok();
        let (args, buffers) = captured.after(memory.as_ref());
        let mut files = Vec::new();
        for (holder, offset, number) in &captured.descriptors {
            let file = self.file(tid, *number).map(|(file, _)| file);
            files.push(TracedFile { holder: *holder, offset: *offset, file });
        }
        let call = Ioctl {
            file,
            command,
            name: captured.row.map(|row| row.name().to_owned()),
            subject: captured.call.as_ref().and_then(text::subject),
            status: captured.status(&args),
            args,
            buffers,
            files,
            result,
            took_us: micros(self.started.elapsed().saturating_sub(at)),
        };
        let node = self.files.node(file).map(|node| node.name.clone()).unwrap_or_default();
        let text = text::ioctl(&node, &call, captured.call.as_ref());
        self.write(tid, at, Event::Ioctl(call), &text)
    }

    fn mapped(&mut self, tid: i32, at: Duration, mmap: Mmap, result: i64) -> io::Result<()> {
        let Mmap { file, address, length, protection, flags, offset } = mmap;
        let is_uvm = self.files.node(file).is_some_and(|node| node.node == Node::Uvm);
        // A negative errno is one of the last page's values.
        if let (true, false) = (is_uvm, (-4095..0).contains(&result)) {
            self.mappings.entry(self.pid(tid)).or_default().push((result.cast_unsigned(), length));
        }
        self.emit(tid, at, Event::Mmap { file, address, length, protection, flags, offset, result })
    }

    fn unmapped(&mut self, tid: i32, at: Duration, address: u64, length: u64) -> io::Result<()> {
        let end = address.saturating_add(length);
        let pid = self.pid(tid);
        let Some(mappings) = self.mappings.get_mut(&pid) else { return Ok(()) };
        let touched = mappings.iter().any(|(start, size)| *start < end && address < start.saturating_add(*size));
        if !touched {
            return Ok(());
        }
        mappings.retain(|(start, size)| *start < address || start.saturating_add(*size) > end);
        self.emit(tid, at, Event::Munmap { address, length })
    }

    fn closed(&mut self, tid: i32, at: Duration, files: Vec<u32>) -> io::Result<()> {
        files.into_iter().try_for_each(|file| self.emit(tid, at, Event::Close { file }))
    }

    fn emit(&mut self, tid: i32, at: Duration, event: Event) -> io::Result<()> {
        let node = match &event {
            Event::Mmap { file, .. } => self.files.node(*file).map(|node| node.name.clone()),
            _ => None,
        };
        let text = text::event(&event, node.as_deref());
        self.write(tid, at, event, &text)
    }

    fn write(&mut self, tid: i32, at: Duration, event: Event, text: &str) -> io::Result<()> {
        let pid = self.threads.get(&tid).map_or(tid, |thread| thread.pid);
        self.sink.event(&Line { at_us: micros(at), pid, tid, event }, text)
    }

    fn pid(&self, tid: i32) -> i32 {
        self.threads.get(&tid).map_or_else(|| process_of(tid), |thread| thread.pid)
    }
}

/// `ioctl` of this machine's own entry.
#[cfg(target_arch = "x86_64")]
const NATIVE_IOCTL: i32 = 16;
#[cfg(not(target_arch = "x86_64"))]
const NATIVE_IOCTL: i32 = 29;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The kernel takes the low half of a register for these.
fn low(register: u64) -> u32 {
    (register & 0xffff_ffff) as u32
}

fn descriptor(register: u64) -> i32 {
    low(register).cast_signed()
}

/// The process of a thread; the thread itself when it cannot be read any more.
fn process_of(tid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok()).unwrap_or(tid)
}
