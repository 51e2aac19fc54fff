//! Makes a container's process: libcontainer's sequence with a main process of our own.
//!
//! `libcontainer::process::container_main_process` cannot be used as it is: whatever the worker
//! installs on itself before would hold for the OCI hooks too, which it also runs itself. So this
//! module forks the intermediate process; that one installs the filter and goes on in
//! `intermediate.rs`, and from init on it is libcontainer's, but for its end (`program.rs`). The
//! order of messages is libcontainer 0.7.0's, the version that `Cargo.toml` pins.
//!
//! ```text
//! worker ── fork ──> intermediate: closes what is private, installs the filter,
//!   |                │               joins cgroup, user and pid namespace
//!   |                └── clone ──> init: the other namespaces, mounts, pivot_root, user,
//!   |<── "hooks" ────────────────────┘   waits for start
//!   |                                (without the intermediate process where init can do its part)
//!   runs prestart and createRuntime (its own namespaces), createContainer (init's), unfiltered
//! ```

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    rc::Rc,
};

use base::error_chain;
use libcontainer::{
    channel::ChannelError as BaseChannelError,
    network::{NetworkError, network_device::dev_change_net_namespace},
    process::{
        args::{ContainerArgs, ContainerType},
        channel::{self, ChannelError, InitSender, IntermediateSender, MainReceiver},
    },
    user_ns::UserNamespaceError,
};
use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::{Hooks, Linux, LinuxNamespaceType};
use procfs_core::{FromRead as _, process::Stat};
use rustix::pipe::PipeFlags;
use sys::{
    Sibling,
    frame::{self, FrameError},
    spans,
};

use super::{
    fence::{Filter, FilterError},
    hook_namespaces::run_in_namespaces,
    hooks::{self, HookFailed},
    intermediate::{self, CgroupPlace, Ends},
    namespaces,
    program::READY,
    protocol::WorkerReply,
    rlimits,
    rootfs_setup::RootfsSetup,
    seccomp_listener::{self, ListenerError},
};
use crate::cgroup::takes_no_process;

