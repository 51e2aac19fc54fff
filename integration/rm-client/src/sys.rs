//! The system calls that no safe wrapper covers.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
};

/// `ioctl(2)` with a struct; pointers that it holds must be to live memory of the caller (the
/// driver checks addresses).
///
/// # Errors
/// The errno.
pub fn ioctl(file: BorrowedFd<'_>, command: u32, args: &mut [u8]) -> io::Result<i32> {
    ioctl_raw(file.as_raw_fd(), u64::from(command), args.as_mut_ptr().expose_provenance() as u64)
}

/// `ioctl(2)` with any numbers at all.
///
/// # Errors
/// The errno.
pub fn ioctl_raw(fd: i32, command: u64, argument: u64) -> io::Result<i32> {
    // SAFETY: the kernel and the driver check every address; what they write goes where the caller
    // of this function said, which is memory that it owns or no memory at all.
    let answer = unsafe { libc::syscall(libc::SYS_ioctl, fd, command, argument) };
    outcome(answer)
}

fn outcome(answer: libc::c_long) -> io::Result<i32> {
    i32::try_from(answer).ok().filter(|answer| *answer >= 0).ok_or_else(io::Error::last_os_error)
}

/// The same through the 32-bit entry, `int 0x80`, whose numbers are the 32-bit ones: the argument
/// must be below 4 GiB.
///
/// # Errors
/// The errno; `Unsupported` on machines without that entry.
pub fn ioctl_int80(fd: i32, command: u32, argument: u32) -> io::Result<i32> {
    const NR_IOCTL: u32 = 54;
    system_call_int80(NR_IOCTL, fd.cast_unsigned(), command, argument)
}

#[cfg(target_arch = "x86_64")]
fn system_call_int80(number: u32, one: u32, two: u32, three: u32) -> io::Result<i32> {
    let mut answer = u64::from(number);
    // SAFETY: a system call; registers as the 32-bit entry has them, rbx kept for the compiler.
    // Memory is written only where `three` points, as in `ioctl_raw`.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {one}",
            "int 0x80",
            "xchg rbx, {one}",
            one = inout(reg) u64::from(one) => _,
            inout("rax") answer,
            in("rcx") u64::from(two),
            in("rdx") u64::from(three),
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    let answer = u32::try_from(answer & 0xffff_ffff).unwrap_or(0).cast_signed();
    if (-4095..0).contains(&answer) { Err(io::Error::from_raw_os_error(-answer)) } else { Ok(answer) }
}

#[cfg(not(target_arch = "x86_64"))]
fn system_call_int80(_: u32, _: u32, _: u32, _: u32) -> io::Result<i32> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Memory that ends with this value.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping belongs to the process; all access goes through methods that borrow it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Fresh memory below 4 GiB, for the 32-bit entry.
    ///
    /// # Errors
    /// The errno.
    pub fn low(length: usize) -> io::Result<Self> {
        #[cfg(target_arch = "x86_64")]
        let low = libc::MAP_32BIT;
        #[cfg(not(target_arch = "x86_64"))]
        let low = 0;
        Self::map(0, length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | low, -1, 0)
    }

    /// A file of the driver's, shared, at exactly `address`, where nothing may be yet.
    ///
    /// # Errors
    /// The errno.
    pub fn shared_at(file: BorrowedFd<'_>, address: u64, length: usize, offset: u64) -> io::Result<Self> {
        Self::map(address, length, libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE, file.as_raw_fd(), offset)
    }

    /// A file of the driver's, shared, from its beginning, for [`Mapping::word`].
    ///
    /// # Errors
    /// The errno.
    pub fn reading(file: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        Self::map_for(libc::PROT_READ, (0, length), libc::MAP_SHARED, file.as_raw_fd(), 0)
    }

    fn map(address: u64, length: usize, flags: i32, fd: i32, offset: u64) -> io::Result<Self> {
        Self::map_for(libc::PROT_READ | libc::PROT_WRITE, (address, length), flags, fd, offset)
    }

    fn map_for(protection: i32, (address, length): (u64, usize), flags: i32, fd: i32, offset: u64) -> io::Result<Self> {
        let hint = std::ptr::with_exposed_provenance_mut(usize::try_from(address).map_err(io::Error::other)?);
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping; `MAP_FIXED_NOREPLACE` leaves others as they are, and without it
        // the kernel chooses the place.
        let mapped = unsafe { libc::mmap(hint, length, protection, flags, fd, offset) };
        match NonNull::new(mapped.cast::<u8>()) {
            Some(address) if mapped != libc::MAP_FAILED => Ok(Self { address, length }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Address of the mapping.
    pub fn address(&self) -> u64 {
        self.address.as_ptr().expose_provenance() as u64
    }

    /// Eight bytes that somebody else may be writing, at a place that is aligned; `None`: beyond
    /// its end.
    pub fn word(&self, at: usize) -> Option<u64> {
        if !at.is_multiple_of(8) || at.checked_add(8).is_none_or(|end| end > self.length) {
            return None;
        }
        // SAFETY: aligned and within the mapping, which is readable and lives as long as this
        // value.
        Some(unsafe { self.address.as_ptr().add(at).cast::<u64>().read_volatile() })
    }

    /// Its bytes; of fresh memory only. Those of a simulated node cannot be touched: its file is
    /// empty.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped for reading and writing at this length, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length) }
    }
}

/// The same memory for another thread, which changes it while this one uses it.
#[derive(Debug)]
pub struct Alias {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: it is only written to, by volatile stores within its length; that others read it at the
// same time is its purpose, and the only reader that matters is the kernel.
unsafe impl Send for Alias {}

impl Mapping {
    /// Another way to the same bytes. The mapping must outlive it.
    pub fn alias(&self) -> Alias {
        Alias { address: self.address, length: self.length }
    }
}

impl Alias {
    /// Stores eight bytes.
    pub fn store_u64(&mut self, at: usize, value: u64) {
        if at.is_multiple_of(8) && at + 8 <= self.length {
            // SAFETY: aligned and within the mapping, which outlives this value.
            unsafe { self.address.as_ptr().add(at).cast::<u64>().write_volatile(value) }
        }
    }

    /// Stores four bytes.
    pub fn store_u32(&mut self, at: usize, value: u32) {
        if at.is_multiple_of(4) && at + 4 <= self.length {
            // SAFETY: as in `store_u64`.
            unsafe { self.address.as_ptr().add(at).cast::<u32>().write_volatile(value) }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows it any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// `fork(2)`: `None` in the child. The caller has no other threads.
///
/// # Errors
/// The errno.
pub fn fork() -> io::Result<Option<nix::unistd::Pid>> {
    // SAFETY: the programs that use this have one thread when they fork, so the child may do
    // anything.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(Some(child)),
        nix::unistd::ForkResult::Child => Ok(None),
    }
}
