//! The `start` command: sees that a shim serves the container's group, and says where.

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, PermissionsExt},
            net::UnixListener,
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use runtime_config::{Config, config::ConfigError};
use rustix::{process::getpid, thread::CoreSchedulingScope};
use sys::spans;

use crate::{
    args::Identity,
    bootstrap::{BootstrapError, StartParams},
    bundle::{self, BundleError, SpecView},
    options::{OptionsError, ParsedOptions},
    registry::{Registry, is_listened_to},
    state_group,
    task::chain,
};

/// The variable with the address at which containerd has its shims publish events.
pub const TTRPC_ADDRESS: &str = "TTRPC_ADDRESS";
/// Set by containerd when every shim shall have a core scheduling domain of its own.
const SCHED_CORE: &str = "SCHED_CORE";
/// Limit of the input, containerd's own for what it sends.
const MAX_INPUT: u64 = 10 << 20;

/// A container that no shim serves.
#[derive(Debug, thiserror::Error)]
pub enum StartCommandError {
    /// stdin or stdout.
    #[error("cannot {action}")]
    Talk {
        /// Read or write what.
        action: &'static str,
        #[source]
        source: io::Error,
    },
    /// The parameters that containerd gave.
    #[error("the parameters of start cannot be used")]
    Bootstrap(#[source] BootstrapError),
    /// The runtime options.
    #[error("the runtime options cannot be used")]
    Options(#[source] OptionsError),
    #[error("the bundle cannot be used")]
    Bundle(#[source] BundleError),
    /// The socket.
    #[error("cannot listen on {}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The shim itself.
    #[error("cannot run the shim process")]
    Spawn(#[source] io::Error),
    /// `ShimCgroup`.
    #[error("cannot put the shim into the cgroup {path:?} of runtime option ShimCgroup")]
    ShimCgroup {
        /// The path as given.
        path: String,
        #[source]
        source: io::Error,
    },
    /// The configuration, which says where the notes are.
    #[error("the configuration cannot be read")]
    Config(#[source] ConfigError),
    #[error("cannot give the shim a core scheduling domain of its own, which SCHED_CORE asks for")]
    CoreScheduling(#[source] io::Error),
}

/// Runs `start` in the bundle, which is the working directory.
pub fn start(identity: Identity) -> Result<(), StartCommandError> {
    let mut input = Vec::new();
    io::stdin()
        .lock()
        .take(MAX_INPUT)
        .read_to_end(&mut input)
        .map_err(|source| StartCommandError::Talk { action: "read what containerd says on stdin", source })?;
    let params =
        StartParams::read(&input, identity, env::var(TTRPC_ADDRESS).ok()).map_err(StartCommandError::Bootstrap)?;
    let bundle = env::current_dir().map_err(|source| StartCommandError::Talk {
        action: "find the bundle, which is the working directory",
        source,
    })?;
    let spec = SpecView::read(&bundle).map_err(StartCommandError::Bundle)?;
    let socket = socket_path(&params, spec.group(&params.identity.id));
    let address = format!("unix://{}", socket.display());

    let config = Config::load(None).map_err(StartCommandError::Config)?;
    if let Err(error) = state_group::apply(&config) {
        tracing::warn!(error = chain(&error), "who may read the state stays as it is");
    }
    let registry = Registry::at(config.state_dir);
    match listen(&registry, &socket, &params.identity.address)? {
        Listening::Served => {}
        Listening::New(listener) => launch(&params, &socket, listener).inspect_err(|_| retire(&registry, &socket))?,
    }
    bundle::write_socket_address(&bundle, &address).map_err(StartCommandError::Bundle)?;
    let answer = params.reply.encode(&address).map_err(StartCommandError::Bootstrap)?;
    spans::mark("start answers", &params.identity.id);
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(&answer)
        .and_then(|()| stdout.flush())
        .map_err(|source| StartCommandError::Talk { action: "answer containerd on stdout", source })
}

fn socket_path(params: &StartParams, group: &str) -> PathBuf {
    let Identity { address, namespace, .. } = &params.identity;
    let standard = containerd_shim::socket_address(address, namespace, group);
    let standard = Path::new(standard.strip_prefix("unix://").unwrap_or(&standard));
    match (&params.socket_dir, standard.file_name()) {
        (Some(directory), Some(name)) => Path::new(directory).join(name),
        _ => standard.to_owned(),
    }
}

enum Listening {
    /// A shim of the group is there.
    Served,
    /// A socket that this shim is to serve.
    New(UnixListener),
}

/// Takes the socket, unless a live shim has it. What a dead one has left is replaced. A registry
/// that cannot be used (its disk is full) is no obstacle: it is only needed if the shim is killed.
fn listen(registry: &Registry, path: &Path, containerd: &str) -> Result<Listening, StartCommandError> {
    let fail = |source| StartCommandError::Listen { path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o711).create(directory).map_err(fail)?;
    }
    // Under the lock nobody is between making a socket and listening on it: who does not listen is
    // dead.
    let locked = registry.lock();
    if is_listened_to(path) {
        return Ok(Listening::Served);
    }
    let failure = match &locked {
        Ok(locked) => locked.announce(path, containerd).err().map(|error| chain(&error)),
        Err(error) => Some(chain(error)),
    };
    if let Some(error) = failure {
        tracing::warn!(error, "cannot register the shim's socket; it will stay if the shim is killed");
    }
    let listener = match UnixListener::bind(path) {
        Ok(listener) => listener,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            fs::remove_file(path).map_err(fail)?;
            UnixListener::bind(path).map_err(fail)?
        }
        Err(error) => return Err(fail(error)),
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(fail)?;
    Ok(Listening::New(listener))
}

/// Removes a socket that nobody serves.
fn retire(registry: &Registry, socket: &Path) {
    match registry.lock() {
        Ok(locked) => locked.retire(socket),
        Err(_) => drop(fs::remove_file(socket)),
    }
}

/// Starts the process that serves. It gets the socket as its stdin: it listens already, so nobody
/// has to wait for it.
fn launch(params: &StartParams, socket: &Path, listener: UnixListener) -> Result<(), StartCommandError> {
    let ParsedOptions { options, warnings } =
        ParsedOptions::from_extensions(&params.extensions).map_err(StartCommandError::Options)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    adjust_oom_score();
    let mut shim = spawn(params, socket, listener)?;
    let moved = move_to_cgroup(&shim, options.shim_cgroup.as_deref());
    if moved.is_err() {
        // It has nothing yet that would have to be cleaned up.
        let _ = shim.kill();
        let _ = shim.wait();
    }
    moved
}

fn spawn(params: &StartParams, socket: &Path, listener: UnixListener) -> Result<Child, StartCommandError> {
    if env::var_os(SCHED_CORE).is_some_and(|value| !value.is_empty()) {
        // Handed down to the shim; this process is about to end.
        rustix::thread::create_core_scheduling_cookie(getpid(), CoreSchedulingScope::ProcessGroup)
            .map_err(|error| StartCommandError::CoreScheduling(error.into()))?;
    }
    let Identity { id, namespace, address, debug } = &params.identity;
    let program = env::current_exe().map_err(StartCommandError::Spawn)?;
    let replaced = replaced(&program);
    let view = ReadOnlyProgram::of(&program);
    if let Err(error) = &view {
        tracing::debug!(%error, "the shim's program stays writable through /proc/PID/exe while no shim runs");
    }
    let (program, executed) = match (replaced, &view) {
        // Its file is gone, and there is nothing left to protect.
        (Some(path), _) => (path, PathBuf::from("/proc/self/exe")),
        (None, Ok(view)) => (program, view.path()),
        (None, Err(_)) => (program.clone(), program),
    };
    let mut command = Command::new(executed);
    command
        .arg0(&program)
        .args(["-namespace", namespace, "-id", id, "-address", address, "-socket"])
        .arg(socket)
        .args(debug.then_some("-debug"))
        .env(TTRPC_ADDRESS, &params.ttrpc_address)
        .stdin(Stdio::from(OwnedFd::from(listener)))
        // containerd reads until the last holder of these has closed them.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command.spawn().map_err(StartCommandError::Spawn)
}

/// Path of a running program that an installation has replaced since it began; `None`: it is there.
fn replaced(program: &Path) -> Option<PathBuf> {
    let path = program.as_os_str().as_bytes().strip_suffix(b" (deleted)")?;
    (!program.exists()).then(|| PathBuf::from(OsStr::from_bytes(path)))
}

/// A program as seen through a read-only mount of its own.
///
/// A container's init is a copy of the shim until it executes its program. An image that has it
/// execute /proc/self/exe keeps a handle on the host's file, and could write to it as soon as no
/// shim runs (CVE-2019-5736). A handle through this mount never can, whatever the file's own
/// permissions.
struct ReadOnlyProgram {
    directory: OwnedFd,
    name: OsString,
}

impl ReadOnlyProgram {
    fn of(program: &Path) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (parent, name) = program.parent().zip(program.file_name()).ok_or_else(invalid)?;
        let parent = CString::new(parent.as_os_str().as_bytes())?;
        Ok(Self { directory: sys::read_only_view(&parent)?, name: name.to_owned() })
    }

    /// Good for as long as this lives.
    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string()).join(&self.name)
    }
}

/// Makes this process, and so the shim that it starts, a better victim than containerd when memory
/// runs out. It has to be so before the shim is there: a container whose spec says nothing of its
/// score has what the shim's helper began with.
fn adjust_oom_score() {
    let adjust = || -> io::Result<()> {
        let parent = format!("/proc/{}/oom_score_adj", std::os::unix::process::parent_id());
        let score: i32 = fs::read_to_string(parent)?.trim().parse().map_err(io::Error::other)?;
        fs::write("/proc/self/oom_score_adj", (score + 1).min(1000).to_string())
    };
    if let Err(error) = adjust() {
        // Lowering needs CAP_SYS_RESOURCE, and so does raising what was set with it; it is an
        // optimisation.
        tracing::warn!(%error, "the shim's oom_score_adj could not be set");
    }
}

/// Puts the shim into its cgroup.
fn move_to_cgroup(shim: &Child, shim_cgroup: Option<&str>) -> Result<(), StartCommandError> {
    let Some(path) = shim_cgroup else { return Ok(()) };
    join_cgroup(shim.id(), path).map_err(|source| StartCommandError::ShimCgroup { path: path.to_owned(), source })
}

/// Moves a process into an existing cgroup: on v2, or on every v1 hierarchy that has it.
fn join_cgroup(pid: u32, path: &str) -> io::Result<()> {
    let below = path.trim_start_matches('/');
    let mount = Path::new("/sys/fs/cgroup");
    let join = |directory: &Path| fs::write(directory.join(below).join("cgroup.procs"), pid.to_string());
    if mount.join("cgroup.controllers").exists() {
        return join(mount);
    }
    let mut joined = Err(io::Error::from(io::ErrorKind::NotFound));
    for hierarchy in fs::read_dir(mount)? {
        let hierarchy = hierarchy?;
        // `cpu` and the like may be links to `cpu,cpuacct`.
        if hierarchy.file_type()?.is_dir() && hierarchy.path().join(below).exists() {
            join(&hierarchy.path())?;
            joined = Ok(());
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::bootstrap::BootstrapReply;

    fn params(socket_dir: Option<&str>) -> StartParams {
        StartParams {
            identity: Identity { id: "c1".into(), namespace: "ns".into(), address: "/c.sock".into(), debug: false },
            ttrpc_address: "/c.sock.ttrpc".into(),
            socket_dir: socket_dir.map(str::to_owned),
            extensions: vec![],
            reply: BootstrapReply::Address,
        }
    }

    #[test]
    fn a_program_that_was_replaced_is_known_by_its_name_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (program, odd) = (directory.path().join("shim"), directory.path().join("odd (deleted)"));
        fs::write(&odd, "").unwrap();
        assert_eq!(replaced(&program), None);
        assert_eq!(replaced(&program.with_file_name("shim (deleted)")), Some(program));
        assert_eq!(replaced(&odd), None, "that is its name");
    }

    #[test]
    fn a_group_has_one_socket() {
        let pod = socket_path(&params(None), "pod");
        assert_eq!(pod.parent(), Some(Path::new("/run/containerd/s")));
        assert_eq!(pod, socket_path(&params(None), "pod"));
        assert_ne!(pod, socket_path(&params(None), "other"));
        let elsewhere = socket_path(&params(Some("/short")), "pod");
        assert_eq!(elsewhere.parent(), Some(Path::new("/short")));
        assert_eq!(elsewhere.file_name(), pod.file_name());
    }

    #[test]
    fn a_live_socket_is_left_alone_and_a_dead_one_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/s");
        let registry = Registry::at(directory.path().join("state"));
        let listen = |path: &Path| listen(&registry, path, "/c.sock");
        let Listening::New(listener) = listen(&path).unwrap() else { panic!("nobody is there") };
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(listen(&path).unwrap(), Listening::Served));
        drop(listener);
        // Another test may be making a process, which has this one's files open until it executes
        // its program.
        let deadline = Instant::now() + Duration::from_secs(60);
        while matches!(listen(&path).unwrap(), Listening::Served) {
            assert!(Instant::now() < deadline, "the file alone is nobody");
            std::thread::yield_now();
        }
        let blocked = directory.path().join("new/s/t");
        assert!(matches!(listen(&blocked), Err(StartCommandError::Listen { .. })));
    }

    /// Opens a program for writing once nobody executes it. One that has ended is executed for a
    /// moment longer if some other process, such as ps, was reading its memory.
    fn open_for_writing(path: &Path) -> io::Result<fs::File> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match fs::OpenOptions::new().write(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                    std::thread::yield_now();
                }
                opened => return opened,
            }
        }
    }

    /// The handle is taken while the program runs, and written through when it has ended.
    #[test]
    fn nobody_writes_to_the_program_through_a_process_that_ran_it() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        // By another process: a program cannot be executed while one has it open for writing, and
        // one that another test is making would have it from this one.
        assert!(Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap().success());
        let view = match ReadOnlyProgram::of(&program) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                testing::skipped("making a mount needs CAP_SYS_ADMIN");
                return;
            }
            view => view.unwrap(),
        };
        let mut child = Command::new(view.path()).arg("1000").spawn().unwrap();
        drop(view);
        let exe = format!("/proc/{}/exe", child.id());
        let handle = fs::File::open(&exe).unwrap();
        assert_eq!(fs::read_link(&exe).unwrap().file_name(), program.file_name(), "its name is still told");
        child.kill().unwrap();
        child.wait().unwrap();
        let again = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let refused = open_for_writing(Path::new(&again)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
        open_for_writing(&program).unwrap();
    }
}
