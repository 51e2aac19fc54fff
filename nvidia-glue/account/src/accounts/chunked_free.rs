//! Freeing an object in chunks.
//!
//! The driver frees all that hangs from an object under the lock that every call of every container
//! needs (`serverFreeResourceTree` in src/nvidia/src/libraries/resserv/src/rs_server.c). So nobody
//! may have it free a hundred thousand objects at once.

use abi::Handle;
use foldhash::HashMap;

use super::Accounts;
use crate::{ObjectName, tree::Index};

impl Accounts {
    /// Objects to free before `object`, in this order, so that no free takes more than `most`
    /// objects: none where it takes no more itself. Those that go with one of them are left out,
    /// and some may be gone already when it is their turn. Only what depends on an object without
    /// being below it (channels and shares, of which there may not be many) may go with it beyond
    /// that.
    ///
    /// Channels come first, as in the driver (`RS_FREE_PRIORITY_HIGH` in
    /// src/nvidia/src/kernel/rmapi/resource_list.h): what runs on the card ends before the memory
    /// goes that it works on.
    pub fn chunks_to_free(&self, client: Handle, object: Handle, most: usize) -> Vec<Handle> {
        let root = self.tree.find(ObjectName::new(client, object));
        let all = root.map(|root| self.tree.goes_with(root)).unwrap_or_default();
        if all.len() <= most {
            return Vec::new();
        }
        let sizes = self.sizes(&all);
        let size = |index: Index| sizes.get(&index).copied().unwrap_or_default();
        // What goes with something that is small enough goes with that.
        let is_piece = |with: Option<Index>| with.is_some_and(|with| size(with).objects > most);
        let (mut channels, mut with_channels, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for (index, _) in all.into_iter().filter(|(_, with)| is_piece(*with)) {
            // Otherwise another object has the handle by now.
            let named = self.tree.get(index).filter(|object| self.tree.find(object.name) == Some(index));
            let Some(object) = named else { continue };
            let Size { objects, has_channels, is_of_a_channel } = size(index);
            let chunks = match has_channels && objects <= most {
                _ if is_of_a_channel => &mut channels,
                true => &mut with_channels,
                false => &mut rest,
            };
            chunks.push(object.name.object);
        }
        channels.append(&mut with_channels);
        channels.append(&mut rest);
        channels
    }

    /// Size of each of `all`: the objects that are freed with it, itself included.
    fn sizes(&self, all: &[(Index, Option<Index>)]) -> HashMap<Index, Size> {
        let mut sizes: HashMap<Index, Size> = HashMap::default();
        for &(index, with) in all {
            let size = sizes.entry(index).or_default();
            size.objects += 1;
            size.is_of_a_channel = self.tree.get(index).is_some_and(|object| object.kind.is_channel());
            size.has_channels |= size.is_of_a_channel;
            let size = *size;
            if let Some(with) = with {
                let above = sizes.entry(with).or_default();
                above.objects += size.objects;
                above.has_channels |= size.has_channels;
            }
        }
        // What goes with a channel is freed before it.
        for (index, with) in all.iter().rev() {
            let is_of_a_channel = with.and_then(|with| sizes.get(&with)).is_some_and(|with| with.is_of_a_channel);
            if let Some(size) = sizes.get_mut(index) {
                size.is_of_a_channel |= is_of_a_channel;
            }
        }
        sizes
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    objects: usize,
    has_channels: bool,
    /// True if it is one, or goes with one.
    is_of_a_channel: bool,
}
