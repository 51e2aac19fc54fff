//! `Exec`: one more process in a running container.
//!
//! libcontainer's TenantContainerBuilder is not used: it forgets the seccomp profile and the user
//! namespace.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    rc::Rc,
};

use base::error_chain;
use libcgroups::common::CgroupConfig;
use libcontainer::{
    config::{ConfigError, YoukiConfig},
    container::{Container, ContainerStatus},
    error::LibcontainerError,
    notify_socket::{NotifyListener, NotifyListenerError},
    process::args::{ContainerArgs, ContainerType},
    syscall::syscall::SyscallType,
};
use nvidia_glue::inject::{ExecEdits, InjectError};
use oci_spec::runtime::{
    Linux, LinuxBuilder, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, Process, Spec,
};
use serde_json::Value;

use super::{
    fence::{self, Filter},
    id_maps::{IdMaps, IdMapsError},
    intermediate::CgroupPlace,
    launch::{self, KilledUnlessKept, Launch, LaunchError, Launched},
    process::{self, AttributeError},
    program::{self, ContainerProgram, Ends},
    protocol::{Exec, FailureKind},
    refused::Refused,
    rules::{self, HostFacts, ProcessNotes},
    state::{StateDir, StateError},
    stdio::{ChildStdio, StdioError},
};
use crate::cgroup::{Cgroup, CgroupError};

