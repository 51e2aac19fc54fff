//! Releases of containerd, and one running daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::wait::eventually;

/// Names the file for the marks of egpu's processes, if that is wanted: `scripts/timeline.py`.
const SPANS: &str = "EGPU_SPANS";

/// One build of containerd that tests run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerdRelease {
    /// Folder of `containerd`, `ctr` and runc's shim.
    pub bin: PathBuf,
    /// `1.6`, `1.7`, `2.1`.
    pub version: String,
}

impl ContainerdRelease {
    /// Those of this machine: the one that is installed, and those that
    /// `integration/setup-containerd.sh` has unpacked; or only the one in
    /// `EGPU_TEST_CONTAINERD_BIN`. `EGPU_TEST_CONTAINERD` (`1.6,2.1`) narrows them down.
    pub fn all() -> Vec<Self> {
        let installed = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
        let installed = installed.into_iter().find(|bin| bin.join("containerd").exists());
        let given = std::env::var_os("EGPU_TEST_CONTAINERD_BIN").map(PathBuf::from);
        let bins: Vec<PathBuf> = match given {
            Some(bin) => vec![bin],
            None => installed.into_iter().chain(unpacked()).collect(),
        };
        let requested = std::env::var("EGPU_TEST_CONTAINERD").ok();
        let requested: Option<Vec<&str>> = requested.as_deref().map(|list| list.split(',').collect());
        let mut releases: Vec<Self> = bins
            .into_iter()
            .filter_map(|bin| Some(Self { version: version_of(&bin)?, bin }))
            .filter(|release| requested.as_ref().is_none_or(|requested| requested.contains(&release.version.as_str())))
            .collect();
        releases.sort_by(|left, right| left.version.cmp(&right.version));
        releases.dedup_by(|left, right| left.version == right.version);
        releases
    }

    /// Those that `egpu install` is tested on besides: 1.7, which differs from 1.6 in little else.
    pub fn for_install() -> Vec<Self> {
        let folder = |target: PathBuf| target.join("containerd-for-install");
        let bins = unpacked_in(crate::node::target_directory().map(folder));
        bins.into_iter().filter_map(|bin| Some(Self { version: version_of(&bin)?, bin })).collect()
    }

    /// `2` in `2.1`.
    pub fn major(&self) -> &str {
        self.version.split('.').next().unwrap_or(&self.version)
    }
}

fn unpacked() -> Vec<PathBuf> {
    unpacked_in(crate::node::target_directory().map(|target| target.join("containerd")))
}

fn unpacked_in(folder: Option<PathBuf>) -> Vec<PathBuf> {
    let folders = folder.into_iter().flat_map(fs::read_dir).flatten().flatten();
    folders.map(|entry| entry.path().join("usr/bin")).filter(|bin| bin.join("containerd").exists()).collect()
}

/// `containerd github.com/containerd/containerd 1.6.20~ds1 ...` -> `1.6`.
fn version_of(bin: &Path) -> Option<String> {
    let output = Command::new(bin.join("containerd")).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().nth(2)?.trim_start_matches('v').to_owned();
    let mut parts = version.split('.');
    Some(format!("{}.{}", parts.next()?, parts.next()?))
}

/// One daemon. It is killed when this is dropped; its tasks are not.
#[derive(Debug)]
pub struct Daemon {
    command: DaemonCommand,
    child: Child,
}

/// All that starts it, and starts it again.
#[derive(Debug, Clone)]
pub struct DaemonCommand {
    /// `containerd`.
    pub program: PathBuf,
    /// Its configuration file.
    pub config: PathBuf,
    /// Its PATH, in which it looks for shims.
    pub path: String,
    /// Its log, appended to.
    pub log: PathBuf,
    /// Variables that it and the shims get besides.
    pub environment: Vec<(String, String)>,
    /// It and the shims are in a time namespace that has booted a day earlier.
    pub time_namespace: bool,
}

impl Daemon {
    /// Starts it. It may not be listening yet.
    pub fn start(command: DaemonCommand) -> Self {
        let child = spawn(&command);
        Self { command, child }
    }

    /// Ends it as a service manager would, or with SIGKILL; shims go on.
    pub fn stop(&mut self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
        eventually("containerd ends", || self.child.try_wait().expect("wait for containerd"));
    }

    /// Starts it again after [`Daemon::stop`].
    pub fn restart(&mut self) {
        self.child = spawn(&self.command);
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Exit status, if it has ended by itself.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Path of its log.
    pub fn log(&self) -> &Path {
        &self.command.log
    }
}

fn spawn(command: &DaemonCommand) -> Child {
    let log = fs::OpenOptions::new().create(true).append(true).open(&command.log).expect("open containerd's log");
    let mut start = Command::new(&command.program);
    if command.time_namespace {
        start = Command::new("unshare");
        start.args(["--time", "--boottime", "86400", "--fork", "--kill-child"]).arg(&command.program);
    }
    start
        .arg("--config")
        .arg(&command.config)
        .env_clear()
        .env("PATH", &command.path)
        .envs(command.environment.iter().map(|(name, value)| (name, value)))
        .envs(std::env::var_os(SPANS).map(|file| (SPANS, file)))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("duplicate the log"))
        .stderr(log)
        .spawn()
        .expect("start containerd")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Configuration of a private containerd.
#[derive(Debug, Clone, Default)]
pub struct DaemonConfig {
    /// The CRI plugin is on.
    pub cri: bool,
    /// CRI's containers are in scopes of systemd's.
    pub systemd: bool,
    /// A file of `examples/containerd` in place of the generated runtime tables.
    pub example: Option<&'static str>,
    /// It and the shims log as much as on a node, not what helps to find why a test failed.
    pub is_terse: bool,
}

impl DaemonConfig {
    /// The file's text: everything under `directory`, plugins that need hardware or other daemons
    /// off. Version 2 of the format, which every containerd from 1.6 on reads. It has patience: on
    /// a busy machine it would otherwise take a shim that answers for one that is lost.
    pub fn text(&self, directory: &Path, runtime: &str) -> String {
        let generated = self.generated(directory, runtime);
        match self.example {
            Some(name) => merge_example(&generated, name),
            None => generated,
        }
    }

