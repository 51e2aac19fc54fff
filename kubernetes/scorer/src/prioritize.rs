//! The scheduler's call, and the answer.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use tokio::sync::watch as flag;

use crate::{
    placement::{Placement, Preference},
    request::PodRequest,
    watch::Known,
};

/// The scheduler's call, in its words.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Call {
    pod: Pod,
    node_names: Option<Vec<String>>,
}

/// The score of a node, in the scheduler's words.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct HostPriority<'a> {
    host: &'a str,
    score: usize,
}

/// A call that cannot be answered; the scheduler goes on without.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// A start.
    #[error("the cluster is not known yet")]
    NotReady,
    /// No JSON of the scheduler's.
    #[error("this is no call of the scheduler's")]
    Json(#[from] serde_json::Error),
    /// Whole nodes are given instead.
    #[error("no names of nodes are given: the scheduler's configuration needs `nodeCacheCapable: true`")]
    NoNames,
}

/// The answers to the scheduler.
#[derive(Debug)]
pub(crate) struct Scorer {
    pub(crate) known: Known,
    /// Of pods that ask for none.
    pub(crate) placement: Placement,
    pub(crate) ready: flag::Receiver<bool>,
}

impl Scorer {
    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Answers a call with a list of scores; an empty one leaves the choice to the scheduler.
    pub(crate) fn prioritize(&self, call: &[u8]) -> Result<Vec<u8>, CallError> {
        if !self.is_ready() {
            return Err(CallError::NotReady);
        }
        let call: Call = serde_json::from_slice(call)?;
        let nodes = call.node_names.ok_or(CallError::NoNames)?;
        let pod = PodRequest::read(&call.pod);
        let preference = Preference::new(pod.placement, self.placement);
        let scores = self.known.lock().score(pod, &nodes, preference, Instant::now());
        let scores: Vec<_> = scores.into_iter().map(|(host, score)| HostPriority { host, score }).collect();
        Ok(serde_json::to_vec(&scores)?)
    }
}
