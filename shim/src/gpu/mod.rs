//! GPU grants: from a container's request to its grant, and back. The one place where the Task
//! service meets cards.
//!
//! [`Gpu::prepare`] runs before anything of a container is made, [`Gpu::bind`] once it exists,
//! [`Gpu::release`] on every way out: a failed create, the end of the container, and containerd's
//! `delete` command. All file work happens on the blocking pool: the shim's one async thread never
//! waits for a disk or a lock.

mod admission_wait;
mod error;
mod grant_note;
mod image;
mod mediation;

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nvidia_glue::{
    cards::{self, Inventory},
    decision_log::DecisionLog,
    driver_files,
    inject::{self, Injection, PlanInput, Settings},
    ledger::{Admission, ContainerKey, ContainerName, Ledger, Limits, ProcessId, Record, ReleaseError, ReleaseReason},
    spec,
};
use runtime_config::{
    config::Config,
    request::{self, CardPolicy, CardRequest, ContainerRequest, GpuRequest, Privileges, Share},
};
use serde_json::Value;

use self::grant_note::GrantNote;
pub use self::{
    admission_wait::{AdmissionWait, AdmissionWaitGuard},
    error::GpuError,
    mediation::{ExcessRules, MediationPlan},
};
use crate::{bundle::WithoutGpu, cgroup::Cgroup, helper::HelperClient, version};

/// Time for a killed mediator to be gone.
const MEDIATOR_END_LIMIT: Duration = Duration::from_secs(5);

/// The grants of one containerd's and namespace's containers.
#[derive(Debug)]
pub struct Gpu {
    containerd: String,
    namespace: String,
}

/// Result of admission: what the helper is to do about a grant, or its absence.
#[derive(Debug, Default)]
pub struct PreparedGrant {
    /// Files, devices and variables that the grant puts into the container.
    pub injection: Option<Value>,
    /// Install the static filter in the container and in every exec.
    pub fence: bool,
    /// Mediate the driver calls of the container and of every exec.
    pub mediation: Option<Box<MediationPlan>>,
    /// Rules for every process that is executed in the container.
    pub exec_rules: ExecRules,
    /// It seemed to ask for a GPU, and gets none.
    pub without_gpu: Option<WithoutGpu>,
}

/// Rules of a grant for processes that are executed in the container later.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExecRules {
    /// It shares a card: capabilities to which the driver gives priority are removed.
    shares_card: bool,
    /// It has a hard quota: privileges that defeat it are refused.
    refuses_privileges: bool,
    /// Its capabilities count in a user namespace of its own.
    user_namespace: bool,
    maps_host_root: bool,
}

impl ExecRules {
    /// Returns the OCI `process` that may run.
    ///
    /// # Errors
    /// Names the first privilege that it may not have.
    pub fn apply(self, process: &Value) -> Result<Value, GpuError> {
        let mut process = process.clone();
        // Without capabilities of its own it has the container's, which were checked when it was
        // created.
        if self.refuses_privileges && process.get("capabilities").is_some_and(Value::is_object) {
            let capabilities = spec::read(&serde_json::json!({ "process": process })).source.privileges;
            let privileges = Privileges {
                user_namespace: self.user_namespace,
                maps_host_root: self.maps_host_root,
                // Those of the container, which were checked as well.
                wildcard_device_rule: false,
                host_pid_namespace: false,
                ..capabilities
            };
            if let Some(privilege) = privileges.against_a_quota().first() {
                return Err(GpuError::PrivilegedExec { privilege });
            }
        }
        if self.shares_card {
            inject::withhold_capabilities(&mut process);
        }
        Ok(process)
    }
}

/// Request of a container for GPUs, as far as its spec and the configuration show.
struct GpuAsk {
    config: Config,
    request: GpuRequest,
    privileges: Privileges,
    inventory: Option<Inventory>,
}

/// Result of reading a spec.
enum ParsedSpec {
    NoGpu(PreparedGrant),
    Gpu(Box<GpuAsk>),
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

