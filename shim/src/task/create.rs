//! Create: from a bundle to a container whose init waits, or to nothing at all.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use containerd_shim::protos::{
    api::{CreateTaskRequest, Mount},
    events::task::{TaskCreate, TaskIO},
};
use ledger::ReleaseReason;
use protobuf::MessageField;
use runtime::{
    ContainerProcess,
    blocking::blocking,
    cgroup::{Cgroup, Host},
    protocol,
};
use sys::{spans, sync::lock};

use super::{
    Context,
    container::{Container, Fixed},
    error::{TaskError, chain},
    mediated::{self, Mediated},
    process::Process,
};
use crate::{
    bundle::{self, Note, Spec},
    gpu::{AdmissionWait, NotedGrant, PreparedGrant, Understood},
    io::{ProcessIo, StdioPaths, StreamContext},
    options::{ParsedOptions, RuntimeOptions},
    task::Slot,
    version,
};

/// The plan that Create works from.
struct Plan {
    id: String,
    bundle: PathBuf,
    stdio: StdioPaths,
    mounts: Vec<Mount>,
    options: RuntimeOptions,
    spec: Spec,
    note: Note,
}

/// Creates the container of `request` and puts it into the shim's list. A failure leaves nothing
/// behind.
pub(super) async fn create(
    context: Arc<Context>,
    request: CreateTaskRequest,
    wait: AdmissionWait,
) -> Result<i32, TaskError> {
    if !request.checkpoint.is_empty() {
        return Err(TaskError::Unsupported { feature: "restoring a container from a checkpoint" });
    }
    spans::mark("create", &request.id);
    let reservation = Reservation::new(&context, &request.id, &wait)?;
    let mut plan = Plan::new(&context, request)?;
    // From here on there is something to clean up, and `delete` must be able to.
    wait_for_cleanup(&context, &plan.id).await?;
    let created = async {
        let understood = plan.understand(&context).await?;
        // Before the reservation: a `delete` that finds one must know where.
        plan.note.grant = understood.grant().cloned().into();
        plan.write_note(&context, plan.note.clone()).await?;
        spans::mark("note written", &plan.id);
        let prepared = understood.reserve(&context.runtime, &wait).await.map_err(TaskError::Gpu)?;
        spans::mark("granted", &plan.id);
        plan.create(&context, prepared).await
    };
    match created.await {
        Ok(container) => {
            let pid = container.init.pid();
            spans::mark("create answers", &plan.id);
            reservation.fill(container);
            Ok(pid)
        }
        Err(error) => {
            plan.roll_back(&context).await;
            Err(if plan.spec.view.is_in_pod() { TaskError::InPod(Box::new(error)) } else { error })
        }
    }
}

/// Waits for whoever is cleaning up after an earlier container of that name, whose shim was killed;
/// nothing of the new one may be removed by that.
async fn wait_for_cleanup(context: &Context, id: &str) -> Result<(), TaskError> {
    if !context.registry.has_note(&context.containerd, &context.namespace, id) {
        return Ok(());
    }
    let (registry, id) = (context.registry.clone(), id.to_owned());
    let (containerd, namespace) = (context.containerd.clone(), context.namespace.clone());
    let claimed = blocking(move || registry.claim(&containerd, &namespace, &id).map(drop)).await;
    claimed.map_err(TaskError::Thread)?.map_err(TaskError::Registry)
}

impl Plan {
    fn new(context: &Context, request: CreateTaskRequest) -> Result<Self, TaskError> {
        let ParsedOptions { options, warnings } =
            ParsedOptions::from_any(request.options.as_ref()).map_err(TaskError::Options)?;
        for warning in warnings {
            tracing::warn!(container = request.id, "{warning}");
        }
        let bundle = PathBuf::from(&request.bundle);
        let spec = Spec::read(&bundle).map_err(TaskError::Bundle)?;
        let base = options.root.clone().unwrap_or_else(|| context.registry.runtime_base());
        let runtime_root = bundle::runtime_root(&base, &context.containerd, &context.namespace);
        let note = Note {
            id: request.id.clone(),
            namespace: context.namespace.clone(),
            containerd: context.containerd.clone(),
            bundle: bundle.clone(),
            shim: context.shim.clone(),
            runtime_root,
            cgroups_path: spec.view.cgroups_path().map(Path::to_owned),
            systemd_cgroup: options.systemd_cgroup,
            cgroup: None,
            init_pid: None,
            without_gpu: None,
            grant: NotedGrant::Nothing,
            egpu_version: Some(version::text().to_owned()),
        };
        let stdio = StdioPaths {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        };
        Ok(Self { id: request.id, bundle, stdio, mounts: request.rootfs, options, spec, note })
    }

