//! The calls into the driver's library and the kernel that no safe wrapper covers.
#![allow(unsafe_code)]

use std::{
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        raw::c_uint,
    },
    sync::atomic::{AtomicBool, Ordering},
};

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::nvmlMemory_t;

/// GPU instance id and compute instance id of a MIG device.
///
/// # Errors
/// What NVML answers; `InvalidArg` for a device that is no MIG device.
pub(crate) fn mig_instance_ids(device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let library = device.nvml().lib();
    let gpu_instance = nvml_sym(library.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute_instance = nvml_sym(library.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu, mut compute): (c_uint, c_uint) = (0, 0);
    // SAFETY: the symbols come from the library that `device` belongs to and have the types of NVML's header; the
    // handle is valid while `device` borrows the initialised library; both pointers are to live integers.
    unsafe {
        nvml_try(gpu_instance(device.handle(), &raw mut gpu))?;
        nvml_try(compute_instance(device.handle(), &raw mut compute))?;
    }
    Ok((gpu, compute))
}

/// Memory of a card or MIG device in bytes, by the call that drivers before 510 have.
///
/// # Errors
/// What NVML answers.
pub(crate) fn memory_total(device: &Device<'_>) -> Result<u64, NvmlError> {
    let ask = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: as in `mig_instance_ids`; the pointer is to a live structure of the header's type.
    unsafe { nvml_try(ask(device.handle(), &raw mut memory))? };
    Ok(memory.total)
}

/// Whether the kernel has `pidfd_getfd(2)` (5.6, and some older kernels of distributions).
///
/// Asks for a descriptor that cannot exist, of this process: nothing is duplicated.
pub(crate) fn has_pidfd_getfd() -> bool {
    // SAFETY: both calls take integers only. The first returns a new descriptor or -1.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    let Ok(pidfd) = i32::try_from(opened) else { return false };
    if pidfd < 0 {
        return false;
    }
    // SAFETY: `pidfd` was opened above and belongs to nobody else.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: integers only; descriptor -1 is none, so that the call ends with EBADF where it exists.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), -1, 0) };
    got == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}

/// Whether the kernel has `mount_setattr(2)` (5.12).
///
/// Asks with no attributes at all, which is refused before anything is looked at.
pub(crate) fn has_mount_setattr() -> bool {
    // SAFETY: a size of 0 ends the call with EINVAL before a pointer is read.
    let answer =
        unsafe { libc::syscall(libc::SYS_mount_setattr, -1, std::ptr::null::<u8>(), 0, std::ptr::null::<u8>(), 0) };
    answer == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
}

/// Whether the kernel knows these flags of `seccomp(SECCOMP_SET_MODE_FILTER)`.
///
/// With no program given, the call looks at the flags, then fails for want of the program (`EFAULT`): the way that
/// seccomp(2) describes. No filter is installed.
pub(crate) fn has_seccomp_flags(flags: libc::c_ulong) -> bool {
    // SAFETY: the kernel reads the program through its own checked copy; a null pointer is an error, not a fault here.
    let answer = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, std::ptr::null::<libc::sock_fprog>())
    };
    answer == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// `ioctl(2)` with a struct that the kernel reads and writes.
///
/// # Errors
/// The system call's errno; `InvalidInput` when the command says that its struct is longer than `args`.
pub(crate) fn ioctl(file: BorrowedFd<'_>, command: u32, args: &mut [u8]) -> io::Result<i32> {
    if args.len() < command_size(command) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the argument is shorter than its command says"));
    }
    // SAFETY: `args` is live and writable for at least as many bytes as the command's number says (for the numbers of unified
    // memory, which say none: to the end of guarded memory), and pointers inside it were set by `driver::patch` to guarded memory that outlives the
    // call. Beyond that there is nothing that the kernel could write to.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(command), args.as_mut_ptr()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// `_IOC_SIZE`.
pub(crate) const fn command_size(command: u32) -> usize {
    (command >> 16 & 0x3fff) as usize
}

/// Whether two descriptors of this process are one open file description: `F_DUPFD_QUERY` (Linux 6.10), which costs less than
/// `kcmp(KCMP_FILE)`, else that.
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
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: integers only; both descriptors are open while they are borrowed.
    let answer = unsafe {
        let own = libc::getpid();
        libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, one.as_raw_fd(), other.as_raw_fd())
    };
    match answer {
        0 => Ok(true),
        1..=3 => Ok(false),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Memory that ends where nobody may write: what the kernel would copy beyond its end is not copied, and the call fails (`EFAULT`).
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
        // SAFETY: the kernel chooses the place, so nothing that is mapped is replaced; the rest are integers.
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

    /// All that may be used.
    pub(crate) const fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped by `new` for reading and writing, initialised by the kernel, and borrowed as `self` is.
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
        // SAFETY: the kernel chooses the place, so nothing that is mapped is replaced; the rest are integers.
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
        // SAFETY: within the mapping, which lives as long as `self`, and aligned as the mapping begins at a page. Somebody else
        // writes there meanwhile, which a volatile read of a plain integer allows for.
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
