//! The memory of a simulated card, which every process of the machine that simulates the driver takes from.
//!
//! What is taken is in a small file for each card, one line for each process: `pid start-time bytes`, then `end`. Whoever
//! takes or gives back holds its lock; lines of processes that are gone are dropped on the way, as the driver frees what a
//! dead process held.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::fcntl::{Flock, FlockArg};

use super::is_there;
use crate::ledger::Process;

/// Smallest piece that the driver's allocator hands out (PMA's granule): 4 KiB pages take as much
/// (src/nvidia/src/kernel/mem_mgr/video_mem.c, `_vidmemPmaAllocate`).
pub(super) const GRANULE: u64 = 64 << 10;

/// After the last line that counts: what an earlier, longer content has left behind is no content.
const END: &str = "end";

/// One card's memory.
#[derive(Debug)]
pub(super) struct CardMemory {
    path: PathBuf,
    capacity: u64,
    own: Process,
}

/// A piece of a card's memory, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Piece {
    memory: Arc<CardMemory>,
    bytes: u64,
}

impl CardMemory {
    /// The memory of the card called `uuid`, with the file in `directory`.
    pub(super) fn new(directory: &Path, uuid: &str, capacity: u64) -> io::Result<Self> {
        let own = Process::current()?;
        let memory = Self { path: directory.join(format!("{uuid}.used")), capacity, own };
        // Here, and not at each use: a mediator may not make files any more by then.
        OpenOptions::new().write(true).create(true).truncate(false).open(&memory.path)?;
        memory.locked(|_| Ok(()))?;
        Ok(memory)
    }

    pub(super) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What all processes have taken.
    pub(super) fn used(&self) -> io::Result<u64> {
        self.locked(|lines| Ok(sum(lines)))
    }

    /// Takes `bytes`; `None` when so much is not free.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> io::Result<Option<Piece>> {
        let taken = self.locked(|lines| {
            let fits = sum(lines).checked_add(bytes).is_some_and(|sum| sum <= self.capacity);
            if fits {
                self.own_line(lines).bytes += bytes;
            }
            Ok(fits)
        })?;
        Ok(taken.then(|| Piece { memory: Arc::clone(self), bytes }))
    }

    fn give_back(&self, bytes: u64) -> io::Result<()> {
        self.locked(|lines| {
            let own = self.own_line(lines);
            own.bytes = own.bytes.saturating_sub(bytes);
            Ok(())
        })
    }

    fn own_line<'a>(&self, lines: &'a mut Vec<Line>) -> &'a mut Line {
        let position = lines.iter().position(|line| line.process == self.own).unwrap_or_else(|| {
            lines.push(Line { process: self.own, bytes: 0 });
            lines.len() - 1
        });
        &mut lines[position]
    }

    /// Reads the lines of living processes, changes them, and writes them when they have changed.
    fn locked<T>(&self, change: impl FnOnce(&mut Vec<Line>) -> io::Result<T>) -> io::Result<T> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| io::Error::from(error))?;
        let before = read(&file)?;
        let mut lines = before.clone();
        lines.retain(|line| line.process == self.own || is_there(line.process));
        let answer = change(&mut lines)?;
        lines.retain(|line| line.bytes > 0);
        if lines != before {
            write(&file, &lines)?;
        }
        Ok(answer)
    }
}

impl Piece {
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Err(error) = self.memory.give_back(self.bytes) {
            tracing::warn!(%error, path = %self.memory.path.display(), bytes = self.bytes, "simulated memory is not given back");
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    process: Process,
    bytes: u64,
}

fn sum(lines: &[Line]) -> u64 {
    lines.iter().fold(0, |sum, line| sum.saturating_add(line.bytes))
}

fn read(mut file: &File) -> io::Result<Vec<Line>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text.lines().take_while(|line| *line != END).filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let (pid, start_time, bytes) = (words.next()?, words.next()?, words.next()?);
    let process = Process { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? };
    Some(Line { process, bytes: bytes.parse().ok()? })
}

/// In one write, so that a reader never sees half of it, whenever the writer is killed.
fn write(file: &File, lines: &[Line]) -> io::Result<()> {
    let mut text = String::new();
    for Line { process, bytes } in lines {
        text.push_str(&format!("{} {} {bytes}\n", process.pid, process.start_time));
    }
    text.push_str(END);
    text.push('\n');
    file.write_all_at(text.as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(directory: &Path) -> Arc<CardMemory> {
        Arc::new(CardMemory::new(directory, "GPU-1", 10 * GRANULE).unwrap())
    }

    #[test]
    fn pieces_are_taken_and_given_back_across_users() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (memory(directory.path()), memory(directory.path()));
        let first = one.take(6 * GRANULE).unwrap().unwrap();
        assert!(other.take(5 * GRANULE).unwrap().is_none());
        let second = other.take(4 * GRANULE).unwrap().unwrap();
        assert_eq!(one.used().unwrap(), 10 * GRANULE);
        drop(first);
        assert_eq!(other.used().unwrap(), 4 * GRANULE);
        drop(second);
        assert_eq!(one.used().unwrap(), 0);
        assert!(one.take(u64::MAX).unwrap().is_none());
    }

    #[test]
    fn what_dead_processes_held_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let memory = memory(directory.path());
        let own = Process::current().unwrap();
        let text = format!("{} {} 65536\n{} {} 65536\nend\n1 1 1\n", own.pid, own.start_time + 1, i32::MAX, 5);
        std::fs::write(&memory.path, text).unwrap();
        assert_eq!(memory.used().unwrap(), 0);
        assert_eq!(std::fs::read_to_string(&memory.path).unwrap().lines().next(), Some(END));
    }

    #[test]
    fn a_file_of_garbage_is_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let memory = memory(directory.path());
        std::fs::write(&memory.path, "a b c\n1 2\n-5 -5 -5\n1 1 99999999999999999999999\n").unwrap();
        assert_eq!(memory.used().unwrap(), 0);
        let _piece = memory.take(GRANULE).unwrap().unwrap();
        assert_eq!(memory.used().unwrap(), GRANULE);
    }
}
