//! The container's processes, as reconciliation needs them.

use std::{fmt, fs::File, io, sync::Arc};

use base::Pid;

/// One mapping of `/dev/nvidia-uvm` in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UvmMapping {
    /// Start; UVM's managed memory has its offset in the file there too.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
}

/// Returns whether an error says nothing of a process, but that there are no files, or there is no
/// memory, to look at it with.
pub fn is_for_want_of_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// An address space, whoever has it.
pub trait AddressSpace: fmt::Debug + Send + Sync {
    /// Returns whether anybody has it. Waits for nobody.
    fn is_there(&self) -> bool;

    /// Returns whether the process of which it was looked up has it still: it is there, and has
    /// executed no other program since.
    ///
    /// # Errors
    /// When that cannot be told now.
    fn is_its_process_s(&self) -> io::Result<bool>;

    /// Its mappings of `/dev/nvidia-uvm`. Of one that is gone meanwhile, perhaps not all.
    ///
    /// # Errors
    /// When it is gone, or nobody is known who has it.
    fn uvm_mappings(&self) -> io::Result<Vec<UvmMapping>>;
}

/// Looks at the container's processes. An error means that the process cannot be examined (usually:
/// it is gone); it is left out.
pub trait Processes: fmt::Debug + Send + Sync {
    /// Every process of the container, threads left out.
    ///
    /// # Errors
    /// When the container's cgroup cannot be read.
    fn pids(&self) -> io::Result<Vec<Pid>>;

    /// Returns whether a process that was seen before still runs; a reused pid must not be taken
    /// for it (keep its pidfd).
    fn is_running(&self, pid: Pid) -> bool;

    /// Returns whether there is a thread of that id, be it another one than before.
    fn is_thread_running(&self, thread: i32) -> bool;

    /// Returns whether two processes have one address space (`kcmp(2)` with `KCMP_VM`): `CLONE_VM`,
    /// `vfork`.
    ///
    /// # Errors
    /// When one of them is gone.
    fn share_memory(&self, one: Pid, other: Pid) -> io::Result<bool>;

    /// The address space that a process has now; `thread` is one of its threads. It is the
    /// process's if that waits for an answer all the time.
    ///
    /// # Errors
    /// When the process is gone, or executes a program just now.
    fn address_space(&self, pid: Pid, thread: i32) -> io::Result<Arc<dyn AddressSpace>>;

    /// Returns whether a process has left its memory and has not ended: what it had mapped, the
    /// driver has until the kernel has taken it away.
    fn is_leaving(&self, pid: Pid) -> bool;

    /// The process's mappings of `/dev/nvidia-uvm` (`/proc/PID/maps`).
    ///
    /// # Errors
    /// When the process is gone.
    fn uvm_mappings(&self, pid: Pid) -> io::Result<Vec<UvmMapping>>;

    /// Returns whether one of its descriptors is of the same open file as `file` (`kcmp(2)` with
    /// `KCMP_FILE`).
    ///
    /// # Errors
    /// When the process is gone.
    fn has_open_file(&self, pid: Pid, file: &File) -> io::Result<bool>;
}