    fn generated(&self, directory: &Path, runtime: &str) -> String {
        let directory = directory.display();
        let mut disabled = vec![
            "io.containerd.snapshotter.v1.aufs",
            "io.containerd.snapshotter.v1.blockfile",
            "io.containerd.snapshotter.v1.btrfs",
            "io.containerd.snapshotter.v1.devmapper",
            "io.containerd.snapshotter.v1.zfs",
            "io.containerd.snapshotter.v1.erofs",
            "io.containerd.nri.v1.nri",
            "io.containerd.tracing.processor.v1.otlp",
            "io.containerd.internal.v1.tracing",
        ];
        if !self.cri {
            disabled.extend([
                "io.containerd.grpc.v1.cri",
                "io.containerd.cri.v1.images",
                "io.containerd.cri.v1.runtime",
            ]);
        }
        let disabled = disabled.iter().map(|id| format!("{id:?}")).collect::<Vec<_>>().join(", ");
        let mut cri = if self.cri { cri_config(runtime, &directory.to_string()) } else { String::new() };
        if self.systemd {
            cri += "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.egpu.options]\nSystemdCgroup = true\n";
        }
        let level = if self.is_terse { "info" } else { "debug" };
        format!(
            r#"version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = [{disabled}]
[grpc]
address = "{directory}/containerd.sock"
[ttrpc]
address = "{directory}/containerd.sock.ttrpc"
[debug]
level = "{level}"
[timeouts]
"io.containerd.timeout.shim.cleanup" = "1m"
"io.containerd.timeout.shim.load" = "1m"
"io.containerd.timeout.shim.shutdown" = "1m"
"io.containerd.timeout.task.state" = "1m"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
{cri}
"#
        )
    }
}

/// The example with this node's folders and sockets; nothing of the example itself changes but the
/// shim's path.
fn merge_example(generated: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/containerd").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = text.replace("/usr/local/bin", &crate::node::shim_directory().display().to_string());
    let mut example: toml::Table = toml::from_str(&text).expect("the example parses");
    let mut own: toml::Table = toml::from_str(generated).expect("the generated configuration parses");
    own.remove("version");
    if let Some(plugins) = own.get_mut("plugins").and_then(toml::Value::as_table_mut) {
        let cri = plugins.remove("io.containerd.grpc.v1.cri").expect("CRI is configured");
        let is_version_3 = example.get("version").and_then(toml::Value::as_integer) == Some(3);
        for (plugin, table) in cri_folders(&cri, is_version_3) {
            plugins.insert(plugin.to_owned(), table);
        }
    }
    merge(&mut example, own);
    toml::to_string(&example).expect("the configuration can be written")
}

/// Of the CRI tables what depends on the node: network plugins' folders, the sandbox image, ports.
fn cri_folders(cri: &toml::Value, is_version_3: bool) -> Vec<(&'static str, toml::Value)> {
    let cri = cri.as_table().expect("a table");
    let own = |keys: &[&str]| -> toml::Value {
        let picked = keys.iter().filter_map(|&key| Some((key.to_owned(), cri.get(key)?.clone())));
        toml::Value::Table(picked.collect())
    };
    let limits = ["disable_apparmor", "restrict_oom_score_adj", "disable_hugetlb_controller", "cni"];
    let server = ["stream_server_address", "stream_server_port"];
    if !is_version_3 {
        return vec![("io.containerd.grpc.v1.cri", own(&[&limits[..], &server[..], &["sandbox_image"]].concat()))];
    }
    let pinned = toml::toml! { pinned_images = { sandbox = "" } };
    let mut pinned = toml::Value::Table(pinned);
    pinned["pinned_images"]["sandbox"] = cri["sandbox_image"].clone();
    vec![
        ("io.containerd.cri.v1.runtime", own(&limits)),
        ("io.containerd.cri.v1.images", pinned),
        ("io.containerd.grpc.v1.cri", own(&server)),
    ]
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

fn cri_config(runtime: &str, directory: &str) -> String {
    let pause = crate::rootfs::PAUSE_IMAGE;
    format!(
        r#"[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
disable_apparmor = true
restrict_oom_score_adj = true
disable_hugetlb_controller = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{directory}/cni/bin"
conf_dir = "{directory}/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "egpu"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.egpu]
runtime_type = "{runtime}"
pod_annotations = [
  "egpu.io/*", "hami.io/*", "nvidia.com/container.*", "gpu-fraction*", "gpu-memory", "runai/shared-gpu-configmap",
]
container_annotations = ["egpu.io/*"]
"#
    )
}