    /// Reads the request from the bundle's spec and reserves what it asks for.
    ///
    /// `cgroup` is where the container is going to be created: a process that finds the reservation
    /// of a dead shim looks there for survivors. Without room it waits, if the configuration says
    /// so, until `wait` is ended.
    ///
    /// # Errors
    /// When the request is refused; nothing is reserved then.
    pub async fn prepare(
        &self,
        helper: &HelperClient,
        id: &str,
        bundle: &Path,
        cgroup: &Cgroup,
        wait: &AdmissionWait,
    ) -> Result<PreparedGrant, GpuError> {
        let (key, bundle_path) = (self.key(id), bundle.to_owned());
        let reading = blocking(move || read(configuration()?, &key, &bundle_path)).await?;
        let ask = match reading {
            ParsedSpec::NoGpu(prepared) => return Ok(prepared),
            ParsedSpec::Gpu(ask) => *ask,
        };
        let key = self.key(id);
        if let Some(why) = image::image_only_reason(helper, &key, &ask.request).await? {
            return blocking(move || Ok(image::without_gpu(&key, ask, why))).await;
        }
        let GpuAsk { config, request, privileges, inventory } = ask;
        let inventory = match inventory {
            Some(inventory) => inventory,
            None => helper.inventory().await.map_err(|source| GpuError::Inventory(Box::new(source)))?,
        };
        let grant = Grant {
            key,
            bundle: bundle.to_owned(),
            cgroups: cgroup.directories().map(Path::to_owned).collect(),
            helper_pid: helper.zygote_pid(),
            config,
            request,
            privileges,
            inventory,
            wait: wait.clone(),
        };
        blocking(move || grant.admit()).await
    }

