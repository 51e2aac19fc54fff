//! Nothing but the files beside this crate: containerd's, Docker's and the node's configuration,
//! Kubernetes manifests, and units and rules for Prometheus. `tests/manifests.rs` and the
//! integration tests hold each of them against the real thing.
