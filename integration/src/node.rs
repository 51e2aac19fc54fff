//! One test's node: a private containerd, an egpu configuration and state directory, nothing shared
//! with other tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    client::Client,
    container::ContainerBuilder,
    containerd::{ContainerdRelease, Daemon, DaemonCommand, DaemonConfig},
    egpu::EgpuConfig,
    events::EventLog,
    leftovers, processes, shared,
    wait::eventually,
};

/// Settings of a test's node.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// containerd's side.
    pub containerd: DaemonConfig,
    /// egpu's side.
    pub egpu: EgpuConfig,
    /// Another runtime than the one under test.
    pub runtime: Option<String>,
    /// The images are imported at start (CRI and `ctr run IMAGE` need them).
    pub images: bool,
    /// Another node's configuration file in place of one of its own: two containerds on one machine
    /// share a state directory.
    pub egpu_config: Option<PathBuf>,
    /// See [`DaemonCommand::time_namespace`].
    pub time_namespace: bool,
    /// Size of a tmpfs to keep egpu's state directory on.
    pub state_tmpfs: Option<String>,
    /// containerd's state directory is on a tmpfs, too.
    pub containerd_tmpfs: bool,
    /// The programs are copied into a folder of the node's own, where [`Node::install`] can replace
    /// them.
    pub own_programs: bool,
}

impl Setup {
    /// With CRI and the images.
    #[must_use]
    pub fn cri() -> Self {
        let containerd = DaemonConfig { cri: true, ..DaemonConfig::default() };
        Self { containerd, images: true, ..Self::default() }
    }

    /// With the images.
    #[must_use]
    pub fn images() -> Self {
        Self { images: true, ..Self::default() }
    }
}

/// The node. Dropped, it kills, unmounts and removes whatever it finds of itself; [`Node::finish`]
/// first asserts that there is nothing to find.
#[derive(Debug)]
pub struct Node {
    directory: TempDir,
    release: ContainerdRelease,
    namespace: String,
    runtime: String,
    programs: PathBuf,
    cri: bool,
    daemon: Mutex<Daemon>,
    client: Mutex<Option<&'static Client>>,
    events: EventLog,
    serial: AtomicU32,
    ids: Mutex<Vec<String>>,
}

