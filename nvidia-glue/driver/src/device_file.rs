//! Open files of the driver's nodes.

use std::{fs::File, io, os::fd::AsFd, sync::Arc};

use abi::Node;

use crate::sys;

/// An open file of one of the driver's nodes.
///
/// Two values name the same open file description only if the caller's descriptors do; the driver ties clients to that.
#[derive(Debug, Clone)]
pub struct DeviceFile {
    /// Which node.
    pub node: Node,
    /// A duplicate of the caller's descriptor (the same open file description), or a file of the mediator's own.
    pub file: Arc<File>,
}

/// Whether two descriptors are of one open file description (one `open(2)`), which is what the driver ties clients to.
///
/// # Errors
/// When the kernel does not say: it lacks `kcmp(2)`, or a filter forbids it.
pub fn same_open_file(one: &File, other: &File) -> io::Result<bool> {
    sys::same_open_file(one.as_fd(), other.as_fd())
}
