//! Codes of the reasons for which a container gets no GPU, or a change is not made.

use std::fmt;

/// Defines the codes with their names, which people and scripts rely on: none is ever renamed.
macro_rules! codes {
    ($($(#[$documentation:meta])* $code:ident = $name:literal,)*) => {
        /// Reason of a refusal, as `egpu explain` knows it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum RefusalCode {
            $($(#[$documentation])* $code,)*
        }

        impl RefusalCode {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// The name that is shown.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)*
                }
            }
        }
    };
}

codes! {
    /// Not enough memory of the card is free.
    NoMemory = "no-memory",
    /// Not enough of the card's time is free for a cap.
    NoTime = "no-time",
    /// Not enough weight is free.
    NoWeight = "no-weight",
    /// Caps would take what containers without one must keep.
    NoRemainder = "no-remainder",
    /// No order of time windows fits.
    NoWindows = "no-windows",
    /// The card has as many containers as it may.
    TooManyContainers = "too-many-containers",
    /// Too few channels of the card are free.
    NoChannels = "no-channels",
    /// Too little of the host's memory may be pinned.
    NoPinnedMemory = "no-pinned-memory",
    /// The whole card was asked for, and parts are in use.
    CardInUse = "card-in-use",
    /// Somebody has the whole card.
    CardTaken = "card-taken",
    /// Somebody has the MIG device.
    MigTaken = "mig-taken",
    /// The card has another policy.
    OtherPolicy = "other-policy",
    /// A cap under a policy without caps.
    CapNeedsFixed = "cap-needs-fixed",
    /// The card cannot enforce caps.
    NoHardCaps = "no-hard-caps",
    /// Several cards were tried, for different reasons in vain.
    NoRoom = "no-room",
    /// Room is kept for somebody who has waited for longer.
    RoomKept = "room-kept",
    /// As many wait for room as may.
    TooManyWaiting = "too-many-waiting",
    /// The wait for room was ended.
    WaitEnded = "wait-ended",
    /// The request cannot be met on this node, whoever else is there.
    NotOnThisNode = "not-on-this-node",
    /// A value is malformed or out of range.
    InvalidValue = "invalid-value",
    /// Two statements, or two request languages, in one request.
    Contradiction = "contradiction",
    /// The node's configuration does not allow the request.
    NotAllowed = "not-allowed",
    /// The container could get around its quota.
    Privileged = "privileged",
    /// Its seccomp profile has a listener of its own.
    SeccompListener = "seccomp-listener",
    /// A quota on a MIG device.
    MigQuota = "mig-quota",
    /// A claim that the container cannot use.
    Claim = "claim",
    /// The container has a grant already.
    AlreadyGranted = "already-granted",
    /// The container has no cgroup for itself.
    Cgroup = "cgroup",
    /// A change of what cannot be changed.
    NotChangeable = "not-changeable",
    /// The node is at fault.
    NodeFailure = "node-failure",
}

impl RefusalCode {
    /// The code of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
