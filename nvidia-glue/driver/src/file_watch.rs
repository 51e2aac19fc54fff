//! Watch over open files of a container's, without keeping them open.
//!
//! What hangs on an open file ends with its last descriptor or mapping, in whatever process or
//! socket that is. A duplicate would be one more descriptor. An entry of an epoll set is none: the
//! kernel takes it out itself when the file is released (`eventpoll_release`), and
//! `/proc/self/fdinfo` lists those that are left (proc(5)).

use std::{
    collections::HashSet,
    fmt, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rustix::process::{Resource, getrlimit};

use super::DeviceFile;

/// Watches whether open files still exist.
pub trait FileWatch: fmt::Debug + Send + Sync {
    /// Watches `file` under a number that no other was given. The same file may be watched under
    /// several.
    ///
    /// # Errors
    /// When it cannot be watched, or nothing more can be.
    fn watch(&self, file: &DeviceFile, number: u64) -> io::Result<Watched>;

    /// Undoes a [`FileWatch::watch`].
    fn cancel(&self, watched: Watched);

    /// The numbers of the files that still exist.
    ///
    /// # Errors
    /// When that is unknown: then nothing may be concluded.
    fn living(&self) -> io::Result<HashSet<u64>>;
}

/// A file that is watched from now on, also when this is dropped. Until then the file is kept.
#[derive(Debug)]
pub struct Watched {
    /// Under which number.
    pub number: u64,
    /// The descriptor that its entry is known by.
    entry: Option<OwnedFd>,
}

impl Watched {
    /// Watched file that has no entry in the kernel.
    pub const fn without_entry(number: u64) -> Self {
        Self { number, entry: None }
    }
}

/// An epoll set that nobody waits for.
#[derive(Debug)]
pub(super) struct EpollWatch(Epoll);

/// Descriptors for entries begin here, above those that come and go.
const FIRST: i32 = 1024;
/// Number of different ones that are used in turn.
const IN_TURN: u64 = 1024;

impl EpollWatch {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }
}

impl FileWatch for EpollWatch {
    fn watch(&self, file: &DeviceFile, number: u64) -> io::Result<Watched> {
        /// Attempts for one file that has more entries than there are descriptors in turn.
        const ATTEMPTS: u64 = 64;
        for attempt in 0..ATTEMPTS {
            // The kernel knows an entry by file and descriptor: who maps again through a file needs
            // another descriptor of it.
            let entry = duplicate(file, number.wrapping_add(attempt))?;
            // Looking whether there is something to read takes a wake-up without data that waits
            // there (`nvidia_poll`): programs prepare mappings on fresh files.
            match self.0.add(&entry, EpollEvent::new(EpollFlags::empty(), number)) {
                Ok(()) => return Ok(Watched { number, entry: Some(entry) }),
                Err(nix::Error::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    fn cancel(&self, watched: Watched) {
        if let Some(entry) = watched.entry
            && let Err(error) = self.0.delete(&entry)
        {
            // It goes with the file, and its number means nothing to anybody.
            tracing::warn!(%error, "a file that need not be watched still is");
        }
    }

    fn living(&self) -> io::Result<HashSet<u64>> {
        numbers(&std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.0.as_raw_fd()))?)
    }
}

/// A duplicate that has another descriptor than the last ones had.
fn duplicate(file: &DeviceFile, turn: u64) -> io::Result<OwnedFd> {
    // Where so many are not allowed, fewer do.
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let first = (most / 2).min(FIRST.unsigned_abs().into());
    let place = first + turn % (most / 4).clamp(1, IN_TURN);
    Ok(rustix::io::fcntl_dupfd_cloexec(file.file.as_fd(), i32::try_from(place).unwrap_or(FIRST))?)
}

/// Reads an epoll set's `fdinfo`: after some lines of any file's, `tfd: 5 events: 18 data: 1f ...`
/// for each entry, the data in hexadecimal digits.
fn numbers(text: &str) -> io::Result<HashSet<u64>> {
    let number = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip_while(|word| *word != "data:");
        words.nth(1).and_then(|digits| u64::from_str_radix(digits, 16).ok())
    };
    let entries = text.lines().filter(|line| line.starts_with("tfd:"));
    let numbers: Option<HashSet<u64>> = entries.map(number).collect();
    numbers.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an epoll set's fdinfo cannot be read"))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::IoSlice, os::unix::net::UnixStream, sync::Arc};

    use abi::Node;
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use testing::NoForks;

    use super::*;

    /// A file that can be waited for, as the driver's can.
    fn file() -> (DeviceFile, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (DeviceFile { node: Node::Control, file: Arc::new(File::from(OwnedFd::from(one))) }, other)
    }

    fn living(watch: &EpollWatch) -> Vec<u64> {
        let mut living: Vec<u64> = watch.living().unwrap().into_iter().collect();
        living.sort_unstable();
        living
    }

    #[test]
    fn a_file_lives_as_long_as_its_last_descriptor_wherever_that_is() {
        let _no_forks = NoForks::hold();
        let watch = EpollWatch::new().unwrap();
        let (one, _peer) = file();
        let (other, _other_peer) = file();
        let duplicate = one.file.try_clone().unwrap();
        drop(watch.watch(&one, 7).unwrap());
        drop(watch.watch(&other, u64::MAX).unwrap());
        assert_eq!(living(&watch), [7, u64::MAX]);
        drop(one);
        assert_eq!(living(&watch), [7, u64::MAX], "the duplicate is the same file");
        // On its way to another process.
        let (sender, receiver) = UnixStream::pair().unwrap();
        let rights = [duplicate.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&rights)];
        sendmsg::<()>(sender.as_raw_fd(), &[IoSlice::new(b"x")], &message, MsgFlags::empty(), None).unwrap();
        drop(duplicate);
        assert_eq!(living(&watch), [7, u64::MAX], "it is in a socket");
        drop((sender, receiver));
        assert_eq!(living(&watch), [u64::MAX]);
        drop(other);
        assert!(living(&watch).is_empty());
    }

    #[test]
    fn one_file_may_have_many_numbers_and_each_can_be_taken_back() {
        let _no_forks = NoForks::hold();
        let watch = EpollWatch::new().unwrap();
        let (one, _peer) = file();
        let all = 0..600;
        all.clone().for_each(|number| drop(watch.watch(&one, number).unwrap()));
        assert_eq!(living(&watch), all.clone().collect::<Vec<_>>());
        for _ in 0..10 {
            watch.cancel(watch.watch(&one, 1000).unwrap());
        }
        assert_eq!(living(&watch), all.collect::<Vec<_>>());
        drop(one);
        assert!(living(&watch).is_empty());
    }

    #[test]
    fn what_cannot_be_watched_is_said() {
        let watch = EpollWatch::new().unwrap();
        let plain = DeviceFile { node: Node::Control, file: Arc::new(tempfile::tempfile().unwrap()) };
        assert_eq!(watch.watch(&plain, 1).unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert!(living(&watch).is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_no_empty_set() {
        let text =
            "pos:\t0\nflags:\t02000002\ntfd:        5 events:       18 data:               1f  pos:0 ino:6 sdev:9\n";
        assert_eq!(numbers(text).unwrap(), HashSet::from([0x1f]));
        assert_eq!(numbers("pos:\t0\n").unwrap(), HashSet::new());
        for text in ["tfd: 5 events: 0\n", "tfd: 5 events: 0 data: x\n", "tfd: 5 events: 0 data:\n"] {
            assert_eq!(numbers(text).unwrap_err().kind(), io::ErrorKind::InvalidData, "{text}");
        }
    }
}
