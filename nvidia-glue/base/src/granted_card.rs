//! A granted card as its container's mediator needs it.

use serde::{Deserialize, Serialize};

use crate::{Bytes, PciBusId};

/// One card of a container's grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedCard {
    /// `GPU-...`.
    pub uuid: String,
    /// Its index on the node.
    pub index: u32,
    /// Number of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI address.
    pub pci: PciBusId,
    /// Memory that the container may have of it, in whole KiB. May be more than the card has, where
    /// the node lets grants exceed it.
    pub memory_limit: Bytes,
    /// Channels that it may have of it.
    pub channels: u32,
    /// The container only reads the state of the card: its view is left as the driver shows it,
    /// though its limit is less than the card. For a limit of 0.
    pub monitored: bool,
    /// The container has the card without a quota: its view is left as the driver shows it.
    pub whole: bool,
    /// The container runs in windows of the card's time: without a turn, not at all.
    pub is_capped: bool,
    /// The container must not run without windows: a weight is not what was asked for, and the
    /// configuration of the node demands hard caps.
    pub needs_windows: bool,
}
