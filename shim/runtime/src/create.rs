//! `Create`: from the bundle to an init that waits for its start.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    rc::Rc,
};

use base::error_chain;
use ledger::ProcessId;
use libcgroups::common::{CgroupConfig, create_cgroup_manager};
use libcontainer::{
    config::{ConfigError, YoukiConfig},
    container::{Container, ContainerStatus},
    error::LibcontainerError,
    notify_socket::{NotifyListener, NotifyListenerError},
    process::{
        args::{ContainerArgs, ContainerType},
        intel_rdt::{IntelRdtError, setup_intel_rdt},
    },
    syscall::syscall::{SyscallType, create_syscall},
    user_ns::{UserNamespaceConfig, UserNamespaceError},
    validator::Validator,
};
use nvidia_glue::inject::{ExecEdits, InjectError};
use oci_spec::runtime::{Hooks, Spec};
use serde_json::Value;

use super::{
    cgroup_mounts, delegation, delete,
    device_filter::{self, DeviceFilterError},
    devices::{DeviceError, Devices},
    fence::{self, Filter},
    id_maps::{IdMaps, IdMapsError},
    intermediate::{self, CgroupPlace},
    launch::{self, Launch, LaunchError, Launched},
    mounts::{self, PlanError},
    namespaces, proc_driver,
    process::{self, AttributeError},
    program::{ContainerProgram, Ends},
    protocol::{Create, Delete, FailureKind},
    refused::Refused,
    rootfs::{self, MountError},
    rootfs_setup::RootfsSetup,
    rules::{self, HostFacts, ProcessNotes},
    state::{Settings, StateDir, StateError, write_atomically},
    stdio::{ChildStdio, StdioError},
};
use crate::cgroup::{AnnotationError, Cgroup, CgroupError, CgroupsPath, Host, LocateError, annotated_properties};

