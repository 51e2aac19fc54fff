//! The switches of a card's compute engine, as a ring of records in a file: what the firmware of a
//! real card notes.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use super::super::bytes::{get_u64, put_u64};
use super::time::{GroupKey, Switch};

/// Bytes of a record: number, instant, process, its start time, group, whether it came.
const RECORD: usize = 48;
/// Records that are kept.
pub(super) const KEPT: u64 = 4096;

/// The ring. Whoever reads or writes holds the lock of the card's channels.
#[derive(Debug)]
pub(super) struct Log(File);

impl Log {
    pub(super) fn new(directory: &Path, uuid: &str) -> io::Result<Self> {
        let path = directory.join(format!("{uuid}.switches"));
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map(Self)
    }

    pub(super) fn add(&self, switches: &[Switch]) -> io::Result<()> {
        for Switch { number, at_ns, group: GroupKey { pid, start_time, group }, on } in switches {
            let mut record = [0; RECORD];
            let words = [*number, *at_ns, u64::from(pid.cast_unsigned()), *start_time, *group, u64::from(*on)];
            for (at, word) in (0..).step_by(8).zip(words) {
                put_u64(&mut record, at, word);
            }
            self.0.write_all_at(&record, number % KEPT * RECORD as u64)?;
        }
        Ok(())
    }

    /// The switch with this number, if it is still there.
    pub(super) fn get(&self, number: u64) -> io::Result<Option<Switch>> {
        let mut record = [0; RECORD];
        match self.0.read_exact_at(&mut record, number % KEPT * RECORD as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let [found, at_ns, pid, start_time, group, on] = [0, 8, 16, 24, 32, 40].map(|at| get_u64(&record, at));
        let Ok(pid) = i32::try_from(pid) else { return Ok(None) };
        let switch = Switch { number, at_ns, group: GroupKey { pid, start_time, group }, on: on != 0 };
        Ok((found == number).then_some(switch))
    }
}
