//! Publication of the node's cards: brings the slices that the API server has in line with what
//! the node says, whenever one of both changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::resource::v1::ResourceSlice;
use kubernetes_api::names::{DRIVER, device_name};
use tokio::{
    sync::{mpsc, watch},
    task,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    api_client::{ApiClient, ApiError},
    changes::{Change, NodeObject},
    device::DeviceFacts,
    health::{self, CardState},
    node::{Node, NodeError, View},
    slices::{self, Placed, Pool},
};

/// Changes that may wait.
pub(crate) const WAITING: usize = 64;
/// Pause in which further changes come that are published together.
const GATHER: Duration = Duration::from_millis(20);
/// Pauses after a publication has failed.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Cards are not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The API server does not keep what is written: shares would become whole cards.
    #[error(
        "the API server drops {} of a ResourceSlice: shares of cards need Kubernetes 1.36, or 1.34 with the feature gates \
         DRAConsumableCapacity and DRADeviceTaints on API server, scheduler and kubelet",
        .0.join(", ")
    )]
    FieldsDropped(Vec<String>),
    /// The API server.
    #[error("the node's cards are not published")]
    #[doc(hidden)]
    Api(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<ApiError> for PublishError {
    fn from(error: ApiError) -> Self {
        Self::Api(Box::new(error))
    }
}

impl From<NodeError> for PublishError {
    fn from(error: NodeError) -> Self {
        Self::Api(Box::new(error))
    }
}

/// The publisher and what it knows.
#[derive(Debug)]
pub(crate) struct Publisher {
    api: ApiClient,
    node: Arc<Node>,
    health: watch::Sender<Vec<CardState>>,
    /// All slices of this node, by name; `None`: they are not known yet.
    slices: Option<BTreeMap<String, ResourceSlice>>,
    node_object: Option<NodeObject>,
    /// Reasons for which cards are not offered, as far as they are logged.
    logged: BTreeSet<(String, String)>,
}

impl Publisher {
    /// A publisher that has published nothing.
    pub(crate) fn new(api: ApiClient, node: Arc<Node>, health: watch::Sender<Vec<CardState>>) -> Self {
        Self { api, node, health, slices: None, node_object: None, logged: BTreeSet::new() }
    }

    /// Publishes at each change, for ever.
    ///
    /// # Errors
    /// [`PublishError::FieldsDropped`], after the slices have been taken back; all else is tried
    /// again.
    pub(crate) async fn run(mut self, mut changes: mpsc::Receiver<Change>) -> Result<(), PublishError> {
        let mut pause = None;
        loop {
            if !self.gather(&mut changes, pause).await {
                return Ok(());
            }
            match self.publish().await {
                Ok(()) => pause = None,
                Err(error @ PublishError::FieldsDropped(_)) => {
                    self.take_back().await;
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(error = base::error_chain(&error), "the node's cards are published later");
                    pause = Some(pause.map_or(FIRST_PAUSE, |pause: Duration| (pause * 2).min(LONGEST_PAUSE)));
                }
            }
        }
    }

    /// Waits for changes, or for the end of a pause, and takes note of all. `false`: none comes any
    /// more.
    async fn gather(&mut self, changes: &mut mpsc::Receiver<Change>, pause: Option<Duration>) -> bool {
        match pause {
            Some(pause) => sleep(pause).await,
            None => match changes.recv().await {
                Some(change) => self.note(change),
                None => return false,
            },
        }
        let until = Instant::now() + GATHER;
        loop {
            match timeout_at(until, changes.recv()).await {
                Ok(Some(change)) => self.note(change),
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    fn note(&mut self, change: Change) {
        let named = |slice: ResourceSlice| (slice.metadata.name.clone().unwrap_or_default(), slice);
        match change {
            Change::Local => {}
            Change::Slices(slices) => self.slices = Some(slices.into_iter().map(named).collect()),
            Change::Slice(slice) => self.slices.get_or_insert_default().extend([named(*slice)]),
            Change::SliceGone(name) => _ = self.slices.as_mut().and_then(|slices| slices.remove(&name)),
            Change::Node(node) => self.node_object = node,
        }
    }

    async fn publish(&mut self) -> Result<(), PublishError> {
        let node = Arc::clone(&self.node);
        let view =
            task::spawn_blocking(move || node.view()).await.map_err(|error| PublishError::Api(Box::new(error)))??;
        let states = health::of(&view);
        self.health.send_if_modified(|known| {
            let is_new = *known != states;
            *known = states;
            is_new
        });
        // Not before it is known who else publishes, and whose the slices are.
        let (Some(_), Some(node)) = (&self.slices, self.node_object.clone()) else { return Ok(()) };
        let pool = self.pool(&view, node);
        let slices = self.slices.get_or_insert_default();
        let own: Vec<&ResourceSlice> = slices.values().filter(|slice| slice.spec.driver == DRIVER).collect();
        if pool.is_published(&own) {
            return Ok(());
        }
        let generation = own.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or_default();
        let old: BTreeSet<String> = own.iter().filter_map(|slice| slice.metadata.name.clone()).collect();
        self.write(&pool.slices(generation.saturating_add(1)), old).await
    }

    /// Writes the slices, and removes those of ours that are not among them.
    async fn write(&mut self, slices: &[ResourceSlice], mut old: BTreeSet<String>) -> Result<(), PublishError> {
        let mut dropped = Vec::new();
        for slice in slices {
            let name = slice.metadata.name.clone().unwrap_or_default();
            old.remove(&name);
            let before = self.slices.get_or_insert_default().get(&name).cloned();
            let mut slice = slice.clone();
            if let Some(before) = &before {
                slices::keep_times(&mut slice, before);
            }
            let stored = match self.api.put_slice(&slice, before.as_ref()).await {
                // Seen with an old version, or not seen yet: tried again with the one that there
                // is.
                Err(error) if error.is_conflict() || error.is_not_found() => {
                    let found = self.api.slice(&name).await?;
                    let known = self.slices.get_or_insert_default();
                    _ = match found {
                        Some(found) => known.insert(name, found),
                        None => known.remove(&name),
                    };
                    return Err(error.into());
                }
                other => other?,
            };
            dropped.extend(slices::dropped_fields(&slice.spec, &stored.spec));
            self.slices.get_or_insert_default().insert(name, stored);
        }
        if !dropped.is_empty() {
            return Err(PublishError::FieldsDropped(dropped));
        }
        for name in old {
            self.api.delete_slice(&name).await?;
            self.slices.get_or_insert_default().remove(&name);
        }
        tracing::info!(
            devices = slices.iter().flat_map(|slice| &slice.spec.devices).flatten().count(),
            generation = slices.first().map_or(0, |slice| slice.spec.pool.generation),
            "published"
        );
        Ok(())
    }

    /// Takes back what was published.
    async fn take_back(&mut self) {
        let own = self.slices.take().unwrap_or_default().into_iter();
        for (name, _) in own.filter(|(_, slice)| slice.spec.driver == DRIVER) {
            if let Err(error) = self.api.delete_slice(&name).await {
                tracing::error!(%error, slice = name, "a slice is left");
            }
        }
    }

    /// The pool that is to be there.
    fn pool(&mut self, view: &View, node: NodeObject) -> Pool {
        let facts = DeviceFacts {
            inventory: &view.facts.inventory,
            limits: &view.facts.limits,
            drained: &node.drained,
            pci_devices: Path::new("/sys/bus/pci/devices"),
        };
        let mut placed = Vec::new();
        let mut refused = BTreeSet::new();
        for (card, offer) in facts.inventory.cards.iter().zip(&view.offers) {
            let made = facts.device(card, offer, view.degraded.contains(&card.uuid));
            let made = made.map_err(|reason| reason.to_string()).and_then(|device| {
                let others = self.slices.iter().flat_map(BTreeMap::values);
                match slices::other_driver_of(&device, others) {
                    Some(driver) => Err(format!("driver {driver} offers it, too: switch it off on this node")),
                    None => Ok(device),
                }
            });
            match made {
                Ok(device) => placed.push(Placed {
                    device,
                    granted: offer.granted.0,
                    memory: facts.limits.grantable(card.memory).0,
                    index: card.index,
                }),
                Err(reason) => _ = refused.insert((device_name(card.minor), reason)),
            }
        }
        for (device, reason) in refused.difference(&self.logged) {
            tracing::warn!(device, reason, "a card is not offered to claims");
        }
        self.logged = refused;
        let devices = slices::ordered(placed, view.facts.config.kubernetes.placement);
        Pool { node: self.api.node.clone(), node_uid: node.uid, devices }
    }
}
