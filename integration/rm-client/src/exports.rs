//! Memory that travels with a file, and files that travel over a socket.

use std::{
    fs::File,
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use abi::{
    Handle,
    controls::{NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD},
    encode,
    params::{NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS, NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS},
};

use crate::{
    RmError,
    bytes::get,
    device::{Allocation, Device},
    system,
};

/// `NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TYPE_RM`.
const RM_OBJECT: u32 = 1;

/// Exports memory to a control file of its own, which keeps it from then on.
///
/// # Errors
/// The driver's status, where it refuses.
pub fn export(device: &Device<'_>, memory: Allocation) -> Result<File, RmError> {
    let carrier = device.client.nodes.control()?;
    let mut params = encode!(NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS {
        r#type: RM_OBJECT,
        hDevice: Handle(device.device),
        hParent: Handle(device.device),
        hObject: Handle(memory.handle),
        fd: carrier.as_raw_fd(),
    });
    device.client.control(device.client.handle, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &mut params)?;
    Ok(carrier)
}

/// A handle of one's own for what `carrier` brings.
///
/// # Errors
/// The driver's status, where it refuses.
pub fn import(device: &Device<'_>, carrier: &File) -> Result<u32, RmError> {
    type Params = NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS;
    let mut params = encode!(Params {
        fd: carrier.as_raw_fd(),
        r#type: RM_OBJECT,
        hDevice: Handle(device.device),
        hParent: Handle(device.device),
    });
    device.client.control(device.client.handle, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, &mut params)?;
    Ok(get(&params, Params::hObject).0)
}

/// Sends an open file.
///
/// # Errors
/// The errno.
pub fn send(socket: &UnixStream, file: &File) -> Result<(), RmError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let sent = sendmsg(socket, &[IoSlice::new(b"f")], &mut ancillary, SendFlags::empty());
    sent.map_err(|errno| system("sending a file")(errno.into()))?;
    Ok(())
}

/// Receives an open file.
///
/// # Errors
/// The errno; [`RmError::Nonsense`] when the other side has closed without sending one.
pub fn receive(socket: &UnixStream) -> Result<File, RmError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(|errno| system("receiving a file")(errno.into()))?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message
            && let Some(file) = files.next()
        {
            return Ok(file.into());
        }
    }
    Err(RmError::Nonsense { what: "no file came".into() })
}
