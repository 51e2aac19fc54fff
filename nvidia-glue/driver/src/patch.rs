//! Gives a call's pointer and descriptor fields their values for one ioctl, and their old ones
//! afterwards.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, AsRawFd},
};

use abi::{
    Node,
    escapes::{NV_ESC_RM_CONTROL, command_size},
    params::NVOS54_PARAMETERS,
};

use super::{Buffer, DeviceFile, DriverCall, Holder, guarded::Guarded};
use crate::sys;

thread_local! {
    /// Memory in which the driver finds the call's buffers, and those arguments whose command does
    /// not say how long they are. (Of the others the kernel copies as much as it says.)
    static GUARDED: RefCell<Guarded> = const { RefCell::new(Guarded::new()) };
}

/// Executes `call` on `file` by the kernel.
///
/// # Errors
/// `InvalidInput` when a field is outside its holder, or the call says that a buffer is longer than
/// it is; else the errno.
pub(super) fn execute(file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32> {
    let DriverCall { command, args, buffers, files } = call;
    if command & 0xff == u32::from(NV_ESC_RM_CONTROL) && command_size(command) > 0 {
        check_control_length(args, buffers)?;
    }
    GUARDED.with_borrow_mut(|guarded| {
        let addresses = guarded.addresses(buffers)?;
        with_fields(args, buffers, &addresses, files, |args, buffers| {
            guarded.copy_in(buffers);
            // Of UVM's numbers none says a size, though one looks so (`UVM_INITIALIZE`).
            let answer = if file.node != Node::Uvm && command_size(command) > 0 {
                sys::ioctl(file.file.as_fd(), command, args)
            } else {
                guarded.with_args(args, |args| sys::ioctl(file.file.as_fd(), command, args)).and_then(|answer| answer)
            };
            guarded.copy_out(buffers);
            answer
        })
    })
}

/// Checks that a control's parameters fit their buffer: the driver would copy as many bytes as the
/// call says.
fn check_control_length(args: &[u8], buffers: &[Buffer]) -> io::Result<()> {
    let said = NVOS54_PARAMETERS::paramsSize.get(args).ok_or_else(outside)? as usize;
    let pointer = NVOS54_PARAMETERS::params;
    let params = buffers.iter().find(|buffer| buffer.holder == Holder::Args && buffer.offset == pointer.at());
    if said <= params.map_or(0, |params| params.bytes.len())
        || (params.is_none() && pointer.get(args).ok_or_else(outside)? == 0)
    {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "a control's parameters are shorter than the call says"))
}

/// Sets every field (pointers to where the buffers will be), calls `execute`, and gives every field
/// its old value, also when the call fails.
fn with_fields(
    args: &mut [u8],
    buffers: &mut [Buffer],
    addresses: &[u64],
    files: &[super::FileField],
    execute: impl FnOnce(&mut [u8], &mut [Buffer]) -> io::Result<i32>,
) -> io::Result<i32> {
    let pointers = buffers.iter().zip(addresses).map(|(buffer, address)| Field {
        holder: buffer.holder,
        offset: buffer.offset,
        length: 8,
        value: address.to_ne_bytes(),
    });
    let numbers = files.iter().map(|field| {
        let [a, b, c, d] = field.file.file.as_raw_fd().to_ne_bytes();
        Field { holder: field.holder, offset: field.offset, length: 4, value: [a, b, c, d, 0, 0, 0, 0] }
    });
    let mut fields: Vec<Field> = pointers.chain(numbers).collect();
    let are_set = fields.iter_mut().map_while(|field| field.swap(args, buffers).then_some(())).count();
    let result = if are_set == fields.len() { execute(args, buffers) } else { Err(outside()) };
    // Backwards, so that of two fields at one place the first one's old value is what remains.
    for field in fields.iter_mut().take(are_set).rev() {
        field.swap(args, buffers);
    }
    result
}

/// A pointer or descriptor.
struct Field {
    holder: Holder,
    offset: usize,
    /// Bytes of `value` that belong to it.
    length: usize,
    /// Value that it is to have, or had.
    value: [u8; 8],
}

impl Field {
    /// Exchanges the value for that which the call has there; `false`: it lies outside its holder.
    fn swap(&mut self, args: &mut [u8], buffers: &mut [Buffer]) -> bool {
        let place = field(args, buffers, self.holder, self.offset, self.length);
        match (place, self.value.get_mut(..self.length)) {
            (Some(place), Some(value)) => {
                place.swap_with_slice(value);
                true
            }
            _ => false,
        }
    }
}

fn field<'a>(
    args: &'a mut [u8],
    buffers: &'a mut [Buffer],
    holder: Holder,
    offset: usize,
    length: usize,
) -> Option<&'a mut [u8]> {
    let bytes = match holder {
        Holder::Args => args,
        Holder::Buffer(index) => buffers.get_mut(index)?.bytes.as_mut_slice(),
    };
    bytes.get_mut(offset..offset.checked_add(length)?)
}

