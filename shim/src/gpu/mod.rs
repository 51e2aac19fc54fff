//! GPU grants: from a container's request to its grant, and back. The one place where the Task
//! service meets cards.
//!
//! [`Gpu::understand`] and [`Understood::reserve`] run before anything of a container is made,
//! [`Gpu::bind`] once it exists,
//! [`Gpu::release`] on every way out: a failed create, the end of the container, and containerd's
//! `delete` command. All file work happens on the blocking pool: the shim's one async thread never
//! waits for a disk or a lock.

mod admission_wait;
mod claim;
mod error;
mod grant_note;
mod image;
mod mediation;
mod new_container;
mod prepared_grant;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use cards::Inventory;
use ledger::{
    ContainerKey, ContainerName, Ledger, ProcessId, Record, ReleaseError, ReleaseReason, decision_log::DecisionLog,
};
use nvidia_glue::spec::{self, ContainerSpec};
use runtime::{RuntimeClient, cgroup::Cgroup, protocol::Freed};
use runtime_config::{
    config::Config,
    request::{self, CardRequest, ContainerRequest, GpuRequest, Share},
};
use schedule::policy::rules;
use serde_json::Value;

pub use self::{
    admission_wait::{AdmissionWait, AdmissionWaitGuard},
    error::GpuError,
    grant_note::{GrantNote, NotedGrant},
    mediation::{ExcessRules, MediationPlan},
    prepared_grant::{ExecRules, PreparedGrant, WithoutGpu},
};
use self::{claim::ClaimUse, new_container::NewContainer};

/// Time for a killed mediator to be gone.
const MEDIATOR_END_LIMIT: Duration = Duration::from_secs(5);

/// The grants of one containerd's and namespace's containers.
#[derive(Debug)]
pub struct Gpu {
    containerd: String,
    namespace: String,
}

/// Request of a container, as its spec states it.
#[derive(Debug)]
enum Asked {
    /// No GPU.
    Nothing(Box<PreparedGrant>),
    Cards(Box<GpuRequest>),
    Claims(Box<ClaimUse>),
}

/// A container that is created, and what it asks for.
#[derive(Debug)]
pub struct Understood {
    container: NewContainer,
    asked: Asked,
    /// The node's cards, where they are cached.
    inventory: Option<Inventory>,
    /// The ledger that may come to have its grant.
    note: GrantNote,
}

impl Understood {
    /// Returns the ledger that may come to have its grant: `delete` must know it before there is
    /// one.
    pub fn grant(&self) -> Option<&GrantNote> {
        match &self.asked {
            Asked::Nothing(_) => None,
            Asked::Cards(_) | Asked::Claims(_) => Some(&self.note),
        }
    }

    /// Reserves what it asks for. Without room it waits, if the configuration says so, until `wait`
    /// is ended.
    ///
    /// # Errors
    /// When that is not to be had; nothing is reserved then.
    pub async fn reserve(self, runtime: &RuntimeClient, wait: &AdmissionWait) -> Result<PreparedGrant, GpuError> {
        let Self { container, asked, inventory: cached, note } = self;
        match asked {
            Asked::Nothing(prepared) => Ok(*prepared),
            Asked::Claims(claims) => {
                let shared = Arc::new((container, claims, inventory(runtime, cached).await?, note));
                once_freed(runtime, || {
                    let shared = Arc::clone(&shared);
                    blocking(move || shared.1.attach(&shared.0, &shared.2, &shared.3))
                })
                .await
            }
            Asked::Cards(request) => {
                if let Some(why) = image::image_only_reason(runtime, &container.key, &request).await? {
                    return blocking(move || Ok(image::without_gpu(&container, request.pod, request.asked, why))).await;
                }
                let (inventory, wait) = (inventory(runtime, cached).await?, wait.clone());
                blocking(move || container.admit(&request, &inventory, note, &wait)).await
            }
        }
    }
}

impl Gpu {
    /// Creates the grants for the containers of `namespace` of the containerd at `containerd` (its
    /// gRPC address).
    pub fn new(containerd: &str, namespace: &str) -> Self {
        Self { containerd: containerd.to_owned(), namespace: namespace.to_owned() }
    }

    /// Returns the key of a container.
    pub(crate) fn key(&self, id: &str) -> ContainerKey {
        ContainerKey { containerd: self.containerd.clone(), namespace: self.namespace.clone(), id: id.to_owned() }
    }

