//! Bytes of a driver call -> the row that describes it and a typed [`Call`]. No state; no bytes
//! make it panic.

mod calls;
mod escapes;
mod uvm;

pub use calls::*;
pub use uvm::{HOST_UUID, Range, UvmCall, UvmMemory, UvmObject};

use self::{escapes::escape_call, uvm::uvm_call};
use super::{
    Abi, Node, Status,
    escapes::{Action, Escape, EscapeLayout, NO_LAYOUT, command_size, escape},
    layout::{Descriptor, Pointer, read_u32, write_u32},
    params::{Field, Value},
    uvm::{NO_UVM_LAYOUT, UvmCommand, UvmLayout, UvmRule, uvm_command},
};

/// A call and the row that describes it.
#[derive(Debug, Clone, Copy)]
pub struct Decoded {
    /// Its row.
    pub row: Row,
    /// Decoded call.
    pub call: Call,
}

/// The row of a call, as it is in one release.
#[derive(Debug, Clone, Copy)]
pub enum Row {
    /// Of `/dev/nvidiactl` or `/dev/nvidiaN`; with the size of this call's struct, or array of
    /// structs.
    Escape(&'static Escape, &'static EscapeLayout, usize),
    /// Of `/dev/nvidia-uvm`.
    Uvm(&'static UvmCommand, &'static UvmLayout),
}

impl Row {
    /// NVIDIA's name of the call.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Escape(escape, ..) => escape.name,
            Self::Uvm(command, _) => command.name,
        }
    }

    /// Returns the mediator's treatment of it.
    pub fn action(&self) -> Action {
        match self {
            Self::Escape(escape, ..) => escape.action,
            Self::Uvm(command, _) => match command.rule {
                UvmRule::Execute => Action::Execute,
                UvmRule::Continue(reason) => Action::Continue(reason),
                UvmRule::Refuse(status, reason) => Action::Refuse(status, reason),
            },
        }
    }

    /// Bytes of its argument struct.
    pub fn size(&self) -> usize {
        match self {
            Self::Escape(_, _, size) => *size,
            Self::Uvm(_, layout) => usize::from(layout.size),
        }
    }

    /// Returns the offset of its status; `None`: the errno is the only answer.
    pub fn status_at(&self) -> Option<usize> {
        match self {
            Self::Escape(_, layout, _) => layout.status.map(usize::from),
            Self::Uvm(_, layout) => layout.status.map(usize::from),
        }
    }

    /// Pointers of fixed meaning in its argument struct. The parameters of [`Call::Alloc`] and
    /// [`Call::Control`] are not among them.
    pub fn pointers(&self) -> &'static [Pointer] {
        match self {
            Self::Escape(_, layout, _) => layout.pointers,
            Self::Uvm(..) => &[],
        }
    }

    /// Descriptors in its argument struct.
    pub fn descriptors(&self) -> &'static [Descriptor] {
        match self {
            Self::Escape(_, layout, _) => layout.descriptors,
            Self::Uvm(_, layout) => layout.descriptors,
        }
    }

    /// Writes `status` to the call's status field; `false` when it has none (fail with an errno
    /// then).
    #[must_use]
    pub fn set_status(&self, args: &mut [u8], status: Status) -> bool {
        self.status_at().is_some_and(|at| write_u32(args, at, status.0))
    }

    /// The status that the driver left; `None` when it has none.
    pub fn status(&self, args: &[u8]) -> Option<Status> {
        self.status_at().and_then(|at| read_u32(args, at)).map(Status)
    }
}

/// Reason that bytes are no call that the driver would accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// No call of this number is known.
    #[error("command {command:#010x} is not one of this driver's")]
    Unknown {
        /// The command.
        command: u32,
    },
    /// The command is known, but not on this node.
    #[error("{name} cannot be made on this node")]
    WrongNode {
        /// Name of the call.
        name: &'static str,
    },
    /// The command's size is none that the driver has.
    #[error("{name} with {size} bytes is none of this driver's")]
    WrongSize {
        /// Name of the call.
        name: &'static str,
        /// Its size.
        size: usize,
    },
    /// The parameters are serialized (`FINN_SERIALIZED`), which user space does not do on bare
    /// metal.
    #[error("{name} with serialized parameters is not mediated")]
    Serialized {
        /// Name of the call.
        name: &'static str,
        /// Offset of the status.
        status_at: usize,
    },
}

impl Undecodable {
    /// Returns the errno of the system call: the driver's own answer to such a call.
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

/// The driver's own type byte (kernel-open/common/inc/nv-ioctl-numbers.h).
const TYPE_F: u32 = b'F' as u32;

/// `_IOC_NR`, `_IOC_TYPE` and `_IOC_SIZE` of a command (asm-generic/ioctl.h).
const fn parts(command: u32) -> (u8, u32, usize) {
    let [number, kind, ..] = command.to_le_bytes();
    (number, kind as u32, command_size(command))
}

/// The row of a command, which also tells how many bytes of argument to copy before [`decode`]:
/// [`Row::size`].
///
/// # Errors
/// When the driver would not accept the command on that node.
pub fn row(abi: Abi, node: Node, command: u32) -> Result<Row, Undecodable> {
    if node == Node::Uvm {
        let row = uvm_command(command).ok_or(Undecodable::Unknown { command })?;
        return match row.layout(abi) {
            Some(layout) => Ok(Row::Uvm(row, layout)),
            None if row.layouts.is_empty() => Ok(Row::Uvm(row, &NO_UVM_LAYOUT)),
            None => Err(Undecodable::Unknown { command }),
        };
    }
    let (number, kind, size) = parts(command);
    let row = escape(number).filter(|_| kind == TYPE_F).ok_or(Undecodable::Unknown { command })?;
    if !row.node.takes(node) {
        return Err(Undecodable::WrongNode { name: row.name });
    }
    if row.layouts.is_empty() {
        return Ok(Row::Escape(row, &NO_LAYOUT, 0));
    }
    let layout = row.layout(abi, size).ok_or(Undecodable::WrongSize { name: row.name, size })?;
    Ok(Row::Escape(row, layout, size))
}

/// The call in `args`, which must have the bytes that [`row`] asks for.
///
/// # Errors
/// When the driver would not accept it, or it is serialized.
pub fn decode(abi: Abi, node: Node, command: u32, args: &[u8]) -> Result<Decoded, Undecodable> {
    let row = row(abi, node, command)?;
    if args.len() < row.size() {
        return Err(Undecodable::WrongSize { name: row.name(), size: args.len() });
    }
    let fields = Fields(args);
    let call = match row {
        Row::Escape(escape, layout, _) => escape_call(escape, layout, fields)?,
        Row::Uvm(command, layout) => uvm_call(command, layout, fields),
    };
    Ok(Decoded { row, call })
}

/// Reads fields of a struct whose length [`decode`] has checked; what is out of reach all the same
/// reads as zero.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn get<T: Value + Default>(self, field: Field<T>) -> T {
        field.get(self.0).unwrap_or_default()
    }

    fn range(self, base: Field<u64>, length: Field<u64>) -> Range {
        Range { base: self.get(base), length: self.get(length) }
    }
}
