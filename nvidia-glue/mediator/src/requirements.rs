//! Requirements of an object that is about to be made.

use abi::Handle;
use account::{AllocRequest, Card, CommitError, ExportFile, ObjectName, Refusal};
use base::{Bytes, Pid};
use driver::Holder;

use crate::{channels::SchedulingRole, in_flight::CallEnd, objects::topology::ObjectRole};

/// Needs of an object, as its call's parameters say.
#[derive(Debug)]
pub(crate) struct AllocRequirements {
    pub(crate) charge: Charge,
    /// Field in which the driver leaves the size that it has given out, which is what is charged.
    pub(crate) size: Option<(Holder, usize)>,
    /// Card and role, where they matter to later calls.
    pub(crate) place: Option<(Card, ObjectRole)>,
    /// Objects with which it goes.
    pub(crate) dependencies: Vec<Handle>,
    /// Memory to which it is a reference.
    pub(crate) references: Vec<Handle>,
    /// Objects to which its errors are written.
    pub(crate) notifiers: Vec<Handle>,
    pub(crate) role: Option<SchedulingRole>,
}

/// Request to the accounts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Charge {
    Object(AllocRequest),
    /// Addresses on the fabric for this memory, and how many bytes of these.
    Fabric(ObjectName, u64),
    /// Addresses on a card's fabric without memory, for this process.
    Addresses((Card, Bytes), Pid),
    Duplicate(ObjectName),
    Import(ExportFile, u32),
}

impl From<Charge> for AllocRequirements {
    fn from(charge: Charge) -> Self {
        Self {
            charge,
            size: None,
            place: None,
            dependencies: Vec::new(),
            references: Vec::new(),
            notifiers: Vec::new(),
            role: None,
        }
    }
}

impl AllocRequirements {
    /// Returns the card that the object is on, as far as it matters.
    pub(crate) fn card(&self) -> Option<Card> {
        let charged = match self.charge {
            Charge::Object(ask) => ask.memory.map(|(card, _)| card),
            Charge::Fabric(..) | Charge::Addresses(..) | Charge::Duplicate(_) | Charge::Import(..) => None,
        };
        charged.or(self.place.map(|(card, _)| card))
    }
}

/// Reason why an object is not made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AllocAbort {
    /// The call goes no further.
    End(CallEnd),
    /// The accounts have no room for it; the driver was not asked.
    Refused(Refusal),
    /// The driver has made it, the accounts do not take it, and it is gone again.
    CommitRefused(CommitError),
}

impl From<CallEnd> for AllocAbort {
    fn from(end: CallEnd) -> Self {
        Self::End(end)
    }
}

impl From<Refusal> for AllocAbort {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
