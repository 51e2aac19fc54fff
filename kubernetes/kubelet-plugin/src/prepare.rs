//! Claims that the kubelet has prepared and unprepared.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use base::error_chain;
use futures_util::future::join_all;
use hyper::{Request, Response, body::Incoming};
use kubernetes_api::{
    ClaimVariable,
    names::{CDI_KIND, cdi_device, device_name},
};
use ledger::{
    AdmitError, Patience, Record, ReleaseError,
    claims::{Claim, ClaimAdmission},
};
use runtime_config::config::AdmissionWait;
use tokio::{sync::watch, task};
use tonic::body::Body;

use crate::{
    api_client::{ApiClient, ApiError},
    cdi::{CdiDirectory, CdiError},
    claim::{ClaimError, ClaimReader, ClaimRequests},
    events::{Events, Kind},
    grpc::{Answer, Methods, streaming, unary, unknown},
    health::{self, CardState},
    kubelet_api::{
        ClaimName, Claims, Prepared, PreparedClaim, PreparedDevice, Unprepared, UnpreparedClaim,
        dra::{PREPARE, UNPREPARE},
        health::WATCH,
    },
    node::{Facts, Node, NodeError},
};

/// Longest wait for room: the kubelet gives up after 45 s, and waits longer each time before it
/// asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Longest wait for what is left of a claim's containers.
const LAST_PROCESSES: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(50);