impl Node {
    #[track_caller]
    pub fn start(release: &ContainerdRelease, setup: &Setup) -> Self {
        let directory = tempfile::Builder::new().prefix("egpu-it-").tempdir().expect("make the node's directory");
        let namespace =
            directory.path().file_name().and_then(|name| name.to_str()).expect("a UTF-8 name").to_lowercase();
        let namespace = namespace.replace('_', "x");
        let runtime = setup.runtime.clone().unwrap_or_else(crate::runtime);
        if let Some(size) = &setup.state_tmpfs {
            mount_tmpfs(&directory.path().join("egpu"), size);
        }
        if setup.containerd_tmpfs {
            mount_tmpfs(&directory.path().join("state"), "64m");
        }
        let egpu_config = setup.egpu_config.clone().unwrap_or_else(|| {
            let path = directory.path().join("egpu.toml");
            fs::write(&path, setup.egpu.text(directory.path())).expect("write egpu's configuration");
            path
        });
        let config = directory.path().join("containerd.toml");
        fs::write(&config, setup.containerd.text(directory.path(), &runtime))
            .expect("write containerd's configuration");
        if setup.containerd.cri {
            crate::cri::write_network_plugin(directory.path());
        }
        let programs = if setup.own_programs { directory.path().join("bin") } else { shim_directory() };
        if setup.own_programs {
            install(&shim_directory(), &programs, &PROGRAMS);
        }
        let path = format!("{}:{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display(), release.bin.display());
        let daemon = Daemon::start(DaemonCommand {
            program: release.bin.join("containerd"),
            config,
            path,
            log: directory.path().join("containerd.log"),
            environment: vec![("EGPU_CONFIG".to_owned(), egpu_config.display().to_string())],
            time_namespace: setup.time_namespace,
        });
        let node = Self {
            directory,
            release: release.clone(),
            namespace: if setup.containerd.cri { "k8s.io".to_owned() } else { namespace },
            runtime,
            programs,
            cri: setup.containerd.cri,
            daemon: Mutex::new(daemon),
            client: Mutex::new(None),
            events: EventLog::default(),
            serial: AtomicU32::new(0),
            ids: Mutex::new(Vec::new()),
        };
        node.connect();
        if setup.images {
            node.ctr_ok(&["images", "import", &image_archive().display().to_string()]);
            if setup.containerd.cri {
                node.wait_for_images();
            }
        }
        node
    }

    fn connect(&self) {
        let client = eventually("containerd answers", || {
            if let Some(status) = self.daemon.lock().unwrap().ended() {
                panic!("containerd ended at once ({status}):\n{}", self.containerd_log());
            }
            Client::connect(&self.socket(), &self.namespace).ok()
        });
        client.subscribe(&self.events);
        // A client is needed for as long as any container of the node lives; there are a few a
        // test.
        *self.client.lock().unwrap() = Some(Box::leak(Box::new(client)));
    }

    /// Returns the release of its containerd.
    pub fn release(&self) -> &ContainerdRelease {
        &self.release
    }

    /// All its files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// containerd's socket.
    pub fn socket(&self) -> PathBuf {
        self.directory().join("containerd.sock")
    }

    /// containerd's namespace in which the test works, its own.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Runtime type of the containers.
    pub fn runtime(&self) -> &str {
        &self.runtime
    }

    /// Folder of the shim and `egpu` that it uses.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Replaces programs of a node that has its own by those in `from`, each by a rename, as an
    /// installation does.
    pub fn install(&self, from: &Path, programs: &[&str]) {
        assert!(self.programs.starts_with(self.directory()), "the node has no programs of its own");
        install(from, &self.programs, programs);
    }

    /// Root file system for containers: busybox.
    pub fn rootfs(&self) -> &'static Path {
        ROOTFS
            .get_or_init(|| {
                let directory = shared::directory("egpu-rootfs-");
                crate::rootfs::populate(directory.path());
                directory
            })
            .path()
    }

