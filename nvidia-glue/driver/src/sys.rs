//! The system calls that no safe wrapper covers.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
};

/// `ioctl(2)` with a struct that the kernel reads and writes.
///
/// # Errors
/// The system call's errno; `InvalidInput` when the command says that its struct is longer than
/// `args`.
pub(crate) fn ioctl(file: BorrowedFd<'_>, command: u32, args: &mut [u8]) -> io::Result<i32> {
    if args.len() < abi::escapes::command_size(command) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the argument is shorter than its command says"));
    }
    // SAFETY: `args` is live and writable for at least as many bytes as the command's number says
    // (for the numbers of unified memory, which say none: to the end of guarded memory), and
    // pointers inside it were set by `driver::patch` to guarded memory that outlives the call.
    // Beyond that there is nothing that the kernel could write to.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(command), args.as_mut_ptr()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Returns whether two descriptors of this process are one open file description: `F_DUPFD_QUERY`
/// (Linux 6.10), which costs less than `kcmp(KCMP_FILE)`, else that.
///
/// # Errors
/// The system call's errno: `ENOSYS` where the kernel lacks it, `EPERM` where a filter forbids it.
pub(crate) fn same_open_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    /// `F_LINUX_SPECIFIC_BASE + 3` (include/uapi/linux/fcntl.h).
    const F_DUPFD_QUERY: libc::c_int = 1024 + 3;
    static IS_UNKNOWN: AtomicBool = AtomicBool::new(false);
    if !IS_UNKNOWN.load(Ordering::Relaxed) {
        // SAFETY: integers only; both descriptors are open while they are borrowed.
        match unsafe { libc::fcntl(one.as_raw_fd(), F_DUPFD_QUERY, other.as_raw_fd()) } {
            0 => return Ok(false),
            1 => return Ok(true),
            _ => IS_UNKNOWN.store(true, Ordering::Relaxed),
        }
    }
    same_open_file_by_kcmp(one, other)
}

fn same_open_file_by_kcmp(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    share_open_file((own, one.as_raw_fd()), (own, other.as_raw_fd()))
}

/// Returns whether descriptors of two processes, each by its pid and number, are of one open file
/// description (`kcmp(2)`).
///
/// # Errors
/// The system call's errno.
pub fn share_open_file(one: (i32, i32), other: (i32, i32)) -> io::Result<bool> {
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: integers only.
    match unsafe { libc::syscall(libc::SYS_kcmp, one.0, other.0, KCMP_FILE, one.1, other.1) } {
        0 => Ok(true),
        1..=3 => Ok(false),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory that ends where nobody may write: what the kernel would copy beyond its end is not
/// copied, and the call fails (`EFAULT`).
#[derive(Debug)]
pub(crate) struct GuardedMemory {
    at: std::ptr::NonNull<u8>,
    /// Bytes that may be used, whole pages; a page that may not follows.
    length: usize,
}

impl GuardedMemory {
    /// Zeroes, at least so many.
    ///
    /// # Errors
    /// The system call's errno.
    pub(crate) fn new(least: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let length = least.max(1).checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
        let (flags, whole) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, length.saturating_add(page));
        // SAFETY: the kernel chooses the place, so nothing that is mapped is replaced; the rest are
        // integers.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = std::ptr::NonNull::new(at.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let memory = Self { at, length };
        // SAFETY: the first part of what was mapped above, to which nobody refers yet.
        match unsafe { libc::mprotect(at.as_ptr().cast(), length, libc::PROT_READ | libc::PROT_WRITE) } {
            0 => Ok(memory),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    /// Bytes that may be used.
    pub(crate) const fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped by `new` for reading and writing, initialised by the kernel, and borrowed
        // as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.length) }
    }
}

impl Drop for GuardedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with that length and one page, and borrowed by nobody any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.length.saturating_add(rustix::param::page_size())) };
    }
}

/// Memory of the driver's, mapped for reading: it changes at any time.
#[derive(Debug)]
pub(crate) struct ReadOnlyMapping {
    at: std::ptr::NonNull<libc::c_void>,
    length: usize,
}

impl ReadOnlyMapping {
    /// Maps the first `length` bytes of a file.
    ///
    /// # Errors
    /// The system call's errno.
    pub(crate) fn new(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the place, so nothing that is mapped is replaced; the rest are
        // integers.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = std::ptr::NonNull::new(at).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { at, length })
    }

    /// The 8 bytes at an offset that is a multiple of 8; `None` beyond the end.
    pub(crate) fn word(&self, offset: usize) -> Option<u64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.length {
            return None;
        }
        // SAFETY: within the mapping, which lives as long as `self`, and aligned as the mapping
        // begins at a page. Somebody else writes there meanwhile, which a volatile read of a plain
        // integer allows for.
        let word = unsafe { self.at.cast::<u8>().add(offset).cast::<u64>().read_volatile() };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        Some(word)
    }
}

impl Drop for ReadOnlyMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with that length, and referred to by nobody else.
        unsafe { libc::munmap(self.at.as_ptr(), self.length) };
    }
}

// SAFETY: the mapping is the process's, not a thread's, and is only read.
unsafe impl Send for ReadOnlyMapping {}

/// Pages of a file, mapped for reading and writing. Whoever maps them only wants their address.
#[cfg(feature = "parking")]
#[derive(Debug)]
pub(crate) struct SharedMapping {
    at: std::ptr::NonNull<libc::c_void>,
    length: usize,
}

#[cfg(feature = "parking")]
impl SharedMapping {
    /// Maps the first `length` bytes of a file, with their page tables.
    ///
    /// # Errors
    /// The system call's errno.
    pub(crate) fn new(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: the kernel chooses the place, so nothing that is mapped is replaced; the rest are
        // integers.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = std::ptr::NonNull::new(at).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { at, length })
    }

    /// Returns where it begins in this process.
    pub(crate) fn address(&self) -> u64 {
        self.at.as_ptr().expose_provenance() as u64
    }

    pub(crate) const fn len(&self) -> usize {
        self.length
    }
}

#[cfg(feature = "parking")]
impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with that length, and never dereferenced here.
        unsafe { libc::munmap(self.at.as_ptr(), self.length) };
    }
}
