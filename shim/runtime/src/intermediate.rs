//! The process between the worker and init: it enters the cgroup and namespaces that init must
//! begin in, makes init, and ends. Where init can do that itself, there is none.
//!
//! The sequence is that of libcontainer 0.7.0's `container_intermediate_process`, which cannot be
//! used as it is: for every process it reads the host's cgroup mounts a dozen times over, and it
//! moves the process by its pid, for which the kernel waits about ten milliseconds (see
//! [`crate::cgroup`]).

mod exec_entrance;

use std::{collections::HashMap, os::fd::OwnedFd, rc::Rc};

use base::error_chain;
use libcgroups::common::{AnyCgroupManager, CgroupManager, ControllerOpt};
use libcontainer::{
    namespaces::{NamespaceError, Namespaces},
    process::{
        args::{ContainerArgs, ContainerType},
        channel::{ChannelError, InitReceiver, InitSender, IntermediateReceiver, IntermediateSender, MainSender},
        cpu_affinity::{CPUAffinityError, set_cpuset_affinity_from_string},
        init::container_init_process,
    },
    syscall::SyscallError,
};
use nix_of_libcontainer::unistd::{Gid, Pid, Uid};
use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType, LinuxResources, Process, Spec};
use sys::Forked;

use super::{
    init_failure, namespaces,
    privileges::{self, PrivilegeError},
    rlimits,
};
use crate::cgroup::{Cgroup, CgroupError, Property, Scope, ScopeError};

/// The way in which a process gets into its container's cgroup.
pub(crate) enum CgroupPlace<'a> {
    /// The process enters it by itself, on v1; it begins there on v2, a hybrid host's included.
    Own(&'a Cgroup),
    /// The process gets a scope that systemd makes around it; the limits come after. It is given to
    /// `owner`.
    Systemd {
        scope: Scope,
        properties: Vec<Property>,
        cgroup: &'a Cgroup,
        manager: AnyCgroupManager,
        owner: Option<u32>,
    },
}

