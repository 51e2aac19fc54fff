//! A host of a test's own: a root directory whose `/usr` is this machine's, with one containerd,
//! in namespaces of its own.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use integration::{ContainerdRelease, eventually, node::shim_directory};
use tempfile::TempDir;

/// Mounts of the host. `$1` is its root, `$2` its containerd.
const MOUNTS: &str = r#"
mount --bind "$1" "$1"
cd "$1"
for link in bin sbin lib lib64; do if [ -L "/$link" ]; then cp -a "/$link" .; else mkdir "$link"; mount --bind "/$link" "$link"; fi; done
mount --bind /usr usr
mount -o remount,bind,ro usr
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs tmp
touch local/bin/containerd
mount --bind "$2" local/bin/containerd
mount --rbind local usr/local
touch ready
# Whoever has lost its parent is waited for here.
while :; do sleep 1000 & wait $!; done
"#;

/// Starts, stops and restarts the host's containerd, as systemd does. With what the file
/// `/etc/broken` says in its configuration, it does not come up.
const SYSTEMCTL: &str = r#"#!/bin/sh
case "$1 $2" in
"is-active --quiet") [ "$3" = containerd.service ] || [ "$3" = docker.service ] || exit 3 ;;
"restart containerd.service")
    [ ! -e /run/containerd.pid ] || kill "$(cat /run/containerd.pid)"
    while [ -e /run/containerd.pid ] && kill -0 "$(cat /run/containerd.pid)" 2>/dev/null; do sleep 0.05; done
    rm -f /run/containerd/containerd.sock
    [ ! -e /etc/broken ] || ! grep -rq "$(cat /etc/broken)" /etc/containerd || { echo "Job for containerd.service failed." >&2; exit 1; }
    /usr/local/bin/containerd >>/var/log/containerd.log 2>&1 </dev/null &
    echo $! >/run/containerd.pid
    for try in $(seq 200); do [ ! -S /run/containerd/containerd.sock ] || exit 0; sleep 0.05; done
    exit 1 ;;
*) echo "$@" >>/var/log/systemctl.log ;;
esac
"#;

/// The host; everything of it ends when this is dropped.
pub(super) struct Host {
    directory: TempDir,
    namespaces: Child,
}

impl Host {
    /// One with this containerd, and with these files.
    #[track_caller]
    pub(super) fn with(release: &ContainerdRelease, files: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new().prefix("egpu-host-").tempdir().expect("make the host's directory");
        let root = directory.path();
        // The last four are containerd's, when it starts.
        for folder in [
            "usr",
            "local/bin",
            "proc",
            "sys",
            "dev",
            "run",
            "tmp",
            "var/log",
            "etc/cni/net.d",
            "opt/containerd/bin",
            "opt/containerd/lib",
            "var/lib/containerd",
        ] {
            fs::create_dir_all(root.join(folder)).expect("make a folder");
        }
        let namespaces = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", MOUNTS, "sh"])
            .arg(root)
            .arg(release.bin.join("containerd"))
            .stdin(Stdio::null())
            .spawn()
            .expect("start unshare");
        let host = Self { directory, namespaces };
        eventually("the host is mounted", || host.path("/ready").exists().then_some(()));
        host.program("systemctl", SYSTEMCTL);
        // This machine's own is not the host's.
        host.program("dockerd", "#!/bin/sh\nexit 1\n");
        for (path, text) in files {
            host.write(path, text);
        }
        host
    }

    /// Path of a file of the host's on this machine.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    /// Writes a file of the host's.
    #[track_caller]
    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("make the folder");
        fs::write(path, text).expect("write the file");
    }

    /// Reads a file of the host's.
    #[track_caller]
    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Puts a program into the host's `/usr/local/bin`.
    #[track_caller]
    pub(super) fn program(&self, name: &str, text: &str) {
        let path = self.path("local/bin").join(name);
        fs::write(&path, text).expect("write the program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it executable");
    }

    /// Shows the host a folder of this machine's, at its own path.
    #[track_caller]
    pub(super) fn mount(&self, folder: &Path) {
        let place = self.path(&folder.display().to_string());
        let mut command = self.command(Path::new("sh"));
        command.args(["-euc", "mkdir -p \"$2\"; mount --bind \"$1\" \"$2\"", "sh"]).arg(folder).arg(place);
        assert!(command.status().expect("run sh").success());
    }

    /// A command in the host's namespaces, with this machine's root directory.
    pub(super) fn command(&self, program: &Path) -> Command {
        let namespace = |name: &str| format!("/proc/{}/ns/{name}", self.namespaces.id());
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount={}", namespace("mnt"))).arg(format!("--pid={}", namespace("pid_for_children")));
        // It has a /tmp of its own.
        command.arg(program).env_remove("TMPDIR").env_remove("EGPU_CONFIG").env_remove("CONTAINERD_ADDRESS");
        command
    }

    /// `egpu COMMAND --host-root`, as from a container.
    pub(super) fn egpu(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(&shim_directory().join("egpu"));
        command.args(arguments).arg("--host-root").arg(self.directory.path()).output().expect("run egpu")
    }

    /// Likewise; it must succeed. Returns what it says on stderr.
    #[track_caller]
    pub(super) fn egpu_ok(&self, arguments: &[&str]) -> String {
        let output = self.egpu(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:#?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }

    /// The command would change nothing, and changes nothing.
    #[track_caller]
    pub(super) fn has_nothing_to_change(&self, command: &[&str]) {
        let listing = self.listing();
        let output = self.egpu(&[command, &["--dry-run"]].concat());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "nothing to change\n", "{output:#?}");
        self.egpu_ok(command);
        assert_eq!(self.listing(), listing, "{command:?}");
    }

    /// Runs a program of the host's, in its root directory.
    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        self.command(Path::new("chroot")).arg(self.directory.path()).args(arguments).output().expect("run chroot")
    }

    /// `containerd config dump`, without the imports, which it lists in any order.
    #[track_caller]
    pub(super) fn dump(&self) -> String {
        let has_file = self.path("/etc/containerd/config.toml").exists();
        let output = self.run(&["/usr/local/bin/containerd", "config", if has_file { "dump" } else { "default" }]);
        assert!(output.status.success(), "{output:#?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines().filter(|line| !line.starts_with("imports")).map(|line| format!("{line}\n")).collect()
    }

    /// Every file and folder that egpu could leave behind, with its content.
    pub(super) fn listing(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        let mut folders = ["etc", "local", "opt", "var/lib"].map(|folder| self.path(folder)).to_vec();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("list a folder").flatten() {
                let path = entry.path();
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                found.push((path.clone(), (!is_folder).then(|| fs::read(&path).unwrap_or_default())));
                if is_folder && !path.ends_with("var/lib/containerd") {
                    folders.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The first process of the process id namespace takes all others with it.
        let _ = self.namespaces.kill();
        let _ = self.namespaces.wait();
    }
}
