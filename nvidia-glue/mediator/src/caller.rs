//! The thread whose call is being handled, as mediation needs it.

use std::{fs::File, io};

use base::Pid;

/// A process's number in one pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// The namespace: its inode, which is no other's while a process is in it.
    pub namespace: u64,
    /// Its pid there.
    pub pid: i32,
}

/// Numbers of a process: one in its pid namespace and in each around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers(Vec<Number>);

impl Numbers {
    /// From the mediator's namespace inwards; the last is the process's own.
    pub const fn new(inwards: Vec<Number>) -> Self {
        Self(inwards)
    }

    /// In the container's first namespace, which is the next after the mediator's; in the
    /// mediator's where the container has none of its own.
    pub fn in_container(&self) -> i32 {
        self.0.get(1).or(self.0.first()).map_or(0, |number| number.pid)
    }

    /// As `viewer` would call it; `None`: it is not in the viewer's namespace, nor in one below
    /// that, so it does not exist there.
    pub fn seen_by(&self, viewer: &Self) -> Option<i32> {
        let namespace = viewer.0.last()?.namespace;
        self.0.iter().find(|number| number.namespace == namespace).map(|number| number.pid)
    }
}

/// Reason why the caller could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum CallerError {
    /// It is gone, or its call was interrupted: nobody waits for an answer, and whatever the call
    /// has done must be undone.
    #[error("the calling thread is gone")]
    Gone,
    /// The address is not mapped, or not writable: EFAULT.
    #[error("the caller's memory at {address:#x} cannot be accessed")]
    Fault { address: u64 },
    /// No such descriptor: EBADF.
    #[error("the caller has no descriptor {fd}")]
    BadDescriptor {
        /// Its number.
        fd: i32,
    },
    /// Anything else; the call fails with EIO, and it is counted.
    #[error("the caller cannot be examined")]
    Other(#[source] io::Error),
}

/// Access to the calling thread. Every method but [`Caller::is_waiting`] and those that say who
/// calls may block on the caller's memory (a page can be made to): hold no lock.
///
/// What a read of the caller brings is its, or another's that has its number by now. Which,
/// [`Caller::is_waiting`] tells for all reads before it.
pub trait Caller {
    /// Fills `bytes` from `address`.
    ///
    /// # Errors
    /// [`CallerError::Fault`] when not all of it is readable.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), CallerError>;

    /// The same of what is there now, whatever was read before.
    ///
    /// # Errors
    /// As those of [`Caller::read`].
    fn read_again(&self, address: u64, bytes: &mut [u8]) -> Result<(), CallerError> {
        self.read(address, bytes)
    }

    /// Fills as much of `bytes` from `address` as is readable without a gap, and says how much that
    /// is; 0 when nothing is.
    ///
    /// # Errors
    /// When the caller is gone.
    fn read_up_to(&self, address: u64, bytes: &mut [u8]) -> Result<usize, CallerError>;

    /// Writes `bytes` at `address`.
    ///
    /// # Errors
    /// [`CallerError::Fault`] when not all of it is writable.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CallerError>;

    /// A duplicate of one of the caller's descriptors.
    ///
    /// # Errors
    /// [`CallerError::BadDescriptor`] when there is none of that number.
    fn file(&self, fd: i32) -> Result<File, CallerError>;

    /// Installs a file of the mediator's in the caller's table, close-on-exec, and says its number
    /// there.
    ///
    /// # Errors
    /// When the caller's table is full, or it is gone.
    fn install(&self, file: &File) -> Result<i32, CallerError>;

    /// Puts a file of the mediator's under a number of the caller's table, in place of what is
    /// there (`SECCOMP_IOCTL_NOTIF_ADDFD` with `SECCOMP_ADDFD_FLAG_SETFD`, Linux 5.9).
    ///
    /// # Errors
    /// When the kernel does not know how, or the caller is gone.
    fn replace(&self, fd: i32, file: &File) -> Result<(), CallerError> {
        let _ = (fd, file);
        Err(CallerError::Other(io::ErrorKind::Unsupported.into()))
    }

    /// The calling process.
    ///
    /// # Errors
    /// When it is gone.
    fn pid(&self) -> Result<Pid, CallerError>;

    /// The calling thread's id, in the mediator's pid namespace.
    fn thread(&self) -> i32;

    /// The calling process's numbers.
    ///
    /// # Errors
    /// When it is gone.
    fn numbers(&self) -> Result<Numbers, CallerError>;

    /// Returns whether the call still waits for its answer, and so has all the time.
    fn is_waiting(&self) -> bool;
}
