//! Gives a call's pointer and descriptor fields their values for one ioctl, and their old ones afterwards.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, AsRawFd},
};

use super::{Buffer, DeviceFile, DriverCall, Holder};
use crate::sys;

/// The driver takes a buffer to be as long as the struct that it expects there, which most calls do not say. The longest
/// parameters of an allocation are well below this.
pub(crate) const LEAST_BUFFER: usize = 4096;
/// The same for the argument of UVM's calls, whose numbers do not say its length either: 9264 bytes is the longest
/// (`UVM_MAP_EXTERNAL_ALLOCATION_PARAMS` since 550.54.14, kernel-open/nvidia-uvm/uvm_ioctl.h).
const LEAST_UVM_ARGS: usize = 16384;

thread_local! {
    /// Where the argument of a call to UVM is made longer. Kept, and all zeroes between calls: to take so much from the allocator and to fill it
    /// at every call costs more than the call's other copies together. (What UVM writes back is as long as what it reads; should that be
    /// more than the tables know, later calls of the same container may find it there.)
    static PADDED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// `NV_ESC_RM_CONTROL` (src/nvidia/arch/nvalloc/unix/include/nv_escape.h): says itself how long its buffer is.
const RM_CONTROL: u32 = 0x2a;
/// Offset of `NVOS54_PARAMETERS.params` (src/common/sdk/nvidia/inc/nvos.h).
const CONTROL_PARAMS: usize = 16;
/// Offset of `NVOS54_PARAMETERS.paramsSize`.
const CONTROL_PARAMS_SIZE: usize = 24;

/// Executes `call` on `file` by the kernel.
///
/// # Errors
/// `InvalidInput` when a field is outside its holder, or the call says that a buffer is longer than it is; else the errno.
pub(super) fn execute(file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32> {
    let DriverCall { command, args, buffers, files } = call;
    if command & 0xff == RM_CONTROL && sys::command_size(command) > 0 {
        check_control_length(args, buffers)?;
    }
    let lengths: Vec<usize> = buffers.iter().map(|buffer| buffer.bytes.len()).collect();
    for buffer in &mut *buffers {
        let length = buffer.bytes.len().max(LEAST_BUFFER);
        buffer.bytes.resize(length, 0);
    }
    let answer = with_fields(args, buffers, files, |args| {
        if sys::command_size(command) > 0 {
            return sys::ioctl(file.file.as_fd(), command, args);
        }
        PADDED.with_borrow_mut(|padded| {
            padded.resize(args.len().max(LEAST_UVM_ARGS), 0);
            let Some((said, _)) = padded.split_at_mut_checked(args.len()) else { return Err(outside()) };
            said.copy_from_slice(args);
            let answer = sys::ioctl(file.file.as_fd(), command, padded);
            if let Some(said) = padded.get_mut(..args.len()) {
                args.copy_from_slice(said);
                said.fill(0);
            }
            answer
        })
    });
    for (buffer, length) in buffers.iter_mut().zip(lengths) {
        buffer.bytes.truncate(length);
    }
    answer
}

/// The driver would copy as many bytes as the call says, whatever the buffer's length is.
fn check_control_length(args: &[u8], buffers: &[Buffer]) -> io::Result<()> {
    let said = u32_at(args, CONTROL_PARAMS_SIZE).ok_or_else(outside)? as usize;
    let params = buffers.iter().find(|buffer| buffer.holder == Holder::Args && buffer.offset == CONTROL_PARAMS);
    if said <= params.map_or(0, |params| params.bytes.len()) || (params.is_none() && pointer_is_null(args)?) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "a control's parameters are shorter than the call says"))
}

fn pointer_is_null(args: &[u8]) -> io::Result<bool> {
    let field = args.get(CONTROL_PARAMS..CONTROL_PARAMS + 8).ok_or_else(outside)?;
    Ok(field.iter().all(|byte| *byte == 0))
}

