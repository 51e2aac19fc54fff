//! Changes that may alter what is published.

use k8s_openapi::api::resource::v1::ResourceSlice;

use crate::taints::Drained;

#[derive(Debug)]
pub(crate) enum Change {
    /// The ledger, a card, or the configuration.
    Local,
    /// All slices of this node.
    Slices(Vec<ResourceSlice>),
    /// One that is new or has changed.
    Slice(Box<ResourceSlice>),
    SliceGone(String),
    /// The Node object; `None`: it is gone.
    Node(Option<NodeObject>),
}

/// The Node object, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeObject {
    pub(crate) uid: String,
    /// The cards that an administrator empties.
    pub(crate) drained: Drained,
}
