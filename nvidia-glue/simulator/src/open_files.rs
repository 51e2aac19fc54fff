//! Open file descriptions of descriptors, and whether they are still open anywhere.
//!
//! The driver ties clients to `struct file`: it sees each last close. A process that only borrows
//! descriptors does not, and may not keep a duplicate either, for that would be one more open
//! descriptor. What stays with an open file description, is the same through every duplicate, and
//! ends with the last one, is an *open file description lock*: each file that is met gets one on a
//! byte of its own, far beyond any content. Through the file itself that byte is free, through any
//! other file it is taken; when it is free through a file of our own, nobody has the first one open
//! any more.
//!
//! The byte is chosen at random, so that a container cannot take it beforehand. It can take all
//! bytes of a node: then every simulated call on that node fails, for all containers of the
//! machine; simulated nodes are for trying egpu, not for tenants.

use std::{
    collections::HashMap,
    fs::File,
    hash::{BuildHasher, RandomState},
    io,
    os::fd::AsFd,
};

use abi::Node;
use driver::DeviceFile;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc::{F_RDLCK, F_UNLCK, F_WRLCK, SEEK_SET, flock},
};

/// One open file description of a node, by the byte that is locked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId(i64);

impl FileId {
    pub(super) fn of_byte(byte: i64) -> Self {
        Self(byte)
    }

    pub(super) fn byte(self) -> i64 {
        self.0
    }
}

/// All that have been met and are still open.
#[derive(Debug)]
pub(super) struct OpenFiles {
    /// A file of our own for each node, to query the locks of others.
    own: HashMap<Node, File>,
    known: Vec<(FileId, Node)>,
    random: RandomState,
    met: u64,
}

impl OpenFiles {
    pub(super) fn new(own: HashMap<Node, File>) -> Self {
        Self { own, known: Vec::new(), random: RandomState::new(), met: 0 }
    }

    /// Returns the file's identity; the same for every duplicate of a descriptor, wherever it has
    /// been.
    pub(super) fn identify(&mut self, file: &DeviceFile) -> io::Result<FileId> {
        for (id, node) in &self.known {
            if *node == file.node && !is_taken(&file.file, *id)? && self.is_open(*id, *node)? {
                return Ok(*id);
            }
        }
        for _ in 0..3 {
            let id = self.new_id();
            match lock(&file.file, id) {
                Ok(()) => {
                    self.known.push((id, file.node));
                    return Ok(id);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("somebody has locked the whole of a simulated device node"))
    }

    /// Forgets the files that nobody has open any more, and says which they were.
    pub(super) fn closed(&mut self) -> Vec<FileId> {
        let (open, closed): (Vec<_>, Vec<_>) =
            self.known.iter().copied().partition(|(id, node)| self.is_open(*id, *node).unwrap_or(true));
        self.known = open;
        closed.into_iter().map(|(id, _)| id).collect()
    }

    /// Returns whether the file has been met and was open when [`OpenFiles::closed`] was asked
    /// last.
    pub(super) fn is_known(&self, id: FileId) -> bool {
        self.known.iter().any(|(known, _)| *known == id)
    }

    /// Returns whether some file of `node` that has been met is open.
    pub(super) fn has(&self, node: Node) -> bool {
        self.known.iter().any(|(id, known)| *known == node && self.is_open(*id, node).unwrap_or(false))
    }

    fn is_open(&self, id: FileId, node: Node) -> io::Result<bool> {
        self.own.get(&node).map_or(Ok(false), |own| is_taken(own, id))
    }

    fn new_id(&mut self) -> FileId {
        self.met += 1;
        let random = self.random.hash_one(self.met);
        // Far beyond what anybody maps or locks by accident, and within a file's largest offset.
        FileId(i64::try_from(random >> 2).unwrap_or(0) | 1 << 60)
    }
}

/// Returns whether another open file description than that of `file` holds the byte.
pub(super) fn is_taken(file: &File, id: FileId) -> io::Result<bool> {
    let mut query = byte(id, F_WRLCK);
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut query))?;
    Ok(i32::from(query.l_type) != F_UNLCK)
}

/// Locks the byte for good: nothing but the last close takes it away.
fn lock(file: &File, id: FileId) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(file.as_fd(), FcntlArg::F_GETFL)?);
    // A file that was opened for reading only can have no lock for writing; the driver does not ask
    // how it was opened.
    let kind = if flags & OFlag::O_ACCMODE == OFlag::O_RDONLY { F_RDLCK } else { F_WRLCK };
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&byte(id, kind))) {
        Ok(_) => Ok(()),
        Err(Errno::EAGAIN | Errno::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
        Err(error) => Err(error.into()),
    }
}

fn byte(id: FileId, kind: i32) -> flock {
    flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(SEEK_SET).unwrap_or_default(),
        l_start: id.0,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, path::Path, sync::Arc};

    use testing::NoForks;

    use super::*;

    fn open(path: &Path) -> DeviceFile {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        DeviceFile { node: Node::Control, file: Arc::new(file) }
    }

    fn files(path: &Path) -> OpenFiles {
        OpenFiles::new(HashMap::from([(Node::Control, File::open(path).unwrap())]))
    }

    #[test]
    fn duplicates_are_one_file_and_opens_are_several() {
        let _no_forks = NoForks::hold();
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut files = files(path.path());
        let (one, other) = (open(path.path()), open(path.path()));
        let duplicate = DeviceFile { node: Node::Control, file: Arc::new(one.file.try_clone().unwrap()) };
        let id = files.identify(&one).unwrap();
        assert_eq!(files.identify(&duplicate).unwrap(), id);
        assert_ne!(files.identify(&other).unwrap(), id);
        assert_eq!(files.identify(&one).unwrap(), id);
        drop(one);
        assert_eq!(files.closed(), [], "the duplicate is still open");
        drop(duplicate);
        assert_eq!(files.closed(), [id]);
        assert!(files.has(Node::Control));
        drop(other);
        assert!(!files.has(Node::Control));
    }

    #[test]
    fn a_file_opened_for_reading_is_distinguished_too() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut files = files(path.path());
        let reader = || DeviceFile { node: Node::Control, file: Arc::new(File::open(path.path()).unwrap()) };
        let (one, other) = (reader(), reader());
        let id = files.identify(&one).unwrap();
        assert_ne!(files.identify(&other).unwrap(), id);
        assert_eq!(files.identify(&one).unwrap(), id);
    }

    #[test]
    fn two_observers_do_not_disturb_each_other() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let (mut mine, mut theirs) = (files(path.path()), files(path.path()));
        let one = open(path.path());
        let (id, other) = (mine.identify(&one).unwrap(), theirs.identify(&one).unwrap());
        assert_eq!((mine.identify(&one).unwrap(), theirs.identify(&one).unwrap()), (id, other));
    }

    #[test]
    fn who_takes_every_byte_is_answered_with_an_error() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut files = files(path.path());
        let hostile = open(path.path());
        let all = flock { l_start: 0, l_len: 0, ..byte(FileId(0), F_WRLCK) };
        fcntl(hostile.file.as_fd(), FcntlArg::F_OFD_SETLK(&all)).unwrap();
        assert!(files.identify(&open(path.path())).is_err());
    }
}