    /// Writes the note for `delete`: in the bundle, and in the registry, which outlives the bundle.
    async fn write_note(&self, context: &Context, note: Note) -> Result<(), TaskError> {
        let registry = context.registry.clone();
        let written = blocking(move || {
            if let Err(error) = registry.save_note(&note) {
                // A state directory that is full. The bundle's copy serves as long as there is a
                // bundle.
                tracing::warn!(
                    container = note.id,
                    error = chain(&error),
                    "cannot write the container's note outside its bundle"
                );
            }
            note.write().map_err(TaskError::Bundle)
        });
        written.await.map_err(TaskError::Thread)?
    }

    /// Reads what the container asks for. Its reservation names the cgroup before anything runs in
    /// it: a process there later is the container's, and is killed when the shim is gone.
    async fn understand(&self, context: &Context) -> Result<Understood, TaskError> {
        let path = self.note.cgroups_path().map_err(TaskError::Locate)?;
        let cgroup = Cgroup::intended(&Host::default(), &path).map_err(TaskError::Locate)?;
        let pids = cgroup.pids().map_err(|source| TaskError::Cgroup { action: "look for the cgroup of", source })?;
        if let Some(pid) = pids.first() {
            return Err(TaskError::CgroupInUse { id: self.id.clone(), pid: *pid });
        }
        let understood = context.gpu.understand(&context.runtime, &self.id, &self.spec.document, &cgroup).await;
        understood.map_err(TaskError::Gpu)
    }

    /// Its driver calls find their mediator from the first on. When the create fails, that has
    /// ended before the grant goes. The mediator gets ready while the helper works.
    async fn create(&self, context: &Arc<Context>, mut prepared: PreparedGrant) -> Result<Arc<Container>, TaskError> {
        let mediated = match prepared.mediation.take() {
            Some(mediation) => Some(Mediated::start(context, &self.id, *mediation).await?),
            None => None,
        };
        spans::mark("mediator forked", &self.id);
        let created = self.create_mediated(context, prepared, mediated.clone()).await;
        if let (Err(_), Some(mediated)) = (&created, &mediated)
            && let Err(error) = mediated.end(&self.id).await
        {
            tracing::error!(container = self.id, error = chain(&error), "cannot end the mediator of a failed create");
        }
        created
    }

    async fn create_mediated(
        &self,
        context: &Arc<Context>,
        mut prepared: PreparedGrant,
        mediated: Option<Arc<Mediated>>,
    ) -> Result<Arc<Container>, TaskError> {
        let owner = StreamContext { id: &self.id, namespace: &context.namespace, reaper: &context.reaper };
        let (mut io, mut ends) = ProcessIo::open(&self.stdio, &owner).await.map_err(TaskError::Io)?;
        let (fence, exec_rules) = (prepared.fence, prepared.exec_rules);
        let (without_gpu, grant) = (prepared.without_gpu.take(), prepared.grant.take());
        let is_mediated = mediated::pass_listener(mediated.as_deref(), &mut ends.descriptors)?;
        let request = self.request(prepared, ends.kind, is_mediated);
        let expectation = context.reaper.expect();
        let child = context.runtime.create(request, ends.descriptors).await;
        if let Some(mediated) = &mediated {
            // A create that fails for want of its mediator fails with its reason.
            mediated.ready().await?;
            spans::mark("mediator ready", &self.id);
        }
        let child = child.map_err(|source| TaskError::Runtime { operation: "create", source })?;
        let exit = expectation.claim(child.pid);
        drop(expectation);
        spans::mark("init waits", &self.id);
        for warning in &child.warnings {
            tracing::warn!(container = self.id, "{warning}");
        }
        io.take_terminal(self.spec.view.console_size()).await.map_err(TaskError::Io)?;
        let cgroup = self.locate(&child)?;
        let note = Note {
            cgroup: Some(cgroup.clone()),
            init_pid: Some(child.pid),
            without_gpu,
            grant: grant.clone().into(),
            ..self.note.clone()
        };
        self.write_note(context, note).await?;
        let mediator = mediated.as_ref().map(|mediated| mediated.process());
        spans::mark("note completed", &self.id);
        context.gpu.bind(&self.id, grant.as_ref(), child.pid, mediator, &cgroup).await.map_err(TaskError::Gpu)?;

        let container = Container::new(
            Fixed {
                id: self.id.clone(),
                bundle: self.bundle.clone(),
                runtime_root: self.note.runtime_root.clone(),
                cgroup,
                io_owner: self.options.io_owner,
                fence,
                exec_rules,
                mediated,
                grant,
                own_pid_namespace: self.spec.view.has_own_pid_namespace(),
            },
            Process::new(String::new(), self.stdio.clone(), self.spec.view.console_size(), serde_json::Value::Null),
        );
        let pid = child.pid;
        container.init.attach(child, io);
        container.watch_oom_events(context);
        context.events.publish(&self.event(pid));
        container.watch_init(context, exit);
        container.watch_record(context);
        if let Some(mediated) = &container.fixed.mediated {
            mediated.attach(context, &container);
        }
        Ok(container)
    }

