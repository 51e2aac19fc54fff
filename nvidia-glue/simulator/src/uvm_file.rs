//! Address space of an open file of `/dev/nvidia-uvm`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::objects::{Memory, VideoMemory};

/// An open file of the node.
#[derive(Debug, Default)]
pub(super) struct UvmFile {
    /// Flags that it was initialized with.
    pub(super) flags: Option<u64>,
    /// Cards that were registered; with the address space, where one was.
    pub(super) cards: BTreeMap<usize, Option<(u32, u32)>>,
    /// Channels by client and handle.
    pub(super) channels: BTreeMap<(u32, u32), RegisteredChannel>,
    /// By their first address.
    pub(super) ranges: BTreeMap<u64, Range>,
    pub(super) groups: BTreeSet<u64>,
    pub(super) last_group: u64,
}

/// A channel that was registered: it keeps its group.
#[derive(Debug)]
pub(super) struct RegisteredChannel {
    pub(super) card: usize,
    pub(super) _buffers: Option<Arc<VideoMemory>>,
}

/// A range of addresses that an ioctl has made.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) length: u64,
    /// Mappings there; none in a pool of semaphores.
    pub(super) mappings: Vec<Mapping>,
    pub(super) external: bool,
}

/// Memory of one allocation at some addresses of one card's view.
#[derive(Debug, Clone)]
pub(super) struct Mapping {
    pub(super) card: usize,
    pub(super) start: u64,
    /// The last byte's address.
    pub(super) last: u64,
    pub(super) _memory: Memory,
}

impl UvmFile {
    /// Every piece of a card that a mapping holds.
    #[cfg(test)]
    pub(super) fn pieces(&self) -> impl Iterator<Item = Arc<VideoMemory>> {
        let mapped =
            self.ranges.values().flat_map(|range| range.mappings.iter().filter_map(|mapping| mapping._memory.video()));
        mapped.chain(self.channels.values().filter_map(|channel| channel._buffers.clone()))
    }
}
