//! The driver's nodes.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    RmError,
    sys::{self, Mapping},
    system,
};

/// The system calls of a client: the kernel's, or those of a test.
pub trait Kernel: fmt::Debug + Send + Sync {
    /// `ioctl(2)`; pointers in `args` are to live memory of this process.
    ///
    /// # Errors
    /// The errno.
    fn ioctl(&self, file: BorrowedFd<'_>, command: u32, args: &mut [u8]) -> io::Result<i32>;

    /// `mmap(2)`, shared, at exactly this address.
    ///
    /// # Errors
    /// The errno.
    fn map_at(&self, file: BorrowedFd<'_>, address: u64, length: usize, offset: u64) -> io::Result<Mapping>;
}

/// The kernel. Tests that have no container put something else in its place.
#[derive(Debug)]
struct Linux;

impl Kernel for Linux {
    fn ioctl(&self, file: BorrowedFd<'_>, command: u32, args: &mut [u8]) -> io::Result<i32> {
        sys::ioctl(file, command, args)
    }

    fn map_at(&self, file: BorrowedFd<'_>, address: u64, length: usize, offset: u64) -> io::Result<Mapping> {
        Mapping::shared_at(file, address, length, offset)
    }
}

/// The driver's nodes, and the kernel that takes the calls on them.
#[derive(Debug, Clone)]
pub struct Nodes {
    directory: PathBuf,
    kernel: Arc<dyn Kernel>,
}

impl Default for Nodes {
    fn default() -> Self {
        Self::below("/dev")
    }
}

impl Nodes {
    /// In a directory; `/dev` in a container.
    pub fn below(directory: impl AsRef<Path>) -> Self {
        Self::with(directory, Arc::new(Linux))
    }

    /// In a directory, with calls that go to somebody else than the kernel.
    pub fn with(directory: impl AsRef<Path>, kernel: Arc<dyn Kernel>) -> Self {
        Self { directory: directory.as_ref().to_owned(), kernel }
    }

    /// A call on one of the nodes.
    ///
    /// # Errors
    /// The errno.
    pub fn ioctl(&self, file: &File, command: u32, args: &mut [u8]) -> io::Result<i32> {
        self.kernel.ioctl(file.as_fd(), command, args)
    }

    /// A shared mapping of one of the nodes.
    ///
    /// # Errors
    /// The errno.
    pub fn map_at(&self, file: &File, address: u64, length: usize, offset: u64) -> io::Result<Mapping> {
        self.kernel.map_at(file.as_fd(), address, length, offset)
    }

    /// Opens `nvidiactl`.
    ///
    /// # Errors
    /// The errno.
    pub fn control(&self) -> Result<File, RmError> {
        self.open("nvidiactl")
    }

    /// Opens `nvidiaN`.
    ///
    /// # Errors
    /// The errno.
    pub fn card(&self, minor: u32) -> Result<File, RmError> {
        self.open(&format!("nvidia{minor}"))
    }

    /// Opens `nvidia-uvm`.
    ///
    /// # Errors
    /// The errno.
    pub fn uvm(&self) -> Result<File, RmError> {
        self.open("nvidia-uvm")
    }

    /// Opens a node by its name.
    ///
    /// # Errors
    /// The errno.
    pub fn open(&self, name: &str) -> Result<File, RmError> {
        let path = self.directory.join(name);
        let open = OpenOptions::new().read(true).write(true).open(&path);
        open.map_err(system(format!("{} cannot be opened", path.display())))
    }
}
