//! Events on pods: what was granted, and what was not.

use std::{collections::HashMap, fmt::Write as _};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use ledger::claims::Claim;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::api_client::ApiClient;

/// Events that may wait to be sent; more are lost.
const WAITING: usize = 64;
/// Longest text of an event.
const LONGEST: usize = 1024;
/// Events that are counted; of more the numbers start anew.
const MOST_COUNTED: usize = 512;
const COMPONENT: &str = "egpu-kubelet-plugin";

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A claim was granted.
    Granted,
    /// It was not.
    Refused,
}

/// One event on a pod.
#[derive(Debug, Clone)]
pub(crate) struct PodEvent {
    kind: Kind,
    claim: Claim,
    message: String,
}

/// The way to the API server, for events. They are sent behind the answers that they are about.
#[derive(Debug, Clone)]
pub(crate) struct Events(mpsc::Sender<PodEvent>);

impl Events {
    /// Starts to send.
    pub(crate) fn start(api: ApiClient) -> Self {
        let (sender, mut receiver) = mpsc::channel::<PodEvent>(WAITING);
        tokio::spawn(async move {
            let mut counts = Counts::default();
            while let Some(event) = receiver.recv().await {
                if let Err(error) = send(&api, &event, &mut counts).await {
                    tracing::warn!(%error, pod = event.claim.pod.name, "an event is lost");
                }
            }
        });
        Self(sender)
    }

    /// Tells the pod of a claim.
    pub(crate) fn tell(&self, kind: Kind, claim: &Claim, message: &str) {
        let message = message.chars().take(LONGEST).collect();
        let _ = self.0.try_send(PodEvent { kind, claim: claim.clone(), message });
    }
}

/// Numbers of times that events were told, by their names: reading them would need a right more.
type Counts = HashMap<String, i32>;

/// Creates the event, or counts it once more.
async fn send(api: &ApiClient, told: &PodEvent, counts: &mut Counts) -> Result<(), kube::Error> {
    let events: Api<Event> = Api::namespaced(api.client(), &told.claim.namespace);
    let event = event(&api.node, told, Time(Timestamp::now()));
    match events.create(&PostParams::default(), &event).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => return other.map(drop),
    }
    let name = event.metadata.name.unwrap_or_default();
    if counts.len() >= MOST_COUNTED {
        counts.clear();
    }
    let count = counts.entry(name.clone()).or_insert(1);
    *count = count.saturating_add(1);
    let again = json!({"count": count, "lastTimestamp": event.last_timestamp});
    events.patch(&name, &PatchParams::default(), &Patch::Merge(again)).await.map(drop)
}

fn event(node: &str, told: &PodEvent, now: Time) -> Event {
    let PodEvent { kind, claim, message } = told;
    let (type_, reason) = match kind {
        Kind::Granted => ("Normal", "Granted"),
        Kind::Refused => ("Warning", "GrantRefused"),
    };
    Event {
        metadata: ObjectMeta {
            name: Some(name(claim, reason, message)),
            namespace: Some(claim.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(claim.namespace.clone()),
            name: Some(claim.pod.name.clone()),
            uid: Some(claim.pod.uid.clone()),
            ..ObjectReference::default()
        },
        type_: Some(type_.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.clone()),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_owned()),
        count: Some(1),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        ..Event::default()
    }
}

/// Name of an event: the same for the same news, so that it is counted and not repeated.
fn name(claim: &Claim, reason: &str, message: &str) -> String {
    let mut hash = Sha256::new();
    for part in [claim.pod.uid.as_str(), claim.uid.as_str(), reason, message] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let pod: String = claim.pod.name.chars().take(200).collect();
    let mut name = format!("{}.", pod.trim_end_matches(['-', '.']));
    for byte in hash.finalize().iter().take(8) {
        let _ = write!(name, "{byte:02x}");
    }
    name
}