/// A container that could not be created. Everything that was done has been undone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    /// The bundle's spec.
    #[error("cannot {action} {}", path.display())]
    Config {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A spec that does not follow the OCI runtime specification.
    #[error("{} is no valid OCI spec", path.display())]
    Spec {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    /// A request for something that this runtime does in another way.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A device of a container with a user namespace.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A mount that cannot be made.
    #[error(transparent)]
    MountPlan(#[from] PlanError),
    /// Contradicts itself, or the host.
    #[error("the OCI spec cannot be run")]
    Invalid(#[source] LibcontainerError),
    /// A part that every container needs is missing.
    #[error("the OCI spec has no {0}")]
    Missing(&'static str),
    /// The root file system.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The directory that the spec calls root.
    #[error("the root file system {} cannot be used", path.display())]
    Root {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The runtime's own directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// libcontainer's part of it.
    #[error("cannot keep the container's state")]
    Keep(#[source] LibcontainerError),
    /// The configuration that libcontainer keeps.
    #[error("cannot keep the container's configuration")]
    KeepConfig(#[source] ConfigError),
    #[error(transparent)]
    CgroupPlace(#[from] LocateError),
    /// The cgroup itself.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("cannot set the container's limits: {0}")]
    Limits(String),
    /// A property of the container's scope.
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    /// A cgroup in use; deleting this container would end the processes in it.
    #[error(
        "the cgroup of container {id:?} is in use by process {pid}; end it, or give the container another cgroupsPath"
    )]
    CgroupInUse { id: String, pid: i32 },
    #[error("the OCI spec's user namespace cannot be made")]
    UserNamespace(#[source] UserNamespaceError),
    /// The grant's files, nodes and settings.
    #[error("cannot put the granted GPUs into the container")]
    Inject(#[source] InjectError),
    /// Its ids.
    #[error(transparent)]
    IdMaps(#[from] IdMapsError),
    /// The process's attributes.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
    /// Its streams.
    #[error(transparent)]
    ChildStdio(#[from] StdioError),
    /// The socket that libcontainer wants to have.
    #[error("cannot make libcontainer's socket")]
    Notify(#[source] NotifyListenerError),
    /// Descriptors that init has.
    #[error("cannot list the descriptors of the container's process")]
    Descriptors(#[source] std::io::Error),
    /// init.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Resource director.
    #[error("cannot set up Intel RDT")]
    IntelRdt(#[source] IntelRdtError),
    /// The device filter of cgroup v2.
    #[error("cannot install the device filter")]
    DeviceFilter(#[from] DeviceFilterError),
}

impl CreateError {
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::Spec { .. }
            | Self::Refused(_)
            | Self::MountPlan(_)
            | Self::Invalid(_)
            | Self::Missing(_)
            | Self::Annotation(_)
            | Self::UserNamespace(_) => FailureKind::Invalid,
            Self::State(StateError::Id(_)) | Self::IdMaps(IdMapsError::Mismatch { .. }) => FailureKind::Invalid,
            Self::State(StateError::Exists(_)) | Self::CgroupInUse { .. } => FailureKind::FailedPrecondition,
            _ => FailureKind::Internal,
        }
    }
}

/// A created container's init.
pub(crate) struct Created {
    pub(crate) init: Launched,
    pub(crate) warnings: Vec<String>,
}

impl Created {
    fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }
}

/// Creates the container; on failure nothing of it is left. `reply` is where the shim listens.
pub(crate) fn create(create: &Create, mut fds: Vec<OwnedFd>, reply: &OwnedFd) -> Result<Created, CreateError> {
    let intake = fence::take_intake(create.mediated, &mut fds);
    let stdio = ChildStdio::new(create.stdio, fds)?;
    let config = create.bundle.join("config.json");
    let mut json: Value =
        serde_json::from_str(create.spec.get()).map_err(|source| CreateError::Spec { path: config.clone(), source })?;
    let state = StateDir::create(&create.runtime_root, &create.id)?;
    let created = rootfs::mount_all(&create.rootfs_mounts, &root_of(&create.bundle, &json))
        .map_err(CreateError::from)
        .and_then(|()| complete(create, &config, &mut json))
        .and_then(|(left_out, exec_edits)| {
            run(create, json, exec_edits, &state, stdio, intake, reply).map(|created| created.with_warnings(left_out))
        });
    if created.is_err() {
        let undo =
            Delete { id: create.id.clone(), runtime_root: create.runtime_root.clone(), bundle: create.bundle.clone() };
        // The first error is the one that counts; containerd's own delete tries again.
        let _ = delete::remove(&undo);
    }
    created
}

/// Returns the directory that the root file system is mounted at: as in the spec, relative to the
/// bundle.
fn root_of(bundle: &Path, spec: &Value) -> PathBuf {
    let path = spec.pointer("/root/path").and_then(Value::as_str).filter(|path| !path.is_empty());
    bundle.join(path.unwrap_or("rootfs"))
}

/// Completes the injection with the part that depends on the mounted root file system. Exec and
/// containerd read the changed spec later, so it goes into the bundle.
fn complete(create: &Create, config: &Path, json: &mut Value) -> Result<(Vec<String>, ExecEdits), CreateError> {
    let Some(injection) = &create.injection else { return Ok(Default::default()) };
    let before = json.clone();
    let left_out = injection.complete(&root_of(&create.bundle, json), json).map_err(CreateError::Inject)?;
    if *json != before {
        let wrap = |action| move |source| CreateError::Config { action, path: config.to_owned(), source };
        let text = serde_json::to_vec(json).map_err(|e| wrap("write")(e.into()))?;
        let permissions = std::fs::metadata(config).map_err(wrap("read"))?.permissions();
        write_atomically(config, &text, Some(permissions)).map_err(wrap("write"))?;
    }
    Ok((left_out, ExecEdits::between(&before, json)))
}

fn run(
    create: &Create,
    mut json: Value,
    exec_edits: ExecEdits,
    state: &StateDir,
    stdio: ChildStdio,
    intake: Option<OwnedFd>,
    reply: &OwnedFd,
) -> Result<Created, CreateError> {
    let host = HostFacts::read();
    let propagation = mounts::root_propagation(&json);
    let mut warnings = rules::spec(&mut json, host)?;
    // What is injected brings a copy of its own.
    if create.fence && create.injection.is_none() {
        proc_driver::mask(&mut json);
    }
    let notes = rules::process(json.get_mut("process").ok_or(CreateError::Missing("process"))?, host)?;
    let path = create.bundle.join("config.json");
    let spec: Spec = serde_json::from_value(json).map_err(|source| CreateError::Spec { path, source })?;
    let (mut spec, hooks) = prepare_spec(create, spec)?;
    let maps = IdMaps::of(&spec)?;
    let cgroup_owner = delegation::owner(&spec, maps.as_ref());

    let mut container = Container::new(&create.id, ContainerStatus::Creating, None, &create.bundle, state.path())
        .map_err(CreateError::Keep)?;
    container.set_systemd(create.systemd_cgroup).set_annotations(spec.annotations().clone());
    container.save().map_err(CreateError::Keep)?;
    let settings = Settings {
        no_new_keyring: create.no_new_keyring,
        systemd_cgroup: create.systemd_cgroup,
        exec_edits,
        init: None,
    };
    state.save(&settings)?;
    let (path, cgroup) = require_empty_cgroup(create, &spec)?;
    let links = cgroup_mounts::expand(&mut spec, &cgroup, &path);
    let devices = Devices::take(&mut spec, state.path())?;
    let rootfs_setup = RootfsSetup::take(&mut spec, links, devices, propagation, &create.bundle, &cgroup)?;
    if spec.hooks().is_none() {
        // init then waits once its mounts are there.
        spec.set_hooks(Some(Hooks::default()));
    }
    // Its presence tells `delete` that the cgroup is this container's to empty.
    let mut saved_config = YoukiConfig::from_spec(&spec, &create.id).map_err(CreateError::KeepConfig)?;
    saved_config.hooks = hooks.clone();
    saved_config.save(state.path()).map_err(CreateError::KeepConfig)?;

    let init = launch(
        create,
        spec.clone(),
        (maps.as_ref(), cgroup_owner),
        (hooks.as_ref(), &rootfs_setup),
        &saved_config.cgroup_path,
        (&path, &cgroup),
        &container,
        stdio,
        intake,
        &notes,
        state,
        reply,
    )?;
    if let Some(rdt) = spec.linux().as_ref().and_then(|linux| linux.intel_rdt().as_ref()) {
        let (group, monitoring) = setup_intel_rdt(Some(&create.id), &init.pid, rdt).map_err(CreateError::IntelRdt)?;
        container.set_intel_rdt_dir(group).set_intel_rdt_monitoring_dir(monitoring);
    }
    device_filter::apply(&init, &create.id, create.systemd_cgroup, &spec, host.cgroup_v2)?;
    let process = ProcessId::of(init.pid.as_raw()).map_err(LaunchError::Gone)?;
    state.save(&Settings { init: Some(process), ..settings })?;
    container.set_status(ContainerStatus::Created).set_creator(nix::unistd::geteuid().as_raw());
    container.set_pid(init.pid.as_raw()).save().map_err(CreateError::Keep)?;
    warnings.extend(notes.warnings);
    Ok(Created { init, warnings })
}

/// Validates, makes the root path absolute, and takes out the hooks that init must not run itself.
fn prepare_spec(create: &Create, mut spec: Spec) -> Result<(Spec, Option<Hooks>), CreateError> {
    let syscall = create_syscall();
    Validator::validate_spec(&spec).map_err(|e| CreateError::Invalid(e.into()))?;
    libcontainer::utils::validate_spec_for_new_user_ns(&spec, &*syscall).map_err(CreateError::Invalid)?;
    libcontainer::utils::validate_spec_for_net_devices(&spec, &*syscall)
        .map_err(|e| CreateError::Invalid(LibcontainerError::NetDevicesError(e)))?;
    if spec.root().is_none() {
        return Err(CreateError::Missing("root"));
    }
    spec.canonicalize_rootfs(&create.bundle)
        .map_err(|e| CreateError::Root { path: create.bundle.clone(), source: std::io::Error::other(e) })?;
    namespaces::require(&spec)?;
    mounts::clean_destinations(&mut spec);
    let hooks = spec.hooks().clone();
    if let Some(hooks) = &hooks {
        // Some, also when empty: init then asks for the hooks that run here.
        let mut own = Hooks::default();
        own.set_start_container(hooks.start_container().clone());
        spec.set_hooks(Some(own));
    }
    Ok((spec, hooks))
}

/// Refuses a cgroup with somebody in it: they would share this container's limits, and its end.
fn require_empty_cgroup(create: &Create, spec: &Spec) -> Result<(CgroupsPath, Cgroup), CreateError> {
    let path = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_deref());
    let path = CgroupsPath::new(path, &create.id, create.systemd_cgroup)?;
    let cgroup = Cgroup::intended(&Host::default(), &path)?;
    match cgroup.pids()?.first() {
        Some(pid) => Err(CreateError::CgroupInUse { id: create.id.clone(), pid: *pid }),
        None => Ok((path, cgroup)),
    }
}

/// Prepares the cgroup for init: made, with its limits set, or left to systemd, which makes it
/// around a process only.
fn make_place<'a>(
    cgroup: &'a Cgroup,
    path: &CgroupsPath,
    config: &CgroupConfig,
    spec: &Spec,
    owner: Option<u32>,
) -> Result<(CgroupPlace<'a>, Vec<OwnedFd>), CreateError> {
    let manager = |config| create_cgroup_manager(config).map_err(|e| CreateError::Limits(error_chain(&e)));
    if let Some(scope) = path.scope() {
        let config = CgroupConfig { cgroup_path: path.below_root(), systemd_cgroup: false, ..config.clone() };
        let mut properties = annotated_properties(spec.annotations().as_ref().unwrap_or(&HashMap::new()))?;
        if cgroup.is_v1() {
            properties.extend(device_filter::unit_properties(spec)?);
        }
        return Ok((CgroupPlace::Systemd { scope, properties, cgroup, manager: manager(config)?, owner }, vec![]));
    }
    cgroup.make()?;
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    if let Some(resources) = resources {
        intermediate::limit(&manager(config.clone())?, resources).map_err(|e| CreateError::Limits(error_chain(&e)))?;
        cgroup.forbid_swap(resources)?;
        cgroup.deny_console(resources.devices().as_deref().unwrap_or_default())?;
    }
    cgroup.limit_nesting(intermediate::unified(resources))?;
    Ok((CgroupPlace::Own(cgroup), cgroup.clone_target()?.into_iter().collect()))
}

#[allow(clippy::too_many_arguments)]
fn launch(
    create: &Create,
    spec: Spec,
    (maps, cgroup_owner): (Option<&IdMaps>, Option<u32>),
    (hooks, rootfs_setup): (Option<&Hooks>, &RootfsSetup),
    cgroup_path: &Path,
    (path, cgroup): (&CgroupsPath, &Cgroup),
    container: &Container,
    stdio: ChildStdio,
    intake: Option<OwnedFd>,
    notes: &ProcessNotes,
    state: &StateDir,
    reply: &OwnedFd,
) -> Result<Launched, CreateError> {
    let cgroup_config = CgroupConfig {
        cgroup_path: cgroup_path.to_owned(),
        systemd_cgroup: create.systemd_cgroup,
        container_name: create.id.clone(),
    };
    let (place, clone_targets) = make_place(cgroup, path, &cgroup_config, &spec, cgroup_owner)?;
    let process = spec.process().as_ref().ok_or(CreateError::Missing("process"))?;
    let owner = process::stream_owner(maps, process, create.io_owner);
    stdio.give_to(owner)?;
    process::inherit(&create.id, &spec, process.oom_score_adj().to_owned(), !create.no_new_keyring)?;
    let (ready, ready_end) = launch::ready_pipe()?;
    let ends = Ends {
        ready: ready_end,
        start: Rc::new(state.make_start()?.into()),
        outcome: Rc::new(state.make_outcome()?.into()),
    };
    let [stdin, stdout, stderr] = stdio.raw_streams();
    let args = ContainerArgs {
        container_type: ContainerType::InitContainer,
        syscall: SyscallType::Linux,
        rootfs: spec.root().as_ref().map(|root| root.path().clone()).unwrap_or_default(),
        console_socket: stdio.raw_console(),
        notify_listener: NotifyListener::new(&state.path().join("notify.sock")).map_err(CreateError::Notify)?,
        preserve_fds: 0,
        container: Some(container.clone()),
        user_ns_config: UserNamespaceConfig::new(&spec).map_err(CreateError::UserNamespace)?,
        cgroup_config: cgroup_config.clone(),
        detached: true,
        executor: Box::new(
            ContainerProgram::new(ends, notes.find_home, Some(container.state.clone()))
                .map_err(CreateError::Descriptors)?,
        ),
        no_pivot: create.no_pivot_root,
        stdin,
        stdout,
        stderr,
        as_sibling: true,
        pid_file: None,
        spec: Rc::new(spec),
    };
    let filter = Filter::new(create.fence, intake).map_err(LaunchError::Filter)?;
    let private = stdio.private();
    let filter = filter.as_ref();
    let init = Launch {
        args: &args,
        filter,
        private,
        joined: None,
        place,
        clone_targets,
        reply,
        hooks,
        ready,
        rootfs_setup: Some(rootfs_setup),
    }
    .run()?;
    stdio.finish(owner, notes.console_size)?;
    Ok(init)
}