/// An init that was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IntermediateError {
    /// The spec.
    #[error("the OCI spec has no {0}")]
    Missing(&'static str),
    /// The other processes.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("cannot enter a namespace")]
    Namespace(#[from] NamespaceError),
    /// Another container's namespace.
    #[error("cannot join a namespace")]
    Join(#[source] std::io::Error),
    /// The user.
    #[error("cannot become root of the container's user namespace")]
    Attribute(#[from] SyscallError),
    /// The same, of an exec.
    #[error("cannot become root of the container's user namespace")]
    Root(#[source] nix::Error),
    /// Arguments and environment, which are the shim's.
    #[error("cannot clear the process's command line")]
    CommandLine(#[source] std::io::Error),
    /// The streams of an exec.
    #[error("cannot set up the process's streams")]
    Streams(#[source] nix_of_libcontainer::Error),
    /// Rights that the process must not have.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// `execCPUAffinity`.
    #[error("cannot set execCPUAffinity")]
    Affinity(#[from] CPUAffinityError),
    #[error("cannot enter the container's cgroup")]
    Cgroup(#[from] CgroupError),
    /// systemd.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// `process.rlimits`.
    #[error(transparent)]
    ResourceLimits(#[from] rlimits::LimitError),
    #[error("cannot set the container's limits: {0}")]
    Limits(String),
    /// init.
    #[error("cannot fork")]
    Fork(#[source] std::io::Error),
    /// The dumpable flag, without which nobody may write id maps.
    #[error("cannot set the dumpable flag")]
    Dumpable(#[source] nix::Error),
}

/// The ends of the three channels that this process, and init after it, use.
pub(crate) struct Ends<'a> {
    pub(crate) intermediate: &'a mut (IntermediateSender, IntermediateReceiver),
    pub(crate) init: &'a mut (InitSender, InitReceiver),
    pub(crate) to_main: &'a mut MainSender,
    pub(crate) init_to_main: &'a mut MainSender,
}

/// Returns whether init is made without it: the kernel can put it into a new pid namespace at once,
/// and there is nothing else that only holds for the next process, or that takes a pid that the
/// host knows.
pub(crate) fn is_needed(args: &ContainerArgs, place: &CgroupPlace<'_>) -> bool {
    let needs = |namespace: &LinuxNamespace| match namespace.typ() {
        LinuxNamespaceType::User | LinuxNamespaceType::Time => true,
        LinuxNamespaceType::Pid => namespace.path().is_some(),
        _ => false,
    };
    let namespaces = args.spec.linux().as_ref().and_then(|linux| linux.namespaces().as_deref());
    !matches!((&args.container_type, place), (ContainerType::InitContainer, CgroupPlace::Own(_)))
        || namespaces.unwrap_or_default().iter().any(needs)
}

/// Runs init, which has no intermediate process. Returns what went wrong before it was init.
pub(crate) fn run_init(args: &ContainerArgs, place: &CgroupPlace<'_>, ends: &mut Ends<'_>) -> IntermediateError {
    let begun = begin(args, place).and_then(|()| {
        let process = args.spec.process().as_ref().ok_or(IntermediateError::Missing("process"))?;
        Ok(privileges::bound(process)?)
    });
    match begun {
        Ok(()) => init(args, ends),
        Err(error) => error,
    }
}

/// Runs it; init reports its own errors by itself.
///
/// `joined`: the init of the container that it is an exec of.
pub(crate) fn run(
    args: &ContainerArgs,
    place: &CgroupPlace<'_>,
    joined: Option<&OwnedFd>,
    ends: &mut Ends<'_>,
) -> Result<(), IntermediateError> {
    let pids = namespaces::of(&args.spec, LinuxNamespaceType::Pid);
    let is_seen = pids.is_some_and(|pids| pids.path().is_some());
    if is_seen {
        exec_entrance::clear_command_line().map_err(IntermediateError::CommandLine)?;
    }
    begin(args, place)?;
    let left = match joined {
        Some(init) => {
            let left = exec_entrance::enter(args, init)?;
            sys::close_fd_of(init);
            left
        }
        None => {
            let mut spec = (*args.spec).clone();
            enter_namespaces(args, &mut spec, ends)?;
            if is_seen {
                namespaces::leave_host(&mut spec).map_err(IntermediateError::Join)?;
            }
            // Not to be copied twice: the copies share a descriptor, and each of them closes it.
            ContainerArgs { spec: Rc::new(spec), ..args.clone() }
        }
    };
    // The limits may leave no room for a pidfd, nor the rights for one to be sent.
    match sys::clone_sibling_by_number().map_err(IntermediateError::Fork)? {
        Forked::Child => init(&left, ends),
        Forked::Parent { pid } => Ok(ends.to_main.intermediate_ready(Pid::from_raw(pid))?),
    }
}

/// Enters the namespaces of a new container that init cannot make or join itself. Leaves in the
/// spec what is left for it.
fn enter_namespaces(args: &ContainerArgs, spec: &mut Spec, ends: &mut Ends<'_>) -> Result<(), IntermediateError> {
    namespaces::join_outer(spec).map_err(IntermediateError::Join)?;
    let linux = spec.linux().as_ref().ok_or(IntermediateError::Missing("linux section"))?;
    let namespaces = Namespaces::try_from(linux.namespaces().as_ref())?;
    if let Some(namespace) = namespaces.get(LinuxNamespaceType::User)? {
        enter_user_namespace(&namespaces, namespace, ends)?;
        // As root of the new one: what follows needs its capabilities.
        args.syscall.create_syscall().set_id(Uid::from_raw(0), Gid::from_raw(0))?;
    }
    if let Some(namespace) = namespaces.get(LinuxNamespaceType::Time)? {
        namespaces.unshare_or_setns(namespace)?;
        let has_offsets = linux.time_offsets().as_ref().is_some_and(|offsets| !offsets.is_empty());
        if namespace.path().is_none() && has_offsets {
            dumpable(|| {
                ends.to_main.time_offset_request()?;
                ends.intermediate.1.wait_for_time_offsets_ack()
            })?;
        }
    }
    let process = args.spec.process().as_ref().ok_or(IntermediateError::Missing("process"))?;
    privileges::bound(process)?;
    // Holds for the next process only, which is init.
    if let Some(namespace) = namespaces.get(LinuxNamespaceType::Pid)? {
        namespaces.unshare_or_setns(namespace)?;
    }
    Ok(())
}

/// Does what comes before any namespace.
fn begin(args: &ContainerArgs, place: &CgroupPlace<'_>) -> Result<(), IntermediateError> {
    let spec = &args.spec;
    let linux = spec.linux().as_ref().ok_or(IntermediateError::Missing("linux section"))?;
    let process = spec.process().as_ref().ok_or(IntermediateError::Missing("process"))?;
    // Before the user namespace, in which the cgroup's files belong to nobody, and before the
    // cgroup namespace, whose root is the cgroup at that time.
    set_affinity(args, process, |affinity| affinity.initial().clone())?;
    join(place, linux.resources().as_ref(), args)?;
    set_affinity(args, process, |affinity| affinity.cpu_affinity_final().clone())?;
    match args.user_ns_config {
        None => Ok(rlimits::set(None, spec)?),
        Some(_) => Ok(()),
    }
}

fn set_affinity(
    args: &ContainerArgs,
    process: &Process,
    part: impl Fn(&oci_spec::runtime::ExecCPUAffinity) -> Option<String>,
) -> Result<(), IntermediateError> {
    let is_exec = matches!(args.container_type, ContainerType::TenantContainer { .. });
    match process.exec_cpu_affinity().as_ref().filter(|_| is_exec).and_then(part) {
        Some(cpus) => Ok(set_cpuset_affinity_from_string(Pid::this(), &cpus)?),
        None => Ok(()),
    }
}

fn join(
    place: &CgroupPlace<'_>,
    resources: Option<&LinuxResources>,
    args: &ContainerArgs,
) -> Result<(), IntermediateError> {
    match place {
        CgroupPlace::Own(cgroup) => Ok(cgroup.enter()?),
        CgroupPlace::Systemd { scope, properties, cgroup, manager, owner } => {
            let id = args.container.as_ref().map_or("", |container| container.id());
            // The systemd driver is asked for inits alone: an exec begins in the scope.
            scope.start(id, std::process::id(), cgroup, resources, properties)?;
            cgroup.enter_beyond_systemd()?;
            if let Some(resources) = resources {
                limit(manager, resources).map_err(|e| IntermediateError::Limits(error_chain(&e)))?;
                cgroup.deny_console(resources.devices().as_deref().unwrap_or_default())?;
            }
            cgroup.limit_nesting(unified(resources))?;
            Ok(owner.map_or(Ok(()), |uid| cgroup.delegate_to(uid))?)
        }
    }
}

/// Returns the spec's settings of files of cgroup v2 themselves.
pub(crate) fn unified(resources: Option<&LinuxResources>) -> Option<&HashMap<String, String>> {
    resources.and_then(|resources| resources.unified().as_ref())
}

/// Sets a new container's limits.
pub(crate) fn limit(
    manager: &AnyCgroupManager,
    resources: &LinuxResources,
) -> Result<(), <AnyCgroupManager as CgroupManager>::Error> {
    let disable_oom_killer =
        resources.memory().as_ref().and_then(|memory| memory.disable_oom_killer()).unwrap_or_default();
    let options = ControllerOpt { resources, disable_oom_killer, oom_score_adj: None, freezer_state: None };
    manager.apply(&options)
}

fn enter_user_namespace(
    namespaces: &Namespaces,
    namespace: &LinuxNamespace,
    ends: &mut Ends<'_>,
) -> Result<(), IntermediateError> {
    namespaces.unshare_or_setns(namespace)?;
    if namespace.path().is_some() {
        return Ok(());
    }
    dumpable(|| {
        ends.to_main.identifier_mapping_request()?;
        ends.intermediate.1.wait_for_mapping_ack()
    })
}

/// Makes a request while this process is dumpable: only then may the worker write its maps.
fn dumpable(request: impl FnOnce() -> Result<(), ChannelError>) -> Result<(), IntermediateError> {
    nix::sys::prctl::set_dumpable(true).map_err(IntermediateError::Dumpable)?;
    request()?;
    nix::sys::prctl::set_dumpable(false).map_err(IntermediateError::Dumpable)
}

/// init, until it executes its program or fails.
fn init(args: &ContainerArgs, ends: &mut Ends<'_>) -> ! {
    sys::set_name(c"egpu:init");
    if ends.to_main.close().is_err() {
        sys::exit_now(1);
    }
    // Here, as the container's seccomp profile may not allow it later.
    sys::restore_ignored_signals();
    if let Err(error) = container_init_process(args, ends.init_to_main, &mut ends.init.1) {
        let message = init_failure::words(&error, &args.spec);
        // Before its start it reports in the worker's sequence of messages; an exec after that, to
        // who waits for its outcome: first, as its seccomp profile may allow no other way.
        if let ContainerType::TenantContainer { exec_notify_fd } = args.container_type {
            sys::write_to(exec_notify_fd, message.as_bytes());
        }
        let _ = ends.init_to_main.exec_failed(message);
    }
    sys::exit_now(255)
}