    /// Reads the request from a container's spec. Nothing is reserved.
    ///
    /// `cgroup` is where the container is going to be created: a process that finds the reservation
    /// of a dead shim looks there for survivors.
    ///
    /// # Errors
    /// When the request is refused.
    pub async fn understand(
        &self,
        runtime: &RuntimeClient,
        id: &str,
        spec: &Arc<Value>,
        cgroup: &Cgroup,
    ) -> Result<Understood, GpuError> {
        let (key, spec) = (self.key(id), Arc::clone(spec));
        let cgroups = cgroup.directories().map(Path::to_owned).collect();
        let zygote_pid = runtime.zygote_pid();
        blocking(move || {
            let read = spec::read(&spec);
            let (config, privileges) = (configuration()?, read.source.privileges);
            let container = NewContainer { key, cgroups, zygote_pid, config, privileges };
            let asked = understand(&container, read)?;
            let note = GrantNote::new(&container.config);
            let (inventory, note) = match &asked {
                Asked::Nothing(_) => (None, note),
                Asked::Cards(_) => (cards::cached(&container.config), note),
                Asked::Claims(claims) => (cards::cached(&container.config), note.using(claims.requests())),
            };
            Ok(Understood { container, asked, inventory, note })
        })
        .await
    }

    /// Binds the reservation to the container, which exists: it becomes a grant that lives as long
    /// as the processes. Does nothing for a container that was granted nothing.
    ///
    /// # Errors
    /// When the ledger cannot be written, or the reservation is gone; the create must fail then.
    pub async fn bind(
        &self,
        id: &str,
        grant: Option<&GrantNote>,
        init_pid: i32,
        mediator: Option<ProcessId>,
        cgroup: &Cgroup,
    ) -> Result<(), GpuError> {
        let cgroups: Vec<PathBuf> = cgroup.directories().map(Path::to_owned).collect();
        self.with_ledger(id, grant, move |ledger, log, key, claims| {
            let init = ProcessId::of(init_pid).map_err(|source| GpuError::Process { pid: init_pid, source })?;
            if claims.is_empty() {
                let bound = ledger.bind(key, init, mediator, &cgroups, log);
                bound.map(drop).map_err(|source| GpuError::Bind(Box::new(source)))
            } else {
                let bound = ledger.bind_attached(claims, key, init, mediator, &cgroups);
                bound.map_err(|source| GpuError::Attach(Box::new(source)))
            }
        })
        .await
    }

