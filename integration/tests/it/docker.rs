//! Docker, as a person uses it: a dockerd of the test's own, on the node's containerd.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use integration::{Node, eventually, node::target_directory};
use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::case::{Case, Skip};

/// Name of the image that `docker import` makes.
const IMAGE: &str = "egpu-test";

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![Case::egpu("docker::run", run), Case::egpu("docker::gpus", gpus)];
    cases.into_iter().map(|case| case.needing(dockerd).on_containerd(&["2."]).once()).collect()
}

/// A dockerd that starts here.
fn dockerd() -> Skip {
    let unpacked = unpacked().ok_or("no target directory")?;
    let program = unpacked.join("usr/sbin/dockerd");
    if !program.exists() {
        return Err(format!("no {}: integration/setup-docker.sh unpacks one", program.display()));
    }
    let version = Command::new(&program).arg("--version").output();
    match version {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{}: {error}", program.display())),
    }
}

fn unpacked() -> Option<PathBuf> {
    Some(target_directory()?.join("docker"))
}

fn run(node: &Node) {
    let docker = Docker::start(node);
    // The default runtime is egpu, too: without a request, a container has no card.
    let text = docker.run(&[IMAGE, "sh", "-c", "echo hello; ls /dev"]);
    assert!(text.starts_with("hello\n") && !text.contains("nvidia"), "{text}");
    let failing = docker.command(&["run", "--rm", "--network", "none", IMAGE, "sh", "-c", "exit 5"]);
    assert_eq!(failing.status.code(), Some(5), "{failing:?}");
    let id = docker.start_container(&["--runtime", "egpu", "--env", "EGPU_MEMORY=2GiB", "--env", "EGPU_DEVICES=1"]);
    let grant = node.grant(&id).expect("a grant");
    assert_eq!((grant.cards(), grant.memory_mib()), (vec![1], vec![2048]));
    assert_eq!(docker.ok(&["exec", &id, "sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'"]), "1\n");
    // By the words of the refusal Docker chooses the exit code, and gives a hint.
    for (directory, program, code) in
        [("/no/such", "pwd", 127), ("/etc/passwd", "pwd", 127), ("/", "no-such", 127), ("/", "/etc/passwd", 126)]
    {
        let exec = docker.command(&["exec", "--workdir", directory, &id, program]);
        assert_eq!(exec.status.code(), Some(code), "{directory}: {exec:?}");
    }
    let over_a_file = ["run", "--rm", "--network", "none", "--volume", "/tmp:/etc/passwd", IMAGE, "true"];
    let text = String::from_utf8_lossy(&docker.command(&over_a_file).stderr).into_owned();
    assert!(
        text.contains("/tmp") && text.contains("/etc/passwd") && text.contains("Are you trying to mount"),
        "{text}"
    );
    let outside_of_dev = ["--device", "/dev/null:/opt/nul", IMAGE, "sh", "-c", "echo x > /opt/nul; ls /opt"];
    assert_eq!(docker.run(&outside_of_dev), "nul\n");
    docker.ok(&["pause", &id]);
    docker.ok(&["unpause", &id]);
    docker.ok(&["rm", "--force", &id]);
    let id = docker.start_container(&["--cap-drop", "ALL", "--env", "EGPU_MEMORY=2GiB", "--env", "EGPU_DEVICES=1"]);
    assert_eq!(node.grant(&id).expect("a grant").memory_mib(), [2048]);
    let none = "CapBnd:\t0000000000000000\nCapBnd:\t0000000000000000\n";
    assert_eq!(docker.ok(&["exec", &id, "grep", "-h", "CapBnd", "/proc/1/status", "/proc/self/status"]), none);
    docker.ok(&["rm", "--force", &id]);
    let refused = docker.command(&["run", "--rm", "--network", "none", "--env", "EGPU_MEMORY=33GiB", IMAGE, "true"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("GPU request refused"), "{text}");
    docker.end(node);
}

fn gpus(node: &Node) {
    let docker = Docker::start(node);
    for (gpus, memory, cards, limit_mib) in [
        ("all", "EGPU_MEMORY=1GiB", vec![0, 1, 2, 3], 1024),
        ("\"device=1,3\"", "EGPU_MEMORY=2GiB", vec![1, 3], 2048),
        ("device=2", "NOTHING=asked", vec![2], 32_768),
    ] {
        let id = docker.start_container(&["--gpus", gpus, "--env", memory]);
        let grant = node.grant(&id).expect("a grant");
        assert_eq!((grant.cards(), grant.memory_mib()), (cards.clone(), vec![limit_mib; cards.len()]), "{gpus}");
        docker.ok(&["rm", "--force", &id]);
    }
    docker.end(node);
}

/// A dockerd on a node's containerd, without networks of its own.
struct Docker {
    directory: TempDir,
    daemon: Child,
}

impl Docker {
    #[track_caller]
    fn start(node: &Node) -> Self {
        let directory = tempfile::Builder::new().prefix("egpu-docker-").tempdir().expect("make dockerd's directory");
        let path = |name: &str| directory.path().join(name);
        fs::write(path("daemon.json"), r#"{"runtimes": {"egpu": {"runtimeType": "io.containerd.egpu.v1"}}}"#)
            .expect("write dockerd's configuration");
        // What makes dockerd take `--gpus`; a container in which it were run would not start.
        let bin = path("bin");
        fs::create_dir(&bin).expect("create a directory");
        std::os::unix::fs::symlink("/bin/false", bin.join("nvidia-container-runtime-hook")).expect("link the hook");
        let log = fs::File::create(path("dockerd.log")).expect("create dockerd's log");
        let mut command = Command::new(unpacked().expect("a target directory").join("usr/sbin/dockerd"));
        command.arg("--containerd").arg(node.socket()).args(["--containerd-namespace", node.namespace()]);
        command.args(["--containerd-plugins-namespace", &format!("{}-plugins", node.namespace())]);
        for (option, name) in [
            ("--config-file", "daemon.json"),
            ("--data-root", "data"),
            ("--exec-root", "exec"),
            ("--pidfile", "dockerd.pid"),
        ] {
            command.arg(option).arg(path(name));
        }
        command.arg("--host").arg(host(directory.path()));
        // Nothing of the machine's: no bridge, no rules, no forwarding.
        command.args([
            "--userland-proxy=false",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
        ]);
        command.args(["--storage-driver", "vfs", "--default-runtime", "egpu"]);
        command.args(["--exec-opt", "native.cgroupdriver=cgroupfs"]);
        command.arg(format!("--cgroup-parent=/{}", node.cgroup_parent()));
        command.env_clear().env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("duplicate the log")).stderr(log);
        let mut docker = Self { daemon: command.spawn().expect("start dockerd"), directory };
        eventually("dockerd answers", || {
            if let Some(status) = docker.daemon.try_wait().expect("wait for dockerd") {
                panic!("dockerd ended at once ({status}):\n{}", docker.log());
            }
            docker.command(&["version"]).status.success().then_some(())
        });
        let archive = docker.directory.path().join("root.tar");
        let tar = Command::new("tar").arg("-C").arg(node.rootfs()).arg("-cf").arg(&archive).arg(".").status();
        assert!(tar.expect("run tar").success(), "tar failed");
        docker.ok(&["import", &archive.display().to_string(), IMAGE]);
        docker
    }

    fn command(&self, arguments: &[&str]) -> Output {
        Command::new(unpacked().expect("a target directory").join("usr/bin/docker"))
            .env("DOCKER_CONFIG", self.directory.path())
            .arg("--host")
            .arg(host(self.directory.path()))
            .args(arguments)
            .output()
            .expect("run docker")
    }

    /// Runs `docker`, which must succeed: its output.
    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments);
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "docker {arguments:?}: {}\n{stdout}{stderr}\n{}", output.status, self.log());
        stdout.into_owned()
    }

    /// Output of a container that ends.
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        self.ok(&[&["run", "--rm", "--network", "none"], arguments].concat())
    }

    /// Id of a container that goes on.
    #[track_caller]
    fn start_container(&self, options: &[&str]) -> String {
        let command = [&["run", "--detach", "--network", "none"], options, &[IMAGE, "sleep", "infinity"]].concat();
        self.ok(&command).trim_end().to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("dockerd.log")).unwrap_or_default()
    }

    /// Ends dockerd as a service manager would; nothing is granted any more.
    #[track_caller]
    fn end(mut self, node: &Node) {
        assert!(node.granted().is_empty());
        let _ = kill(Pid::from_raw(self.daemon.id().cast_signed()), Signal::SIGTERM);
        eventually("dockerd ends", || self.daemon.try_wait().expect("wait for dockerd"));
    }
}

impl Drop for Docker {
    /// Its containers are the node's, which ends them; here are its own files.
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        if std::thread::panicking() {
            eprintln!("--- dockerd's log\n{}", self.log());
        }
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = table.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
        let mut own: Vec<&Path> = mounts.filter(|path| path.starts_with(self.directory.path())).collect();
        own.sort();
        for path in own.into_iter().rev() {
            let _ = umount2(path, MntFlags::MNT_DETACH);
        }
    }
}

/// Returns the address at which dockerd listens.
fn host(directory: &Path) -> String {
    format!("unix://{}", directory.join("docker.sock").display())
}
