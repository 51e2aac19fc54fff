//! Control files that processes have met, for the time after these have ended: the driver frees
//! what was made on a file when its last descriptor is closed, and another process may have one.
//!
//! One line a file, `pid start-time byte`, the byte being the one that is locked for the file
//! ([`super::open_files`]). What a process made counts until all its control files are closed.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use base::ProcessId;
use nix::fcntl::{Flock, FlockArg};

use super::{
    open_files::{FileId, is_taken},
    participants::is_there,
};

/// After the last line that counts.
const END: &str = "end";

/// The control files of all processes that simulate the driver.
#[derive(Debug)]
pub(super) struct LeftFiles {
    path: PathBuf,
    /// A control file of our own, to query the locks of others.
    control: File,
    own: ProcessId,
}

impl LeftFiles {
    pub(super) fn new(directory: &Path, control: File, own: ProcessId) -> io::Result<Self> {
        let path = directory.join("control-files");
        // Here, and not at each use: a mediator may not make files any more by then.
        OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        Ok(Self { path, control, own })
    }

    /// Adds a file of this process, and drops those that count for nobody any more.
    pub(super) fn add(&self, id: FileId) -> io::Result<()> {
        let file = self.lock()?;
        let mut lines = read(&file)?;
        lines.retain(|line| is_there(line.0) || self.is_open(line.1));
        lines.push((self.own, id));
        let text = lines.iter().map(|(process, id)| format!("{} {} {}\n", process.pid, process.start_time, id.byte()));
        // A mediator cannot cut files.
        file.write_all_at((text.collect::<String>() + END + "\n").as_bytes(), 0)
    }

    /// Returns whether a process, which has ended, has left a control file open.
    pub(super) fn has_left(&self, process: ProcessId) -> bool {
        let lines = self.lock().and_then(|file| read(&file)).unwrap_or_default();
        lines.iter().any(|line| line.0 == process && self.is_open(line.1))
    }

    fn is_open(&self, id: FileId) -> bool {
        is_taken(&self.control, id).unwrap_or(false)
    }

    fn lock(&self) -> io::Result<Flock<File>> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
    }
}

fn read(mut file: &File) -> io::Result<Vec<(ProcessId, FileId)>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text.lines().take_while(|line| *line != END).filter_map(parse).collect())
}

fn parse(line: &str) -> Option<(ProcessId, FileId)> {
    let mut words = line.split(' ');
    let process = ProcessId { pid: words.next()?.parse().ok()?, start_time: words.next()?.parse().ok()? };
    Some((process, FileId::of_byte(words.next()?.parse().ok()?)))
}
