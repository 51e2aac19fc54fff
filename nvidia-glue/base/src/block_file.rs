//! A file that is written again and again, and read at any instant.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    marker::PhantomData,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use crate::format::{self, Format, FormatError, WrittenFormat};

/// A value that is published in a [`BlockFile`].
pub trait Published: Serialize + DeserializeOwned + Default {
    /// Format of the file.
    const FORMAT: Format;
}

/// A value as it is written.
#[derive(Serialize)]
struct Block<'a, T> {
    #[serde(flatten)]
    format: WrittenFormat,
    #[serde(flatten)]
    value: &'a T,
}

/// A file in which one process publishes a value that changes.
///
/// One block at offset 0: the length of the JSON text (4 bytes, little-endian), the first 8 bytes
/// of its SHA-256, the text. It is written whole with one call and without a lock; a reader that
/// sees half of it finds that the sum is wrong, and reads again.
#[derive(Debug)]
pub struct BlockFile<T> {
    file: File,
    value: PhantomData<fn(&T)>,
}

/// Length of what stands before the text.
const HEADER: usize = 4 + CHECKSUM;
const CHECKSUM: usize = 8;
/// Longest file that is read: nothing that is published is as long, and whatever is longer is not
/// ours.
const LONGEST: usize = 16 << 20;
/// A writer is done within microseconds; this often it is met halfway only if it died there.
const ATTEMPTS: u32 = 100;

/// Reason for which a block cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadBlockError {
    /// The file cannot be read; `NotFound` when nobody publishes anything.
    #[error("the file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Its content was not written whole, or not by egpu.
    #[error("the file {} is damaged; whoever writes it may have died meanwhile", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// It is of another version.
    #[error("the file {} is of another version of egpu", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The difference.
        #[source]
        source: BlockFormatError,
    },
}

/// A block that was written whole, and not for this build.
#[derive(Debug, thiserror::Error)]
pub enum BlockFormatError {
    /// It says so.
    #[error("it has {0}")]
    Version(FormatError),
    /// It is not understood.
    #[error(transparent)]
    Content(#[from] serde_json::Error),
}

impl<T: Published> BlockFile<T> {
    /// Creates the file, or takes over the one that is there. The state directory's group may read
    /// it.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(path)?;
        let created = Self { file, value: PhantomData };
        created.write(&T::default())?;
        Ok(created)
    }

    /// Replaces what the file says.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, value: &T) -> io::Result<()> {
        let text = format::to_vec(&Block { format: T::FORMAT.written(), value })?;
        let length = u32::try_from(text.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut block = Vec::with_capacity(HEADER + text.len());
        block.extend(length.to_le_bytes());
        block.extend(checksum(&text));
        block.extend(text);
        self.file.write_all_at(&block, 0)
    }

    /// Reads the value in the file at `path`.
    ///
    /// # Errors
    /// When it is missing, damaged, or of another version.
    pub fn read(path: &Path) -> Result<T, ReadBlockError> {
        for _ in 0..ATTEMPTS {
            let file = read(path).map_err(|source| ReadBlockError::Read { path: path.to_owned(), source })?;
            if let Some(value) = Self::parse(&file) {
                return value.map_err(|source| ReadBlockError::Format { path: path.to_owned(), source });
            }
            std::thread::yield_now();
        }
        Err(ReadBlockError::Damaged { path: path.to_owned() })
    }

    /// Parses the value in a file's bytes; `None`: none was written whole.
    ///
    /// # Errors
    /// When it is of another version.
    pub fn parse(file: &[u8]) -> Option<Result<T, BlockFormatError>> {
        whole(file).map(|text| {
            let written: WrittenFormat = serde_json::from_slice(text)?;
            T::FORMAT.check_reads(written).map_err(BlockFormatError::Version)?;
            Ok(serde_json::from_slice(text)?)
        })
    }
}

