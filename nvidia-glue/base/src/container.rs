//! Names of containers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names one container among all containerds of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerKey {
    /// containerd's gRPC address, `/run/containerd/containerd.sock`.
    pub containerd: String,
    /// containerd's namespace, `k8s.io`.
    pub namespace: String,
    /// The container's id.
    pub id: String,
}

impl fmt::Display for ContainerKey {
    /// `k8s.io/web-1`: as people name it. Two containerds of one node may have the same.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.id)
    }
}