/// A process that could not be run in a container. None is left.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecError {
    /// The runtime's own directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// libcontainer's part of it.
    #[error("cannot use the state of container {id:?}")]
    Container {
        id: String,
        #[source]
        source: Box<LibcontainerError>,
    },
    /// The configuration that libcontainer keeps.
    #[error("cannot use the configuration of container {id:?}")]
    Config {
        id: String,
        #[source]
        source: ConfigError,
    },
    /// A container that is not running.
    #[error("container {id:?} is {status}; a process can be run in a running one only")]
    Status { id: String, status: ContainerStatus },
    /// The container's spec.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A spec of the container or the process that does not follow the OCI runtime specification.
    #[error("{what} is not what the OCI spec describes")]
    Spec {
        what: String,
        #[source]
        source: serde_json::Error,
    },
    /// A request for something that this runtime does in another way.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The container's grant, as it applies to the process.
    #[error("cannot give the process what the container was granted")]
    Inject(#[source] InjectError),
    /// The spec that the process is run with.
    #[error("cannot describe the process to libcontainer: {0}")]
    Describe(String),
    /// The container's user namespace.
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
    /// The pipe to it.
    #[error("cannot let the process execute its program")]
    Gate(#[source] io::Error),
    /// The pipe from it.
    #[error("cannot learn whether the process started")]
    Outcome(#[source] io::Error),
    /// Those that the process has.
    #[error("cannot list the descriptors of the process")]
    Descriptors(#[source] io::Error),
    /// The process.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The container's cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("{0}")]
    Program(String),
}

impl ExecError {
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::State(StateError::Unknown(_)) => FailureKind::NotFound,
            Self::State(StateError::Id(_))
            | Self::Spec { .. }
            | Self::Refused(_)
            | Self::Inject(_)
            | Self::Program(_) => FailureKind::Invalid,
            Self::Status { .. } => FailureKind::FailedPrecondition,
            _ => FailureKind::Internal,
        }
    }
}

/// A process that executes its program.
pub(crate) struct Executed {
    pub(crate) process: Launched,
    pub(crate) warnings: Vec<String>,
}

/// A container that a process is to join.
struct ExecTarget {
    container: Container,
    init: i32,
    init_pidfd: OwnedFd,
    spec: Spec,
    state: StateDir,
    cgroup_path: PathBuf,
    new_keyring: bool,
    exec_edits: ExecEdits,
}

/// Runs the process; on failure it is gone. `reply` is where the shim listens.
pub(crate) fn exec(exec: &Exec, mut fds: Vec<OwnedFd>, reply: &OwnedFd) -> Result<Executed, ExecError> {
    let intake = fence::take_intake(exec.mediated, &mut fds);
    let stdio = ChildStdio::new(exec.stdio, fds)?;
    let target = open(exec)?;
    let mut json = exec.process.clone();
    inherit_from_init(&mut json, &target.spec);
    target.exec_edits.apply(&mut json).map_err(ExecError::Inject)?;
    let notes = rules::process(&mut json, HostFacts::read())?;
    let process: Process =
        serde_json::from_value(json).map_err(|source| ExecError::Spec { what: "the process".to_owned(), source })?;
    let spec = describe(&target, process)?;

    let (process, waiting) = launch(exec, &target, spec, stdio, intake, &notes, reply)?;
    let guard = KilledUnlessKept(process.pidfd.as_fd());
    waiting.start()?;
    guard.keep();
    Ok(Executed { process, warnings: notes.warnings })
}

fn open(exec: &Exec) -> Result<ExecTarget, ExecError> {
    let id = || exec.id.clone();
    let state = StateDir::open(&exec.runtime_root, &exec.id)?;
    let failed = |e| ExecError::Container { id: exec.id.clone(), source: Box::new(e) };
    let mut container = Container::load(state.path().to_owned()).map_err(failed)?;
    container.refresh_status().map_err(failed)?;
    let (ContainerStatus::Running, Some(init)) = (container.status(), container.pid()) else {
        return Err(ExecError::Status { id: id(), status: container.status() });
    };
    let config = YoukiConfig::load(state.path()).map_err(|source| ExecError::Config { id: id(), source })?;
    let settings = state.settings()?;
    let stopped = || ExecError::Status { id: id(), status: ContainerStatus::Stopped };
    // Bound to the process that `create` noted, and to no other that has its number by now.
    let init_pidfd = sys::pidfd_open(init.as_raw()).map_err(|_| stopped())?;
    if settings.init.is_none_or(|noted| ledger::ProcessId::of(noted.pid).ok() != Some(noted)) {
        return Err(stopped());
    }
    let path = container.bundle().join("config.json");
    let text = std::fs::read(&path).map_err(|source| ExecError::Read { path: path.clone(), source })?;
    let parse = |source| ExecError::Spec { what: path.display().to_string(), source };
    let mut json: Value = serde_json::from_slice(&text).map_err(parse)?;
    rules::spec(&mut json, HostFacts::read())?;
    // Only its OOM score, user and capabilities are of interest; what create repaired needs the
    // same repair here.
    if let Some(process) = json.get_mut("process") {
        rules::process(process, HostFacts::read())?;
    }
    let mut spec: Spec = serde_json::from_value(json).map_err(parse)?;
    spec.canonicalize_rootfs(container.bundle()).map_err(|source| ExecError::Describe(error_chain(&source)))?;
    Ok(ExecTarget {
        init: init.as_raw(),
        cgroup_path: config.cgroup_path,
        init_pidfd,
        new_keyring: !settings.no_new_keyring,
        exec_edits: settings.exec_edits,
        container,
        spec,
        state,
    })
}

/// Fills in from the container's init what the process does not say.
fn inherit_from_init(process: &mut Value, spec: &Spec) {
    let (Some(process), Some(init)) = (process.as_object_mut(), spec.process()) else { return };
    if process.get("capabilities").is_none_or(Value::is_null)
        && let Ok(capabilities) = serde_json::to_value(init.capabilities())
    {
        process.insert("capabilities".to_owned(), capabilities);
    }
}

/// The container's spec with another process and its namespaces by path.
fn describe(target: &ExecTarget, process: Process) -> Result<Spec, ExecError> {
    let describe = |e: oci_spec::OciSpecError| ExecError::Describe(e.to_string());
    let mut spec = target.spec.clone();
    let own = spec.linux().as_ref().ok_or_else(|| ExecError::Describe("the spec has no linux section".to_owned()))?;
    let namespaces = own.namespaces().as_deref().unwrap_or_default();
    let namespaces = namespaces
        .iter()
        .map(|namespace| join(namespace, target.init))
        .collect::<Result<Vec<_>, _>>()
        .map_err(describe)?;
    let mut builder = LinuxBuilder::default().namespaces(namespaces);
    if let Some(seccomp) = own.seccomp() {
        builder = builder.seccomp(seccomp.clone());
    }
    if let Some(personality) = own.personality() {
        builder = builder.personality(personality.clone());
    }
    let mut linux: Linux = builder.build().map_err(describe)?;
    // The builder fills these in for a new container.
    linux.set_resources(None).set_devices(None).set_masked_paths(None).set_readonly_paths(None);
    spec.set_process(Some(process)).set_linux(Some(linux)).set_hooks(None);
    Ok(spec)
}

fn join(namespace: &LinuxNamespace, init: i32) -> Result<LinuxNamespace, oci_spec::OciSpecError> {
    let name = match namespace.typ() {
        LinuxNamespaceType::Mount => "mnt",
        LinuxNamespaceType::Network => "net",
        LinuxNamespaceType::Pid => "pid",
        LinuxNamespaceType::Ipc => "ipc",
        LinuxNamespaceType::Uts => "uts",
        LinuxNamespaceType::User => "user",
        LinuxNamespaceType::Cgroup => "cgroup",
        LinuxNamespaceType::Time => "time",
    };
    LinuxNamespaceBuilder::default().typ(namespace.typ()).path(format!("/proc/{init}/ns/{name}")).build()
}

#[allow(clippy::too_many_arguments)]
fn launch(
    exec: &Exec,
    target: &ExecTarget,
    spec: Spec,
    stdio: ChildStdio,
    intake: Option<OwnedFd>,
    notes: &ProcessNotes,
    reply: &OwnedFd,
) -> Result<(Launched, Waiting), ExecError> {
    let process = spec.process().as_ref().ok_or_else(|| ExecError::Describe("there is no process".to_owned()))?;
    let owner = process::stream_owner(IdMaps::of(&spec)?.as_ref(), process, exec.io_owner);
    stdio.give_to(owner)?;
    let init_score = target.spec.process().as_ref().and_then(|init| init.oom_score_adj().to_owned());
    let score = process.oom_score_adj().to_owned().or(init_score);
    process::inherit(&exec.id, &target.spec, score, target.new_keyring)?;
    let (outcome, process_end) = io::pipe().map_err(ExecError::Outcome)?;
    let (gate, go) = io::pipe().map_err(ExecError::Gate)?;
    let go = OwnedFd::from(go);
    let (ready, ready_end) = launch::ready_pipe()?;
    let ends = Ends { ready: ready_end, start: Rc::new(gate.into()), outcome: Rc::new(process_end.into()) };
    let [stdin, stdout, stderr] = stdio.raw_streams();
    let args = ContainerArgs {
        container_type: ContainerType::TenantContainer { exec_notify_fd: ends.outcome.as_raw_fd() },
        syscall: SyscallType::Linux,
        rootfs: spec.root().as_ref().map(|root| root.path().clone()).unwrap_or_default(),
        console_socket: stdio.raw_console(),
        notify_listener: unused_listener(target)?,
        preserve_fds: 0,
        container: Some(target.container.clone()),
        user_ns_config: None,
        cgroup_config: CgroupConfig {
            cgroup_path: target.cgroup_path.clone(),
            systemd_cgroup: target.container.systemd(),
            container_name: exec.id.clone(),
        },
        detached: true,
        executor: Box::new(ContainerProgram::new(ends, notes.find_home, None).map_err(ExecError::Descriptors)?),
        no_pivot: false,
        stdin,
        stdout,
        stderr,
        as_sibling: true,
        pid_file: None,
        spec: Rc::new(spec),
    };
    let filter = Filter::new(exec.fence, intake).map_err(LaunchError::Filter)?;
    let mut private = stdio.private();
    private.push(&go);
    let (place, clone_targets) = (CgroupPlace::Own(&exec.cgroup), clone_targets(&exec.cgroup, target.init)?);
    let process = Launch {
        args: &args,
        filter: filter.as_ref(),
        private,
        joined: Some(&target.init_pidfd),
        place,
        clone_targets,
        reply,
        hooks: None,
        ready,
        rootfs_setup: None,
    }
    .run()?;
    stdio.finish(owner, notes.console_size)?;
    Ok((process, Waiting { go: File::from(go), outcome: File::from(OwnedFd::from(outcome)) }))
}

/// Makes the socket that libcontainer wants to have. The process waits at its gate instead.
fn unused_listener(target: &ExecTarget) -> Result<NotifyListener, ExecError> {
    let path = target.state.path().join(format!("exec-{}.sock", std::process::id()));
    let listener = NotifyListener::new(&path).map_err(ExecError::Notify);
    // Left over, it would go with the container.
    let _ = std::fs::remove_file(&path);
    listener
}

/// Opens the cgroups in which the process may begin: the container's; where the container hands
/// that one down to cgroups of its own, its init's, as runc.
fn clone_targets(cgroup: &Cgroup, init: i32) -> Result<Vec<OwnedFd>, ExecError> {
    let Some(own) = cgroup.clone_target()? else { return Ok(vec![]) };
    // Not where init is too deep for a path, or gone.
    let membership = std::fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap_or_default();
    Ok(std::iter::once(own).chain(cgroup.clone_target_of(&membership)?).collect())
}

/// A process that waits at its gate. It ends when this worker does, at whatever point.
struct Waiting {
    go: File,
    outcome: File,
}

impl Waiting {
    /// Lets it execute its program, and reads libcontainer's report of a failure.
    fn start(mut self) -> Result<(), ExecError> {
        self.go.write_all(&[program::GO]).map_err(ExecError::Gate)?;
        let mut message = Vec::new();
        self.outcome.read_to_end(&mut message).map_err(ExecError::Outcome)?;
        if message.is_empty() {
            return Ok(());
        }
        Err(ExecError::Program(String::from_utf8_lossy(&message).into_owned()))
    }
}