/// A process that could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// The intermediate process could not be forked.
    #[error("cannot fork")]
    Fork(#[source] std::io::Error),
    /// The process said why it gave up.
    #[error("{0}")]
    Process(String),
    /// The other end ended without a message: it was killed.
    #[error(
        "the container's process was killed before it was ready; is its memory limit (linux.resources.memory.limit) too low?"
    )]
    Killed,
    /// The processes' channel failed.
    #[error("the container's process ended before it was ready")]
    Channel(#[source] ChannelError),
    /// A user namespace's id map.
    #[error("cannot write the user namespace's id maps")]
    Mapping(#[source] UserNamespaceError),
    /// The pipes to the process.
    #[error("cannot make a pipe to the container's process")]
    Pipe(#[source] std::io::Error),
    /// A time namespace's offsets.
    #[error("cannot write the time namespace's offsets (linux.timeOffsets) {offsets:?}")]
    TimeOffsets {
        offsets: String,
        #[source]
        source: std::io::Error,
    },
    /// An OCI hook.
    #[error(transparent)]
    Hook(#[from] HookFailed),
    /// The process that runs createContainer hooks.
    #[error("cannot run the createContainer hooks in the container's namespaces: {0}")]
    HookNamespaces(String),
    /// The rest of the root file system.
    #[error("cannot finish the container's root file system: {0}")]
    Finish(String),
    /// `process.rlimits`.
    #[error(transparent)]
    Limits(#[from] rlimits::LimitError),
    /// A network device could not be moved.
    #[error("cannot move network device {name:?} into the container")]
    NetworkDevice {
        name: String,
        #[source]
        source: NetworkError,
    },
    /// The container's network namespace.
    #[error("cannot open the container's network namespace")]
    NetworkNamespace(#[source] std::io::Error),
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The profile's seccomp listener.
    #[error(transparent)]
    Listener(#[from] ListenerError),
    /// The process is gone already.
    #[error("the container's process ended before it was ready")]
    Gone(#[source] std::io::Error),
    /// The shim, which is to end the process should this worker be lost.
    #[error("cannot tell the shim of the container's process")]
    Report(#[source] FrameError),
}

/// Extracts the text of a message that libcontainer did not expect.
impl From<ChannelError> for LaunchError {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::ExecError(text) | ChannelError::OtherError(text) => Self::Process(plain(&text)),
            ChannelError::UnexpectedMessage { ref received, .. } => {
                // The message's type is not nameable outside libcontainer; its JSON is.
                let message = serde_json::to_value(received).unwrap_or_default();
                let text = ["ExecFailed", "OtherError"].iter().find_map(|name| message.get(name)?.as_str());
                match text {
                    Some(text) => Self::Process(plain(text)),
                    None => Self::Channel(error),
                }
            }
            ChannelError::ReceiveError { source: BaseChannelError::BrokenChannel, .. } => Self::Killed,
            error => Self::Channel(error),
        }
    }
}

/// Removes the words that libcontainer puts before what our own program module said.
fn plain(text: &str) -> String {
    text.strip_prefix("error in executing process : ").unwrap_or(text).to_owned()
}

/// Makes the pipe through which the process tells that it is ready: the worker's end, and its own.
pub(crate) fn ready_pipe() -> Result<(OwnedFd, Rc<OwnedFd>), LaunchError> {
    let (ready, end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|errno| LaunchError::Pipe(errno.into()))?;
    Ok((ready, Rc::new(end)))
}

/// A process to be made.
pub(crate) struct Launch<'a> {
    /// The arguments for libcontainer. Their spec has no hooks but those that init itself must run.
    pub(crate) args: &'a ContainerArgs,
    /// Installed on the container's processes and on nothing else.
    pub(crate) filter: Option<&'a Filter>,
    /// Descriptors that the container's processes must not hold.
    pub(crate) private: Vec<&'a OwnedFd>,
    /// The init of the container that the process joins; for an exec.
    pub(crate) joined: Option<&'a OwnedFd>,
    /// The cgroup that the process belongs in.
    pub(crate) place: CgroupPlace<'a>,
    /// Directories of cgroup v2 in which it can begin, the best first; none where it has to move
    /// itself.
    pub(crate) clone_targets: Vec<OwnedFd>,
    /// The socket that the process is reported to as soon as there is one.
    pub(crate) reply: &'a OwnedFd,
    /// The spec's hooks; only those of creation run here.
    pub(crate) hooks: Option<&'a Hooks>,
    /// The worker's end of [`Ends::ready`](super::program::Ends).
    pub(crate) ready: OwnedFd,
    /// The work that is left once libcontainer's mounts are there. The spec has hooks then, if
    /// empty ones.
    pub(crate) rootfs_setup: Option<&'a RootfsSetup>,
}

/// A process that waits for its start.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

/// A process that is killed when this goes out of scope.
pub(super) struct KilledUnlessKept<'a>(pub(super) BorrowedFd<'a>);

impl KilledUnlessKept<'_> {
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for KilledUnlessKept<'_> {
    fn drop(&mut self) {
        // Most likely it has ended already.
        let _ = sys::pidfd_send_signal(self.0, libc::SIGKILL);
    }
}

/// The worker's ends towards the intermediate process.
struct Intermediate {
    to: IntermediateSender,
    from: MainReceiver,
}

impl Intermediate {
    /// Waits for the process that it makes.
    fn init(&mut self) -> Result<Sibling, LaunchError> {
        let pid = self.from.wait_for_intermediate_ready()?.as_raw();
        let pidfd = sys::pidfd_open(pid).map_err(LaunchError::Gone)?;
        // Its number may be another process's by now, which is no such child of the shim's.
        let stat = Stat::from_file(format!("/proc/{pid}/stat")).map_err(|e| LaunchError::Gone(io::Error::other(e)))?;
        if stat.ppid != nix::unistd::getppid().as_raw() || !stat.comm.starts_with("egpu") {
            return Err(LaunchError::Gone(io::ErrorKind::NotFound.into()));
        }
        Ok(Sibling { pid, pidfd })
    }
}

impl Launch<'_> {
    /// Creates the process. When it fails, the process is killed.
    pub(crate) fn run(&self) -> Result<Launched, LaunchError> {
        let (mut intermediate_main_sender, from_intermediate) = channel::main_channel()?;
        let (mut init_main_sender, mut from_init) = channel::main_channel()?;
        let mut to_intermediate = channel::intermediate_channel()?;
        let mut to_init = channel::init_channel()?;

        spans::mark("fork", "");
        let has_intermediate = intermediate::is_needed(self.args, &self.place);
        let Some(first) = self.fork(!has_intermediate && self.wants_pid_namespace()).map_err(LaunchError::Fork)? else {
            let ends = Ends {
                intermediate: &mut to_intermediate,
                init: &mut to_init,
                to_main: &mut intermediate_main_sender,
                init_to_main: &mut init_main_sender,
            };
            self.run_first(has_intermediate, ends)
        };
        let guard = KilledUnlessKept(first.pidfd.as_fd());
        intermediate_main_sender.close()?;
        init_main_sender.close()?;
        let (mut to_init, _) = to_init;
        let mut intermediate = Intermediate { to: to_intermediate.0, from: from_intermediate };
        self.set_up(first.pid, &mut intermediate)?;
        let made = match has_intermediate.then(|| intermediate.init()).transpose() {
            Err(gone @ LaunchError::Gone(_)) => return Err(last_words(&mut from_init).unwrap_or(gone)),
            made => made?,
        };
        guard.keep();

        let init = made.unwrap_or(first);
        let guard = KilledUnlessKept(init.pidfd.as_fd());
        spans::mark("init made", "");
        // From now on the shim ends it when it loses this worker.
        let told = frame::send_value(self.reply, &WorkerReply::Launched, &[init.pidfd.as_fd()]);
        told.map_err(LaunchError::Report)?;
        let pid = Pid::from_raw(init.pid);
        match self.admit(pid, init.pidfd.as_fd()) {
            Ok(()) => self.serve_init(pid, &mut to_init, &mut from_init)?,
            Err(error) => return Err(last_words(&mut from_init).unwrap_or(error)),
        }
        guard.keep();
        Ok(Launched { pid, pidfd: init.pidfd })
    }

    /// Does for the first process what only its parent namespaces allow.
    fn set_up(&self, first: i32, intermediate: &mut Intermediate) -> Result<(), LaunchError> {
        let pid = Pid::from_raw(first);
        if let Some(config) = &self.args.user_ns_config {
            intermediate.from.wait_for_mapping_request()?;
            config.write_uid_mapping(pid).map_err(LaunchError::Mapping)?;
            config.write_gid_mapping(pid).map_err(LaunchError::Mapping)?;
            rlimits::set(Some(pid), &self.args.spec)?;
            intermediate.to.mapping_written()?;
        }
        if let Some(offsets) = self.args.spec.linux().as_ref().and_then(time_offsets) {
            intermediate.from.wait_for_time_offset_request()?;
            fs::write(format!("/proc/{first}/timens_offsets"), &offsets)
                .map_err(|source| LaunchError::TimeOffsets { offsets, source })?;
            intermediate.to.time_offsets_written()?;
        }
        Ok(intermediate.to.close()?)
    }

    fn fork(&self, in_pid_namespace: bool) -> std::io::Result<Option<Sibling>> {
        let mut last = None;
        for place in &self.clone_targets {
            match sys::clone_sibling_into(place, in_pid_namespace) {
                Err(error) if takes_no_process(&error) => last = Some(error),
                forked => return forked,
            }
        }
        last.map_or_else(|| sys::clone_sibling(in_pid_namespace), Err)
    }

    fn wants_pid_namespace(&self) -> bool {
        namespaces::of(&self.args.spec, LinuxNamespaceType::Pid).is_some()
    }

    /// Runs the process that was forked: the intermediate one, or init where there is none.
    fn run_first(&self, has_intermediate: bool, mut ends: Ends<'_>) -> ! {
        // Those who read from them hear when the worker is gone.
        let closed = ends.init.0.close().and_then(|()| ends.intermediate.0.close()).map_err(|e| e.to_string());
        let entered = closed.and_then(|()| self.enter().map_err(|e| error_chain(&e)));
        let result = entered.and_then(|()| match has_intermediate {
            true => intermediate::run(self.args, &self.place, self.joined, &mut ends).map_err(|e| error_chain(&e)),
            false => Err(error_chain(&intermediate::run_init(self.args, &self.place, &mut ends))),
        });
        let Err(message) = result else { sys::exit_now(0) };
        let to_main = if has_intermediate { ends.to_main } else { ends.init_to_main };
        // The worker sees the channel close if even this fails.
        let _ = to_main.send_error(message);
        sys::exit_now(1)
    }

    /// Closes the private descriptors and installs the filter, first of all in the first process:
    /// the container's init has it, and so has all that init ever forks.
    fn enter(&self) -> Result<(), FilterError> {
        for fd in self.private.iter().copied().chain(&self.clone_targets).chain([self.reply]) {
            sys::close_fd_of(fd);
        }
        match self.filter {
            Some(filter) => filter.install(),
            None => Ok(()),
        }
    }

    /// Registers a container's pid namespace. An exec is in its init's, or in another process's, if
    /// that has init's number by now.
    fn admit(&self, pid: Pid, pidfd: BorrowedFd<'_>) -> Result<(), LaunchError> {
        match (&self.args.container_type, self.filter) {
            (ContainerType::InitContainer, Some(filter)) => Ok(filter.admit(pid.as_raw(), pidfd)?),
            _ => Ok(()),
        }
    }

    /// Answers init's requests until it waits for its start.
    fn serve_init(&self, pid: Pid, to_init: &mut InitSender, from_init: &mut MainReceiver) -> Result<(), LaunchError> {
        let is_init = matches!(self.args.container_type, ContainerType::InitContainer);
        if is_init && self.args.spec.hooks().is_some() {
            from_init.wait_for_hook_request()?;
            spans::mark("init mounted", "");
            self.rootfs_setup.map_or(Ok(()), |work| work.finish(pid)).map_err(LaunchError::Finish)?;
            spans::mark("root file system finished", "");
            self.run_hooks(pid)?;
            to_init.hook_done()?;
        }
        if let Some(linux) = self.args.spec.linux() {
            move_network_devices(linux, pid, to_init, from_init)?;
            if let (Some(seccomp), Some(container)) = (linux.seccomp(), &self.args.container) {
                seccomp_listener::send_listener(seccomp, container, pid, is_init, to_init, from_init)?;
            }
        }
        to_init.close()?;
        self.wait_for_readiness(from_init)?;
        spans::mark("init ready", "");
        self.rootfs_setup.map_or(Ok(()), |work| work.seal(pid)).map_err(LaunchError::Finish)
    }

    /// The process closes its end of the channel when it is ready, or ends.
    fn wait_for_readiness(&self, from_init: &mut MainReceiver) -> Result<(), LaunchError> {
        let ended = from_init.wait_for_init_ready();
        let mut told = [0; libc::PIPE_BUF];
        let told = nix::unistd::read(&self.ready, &mut told).map(|length| told.get(..length).unwrap_or_default());
        match told.unwrap_or_default() {
            [READY] => Ok(()),
            [] => Err(ended.err().map_or(LaunchError::Killed, LaunchError::from)),
            reason => Err(LaunchError::Process(String::from_utf8_lossy(reason).into_owned())),
        }
    }

    fn run_hooks(&self, pid: Pid) -> Result<(), LaunchError> {
        let (Some(hooks), Some(container)) = (self.hooks, &self.args.container) else { return Ok(()) };
        let state = &container.state;
        // Deprecated, but what nvidia-container-runtime-hook is.
        #[allow(deprecated)]
        hooks::run("prestart", hooks.prestart().as_deref(), state, None, Some(pid), None)?;
        hooks::run("createRuntime", hooks.create_runtime().as_deref(), state, None, Some(pid), None)?;
        match hooks.create_container() {
            Some(list) if !list.is_empty() => {
                run_in_namespaces(pid, |seen| hooks::run("createContainer", Some(list), state, None, Some(seen), None))
                    .map_err(LaunchError::HookNamespaces)
            }
            _ => Ok(()),
        }
    }
}

/// Returns what an init that has ended said of it, if it did.
fn last_words(from_init: &mut MainReceiver) -> Option<LaunchError> {
    let told = from_init.wait_for_hook_request().err().map(LaunchError::from);
    told.filter(|told| matches!(told, LaunchError::Process(_)))
}

/// Returns the text for `timens_offsets` when the spec makes a new time namespace with offsets.
fn time_offsets(linux: &Linux) -> Option<String> {
    let offsets = linux.time_offsets().as_ref().filter(|offsets| !offsets.is_empty())?;
    let namespace =
        linux.namespaces().as_ref()?.iter().find(|namespace| namespace.typ() == LinuxNamespaceType::Time)?;
    if namespace.path().is_some() {
        return None;
    }
    let lines: Vec<String> = offsets
        .iter()
        .map(|(clock, offset)| format!("{clock} {} {}", offset.secs().unwrap_or(0), offset.nanosecs().unwrap_or(0)))
        .collect();
    Some(lines.join("\n"))
}

/// `linux.netDevices`: from the host into the container's network namespace, with their addresses.
fn move_network_devices(
    linux: &Linux,
    pid: Pid,
    to_init: &mut InitSender,
    from_init: &mut MainReceiver,
) -> Result<(), LaunchError> {
    let Some(devices) = linux.net_devices().as_ref().filter(|devices| !devices.is_empty()) else { return Ok(()) };
    let namespaces = linux.namespaces().as_deref().unwrap_or_default();
    let Some(namespace) = namespaces.iter().find(|namespace| namespace.typ() == LinuxNamespaceType::Network) else {
        return Ok(());
    };
    from_init.wait_for_network_setup_ready()?;
    let own = std::path::PathBuf::from(format!("/proc/{pid}/ns/net"));
    let file = fs::File::open(namespace.path().as_ref().unwrap_or(&own)).map_err(LaunchError::NetworkNamespace)?;
    let mut addresses = std::collections::HashMap::new();
    for (name, device) in devices {
        let moved = dev_change_net_namespace(name, file.as_raw_fd(), device)
            .map_err(|source| LaunchError::NetworkDevice { name: name.clone(), source })?;
        addresses.insert(name.clone(), moved);
    }
    to_init.move_network_device(addresses)?;
    Ok(())
}
