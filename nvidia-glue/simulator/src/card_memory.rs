//! The memory of a simulated card, which every process of the machine that simulates the driver
//! takes from.
//!
//! What is taken is in a small file for each card, one line for each run of it that a process has:
//! `pid start-time bytes address`, by address, then `end`. Whoever takes or gives back holds its
//! lock; lines of processes that are gone are dropped on the way, as the driver frees what a dead
//! process held, unless somebody has its files ([`super::left_files`]). As in the driver's
//! allocator, the first place that is large enough is taken: memory that lies badly can be free and
//! of no use.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use base::{ProcessId, file_lock::FileLock};

use super::{left_files::LeftFiles, participants::is_there};

/// Smallest piece that the driver's allocator hands out (PMA's granule): 4 KiB pages take as much
/// (src/nvidia/src/kernel/mem_mgr/video_mem.c, `_vidmemPmaAllocate`).
pub(super) const GRANULE: u64 = 64 << 10;

/// After the last line that counts: what an earlier, longer content has left behind is no content.
const END: &str = "end";

#[derive(Debug)]
pub(super) struct CardMemory {
    path: PathBuf,
    capacity: u64,
    own: ProcessId,
    /// Files that processes which have ended left open; `None`: nothing is kept for that.
    left: Option<Arc<LeftFiles>>,
}

/// Layout that a piece is to have.
#[derive(Debug, Clone, Copy)]
pub(super) struct PieceLayout {
    /// In one run, which begins at a multiple of this.
    pub(super) run: Option<u64>,
    /// If there is no such run, in pages of this, each of which may be anywhere.
    pub(super) pages: Option<u64>,
}

impl PieceLayout {
    /// In one run, anywhere.
    pub(super) const ANYWHERE: Self = Self { run: Some(1), pages: None };
}

/// A piece of a card's memory, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Piece {
    memory: Arc<CardMemory>,
    /// Addresses and bytes.
    runs: Vec<(u64, u64)>,
}

impl CardMemory {
    /// The memory of the card called `uuid`, with the file in `directory`; `own` is this process.
    pub(super) fn new(directory: &Path, uuid: &str, capacity: u64, own: ProcessId) -> io::Result<Self> {
        let memory = Self { path: directory.join(format!("{uuid}.used")), capacity, own, left: None };
        // Here, and not at each use: a mediator may not make files any more by then.
        OpenOptions::new().write(true).create(true).truncate(false).open(&memory.path)?;
        Ok(memory)
    }

    /// With what processes have left in files that others have.
    pub(super) fn with_left(self, left: Arc<LeftFiles>) -> Self {
        Self { left: Some(left), ..self }
    }

    pub(super) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bytes that all processes have taken.
    pub(super) fn used(&self) -> io::Result<u64> {
        self.locked(|lines| Ok(lines.iter().fold(0, |sum: u64, line| sum.saturating_add(line.bytes))))
    }

    /// Takes `bytes`; `None` when so much is not free, or does not lie as it should.
    pub(super) fn take(self: &Arc<Self>, bytes: u64, layout: PieceLayout) -> io::Result<Option<Piece>> {
        let taken = self.locked(|lines| {
            let runs = self.find(lines, bytes, layout);
            for &(address, bytes) in runs.iter().flatten() {
                self.add(lines, address, bytes);
            }
            Ok(runs)
        })?;
        Ok(taken.map(|runs| Piece { memory: Arc::clone(self), runs }))
    }

    /// First gaps that will do.
    fn find(&self, lines: &[Line], bytes: u64, layout: PieceLayout) -> Option<Vec<(u64, u64)>> {
        let ends = std::iter::once(0).chain(lines.iter().map(|line| line.address.saturating_add(line.bytes)));
        let begins = lines.iter().map(|line| line.address).chain([self.capacity]);
        let gaps: Vec<(u64, u64)> = ends.zip(begins).filter(|(begin, end)| begin < end).collect();
        let fits = |&(begin, end): &(u64, u64)| {
            let address = begin.checked_next_multiple_of(layout.run?)?;
            (address.checked_add(bytes)? <= end).then_some((address, bytes))
        };
        let run = gaps.iter().find_map(fits).map(|run| vec![run]);
        run.or_else(|| pages(&gaps, bytes, layout.pages?))
    }

    fn add(&self, lines: &mut Vec<Line>, address: u64, bytes: u64) {
        let at = lines.partition_point(|line| line.address < address);
        lines.insert(at, Line { process: self.own, bytes, address });
        for at in [at + 1, at] {
            let Some([before, next]) = at.checked_sub(1).and_then(|first| lines.get_mut(first..=at)) else { continue };
            if before.process == next.process && before.address + before.bytes == next.address {
                before.bytes += next.bytes;
                lines.remove(at);
            }
        }
    }

    fn give_back(&self, runs: &[(u64, u64)]) -> io::Result<()> {
        self.locked(|lines| {
            for &(address, bytes) in runs {
                let is_of = |line: &Line| {
                    line.process == self.own && (line.address..line.address + line.bytes).contains(&address)
                };
                let Some(at) = lines.iter().position(is_of) else { continue };
                let line = lines.remove(at);
                let (end, line_end) = (address + bytes, line.address + line.bytes);
                let before = Line { bytes: address - line.address, ..line };
                let after = Line { address: end, bytes: line_end.saturating_sub(end), ..line };
                lines.splice(at..at, [before, after].into_iter().filter(|line| line.bytes > 0));
            }
            Ok(())
        })
    }

