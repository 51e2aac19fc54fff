//! The record of one container's grant.

use std::fmt;

use base::{Bytes, CardGrant, ContainerKey, Priority, ProcessId};
use runtime_config::request::{GpuRequest, Isolation, PodContainer, Share};
use serde::{Deserialize, Serialize};

use crate::claim::ClaimGrant;

/// A container as people know it: by its pod, where it has one, and as containerd does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerName<'a> {
    /// containerd's name.
    pub key: &'a ContainerKey,
    /// Kubernetes' name.
    pub pod: Option<&'a PodContainer>,
}

/// The owner of a container, as far as the node knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner<'a> {
    /// The pod's namespace in Kubernetes.
    Pods(&'a str),
    /// Outside Kubernetes containerd's.
    Containerd(&'a str),
}

impl<'a> ContainerName<'a> {
    pub(crate) fn owner(&self) -> Owner<'a> {
        match self.pod {
            Some(pod) => Owner::Pods(&pod.namespace),
            None => Owner::Containerd(&self.key.namespace),
        }
    }
}

impl fmt::Display for ContainerName<'_> {
    /// `team/train-0/main [k8s.io/6918e837]`; outside Kubernetes `default/web-1`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pod {
            Some(pod) => write!(formatter, "{pod} [{}]", self.key),
            None => write!(formatter, "{}", self.key),
        }
    }
}

impl<'a> From<&'a ContainerKey> for ContainerName<'a> {
    /// A container of which no more is known.
    fn from(key: &'a ContainerKey) -> Self {
        Self { key, pod: None }
    }
}

impl<'a> From<&'a Record> for ContainerName<'a> {
    fn from(record: &'a Record) -> Self {
        Self { key: &record.container, pod: record.request.pod.as_ref() }
    }
}

/// One container's grant. A file of its own in `ledger/`, replaced as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Oldest format whose readers may act on it.
    pub version: u32,
    /// Format in which it was written first.
    #[serde(default = "base::format::first")]
    pub format: u32,
    /// Version of egpu that runs the container, for people; `None`: one that did not say.
    #[serde(default)]
    pub egpu_version: Option<String>,
    /// The kernel's boot id; a record of another boot is void.
    pub boot_id: String,
    /// The grant's own name: later several containers may share one grant.
    pub grant_id: String,
    pub container: ContainerKey,
    /// Reserved, or in use by a container that exists.
    pub state: GrantState,
    /// The namespaces in which the ids below mean something, see [`base::Surroundings`]. In another
    /// one it cannot be told whether these processes live, and they are left alone.
    pub pid_namespace: u64,
    /// The shim that answers for the container. Means nothing while the grant is prepared.
    pub shim: ProcessId,
    /// Besides the shim, what can still bring the container to life while the grant is pending: the
    /// shim's helper.
    #[serde(default)]
    pub creators: Vec<ProcessId>,
    /// The container's init, once there is one.
    pub init: Option<ProcessId>,
    /// Process that executes the container's driver calls, once the container exists. The driver's
    /// memory is this process's: the grant stands until it is gone, too.
    #[serde(default)]
    pub mediator: Option<ProcessId>,
    /// The container's cgroup directories, absolute: one on v2, one a hierarchy on v1. While
    /// pending: those in which it is going to be created. Written before the container exists, so
    /// that whoever finds the record of a shim that died in the middle of a create knows where to
    /// look.
    pub cgroups: Vec<String>,
    /// Order of admission; schedules are laid out in it.
    pub order: u64,
    /// Priority, where it was changed after the admission; `None`: as was asked.
    #[serde(default)]
    pub priority: Option<Priority>,
    /// Processes of the container have the driver open, as far as its shim has reported.
    #[serde(default)]
    pub present: bool,
    /// Its init was asked to end.
    #[serde(default)]
    pub leaving: bool,
    /// Since when, microseconds of `CLOCK_MONOTONIC`; `None`: an earlier egpu has not said.
    #[serde(default)]
    pub leaving_since_us: Option<u64>,
    /// The claim whose request is granted, and the containers that use it; `None`: the grant is one
    /// container's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimGrant>,
    pub request: GpuRequest,
    /// Grants, card by card in the container's order.
    pub cards: Vec<CardGrant>,
    /// Whole cards, no quota.
    pub exclusive: bool,
    /// Instant of admission, RFC 3339.
    pub admitted_at: String,
}

impl Record {
    /// Current priority: the one set later, else the request's.
    pub fn priority(&self) -> Priority {
        self.priority.unwrap_or(self.request.priority)
    }

    /// Its cards.
    pub(super) fn uuids(&self) -> impl Iterator<Item = &str> {
        self.cards.iter().map(|grant| grant.uuid.as_str())
    }

    /// Host memory that the driver may pin for it; 0: it has no mediator, or is a monitor.
    pub fn pinned_memory(&self) -> Bytes {
        Bytes(self.cards.iter().filter_map(|grant| grant.pinned_memory).map(|part| part.0).fold(0, u64::saturating_add))
    }

    /// Returns whether the container is mediated and recorded, but has no limits (isolation
    /// `none`).
    pub fn is_unlimited(&self) -> bool {
        matches!(self.request.share, Share::Part { isolation: Isolation::None, .. })
    }

    /// Brings what a claim's record says of processes up to date with the containers that use it.
    pub(crate) fn follow_containers(&mut self) {
        let Some(grant) = &self.claim else { return };
        self.cgroups = grant.containers.iter().flat_map(|container| container.cgroups.clone()).collect();
        self.init = grant.containers.iter().find_map(|container| container.init);
        self.state = match (grant.containers.is_empty(), self.init) {
            (true, _) => GrantState::Prepared,
            (false, None) => GrantState::Pending,
            (false, Some(_)) => GrantState::Bound,
        };
        if self.state == GrantState::Prepared {
            self.creators.clear();
            self.mediator = None;
            self.present = false;
        } else {
            self.leaving = grant.containers.iter().all(|container| container.leaving);
        }
    }

    /// Notes that no process uses a claim's request any more.
    pub(crate) fn detach_all(&mut self) {
        if let Some(grant) = &mut self.claim {
            grant.containers.clear();
        }
        self.follow_containers();
    }

    /// Name under which its turns are in the timetable, and its mediator's files: the gang's, or
    /// its own.
    pub fn schedule_id(&self) -> &str {
        let gang = self.claim.as_ref().and_then(|grant| grant.gang.as_ref());
        gang.map_or(&self.grant_id, |gang| &gang.leader)
    }

    /// Init processes of all containers that use the grant.
    pub(crate) fn inits(&self) -> impl Iterator<Item = ProcessId> {
        let containers = self.claim.iter().flat_map(|grant| &grant.containers);
        let others = containers.filter_map(|container| container.init).filter(|init| Some(*init) != self.init);
        self.init.into_iter().chain(others)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GrantState {
    /// A claim's: no container uses it.
    Prepared,
    /// Reserved; the container is being created.
    Pending,
    /// The container exists.
    Bound,
}