    /// Gives every user of the host access to the bundles and the root file system: the directories
    /// of a test are root's alone, and the root of a user namespace is somebody else.
    pub fn open_to_all(&self) {
        use std::os::unix::fs::PermissionsExt;
        let states = ["", "state", "state/io.containerd.runtime.v2.task"].map(|part| self.directory().join(part));
        for directory in states.into_iter().chain([self.rootfs().to_owned()]) {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o711)).expect("open a directory to all");
        }
    }

    /// A container to be, named `id`.
    pub fn container(&self, id: &str) -> ContainerBuilder<'_> {
        ContainerBuilder::new(self, id)
    }

    /// Task events since the node's start (or since the last restart of containerd).
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    /// Returns a container's cgroup, below each hierarchy's root.
    pub fn cgroup_path(&self, id: &str) -> String {
        format!("/{}/{id}", self.cgroup_parent())
    }

    /// The scope of a container of [`ContainerBuilder::systemd`].
    pub fn scope(&self, id: &str) -> String {
        format!("{}-{id}.scope", self.cgroup_parent())
    }

    /// Parent of all cgroups of the node.
    pub fn cgroup_parent(&self) -> String {
        self.directory().file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default()
    }

    /// A container's bundle.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.directory().join("state/io.containerd.runtime.v2.task").join(&self.namespace).join(id)
    }

    /// The node's shims: those that serve, and those that `start` or `delete` something just now.
    pub fn shims(&self) -> Vec<processes::Process> {
        let own = processes::mentioning(self.directory());
        own.into_iter().filter(|process| process.name.starts_with("containerd-shim")).collect()
    }

    /// The one shim of a node that has one, once others whose end was requested have ended.
    #[track_caller]
    pub fn shim(&self) -> processes::Process {
        eventually("there is exactly one shim", || {
            let mut shims = self.shims();
            if shims.len() == 1 { shims.pop() } else { None }
        })
    }

    /// The shims' helpers.
    pub fn helpers(&self) -> Vec<processes::Process> {
        let own = processes::mentioning(self.directory());
        own.into_iter().filter(|process| process.name == "egpu-helper").collect()
    }

    /// Runs `ctr` in the node's namespace.
    pub fn ctr(&self, arguments: &[&str]) -> Output {
        Command::new(self.release.bin.join("ctr"))
            .arg("--address")
            .arg(self.socket())
            .args(["--namespace", &self.namespace])
            .args(arguments)
            .output()
            .expect("run ctr")
    }

    /// Runs `ctr`, which must succeed: its output.
    #[track_caller]
    pub fn ctr_ok(&self, arguments: &[&str]) -> String {
        let output = self.ctr(arguments);
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "ctr {arguments:?}: {}\n{stdout}{stderr}", output.status);
        stdout.into_owned()
    }

    /// Records a container id that the client did not make itself, so that its leftovers are
    /// searched for at the end.
    pub fn track(&self, id: &str) {
        self.ids.lock().unwrap().push(id.to_owned());
    }

    /// Ends containerd with `signal`; tasks go on.
    pub fn stop_containerd(&self, signal: Signal) {
        self.daemon.lock().unwrap().stop(signal);
    }

    /// Starts containerd again and subscribes to its events.
    #[track_caller]
    pub fn start_containerd(&self) {
        self.daemon.lock().unwrap().restart();
        self.connect();
        if self.cri {
            self.wait_for_images();
        }
    }

    /// containerd's log so far.
    pub fn containerd_log(&self) -> String {
        fs::read(self.directory().join("containerd.log"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// egpu's decision log so far.
    pub fn decision_log(&self) -> String {
        fs::read_to_string(self.directory().join("egpu.log")).unwrap_or_default()
    }

    /// Fails if anything of the node's containers is left; then ends the node.
    #[track_caller]
    pub fn finish(self) {
        let ids = self.ids();
        leftovers::assert_none(&self, &ids);
    }

    pub(crate) fn kill_daemon(&self) {
        let mut daemon = self.daemon.lock().unwrap();
        if daemon.ended().is_none() {
            daemon.stop(Signal::SIGKILL);
        }
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.ids.lock().unwrap().clone()
    }

    pub(crate) fn client(&self) -> &'static Client {
        self.client.lock().unwrap().expect("a connected node")
    }

    pub(crate) fn serial(&self) -> u32 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            leftovers::print_evidence(self);
        }
        leftovers::remove(self);
    }
}

/// The shim, and `egpu`.
pub const PROGRAMS: [&str; 2] = ["containerd-shim-egpu-v1", "egpu"];

fn install(from: &Path, to: &Path, programs: &[&str]) {
    fs::create_dir_all(to).expect("make the folder of the programs");
    for program in programs {
        let new = to.join(format!("{program}.new"));
        fs::copy(from.join(program), &new).expect("copy a program");
        fs::rename(&new, to.join(program)).expect("put a program in its place");
    }
}

/// Cargo's target directory, found from the test binary's own place in it; `None` for one that was
/// carried elsewhere.
pub fn target_directory() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let deps = own.ancestors().find(|path| path.ends_with("deps"))?;
    deps.ancestors().nth(2).map(Path::to_owned)
}

/// Returns the folder of the shim and `egpu`: `EGPU_TEST_BIN`, else beside the test binary's
/// folder.
pub fn shim_directory() -> PathBuf {
    std::env::var_os("EGPU_TEST_BIN").map_or_else(
        || {
            let own = std::env::current_exe().expect("own path");
            own.ancestors().nth(2).expect("target/PROFILE").to_owned()
        },
        PathBuf::from,
    )
}

static ROOTFS: OnceLock<TempDir> = OnceLock::new();
static ARCHIVE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();

fn image_archive() -> &'static Path {
    let (_, archive) = ARCHIVE.get_or_init(|| {
        let directory = shared::directory("egpu-image-");
        let archive = directory.path().join("images.tar");
        crate::rootfs::write_image_archive(directory.path(), &archive);
        (directory, archive)
    });
    archive
}

fn mount_tmpfs(directory: &Path, size: &str) {
    fs::create_dir_all(directory).expect("create the state directory");
    nix::mount::mount(
        Some("tmpfs"),
        directory,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        Some(format!("size={size},mode=755").as_str()),
    )
    .expect("mount a small tmpfs");
}
