//! The API server's objects, followed.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{StreamExt as _, pin_mut};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use kubernetes_api::names::DRIVER;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::cluster::{Cluster, key_of};

/// Pods that are on a node and have not ended: what waits is told by the scheduler.
const BOUND: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// The cluster as it is known, for whoever asks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known(Arc<Mutex<Cluster>>);

impl Known {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Cluster> {
        // A panic ends the program in a release build; elsewhere what is known is still the best.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something seen of objects of one kind.
enum Seen<'a, K> {
    /// All that there are; whatever was seen before is void.
    All(&'a [K]),
    One(&'a K),
    Gone(&'a K),
}

/// Follows all that counts, for ever. `ready` becomes true once each kind was seen whole.
pub(crate) async fn follow(client: Client, known: Known, ready: watch::Sender<bool>) {
    let slices = watcher::Config::default().fields(&format!("spec.driver={DRIVER}"));
    let seen = Lists { missing: watch::Sender::new(4), ready };
    tokio::join!(
        follow_kind::<ResourceSlice>(&client, slices, &seen, |one| match one {
            Seen::All(slices) => known.lock().all_slices(slices),
            Seen::One(slice) => known.lock().slice(slice),
            Seen::Gone(slice) => known.lock().slice_gone(name(slice)),
        }),
        follow_kind::<DeviceClass>(&client, watcher::Config::default(), &seen, |one| match one {
            Seen::All(classes) => known.lock().all_classes(classes),
            Seen::One(class) => known.lock().class(class),
            Seen::Gone(class) => known.lock().class_gone(name(class)),
        }),
        follow_kind::<ResourceClaim>(&client, watcher::Config::default(), &seen, |one| match one {
            Seen::All(claims) => known.lock().all_claims(claims),
            Seen::One(claim) => known.lock().claim(claim),
            Seen::Gone(claim) => known.lock().claim_gone(&key_of(claim)),
        }),
        follow_kind::<Pod>(&client, watcher::Config::default().fields(BOUND), &seen, |one| match one {
            Seen::All(pods) => known.lock().all_pods(pods),
            Seen::One(pod) => known.lock().pod(pod),
            Seen::Gone(pod) => known.lock().pod_gone(pod),
        }),
    );
}

fn name(object: &impl Resource) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

/// Kinds that were not seen whole yet.
struct Lists {
    missing: watch::Sender<usize>,
    ready: watch::Sender<bool>,
}

impl Lists {
    fn one_was_seen(&self) {
        self.missing.send_modify(|missing| *missing -= 1);
        if *self.missing.borrow() == 0 {
            tracing::info!("the cluster is known");
            self.ready.send_replace(true);
        }
    }
}

async fn follow_kind<K>(client: &Client, config: watcher::Config, lists: &Lists, tell: impl Fn(Seen<'_, K>))
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = watcher(Api::<K>::all(client.clone()), config).default_backoff();
    pin_mut!(events);
    let (mut all, mut was_seen) = (Vec::new(), false);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => all.clear(),
            Ok(Event::InitApply(mut object)) => {
                // The half of many objects, of which nothing is read.
                object.meta_mut().managed_fields = None;
                all.push(object);
            }
            Ok(Event::InitDone) => {
                tell(Seen::All(&std::mem::take(&mut all)));
                if !std::mem::replace(&mut was_seen, true) {
                    lists.one_was_seen();
                }
            }
            Ok(Event::Apply(object)) => tell(Seen::One(&object)),
            Ok(Event::Delete(object)) => tell(Seen::Gone(&object)),
            Err(error) => tracing::warn!(error = base::error_chain(&error), kind = %K::kind(&()), "asked again"),
        }
    }
}