    /// Binds the reservation to the container, which exists: it becomes a grant that lives as long
    /// as the processes. Does nothing for a container that was granted nothing.
    ///
    /// # Errors
    /// When the ledger cannot be written, or the reservation is gone; the create must fail then.
    pub async fn bind(
        &self,
        id: &str,
        bundle: &Path,
        init_pid: i32,
        mediator: Option<ProcessId>,
        cgroup: &Cgroup,
    ) -> Result<(), GpuError> {
        let (key, bundle) = (self.key(id), bundle.to_owned());
        let cgroups: Vec<PathBuf> = cgroup.directories().map(Path::to_owned).collect();
        blocking(move || {
            let Some(note) = GrantNote::read(&bundle)? else { return Ok(()) };
            let init = ProcessId::of(init_pid).map_err(|source| GpuError::Process { pid: init_pid, source })?;
            let (ledger, log) = note.open()?;
            ledger.bind(&key, init, mediator, &cgroups, &log).map_err(|source| GpuError::Bind(Box::new(source)))?;
            Ok(())
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
    pub async fn set_present(&self, id: &str, bundle: &Path, present: bool) -> Result<(), GpuError> {
        self.with_grant(id, bundle, move |ledger, key, _| {
            let failed = |source| GpuError::Present(Box::new(source));
            let record = ledger.record(key).map_err(failed)?;
            let counts = |record: &Record| record.cards.iter().any(|card| card.policy == CardPolicy::Preemptive);
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
    pub async fn set_window_losses(&self, id: &str, bundle: &Path, losses: Vec<(String, u64)>) -> Result<(), GpuError> {
        self.with_grant(id, bundle, move |ledger, key, _| {
            ledger.set_window_losses(key, &losses).map_err(|source| GpuError::WindowLosses(Box::new(source)))
        })
        .await
    }

    /// Records that a card cannot take the container off: its share of the card's time is a weight.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn set_weights_only(&self, id: &str, bundle: &Path, card: String) -> Result<(), GpuError> {
        self.with_grant(id, bundle, move |ledger, key, log| {
            ledger.set_weights_only(key, &card, log).map_err(|source| GpuError::WeightsOnly(Box::new(source)))
        })
        .await
    }

    /// Records that the container's init was asked to end: others may wait for its room.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn set_leaving(&self, id: &str, bundle: &Path, init_pid: i32) -> Result<(), GpuError> {
        // Read now: the caller may give up waiting, and the next container may have this id when it
        // is done.
        let init = match ProcessId::of(init_pid) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            init => init.map_err(|source| GpuError::Process { pid: init_pid, source })?,
        };
        self.with_grant(id, bundle, move |ledger, key, _| {
            ledger.set_leaving(key, init).map_err(|source| GpuError::Leaving(Box::new(source)))
        })
        .await
    }

    /// Runs `work` on the ledger of a grant; does nothing for a container that was granted nothing.
    async fn with_grant(
        &self,
        id: &str,
        bundle: &Path,
        work: impl FnOnce(&Ledger, &ContainerKey, &DecisionLog) -> Result<(), GpuError> + Send + 'static,
    ) -> Result<(), GpuError> {
        let (key, bundle) = (self.key(id), bundle.to_owned());
        blocking(move || {
            let Some(note) = GrantNote::read(&bundle)? else { return Ok(()) };
            let (ledger, log) = note.open()?;
            work(&ledger, &key, &log)
        })
        .await
    }

    /// Gives back all that the container holds. Succeeds when it holds nothing.
    ///
    /// # Errors
    /// When processes of the container live, so that its memory may still be held: the grant stays,
    /// and is given back by the next process that locks the ledger after this shim and those
    /// processes have ended. Or when the ledger cannot be written.
    pub async fn release(&self, id: &str, bundle: &Path, reason: ReleaseReason) -> Result<(), GpuError> {
        let (key, bundle) = (self.key(id), bundle.to_owned());
        blocking(move || release(&key, &bundle, reason)).await
    }
}

/// Gives back all that a container holds, as [`Gpu::release`], for a caller without a runtime: the
/// `delete` command.
///
/// # Errors
/// As there.
pub fn release(key: &ContainerKey, bundle: &Path, reason: ReleaseReason) -> Result<(), GpuError> {
    let note = match GrantNote::read(bundle)? {
        Some(note) => note,
        None if bundle.exists() => return Ok(()),
        // containerd has removed the bundle before this could be read.
        None => GrantNote::new(&configuration()?),
    };
    let (ledger, log) = note.open()?;
    // The mediator of a shim that is gone frees what the container had, and ends. The ledger kills
    // one that does not.
    wait_while(|| ledger.is_mediated(key));
    let mut released = Ok(None);
    wait_while(|| {
        released = ledger.release(key, reason, &log);
        matches!(released, Err(ReleaseError::StillMediated { .. }))
    });
    if let Some(record) = released.map_err(|source| GpuError::Release(Box::new(source)))? {
        inject::remove_files(&note.state_dir, &record.grant_id)
            .map_err(|source| GpuError::Inject(Box::new(source.into())))?;
    }
    GrantNote::remove(bundle)
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

/// Reads the request from the bundle's spec. The only side effect is a line about a refusal in the
/// log of decisions.
fn read(config: Config, key: &ContainerKey, bundle: &Path) -> Result<ParsedSpec, GpuError> {
    let path = bundle.join("config.json");
    let text = std::fs::read(&path).map_err(|source| GpuError::Spec { path: path.clone(), source })?;
    let document: Value =
        serde_json::from_slice(&text).map_err(|source| GpuError::Spec { path, source: source.into() })?;
    let container = spec::read(&document);
    let log = DecisionLog::new(&config.log_file, &config.state_dir);
    let name = ContainerName { key, pod: container.pod.as_ref() };
    let parsed = request::parse(&container.source, &config).map_err(|source| {
        log.refused_at_validation(name, &request::asked(&container.source).join(" "), &source);
        GpuError::Request { container: Box::new(key.clone()), source: Box::new(source) }
    })?;
    match parsed {
        ContainerRequest::None { warnings } => {
            for warning in warnings {
                tracing::warn!(container = %key, "{warning}");
            }
            let fence = is_fenced(key, &config, container.source.privileges);
            Ok(ParsedSpec::NoGpu(PreparedGrant { fence, ..PreparedGrant::default() }))
        }
        ContainerRequest::Gpu(mut request) => {
            let privileges = container.source.privileges;
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
            let inventory = cards::cached(&config);
            Ok(ParsedSpec::Gpu(Box::new(GpuAsk { config, request: *request, privileges, inventory })))
        }
    }
}

/// Returns whether a container that was granted no card gets the static filter.
fn is_fenced(container: &ContainerKey, config: &Config, privileges: Privileges) -> bool {
    let exempt = privileges.administers_host();
    if config.fence_other_containers && exempt {
        tracing::info!(%container, "has CAP_SYS_ADMIN and is not fenced off from the driver");
    }
    config.fence_other_containers && !exempt
}

/// A container whose request is understood, on its way to a grant.
struct Grant {
    key: ContainerKey,
    bundle: PathBuf,
    cgroups: Vec<PathBuf>,
    helper_pid: i32,
    config: Config,
    request: GpuRequest,
    privileges: Privileges,
    inventory: Inventory,
    wait: AdmissionWait,
}

impl Grant {
    /// Reserves, and plans what goes into the container.
    fn admit(self) -> Result<PreparedGrant, GpuError> {
        let shim = ProcessId::current().map_err(|source| GpuError::Process { pid: 0, source })?;
        let helper =
            ProcessId::of(self.helper_pid).map_err(|source| GpuError::Process { pid: self.helper_pid, source })?;
        let note = GrantNote::new(&self.config);
        // Before the reservation: a `delete` that finds a reservation must know where.
        note.write(&self.bundle)?;
        let (ledger, log) = note.open()?;
        let admission = Admission {
            inventory: &self.inventory,
            request: &self.request,
            limits: &Limits::from(&self.config),
            container: &self.key,
            shim,
            creators: &[helper],
            cgroups: &self.cgroups,
            patience: self.wait.patience(self.config.admission_wait),
            egpu_version: version::text(),
        };
        let record = ledger.admit(&admission, &log).map_err(|source| GpuError::Admit(Box::new(source)))?;
        let injection = self.injection(&record);
        let rights = self.privileges.against_a_quota();
        let mediation = mediation::mediation(&self.config, &record, &self.inventory, rights.is_empty());
        match injection.and_then(|injection| Ok((injection, mediation?))) {
            Ok((injection, mediation)) => {
                if record.request.share == Share::Monitor && !record.cards.is_empty() && !rights.is_empty() {
                    let rights = rights.join(" and ");
                    tracing::info!(container = %self.key, rights, "monitors its cards unmediated: with these privileges mediation cannot confine it");
                }
                let exec_rules = ExecRules {
                    shares_card: matches!(record.request.share, Share::Part { .. }),
                    refuses_privileges: mediation.is_some() && !self.config.allow_privileged_quota,
                    user_namespace: self.privileges.user_namespace,
                    maps_host_root: self.privileges.maps_host_root,
                };
                // It has the driver's files and no card: a card's descriptor that another container
                // lends must be of no use.
                let fence = record.cards.is_empty() && is_fenced(&self.key, &self.config, self.privileges);
                let mediation = mediation.map(Box::new);
                Ok(PreparedGrant { injection: Some(injection), fence, mediation, exec_rules, without_gpu: None })
            }
            Err(error) => {
                // The first error is returned; a reservation that cannot be taken back is reclaimed
                // later.
                if let Err(error) = ledger.release(&self.key, ReleaseReason::CreateFailed, &log) {
                    tracing::error!(container = %self.key, error = &error as &dyn std::error::Error, "reservation kept");
                }
                Err(error)
            }
        }
    }

    /// Plans what the grant puts into the container.
    fn injection(&self, record: &Record) -> Result<Value, GpuError> {
        let driver_files = match self.inventory.source {
            cards::Source::Nvidia => driver_files::find_cached(
                &self.config.driver.root,
                &self.inventory.driver_version,
                &self.config.state_dir,
            ),
            cards::Source::Simulated => driver_files::DriverFiles::default(),
        };
        let settings = Settings::from(&self.config);
        let input = PlanInput { record, inventory: &self.inventory, driver_files: &driver_files, settings: &settings };
        let injection = Injection::plan(&input).map_err(|source| GpuError::Inject(Box::new(source)))?;
        for warning in &injection.warnings {
            tracing::warn!(container = %self.key, "{warning}");
        }
        serde_json::to_value(&injection).map_err(GpuError::Encode)
    }
}

/// Runs file work on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, GpuError> + Send + 'static,
) -> Result<T, GpuError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(GpuError::Ending))
}

#[cfg(test)]
mod tests;