fn outside() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a field of a driver call lies outside the struct that it is said to be in",
    )
}

#[cfg(test)]
mod tests {
    use std::{fs::File, sync::Arc};

    use abi::{
        encode,
        escapes::{NV_ESC_RM_ALLOC, command},
        uvm::UVM_COMMANDS,
    };

    use super::*;
    use crate::FileField;

    fn buffer(holder: Holder, offset: usize, length: usize) -> Buffer {
        Buffer { holder, offset, bytes: vec![7; length] }
    }

    fn null_file() -> DeviceFile {
        DeviceFile { node: Node::Control, file: Arc::new(File::open("/dev/null").unwrap()) }
    }

    #[test]
    fn pointers_and_descriptors_are_set_for_the_call_and_restored() {
        let mut args = [9_u8; 24];
        let mut buffers = [buffer(Holder::Args, 8, 16), buffer(Holder::Buffer(0), 4, 8)];
        let addresses = [0x7000, 0x8000];
        let file = null_file();
        let number = file.file.as_raw_fd();
        let files = [FileField { holder: Holder::Args, offset: 20, file }];
        let answer = with_fields(&mut args, &mut buffers, &addresses, &files, |args, buffers| {
            assert_eq!(args[8..16], addresses[0].to_ne_bytes());
            assert_eq!(buffers[0].bytes[4..12], addresses[1].to_ne_bytes());
            assert_eq!(args[20..24], number.to_ne_bytes());
            Ok(5)
        });
        assert_eq!(answer.unwrap(), 5);
        assert_eq!(args, [9; 24]);
        assert_eq!(buffers[0].bytes, [7; 16]);
    }

    /// The kernel, not this crate, says that the file takes none.
    #[test]
    fn every_command_of_unified_memory_reaches_the_kernel() {
        for row in UVM_COMMANDS {
            for layout in row.layouts {
                let mut args = vec![0; layout.size.into()];
                let file = DeviceFile { node: Node::Uvm, ..null_file() };
                let call = DriverCall { command: row.command, args: &mut args, buffers: &mut [], files: &[] };
                let refused = execute(&file, call).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::ENOTTY), "{}: {refused}", row.name);
            }
        }
    }

    #[test]
    fn a_field_outside_its_holder_is_refused_and_nothing_stays_changed() {
        for (holder, offset) in
            [(Holder::Args, 17), (Holder::Args, usize::MAX), (Holder::Buffer(1), 9), (Holder::Buffer(9), 0)]
        {
            let mut args = [9_u8; 24];
            let mut buffers = [buffer(Holder::Args, 8, 16), buffer(holder, offset, 16)];
            let error = with_fields(&mut args, &mut buffers, &[0; 2], &[], |_, _| unreachable!()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{holder:?} {offset}");
            assert_eq!(args, [9; 24]);
        }
    }

    /// As a driver would whose structs are longer than the tables know.
    #[test]
    fn what_is_written_beyond_the_known_length_stays_in_that_room() {
        let terminal = match nix::pty::openpty(None, None) {
            Ok(terminal) => terminal,
            Err(error) => return testing::skipped(format_args!("no terminal can be had: {error}")),
        };
        let file = DeviceFile { node: Node::Uvm, file: Arc::new(terminal.slave.into()) };
        // TCGETS, which says no size: the kernel writes 36 bytes.
        let mut args = vec![7; 4];
        let call =
            DriverCall { command: u32::try_from(libc::TCGETS).unwrap(), args: &mut args, buffers: &mut [], files: &[] };
        assert_eq!(execute(&file, call).unwrap(), 0);
        assert_eq!(args.len(), 4, "as much as was known is told");
        assert_ne!(args, [7; 4]);
    }

    #[test]
    fn a_control_cannot_make_the_driver_read_past_its_parameters() {
        let file = null_file();
        let mut args = encode!(NVOS54_PARAMETERS { params: 1, paramsSize: 17 });
        let mut buffers = [buffer(Holder::Args, NVOS54_PARAMETERS::params.at(), 16)];
        let command = command(NV_ESC_RM_CONTROL, args.len());
        let call = DriverCall { command, args: &mut args, buffers: &mut buffers, files: &[] };
        assert_eq!(execute(&file, call).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let call = DriverCall { command, args: &mut args, buffers: &mut [], files: &[] };
        assert_eq!(execute(&file, call).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(NVOS54_PARAMETERS::paramsSize.set(&mut args, 16));
        let call = DriverCall { command, args: &mut args, buffers: &mut buffers, files: &[] };
        assert_eq!(execute(&file, call).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(buffers[0].bytes.len(), 16);
        assert_eq!(GUARDED.with_borrow(|guarded| guarded.buffers.len()), 1, "where the driver finds them");
    }

    #[test]
    fn an_argument_shorter_than_its_command_is_refused() {
        let call =
            DriverCall { command: command(NV_ESC_RM_ALLOC, 48), args: &mut [0; 32], buffers: &mut [], files: &[] };
        assert_eq!(execute(&null_file(), call).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