    /// Records whether processes of the container use the driver, where that decides about turns:
    /// on cards with policy `preemptive`.
    ///
    /// On other cards, and for a container that was granted nothing, it does nothing.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn set_present(&self, id: &str, grant: Option<&GrantNote>, present: bool) -> Result<(), GpuError> {
        self.with_grant(id, grant, move |ledger, key, _| {
            let failed = |source| GpuError::Present(Box::new(source));
            let record = ledger.record(key).map_err(failed)?;
            let counts = |record: &Record| record.cards.iter().any(|card| rules(card.policy).skips_absent);
            match record {
                Some(record) if counts(&record) && record.present != present => {
                    ledger.set_present(key, present).map_err(failed)
                }
                _ => Ok(()),
            }
        })
        .await
    }

    /// Records the time that the container's windows lose (`GPU-...`, microseconds), where that
    /// decides about their length.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn set_window_losses(
        &self,
        id: &str,
        grant: Option<&GrantNote>,
        losses: Vec<(String, u64)>,
    ) -> Result<(), GpuError> {
        self.with_grant(id, grant, move |ledger, key, _| {
            ledger.set_window_losses(key, &losses).map_err(|source| GpuError::WindowLosses(Box::new(source)))
        })
        .await
    }

    /// Records that a card cannot take the container off: its share of the card's time is a weight.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn set_weights_only(&self, id: &str, grant: Option<&GrantNote>, card: String) -> Result<(), GpuError> {
        self.with_grant(id, grant, move |ledger, key, log| {
            ledger.set_weights_only(key, &card, log).map_err(|source| GpuError::WeightsOnly(Box::new(source)))
        })
        .await
    }

    /// Records that the container's init was asked to end: others may wait for its room.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn set_leaving(&self, id: &str, grant: Option<&GrantNote>, init_pid: i32) -> Result<(), GpuError> {
        if grant.is_none() {
            return Ok(());
        }
        // Read now: the caller may give up waiting, and the next container may have this id when it
        // is done.
        let init = match ProcessId::of(init_pid) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            init => init.map_err(|source| GpuError::Process { pid: init_pid, source })?,
        };
        self.with_ledger(id, grant, move |ledger, _, key, claims| {
            let noted = match claims {
                [] => ledger.set_leaving(key, init),
                claims => ledger.set_attached_leaving(claims, key, init),
            };
            noted.map_err(|source| GpuError::Leaving(Box::new(source)))
        })
        .await
    }

    /// Returns whether the ledger still has what the container was granted; `None`: it was granted
    /// nothing.
    ///
    /// # Errors
    /// When that cannot be read.
    pub async fn is_recorded(&self, id: &str, grant: Option<&GrantNote>) -> Result<Option<bool>, GpuError> {
        self.with_ledger(id, grant, move |ledger, _, key, claims| {
            let recorded = match claims {
                [] => ledger.record(key).map(|record| record.is_some()),
                claims => ledger.is_attached(claims, key),
            };
            recorded.map(Some).map_err(|source| GpuError::Ledger(Box::new(source)))
        })
        .await
    }

    /// Runs `work` on the ledger and each key of a grant; does nothing for a container that was
    /// granted nothing.
    async fn with_grant(
        &self,
        id: &str,
        grant: Option<&GrantNote>,
        work: impl Fn(&Ledger, &ContainerKey, &DecisionLog) -> Result<(), GpuError> + Send + 'static,
    ) -> Result<(), GpuError> {
        self.with_ledger(id, grant, move |ledger, log, key, claims| {
            let keys = if claims.is_empty() { std::slice::from_ref(key) } else { claims };
            keys.iter().try_for_each(|key| work(ledger, key, log))
        })
        .await
    }

    /// Runs `work` on the ledger that has a grant, the container's key and the requests of claims
    /// that it uses; for a container that was granted nothing, the result is `T`'s default.
    async fn with_ledger<T: Default + Send + 'static>(
        &self,
        id: &str,
        grant: Option<&GrantNote>,
        work: impl FnOnce(&Ledger, &DecisionLog, &ContainerKey, &[ContainerKey]) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let Some(note) = grant.cloned() else { return Ok(T::default()) };
        let key = self.key(id);
        blocking(move || {
            let (ledger, log) = note.open()?;
            work(&ledger, &log, &key, &note.claims)
        })
        .await
    }

    /// Gives back all that the container holds. Succeeds when it holds nothing.
    ///
    /// # Errors
    /// When processes of the container live, so that its memory may still be held: the grant stays,
    /// and is given back by the next process that locks the ledger after this shim and those
    /// processes have ended. Or when the ledger cannot be written.
    pub async fn release(
        &self,
        runtime: &RuntimeClient,
        id: &str,
        grant: Option<&GrantNote>,
        reason: ReleaseReason,
    ) -> Result<(), GpuError> {
        release(runtime, self.key(id), grant, reason).await
    }
}

/// Gives back all that a container holds, as [`Gpu::release`].
///
/// # Errors
/// As there.
pub async fn release(
    runtime: &RuntimeClient,
    key: ContainerKey,
    grant: Option<&GrantNote>,
    reason: ReleaseReason,
) -> Result<(), GpuError> {
    let Some(note) = grant else { return Ok(()) };
    once_freed(runtime, || {
        let (key, note) = (key.clone(), note.clone());
        blocking(move || release_if_freed(&key, &note, reason))
    })
    .await
}

/// Does the work; once more, where the memory of a mediator that was killed has to be looked at
/// before.
async fn once_freed<T, F: Future<Output = Result<T, GpuError>>>(
    runtime: &RuntimeClient,
    work: impl Fn() -> F,
) -> Result<T, GpuError> {
    let freed = match work().await {
        Err(GpuError::NotFreed(freed)) => freed,
        done => return done,
    };
    runtime.freed(freed).await.map_err(|source| GpuError::StillHeld(Box::new(source)))?;
    work().await
}

fn release_if_freed(key: &ContainerKey, note: &GrantNote, reason: ReleaseReason) -> Result<(), GpuError> {
    let (ledger, log) = note.open()?;
    if !note.claims.is_empty() {
        return detach(&ledger, note, key, &log);
    }
    // The mediator of a shim that is gone frees what the container had, and ends. The ledger kills
    // one that does not.
    wait_while(|| ledger.is_mediated(key));
    let mut released = Ok(None);
    wait_while(|| {
        released = ledger.release(key, reason, &log);
        matches!(released, Err(ReleaseError::StillMediated { .. }))
    });
    released.map(drop).map_err(|source| not_released(source, note))
}