    /// Reads the lines of living processes, changes them, and writes them when they have changed.
    fn locked<T>(&self, change: impl FnOnce(&mut Vec<Line>) -> io::Result<T>) -> io::Result<T> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let file = FileLock::wait(file)?;
        let before = read(&file)?;
        let mut lines = before.clone();
        let has_left = |process| self.left.as_ref().is_some_and(|left| left.has_left(process));
        lines.retain(|line| line.process == self.own || is_there(line.process) || has_left(line.process));
        let answer = change(&mut lines)?;
        if lines != before {
            write(&file, &lines)?;
        }
        Ok(answer)
    }
}

/// Runs for `bytes` in pages, each of them wherever there is room; `None`: there is too little.
fn pages(gaps: &[(u64, u64)], bytes: u64, page: u64) -> Option<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    let mut left = bytes;
    for &(begin, end) in gaps {
        let Some(begin) = begin.checked_next_multiple_of(page) else { break };
        let length = (end.saturating_sub(begin) / page * page).min(left);
        if length > 0 {
            runs.push((begin, length));
            left -= length;
        }
    }
    (left == 0).then_some(runs)
}

impl Piece {
    /// Returns its first address.
    pub(super) fn address(&self) -> u64 {
        self.runs.first().map_or(0, |(address, _)| *address)
    }

    /// Returns whether it is one run.
    pub(super) fn is_contiguous(&self) -> bool {
        self.runs.len() < 2
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(_, bytes)| *bytes).sum()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Err(error) = self.memory.give_back(&self.runs) {
            tracing::warn!(%error, path = %self.memory.path.display(), "simulated memory is not given back");
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    process: ProcessId,
    bytes: u64,
    address: u64,
}

fn read(mut file: &File) -> io::Result<Vec<Line>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut lines: Vec<Line> = text.lines().take_while(|line| *line != END).filter_map(parse).collect();
    lines.sort_by_key(|line| line.address);
    Ok(lines)
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let (pid, start_time, bytes, address) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let process = ProcessId { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? };
    let (bytes, address): (u64, u64) = (bytes.parse().ok()?, address.parse().ok()?);
    address.checked_add(bytes)?;
    Some(Line { process, bytes, address })
}

/// Writes the lines at once, so that a reader never sees half of them, whenever the writer is
/// killed.
fn write(file: &File, lines: &[Line]) -> io::Result<()> {
    let mut text = String::new();
    for Line { process, bytes, address } in lines {
        text.push_str(&format!("{} {} {bytes} {address}\n", process.pid, process.start_time));
    }
    text.push_str(END);
    text.push('\n');
    file.write_all_at(text.as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(directory: &Path) -> Arc<CardMemory> {
        Arc::new(CardMemory::new(directory, "GPU-1", 10 * GRANULE, ProcessId::current().unwrap()).unwrap())
    }

    #[test]
    fn pieces_are_taken_and_given_back_across_users() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (memory(directory.path()), memory(directory.path()));
        let first = one.take(6 * GRANULE, PieceLayout::ANYWHERE).unwrap().unwrap();
        assert!(other.take(5 * GRANULE, PieceLayout::ANYWHERE).unwrap().is_none());
        let second = other.take(4 * GRANULE, PieceLayout::ANYWHERE).unwrap().unwrap();
        assert_eq!(one.used().unwrap(), 10 * GRANULE);
        drop(first);
        assert_eq!(other.used().unwrap(), 4 * GRANULE);
        drop(second);
        assert_eq!(one.used().unwrap(), 0);
        assert!(one.take(u64::MAX, PieceLayout::ANYWHERE).unwrap().is_none());
    }

    /// One granule in use keeps a page of two from being had, unless its pages may be anywhere.
    #[test]
    fn the_first_place_that_will_do_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let memory = memory(directory.path());
        let page = PieceLayout { run: Some(2 * GRANULE), pages: None };
        let pieces: Vec<_> = (0..5).map(|_| memory.take(GRANULE, page).unwrap().unwrap()).collect();
        let addresses: Vec<_> = pieces.iter().map(Piece::address).collect();
        assert_eq!(addresses, [0, 2, 4, 6, 8].map(|granules| granules * GRANULE));
        assert!(memory.take(2 * GRANULE, page).unwrap().is_none());
        assert!(memory.take(2 * GRANULE, PieceLayout::ANYWHERE).unwrap().is_none());
        let scattered = memory.take(3 * GRANULE, PieceLayout { run: None, pages: Some(GRANULE) }).unwrap().unwrap();
        assert_eq!((scattered.bytes(), scattered.address(), scattered.is_contiguous()), (3 * GRANULE, GRANULE, false));
        drop(pieces);
        assert_eq!(memory.used().unwrap(), 3 * GRANULE);
        assert_eq!(memory.take(2 * GRANULE, page).unwrap().unwrap().address(), 6 * GRANULE);
    }

    #[test]
    fn what_dead_processes_held_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let memory = memory(directory.path());
        let own = ProcessId::current().unwrap();
        let text =
            format!("{} {} 65536 0\n{} {} 65536 65536\nend\n1 1 1 0\n", own.pid, own.start_time + 1, i32::MAX, 5);
        std::fs::write(&memory.path, text).unwrap();
        assert_eq!(memory.used().unwrap(), 0);
        assert_eq!(std::fs::read_to_string(&memory.path).unwrap().lines().next(), Some(END));
    }

    #[test]
    fn a_file_of_garbage_is_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let memory = memory(directory.path());
        std::fs::write(
            &memory.path,
            "a b c d\n1 2\n-5 -5 -5 -5\n1 1 99999999999999999999999 0\n1 1 9 18446744073709551610\n",
        )
        .unwrap();
        assert_eq!(memory.used().unwrap(), 0);
        let _piece = memory.take(GRANULE, PieceLayout::ANYWHERE).unwrap().unwrap();
        assert_eq!(memory.used().unwrap(), GRANULE);
    }
}