/// The file as far as a block may reach: whoever writes it may have made it as long as no memory
/// is.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut block = Vec::new();
    File::open(path)?.take((HEADER + LONGEST) as u64).read_to_end(&mut block)?;
    Ok(block)
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
    use std::fs;

    use super::*;
    use crate::{
        Bytes,
        usage::{CardUsage, MediatorCost, ProcessUsage, Usage, UsageFile},
    };

    fn usage(processes: i32) -> Usage {
        Usage {
            cards: vec![CardUsage {
                uuid: "GPU-a".into(),
                used: Bytes(5),
                limit: Bytes(7),
                peak: Bytes(6),
                channels_used: 20,
                channels_limit: 100,
            }],
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
    fn a_usage_file_is_read_as_it_was_written() {
        use testing::{fixture, is_fixture};
        let of_crate = env!("CARGO_MANIFEST_DIR");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage");
        let full = Usage {
            pinned_memory_used_bytes: Bytes(1),
            pinned_memory_limit_bytes: Bytes(2),
            denials: 3,
            refused_by_bounds: 4,
            refused_by_driver: 5,
            kills: 6,
            unknown_passed: 7,
            unknown_refused: 8,
            calls: 14,
            mediator: Some(MediatorCost {
                processor_us: 1,
                processor_limit_millis: 2,
                held_back_us: 3,
                memory_used_bytes: Bytes(4),
                memory_limit_bytes: Bytes(5),
                listeners: 6,
                listeners_limit: 7,
                oom_score_adj: -8,
            }),
            ..usage(1)
        };
        UsageFile::create(&path).unwrap().write(&full).unwrap();
        let number = Usage::FORMAT.number;
        is_fixture(of_crate, &format!("usage-{number}"), &fs::read(&path).unwrap());
        let read = UsageFile::parse(&fixture(of_crate, &format!("usage-{number}"))).unwrap().unwrap();
        assert_eq!(read, full);
    }

    #[test]
    fn a_block_for_later_readers_is_refused_and_one_with_more_fields_read() {
        let block = |text: &str| {
            let length = u32::try_from(text.len()).unwrap().to_le_bytes();
            [&length[..], &checksum(text.as_bytes()), text.as_bytes()].concat()
        };
        let text = serde_json::to_string(&usage(2)).unwrap();
        let later = |numbers: &str| block(&text.replacen('{', &format!("{{{numbers}\"new\":1,"), 1));
        let read = UsageFile::parse(&later(r#""version":1,"format":99,"#)).unwrap();
        assert_eq!(read.unwrap(), usage(2));
        let error = UsageFile::parse(&later(r#""version":99,"format":99,"#)).unwrap().unwrap_err();
        assert!(error.to_string().starts_with("it has format 99, for readers of format 99"), "{error}");
    }

    #[test]
    fn half_a_block_is_no_usage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage");
        assert!(matches!(
            UsageFile::read(&path),
            Err(ReadBlockError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound
        ));
        UsageFile::create(&path).unwrap().write(&usage(3)).unwrap();
        let good = fs::read(&path).unwrap();
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(matches!(UsageFile::read(&path), Err(ReadBlockError::Damaged { .. })), "{length}");
        }
        for (at, _) in good.iter().enumerate() {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            assert!(whole(&damaged).is_none(), "{at}");
        }
    }

    /// A neighbour's mediator writes it, and everybody reads it.
    #[test]
    fn a_file_without_an_end_costs_no_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage");
        let file = UsageFile::create(&path).unwrap();
        file.file.set_len(1 << 33).unwrap();
        assert_eq!(UsageFile::read(&path).unwrap(), Usage::default());
        assert_eq!(read(&path).unwrap().len(), HEADER + LONGEST);
    }

    #[test]
    fn readers_never_see_a_mixture() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage");
        let file = UsageFile::create(&path).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..300).for_each(|round| file.write(&usage(round % 17)).unwrap()));
            while !writer.is_finished() {
                let seen = match UsageFile::read(&path) {
                    // The writer may be taken off the processor halfway, for longer than a reader
                    // has patience.
                    Err(ReadBlockError::Damaged { .. }) => continue,
                    read => read.unwrap(),
                };
                assert!(seen == Usage::default() || seen == usage(i32::try_from(seen.processes.len()).unwrap()));
            }
        });
    }
}