/// Sets every field, calls `execute`, and gives every field its old value, also when the call fails.
fn with_fields(
    args: &mut [u8],
    buffers: &mut [Buffer],
    files: &[super::FileField],
    execute: impl FnOnce(&mut [u8]) -> io::Result<i32>,
) -> io::Result<i32> {
    let pointers = buffers.iter_mut().map(|buffer| {
        let address = buffer.bytes.as_mut_ptr().expose_provenance() as u64;
        Field { holder: buffer.holder, offset: buffer.offset, length: 8, value: address.to_ne_bytes() }
    });
    let numbers = files.iter().map(|field| {
        let [a, b, c, d] = field.file.file.as_raw_fd().to_ne_bytes();
        Field { holder: field.holder, offset: field.offset, length: 4, value: [a, b, c, d, 0, 0, 0, 0] }
    });
    let mut fields: Vec<Field> = pointers.chain(numbers).collect();
    let are_set = fields.iter_mut().map_while(|field| field.swap(args, buffers).then_some(())).count();
    let result = if are_set == fields.len() { execute(args) } else { Err(outside()) };
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
    /// How many bytes of `value` it is.
    length: usize,
    /// What it is to have, or had.
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

/// The 4 bytes at `offset`.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, sync::Arc};

    use super::*;
    use crate::{
        driver::FileField,
        rm::{Node, uvm::UVM_COMMANDS},
    };

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
        let addresses: Vec<u64> = buffers.iter().map(|buffer| buffer.bytes.as_ptr().addr() as u64).collect();
        let file = null_file();
        let number = file.file.as_raw_fd();
        let files = [FileField { holder: Holder::Args, offset: 20, file }];
        let answer = with_fields(&mut args, &mut buffers, &files, |args| {
            assert_eq!(args[8..16], addresses[0].to_ne_bytes());
            assert_eq!(args[20..24], number.to_ne_bytes());
            Ok(5)
        });
        assert_eq!(answer.unwrap(), 5);
        assert_eq!(args, [9; 24]);
        assert_eq!(buffers[0].bytes, [7; 16]);
    }

    #[test]
    fn a_field_outside_its_holder_is_refused_and_nothing_stays_changed() {
        for (holder, offset) in
            [(Holder::Args, 17), (Holder::Args, usize::MAX), (Holder::Buffer(1), 9), (Holder::Buffer(9), 0)]
        {
            let mut args = [9_u8; 24];
            let mut buffers = [buffer(Holder::Args, 8, 16), buffer(holder, offset, 16)];
            let error = with_fields(&mut args, &mut buffers, &[], |_| unreachable!()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{holder:?} {offset}");
            assert_eq!(args, [9; 24]);
        }
    }

    #[test]
    fn calls_that_do_not_say_their_length_get_room_and_leave_nothing_to_the_next() {
        let file = null_file();
        for length in [9264, 24, 0, 20_000] {
            let mut args = vec![7_u8; length];
            let call = DriverCall { command: 33, args: &mut args, buffers: &mut [], files: &[] };
            assert_eq!(execute(&file, call).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
            assert_eq!(args, vec![7; length]);
            PADDED.with_borrow(|padded| {
                assert_eq!(padded.len(), length.max(LEAST_UVM_ARGS));
                assert!(padded.iter().all(|byte| *byte == 0), "{length}: not what was there before");
            });
        }
    }

    #[test]
    fn the_room_for_uvms_arguments_is_more_than_any_of_them_takes() {
        let layouts = || UVM_COMMANDS.iter().flat_map(|row| row.layouts);
        let longest = layouts().map(|layout| usize::from(layout.size)).max();
        // A later release may make it longer before its tables are here.
        assert!(longest.is_some_and(|longest| longest + 4096 <= LEAST_UVM_ARGS), "{longest:?}");
    }

    /// As a driver would whose structs are longer than the tables know.
    #[test]
    fn what_is_written_beyond_the_known_length_stays_in_that_room() {
        let terminal = match nix::pty::openpty(None, None) {
            Ok(terminal) => terminal,
            Err(error) => return crate::skipped::skipped(format_args!("no terminal can be had: {error}")),
        };
        let file = DeviceFile { node: Node::Uvm, file: Arc::new(terminal.slave.into()) };
        // `TCGETS`, whose number says no size: the kernel writes 36 bytes.
        let mut args = vec![7; 4];
        let call = DriverCall { command: 0x5401, args: &mut args, buffers: &mut [], files: &[] };
        assert_eq!(execute(&file, call).unwrap(), 0);
        assert_eq!(args.len(), 4, "as much as was known is told");
        assert_ne!(args, [7; 4]);
        PADDED.with_borrow_mut(|padded| {
            assert_eq!(padded.len(), LEAST_UVM_ARGS);
            assert!(padded[4..36].iter().any(|byte| *byte != 0), "the kernel had room to write the rest");
            // Other tests may follow in this thread.
            padded.fill(0);
        });
    }

    #[test]
    fn a_control_cannot_make_the_driver_read_past_its_parameters() {
        let file = null_file();
        let mut args = [0_u8; 32];
        args[CONTROL_PARAMS_SIZE] = 17;
        args[CONTROL_PARAMS] = 1;
        let mut buffers = [buffer(Holder::Args, CONTROL_PARAMS, 16)];
        let command = 0xc020_462a;
        let call = DriverCall { command, args: &mut args, buffers: &mut buffers, files: &[] };
        assert_eq!(execute(&file, call).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let call = DriverCall { command, args: &mut args, buffers: &mut [], files: &[] };
        assert_eq!(execute(&file, call).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        args[CONTROL_PARAMS_SIZE] = 16;
        let call = DriverCall { command, args: &mut args, buffers: &mut buffers, files: &[] };
        assert_eq!(execute(&file, call).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(buffers[0].bytes.len(), 16);
    }

    #[test]
    fn an_argument_shorter_than_its_command_is_refused() {
        let call = DriverCall { command: 0xc030_462b, args: &mut [0; 32], buffers: &mut [], files: &[] };
        assert_eq!(execute(&null_file(), call).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