    /// Returns the request to the helper.
    fn request(&self, prepared: PreparedGrant, stdio: protocol::StdioKind, mediated: bool) -> protocol::Create {
        protocol::Create {
            id: self.id.clone(),
            bundle: self.bundle.clone(),
            spec: self.spec.text.clone(),
            runtime_root: self.note.runtime_root.clone(),
            rootfs_mounts: self.mounts.iter().map(rootfs_mount).collect(),
            stdio,
            mediated,
            systemd_cgroup: self.options.systemd_cgroup,
            no_pivot_root: self.options.no_pivot_root,
            no_new_keyring: self.options.no_new_keyring,
            io_owner: self.options.io_owner,
            injection: prepared.injection,
            fence: prepared.fence,
        }
    }

    /// Locates the cgroup of init, which waits in it. If init has ended already, the cgroup is
    /// where it should be.
    fn locate(&self, child: &ContainerProcess) -> Result<Cgroup, TaskError> {
        let path = self.note.cgroups_path().map_err(TaskError::Locate)?;
        Cgroup::of_process(&Host::default(), child.pid, &path).or_else(|error| {
            tracing::debug!(container = self.id, error = chain(&error), "the cgroup is looked for by its path");
            Cgroup::intended(&Host::default(), &path).map_err(TaskError::Locate)
        })
    }

    fn event(&self, pid: i32) -> TaskCreate {
        TaskCreate {
            container_id: self.id.clone(),
            bundle: self.note_bundle(),
            rootfs: self.mounts.clone(),
            io: MessageField::some(TaskIO {
                stdin: self.stdio.stdin.clone(),
                stdout: self.stdio.stdout.clone(),
                stderr: self.stdio.stderr.clone(),
                terminal: self.stdio.terminal,
                ..Default::default()
            }),
            pid: pid.unsigned_abs(),
            ..Default::default()
        }
    }

    fn note_bundle(&self) -> String {
        self.bundle.to_string_lossy().into_owned()
    }

    /// Undoes everything, as far as it goes; the cause of the failure is the caller's answer.
    /// The cgroup is the helper's to remove: it knows whether it has made it, or whether the path
    /// is that of somebody else's.
    async fn roll_back(&self, context: &Context) {
        let delete = protocol::Delete {
            id: self.id.clone(),
            runtime_root: self.note.runtime_root.clone(),
            bundle: self.bundle.clone(),
        };
        let mut clean = true;
        if let Err(error) = context.remove(delete).await {
            clean = false;
            tracing::error!(container = self.id, error = chain(&error), "cannot undo a failed create");
        }
        // Memory that a process may still hold is not granted again: the ledger's own reclaim sees
        // to it later.
        let released = async {
            let grant = self.note.grant.of(&context.gpu.key(&self.id), &self.bundle)?;
            context.gpu.release(&context.runtime, &self.id, grant.as_ref(), ReleaseReason::CreateFailed).await
        };
        if clean && let Err(error) = released.await {
            clean = false;
            tracing::error!(container = self.id, error = chain(&error), "cannot release the grant of a failed create");
        }
        if clean {
            context.registry.remove_note(&context.containerd, &context.namespace, &self.id);
        }
    }
}

fn rootfs_mount(mount: &Mount) -> protocol::RootfsMount {
    protocol::RootfsMount { kind: mount.type_.clone(), source: mount.source.clone(), options: mount.options.clone() }
}

/// A container's id, taken while it is being created.
struct Reservation {
    context: Arc<Context>,
    id: String,
}

impl Reservation {
    fn new(context: &Arc<Context>, id: &str, wait: &AdmissionWait) -> Result<Self, TaskError> {
        let mut containers = lock(&context.containers);
        if containers.contains_key(id) {
            return Err(TaskError::ContainerExists { id: id.to_owned() });
        }
        containers.insert(id.to_owned(), Slot::Reserved(wait.clone()));
        Ok(Self { context: Arc::clone(context), id: id.to_owned() })
    }

    fn fill(self, container: Arc<Container>) {
        lock(&self.context.containers).insert(self.id.clone(), Slot::Created(container));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut containers = lock(&self.context.containers);
        if matches!(containers.get(&self.id), Some(Slot::Reserved(_))) {
            containers.remove(&self.id);
        }
        drop(containers);
        self.context.creations.notify_waiters();
    }
}