/// Reason for which a claim is not prepared.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error("the claim cannot be read")]
    Api(#[from] ApiError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("{}", .0.for_pod())]
    Refused(Box<AdmitError>),
    #[error("the claim's grant is used by containers of pod {0}")]
    InUse(String),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Cdi(#[from] CdiError),
    #[error("the ledger cannot be written")]
    Ledger(#[from] ledger::StoreError),
    #[error("it was interrupted")]
    Interrupted(#[from] task::JoinError),
}

/// Reason for which a claim is prepared still.
#[derive(Debug, thiserror::Error)]
enum UnprepareError {
    #[error(transparent)]
    Ledger(#[from] ReleaseError),
    #[error(transparent)]
    Cdi(#[from] CdiError),
    #[error("it was interrupted")]
    Interrupted(#[from] task::JoinError),
}

/// The services for claims and health.
#[derive(Debug)]
pub(crate) struct DraPlugin {
    pub(crate) api: ApiClient,
    pub(crate) node: Arc<Node>,
    pub(crate) cdi: CdiDirectory,
    pub(crate) events: Events,
    pub(crate) health: watch::Receiver<Vec<CardState>>,
}

impl Methods for DraPlugin {
    fn call(self: Arc<Self>, request: Request<Incoming>) -> Answer<Response<Body>> {
        match request.uri().path() {
            PREPARE => unary(request, |claims| Box::pin(self.prepare(claims))),
            UNPREPARE => unary(request, |claims| Box::pin(self.unprepare(claims))),
            WATCH => streaming(request, health::stream(self.api.node.clone(), self.health.clone())),
            _ => unknown(&request),
        }
    }
}

impl DraPlugin {
    async fn prepare(self: Arc<Self>, asked: Claims) -> Prepared {
        let prepared = asked.claims.iter().map(async |name| {
            let answer = match self.prepare_claim(name).await {
                Ok(devices) => PreparedClaim { devices, error: String::new() },
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(claim = name.name, namespace = name.namespace, error, "a claim is not prepared");
                    PreparedClaim { devices: Vec::new(), error }
                }
            };
            (name.uid.clone(), answer)
        });
        Prepared { claims: join_all(prepared).await.into_iter().collect() }
    }

    async fn prepare_claim(&self, name: &ClaimName) -> Result<Vec<PreparedDevice>, PrepareError> {
        let object = self.api.claim(&name.namespace, &name.name).await?;
        let (node, uid, pool) = (Arc::clone(&self.node), name.uid.clone(), self.api.node.clone());
        let asked = task::spawn_blocking(move || {
            let facts = node.facts()?;
            let reader = ClaimReader { node: &pool, inventory: &facts.inventory, config: &facts.config };
            let asked = reader.read(&object, &uid)?;
            Ok::<_, PrepareError>((facts, asked))
        });
        let (facts, asked) = asked.await??;
        let claim = asked.claim.clone();
        let granted = self.grant(facts, asked).await;
        if let Err(error) = &granted {
            self.events.tell(Kind::Refused, &claim, &error_chain(error));
        }
        let (devices, news) = granted?;
        if let Some(news) = news {
            self.events.tell(Kind::Granted, &claim, &news);
        }
        Ok(devices)
    }

    /// Grants a claim in the ledger and writes its CDI file. Returns its devices, and what is to be
    /// told of it if it was not granted before.
    async fn grant(
        &self,
        facts: Facts,
        asked: ClaimRequests,
    ) -> Result<(Vec<PreparedDevice>, Option<String>), PrepareError> {
        let ended = EndOnDrop(Arc::new(AtomicBool::new(false)));
        let (node, cdi, is_ended) = (Arc::clone(&self.node), self.cdi.clone(), Arc::clone(&ended.0));
        let granted = task::spawn_blocking(move || {
            let had = known(&node, &asked.claim)?;
            let records = admit(&node, &facts, &asked, &is_ended)?;
            let variables: Vec<ClaimVariable> = variables(&asked).collect();
            cdi.write(&asked.claim.uid, &variables)?;
            let news = (!had).then(|| describe(&facts, &records));
            Ok((devices(&asked), news))
        });
        granted.await?
    }

    async fn unprepare(self: Arc<Self>, asked: Claims) -> Unprepared {
        let unprepared = asked.claims.iter().map(async |name| {
            let error = self.unprepare_claim(name).await.err().map(|error| {
                let error = error_chain(&error);
                tracing::warn!(claim = name.name, namespace = name.namespace, error, "a claim is prepared still");
                error
            });
            (name.uid.clone(), UnpreparedClaim { error: error.unwrap_or_default() })
        });
        Unprepared { claims: join_all(unprepared).await.into_iter().collect() }
    }

    async fn unprepare_claim(&self, name: &ClaimName) -> Result<(), UnprepareError> {
        let (node, cdi, name) = (Arc::clone(&self.node), self.cdi.clone(), name.clone());
        task::spawn_blocking(move || {
            let until = Instant::now() + LAST_PROCESSES;
            loop {
                match node.ledger.unprepare_claim(&name.namespace, &name.uid, &node.log) {
                    Ok(_) => break,
                    // Killed, and not gone yet.
                    Err(ReleaseError::StillRunning { .. } | ReleaseError::StillMediated { .. })
                        if Instant::now() < until =>
                    {
                        thread::sleep(LOOK);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            cdi.remove(&name.uid)?;
            Ok(())
        })
        .await?
    }
}

/// Ends a wait for room when the kubelet has gone away, or gives up.
struct EndOnDrop(Arc<AtomicBool>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns whether the ledger has the claim.
fn known(node: &Node, claim: &Claim) -> Result<bool, PrepareError> {
    let is_it = |record: &Record| record.claim.as_ref().is_some_and(|grant| grant.claim.uid == claim.uid);
    Ok(node.ledger.claims()?.iter().any(is_it))
}

fn admit(node: &Node, facts: &Facts, asked: &ClaimRequests, ended: &AtomicBool) -> Result<Vec<Record>, PrepareError> {
    let wait = facts.config.admission_wait;
    let any_tenant = matches!(wait, AdmissionWait::AnyTenant(_));
    let requests: Vec<_> = asked.requests.iter().map(|asked| (asked.name.clone(), asked.request.clone())).collect();
    let admission = ClaimAdmission {
        inventory: &facts.inventory,
        limits: &facts.limits,
        claim: &asked.claim,
        requests: &requests,
        patience: Patience { most: wait.most().min(LONGEST_WAIT), any_tenant, ended },
        egpu_version: env!("CARGO_PKG_VERSION"),
    };
    let granted = node.ledger.prepare_claim(&admission, &node.log);
    let records = granted.map_err(|error| PrepareError::Refused(Box::new(error)))?;
    let pod = |record: &Record| record.claim.as_ref().map(|grant| grant.claim.pod.clone());
    let Some(other) = records.iter().find_map(|record| pod(record).filter(|pod| *pod != asked.claim.pod)) else {
        return Ok(records);
    };
    // It was an earlier pod's.
    let Claim { namespace, uid, pod: own, .. } = &asked.claim;
    node.ledger.set_claim_pod(namespace, uid, own)?;
    let records = node.ledger.claims()?.into_iter();
    let records: Vec<Record> =
        records.filter(|record| record.claim.as_ref().is_some_and(|grant| grant.claim.uid == *uid)).collect();
    if records.iter().all(|record| pod(record).as_ref() == Some(own)) {
        return Ok(records);
    }
    Err(PrepareError::InUse(other.name))
}

fn variables(asked: &ClaimRequests) -> impl Iterator<Item = ClaimVariable> {
    let Claim { namespace, uid, .. } = &asked.claim;
    asked.requests.iter().filter_map(move |request| ClaimVariable::new(namespace, uid, &request.name))
}

/// The claim's devices. Of several cards of a request the first alone carries its CDI device: a
/// container gets those of all of them.
fn devices(asked: &ClaimRequests) -> Vec<PreparedDevice> {
    let mut devices = Vec::new();
    for request in &asked.requests {
        let cdi = format!("{CDI_KIND}={}", cdi_device(&asked.claim.uid, &request.name));
        let mut cdi_device_ids = vec![cdi];
        for device in &request.devices {
            devices.push(PreparedDevice {
                request_names: vec![request.name.clone()],
                pool_name: device.pool.clone(),
                device_name: device.name.clone(),
                cdi_device_ids: std::mem::take(&mut cdi_device_ids),
                share_id: device.share_id.clone(),
            });
        }
    }
    devices
}

/// `gpu: gpu-0 (NVIDIA H200): 20 GiB compute=25%`.
fn describe(facts: &Facts, records: &[Record]) -> String {
    let request = |record: &Record| {
        let name = record.claim.as_ref().map_or("", |grant| grant.request.as_str());
        let cards = record.cards.iter().map(|grant| {
            let card = facts.inventory.cards.iter().find(|card| card.uuid == grant.uuid);
            let (device, model) = card.map_or_else(Default::default, |card| (device_name(card.minor), &*card.model));
            format!("{device} ({model}): {}", grant.describe())
        });
        format!("{name}: {}", cards.collect::<Vec<_>>().join(", "))
    };
    records.iter().map(request).collect::<Vec<_>>().join("; ")
}
