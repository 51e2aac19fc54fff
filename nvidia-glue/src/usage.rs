//! What a container uses, written by its mediator and read by whoever asks (`egpu ps`).

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use runtime_config::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What a container uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Card by card, in the container's order.
    pub cards: Vec<CardUsage>,
    /// Its processes that use the driver, by the mediator's pid namespace.
    pub processes: Vec<ProcessUsage>,
    /// Calls that were refused for want of memory.
    pub denials: u64,
    /// Processes that were to be killed for asking too much.
    pub kills: u64,
    /// Calls that no table has and that were passed.
    pub unknown_passed: u64,
    /// Calls that no table has and that were refused.
    pub unknown_refused: u64,
    /// Driver calls in all.
    pub calls: u64,
}

/// What a container uses of one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardUsage {
    /// `GPU-...`.
    pub uuid: String,
    /// Bytes charged.
    pub used: Bytes,
    /// Bytes that it may have.
    pub limit: Bytes,
    /// The most that was ever charged.
    pub peak: Bytes,
}

/// What one process uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Its pid in the mediator's pid namespace.
    pub pid: i32,
    /// Its pid in the container.
    pub pid_in_container: i32,
    /// Bytes charged to it, by card UUID.
    pub cards: Vec<(String, Bytes)>,
}

/// The file through which a mediator tells what its container uses.
///
/// One block at offset 0: the length of the JSON text (4 bytes, little-endian), the first 8 bytes of its SHA-256, the text. It is
/// written whole with one call and without a lock; a reader that sees half of it finds that the sum is wrong, and reads again.
#[derive(Debug)]
pub struct UsageFile {
    file: File,
}

/// What stands before the text.
const HEADER: usize = 4 + CHECKSUM;
const CHECKSUM: usize = 8;
/// No container uses that many processes; whatever is longer is not ours.
const LONGEST: usize = 16 << 20;
/// A writer is done within microseconds; this often it is met halfway only if it died there.
const ATTEMPTS: u32 = 100;

/// Why the usage of a container cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum ReadUsageError {
    /// The file cannot be read; `NotFound` when the container has no mediator.
    #[error("the usage file {} cannot be read", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is in it was not written whole, or not by egpu.
    #[error("the usage file {} is damaged; its mediator may have died while it wrote", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
    },
    /// It is of another version.
    #[error("the usage file {} is of another version of egpu", path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// Where it differs.
        #[source]
        source: serde_json::Error,
    },
}

impl UsageFile {
    /// Makes the file (mode 0644, so that everybody may look), or takes over the one that is there.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
        let created = Self { file };
        created.write(&Usage::default())?;
        Ok(created)
    }

    /// Replaces what the file says.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, usage: &Usage) -> io::Result<()> {
        let text = serde_json::to_vec(usage)?;
        let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut block = Vec::with_capacity(HEADER + text.len());
        block.extend(length.to_le_bytes());
        block.extend(checksum(&text));
        block.extend(text);
        self.file.write_all_at(&block, 0)
    }

    /// What the file at `path` says.
    ///
    /// # Errors
    /// When it is missing, damaged, or of another version.
    pub fn read(path: &Path) -> Result<Usage, ReadUsageError> {
        for _ in 0..ATTEMPTS {
            let file = fs::read(path).map_err(|source| ReadUsageError::Read { path: path.to_owned(), source })?;
            if let Some(text) = whole(&file) {
                return serde_json::from_slice(text)
                    .map_err(|source| ReadUsageError::Format { path: path.to_owned(), source });
            }
            std::thread::yield_now();
        }
        Err(ReadUsageError::Damaged { path: path.to_owned() })
    }
}

/// The text of a block that was written whole.
fn whole(file: &[u8]) -> Option<&[u8]> {
    let (length, rest) = file.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<CHECKSUM>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok().filter(|length| *length <= LONGEST)?;
    let text = rest.get(..length)?;
    (checksum(text) == *sum).then_some(text)
}

fn checksum(text: &[u8]) -> [u8; CHECKSUM] {
    let digest: [u8; 32] = Sha256::digest(text).into();
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&digest[..CHECKSUM]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(processes: i32) -> Usage {
        Usage {
            cards: vec![CardUsage { uuid: "GPU-a".into(), used: Bytes(5), limit: Bytes(7), peak: Bytes(6) }],
            processes: (0..processes)
                .map(|pid| ProcessUsage { pid, pid_in_container: 1, cards: vec![("GPU-a".into(), Bytes(5))] })
                .collect(),
            denials: 3,
            ..Usage::default()
        }
    }

    #[test]
    fn what_is_written_is_read_also_when_it_gets_shorter() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage");
        let file = UsageFile::create(&path).unwrap();
        assert_eq!(UsageFile::read(&path).unwrap(), Usage::default());
        for processes in [40, 2, 0, 7] {
            file.write(&usage(processes)).unwrap();
            assert_eq!(UsageFile::read(&path).unwrap(), usage(processes));
        }
    }

    #[test]
    fn half_a_block_is_no_usage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage");
        assert!(matches!(
            UsageFile::read(&path),
            Err(ReadUsageError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound
        ));
        UsageFile::create(&path).unwrap().write(&usage(3)).unwrap();
        let good = fs::read(&path).unwrap();
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(matches!(UsageFile::read(&path), Err(ReadUsageError::Damaged { .. })), "{length}");
        }
        for (at, _) in good.iter().enumerate() {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            assert!(whole(&damaged).is_none(), "{at}");
        }
    }

    #[test]
    fn readers_never_see_a_mixture() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage");
        let file = UsageFile::create(&path).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..300).for_each(|round| file.write(&usage(round % 17)).unwrap()));
            while !writer.is_finished() {
                let seen = UsageFile::read(&path).unwrap();
                assert!(seen == Usage::default() || seen == usage(i32::try_from(seen.processes.len()).unwrap()));
            }
        });
    }
}
