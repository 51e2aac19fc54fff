//! Acting on the driver: the real one, or a simulated one with the same calls.
//!
//! Everything above (decoding, accounting, the view) is the same for both; only [`Driver`] differs.
#![warn(missing_docs)]

mod card_page;
mod cost;
mod device_file;
mod file_watch;
mod guarded;
mod nvidia;
mod nvidia_page;
pub mod own_client;
#[cfg(feature = "parking")]
mod parking;
mod patch;
mod raw;
mod switch_log;
mod sys;

use std::{fmt, fs::File, io};

use abi::{Abi, Handle, Node};
pub use card_page::{CardPlace, MappedPage};
pub use cost::{ThreadCost, count_thread, thread_cost};
pub use device_file::{DeviceFile, same_open_file};
pub use file_watch::{FileWatch, Watched};
pub use nvidia::NvidiaDriver;
pub use own_client::client_on;
pub use own_client::{OpenClientError, open_own_client};
#[cfg(feature = "parking")]
pub use parking::{ExternalMapping, HostPages};
pub use raw::Raw;
use schedule::{SwitchLog, SwitchLogError};
pub use sys::share_open_file;

/// One ioctl to be executed: the argument struct, and every buffer that it points to.
///
/// All bytes are private copies. A pointer field of `args` or of a buffer is given its value by
/// [`Driver::ioctl`] (the address of the buffer that hangs there), and has its old value again when
/// that returns: no address of the caller ever reaches the driver, and none of the mediator's ever
/// reaches the caller.
#[derive(Debug)]
pub struct DriverCall<'a> {
    /// The whole command, `_IOWR('F', 0x2b, 48)`, or UVM's bare number.
    pub command: u32,
    /// Bytes that the ioctl's argument points to.
    pub args: &'a mut [u8],
    /// Targets of pointers in there, and in one another. A buffer comes after the one that points
    /// to it.
    pub buffers: &'a mut [Buffer],
    /// Files named by descriptor fields; the field gets the number that the file has in this
    /// process, and has its old value again afterwards.
    pub files: &'a [FileField],
}

/// Target of one pointer.
#[derive(Debug)]
pub struct Buffer {
    /// Holder of the pointer.
    pub holder: Holder,
    /// Offset of the 8-byte pointer in the holder.
    pub offset: usize,
    /// The bytes; the driver reads and writes them.
    pub bytes: Vec<u8>,
}

/// One descriptor that a call names.
#[derive(Debug)]
pub struct FileField {
    /// Holder of the 4-byte number.
    pub holder: Holder,
    /// Its offset there.
    pub offset: usize,
    /// File that the number names.
    pub file: DeviceFile,
}

/// Struct or buffer that a field is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The argument struct.
    Args,
    /// The buffer at this index.
    Buffer(usize),
}

/// Executes driver calls. Implementations are shared by threads.
pub trait Driver: fmt::Debug + Send + Sync {
    /// Executes one ioctl on `file`; the result is what the system call returns (0 in practice),
    /// and what the driver wrote is in the call's bytes. The driver's own verdict is the status in
    /// there.
    ///
    /// # Errors
    /// The system call's errno, or `InvalidInput` when a field lies outside its holder.
    fn ioctl(&self, file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32>;

    /// A call that the real driver executes in the caller's own context (the mediator answers
    /// "continue"): here for drivers that are not in the kernel. `None`: let the kernel do it.
    ///
    /// Descriptors that the call names (the control file of `NV_ESC_REGISTER_FD`) are in `files`,
    /// as for [`Driver::ioctl`].
    fn in_callers_place(&self, file: &DeviceFile, call: DriverCall<'_>) -> Option<io::Result<i32>>;

    /// Returns whether the kernel executes what it is let execute: then it reads the caller's
    /// memory again by itself.
    fn is_in_kernel(&self) -> bool {
        true
    }

    /// Opens a node for the mediator itself.
    ///
    /// # Errors
    /// When the node cannot be opened.
    fn open(&self, node: Node) -> io::Result<DeviceFile>;

    /// Returns the node that `file` is open on; `None`: none of the driver's.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn node_of(&self, file: &File) -> io::Result<Option<Node>>;

    /// Returns whether a client still exists, that is, whether the open file that it belongs to has
    /// not been closed. `probe` is a client of the mediator's own (and the control file that it
    /// lives on).
    ///
    /// # Errors
    /// When the driver answers something that means neither.
    fn client_exists(&self, probe: &OwnClient, client: Handle) -> io::Result<bool>;

    /// Watches whether files on the driver's nodes still exist.
    ///
    /// # Errors
    /// When the kernel has no means to.
    fn file_watch(&self) -> io::Result<Box<dyn FileWatch>>;

    /// Maps the page of a card's memory that a place is in, for reading.
    ///
    /// # Errors
    /// When the driver refuses it, or its cards' memory has no content.
    fn map_page(&self, _: &Abi, _: &OwnClient, _: CardPlace) -> io::Result<Box<dyn MappedPage>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The log of a card's context switches, through a client of the mediator's own and its
    /// subdevice of the card. `None`: this driver keeps none. One for each subdevice.
    ///
    /// # Errors
    /// When the driver refuses it.
    fn switch_log(&self, _: &Abi, _: &OwnClient, _: Handle) -> Result<Option<Box<dyn SwitchLog>>, SwitchLogError> {
        Ok(None)
    }
}

/// A client of the mediator's own.
#[derive(Debug)]
pub struct OwnClient {
    /// The control file that it lives on.
    pub control: DeviceFile,
    /// Its handle.
    pub client: Handle,
}
