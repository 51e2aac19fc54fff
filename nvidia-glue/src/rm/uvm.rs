//! The ioctls of `/dev/nvidia-uvm`.

use super::{
    Abi, Status,
    layout::{Descriptor, Releases},
};

/// One UVM command.
#[derive(Debug, PartialEq, Eq)]
pub struct UvmCommand {
    /// NVIDIA's name.
    pub name: &'static str,
    /// The bare number.
    pub command: u32,
    /// Its structs, oldest first, in disjoint ranges of releases. UVM's numbers carry no size.
    pub layouts: &'static [UvmLayout],
    /// What is done with it.
    pub rule: UvmRule,
    /// Where it is defined.
    pub header: &'static str,
}

/// The struct of a UVM command in some releases.
#[derive(Debug, PartialEq, Eq)]
pub struct UvmLayout {
    /// Which.
    pub releases: Releases,
    /// Bytes.
    pub size: u16,
    /// Offset of `rmStatus`; `None`: it has none, the errno tells.
    pub status: Option<u16>,
    /// Descriptors of control and UVM files.
    pub descriptors: &'static [Descriptor],
}

/// What is done with a UVM command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UvmRule {
    /// Executed by the mediator on a copy.
    Execute,
    /// Executed by the kernel in the caller's place; the reason why that is harmless whatever the struct says by then.
    Continue(&'static str),
    /// Refused.
    Refuse(Status, &'static str),
}

impl UvmCommand {
    /// Its struct in a release; `None`: that release does not know it.
    pub fn layout(&self, abi: Abi) -> Option<&'static UvmLayout> {
        self.layouts.iter().find(|layout| layout.releases.contain(abi))
    }
}

/// The row of a command.
pub fn uvm_command(command: u32) -> Option<&'static UvmCommand> {
    UVM_COMMANDS.iter().find(|row| row.command == command)
}

/// Every known command.
pub const UVM_COMMANDS: &[UvmCommand] = &[];