/// Ends the use of claims, whose grants stay. What the last container's mediator had on the host
/// goes.
fn detach(ledger: &Ledger, note: &GrantNote, key: &ContainerKey, log: &DecisionLog) -> Result<(), GpuError> {
    let requests = &note.claims;
    wait_while(|| ledger.is_last_and_mediated(requests, key));
    let mut detached = Ok(());
    wait_while(|| {
        detached = ledger.detach(requests, key, log);
        matches!(detached, Err(ReleaseError::StillMediated { .. }))
    });
    detached.map_err(|source| not_released(source, note))
}

fn not_released(error: ReleaseError, note: &GrantNote) -> GpuError {
    match error {
        ReleaseError::NotFreed { grant, .. } => GpuError::NotFreed(Freed { state_dir: note.state_dir.clone(), grant }),
        error => GpuError::Release(Box::new(error)),
    }
}

/// Waits while `holds` is true, as long as a mediator may take to end.
fn wait_while(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while holds() && begin.elapsed() < MEDIATOR_END_LIMIT {
        std::thread::sleep(MEDIATOR_END_LIMIT / 500);
    }
}

fn configuration() -> Result<Config, GpuError> {
    Config::load(None).map_err(|source| GpuError::Config(Box::new(source)))
}

/// Understands what a spec asks for. The only side effect is a line about a refusal in the log of
/// decisions.
fn understand(new: &NewContainer, container: ContainerSpec) -> Result<Asked, GpuError> {
    let NewContainer { key, config, privileges, .. } = new;
    let log = DecisionLog::new(&config.log_file, &config.state_dir);
    let name = ContainerName { key, pod: container.pod.as_ref() };
    let parsed = request::parse(&container.source, config).map_err(|source| {
        log.refused_at_validation(name, &request::asked(&container.source).join(" "), &source);
        GpuError::Request { container: Box::new(key.clone()), source: Box::new(source) }
    })?;
    match parsed {
        ContainerRequest::None { warnings } => {
            for warning in warnings {
                tracing::warn!(container = %key, "{warning}");
            }
            Ok(Asked::Nothing(Box::new(PreparedGrant { fence: new.is_fenced(), ..PreparedGrant::default() })))
        }
        ContainerRequest::WithoutClaim { asked, why } => {
            Ok(Asked::Nothing(Box::new(image::without_gpu(new, container.pod, asked, why))))
        }
        ContainerRequest::Claims(request) => Ok(Asked::Claims(Box::new(ClaimUse {
            request: *request,
            // What is no pod's has no claim, either: no record names it.
            pod: container.pod.unwrap_or_default(),
            pod_uid: container.pod_uid.unwrap_or_default(),
            seccomp_listener: container.seccomp_listener,
        }))),
        ContainerRequest::Gpu(mut request) => {
            let is_mediated = match request.share {
                Share::Part { .. } => true,
                Share::Monitor => request.cards != CardRequest::None && privileges.against_a_quota().is_empty(),
                Share::Exclusive => false,
            };
            if container.seccomp_listener && is_mediated {
                log.refused_at_validation(name, &request.asked.join(" "), &GpuError::SeccompListener);
                return Err(GpuError::SeccompListener);
            }
            if request.group.is_none() {
                request.group = container.workload;
            }
            if container.pod.is_none() || config.accept_nvidia_visible_devices_of_images_in_pods {
                request.visible_devices_alone.clear();
            }
            request.pod = container.pod;
            Ok(Asked::Cards(request))
        }
    }
}

/// The node's cards, as cached or as the helper finds them.
async fn inventory(runtime: &RuntimeClient, cached: Option<Inventory>) -> Result<Inventory, GpuError> {
    match cached {
        Some(inventory) => Ok(inventory),
        None => runtime.inventory().await.map_err(|source| GpuError::Inventory(Box::new(source))),
    }
}

/// Runs file work on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, GpuError> + Send + 'static,
) -> Result<T, GpuError> {
    runtime::blocking::blocking(work).await.map_err(GpuError::Thread)?
}

#[cfg(test)]
mod tests;
