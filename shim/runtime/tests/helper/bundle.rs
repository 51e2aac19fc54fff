//! A bundle with busybox as its root file system.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs::File,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mediator::GrantedCard;
use mediator_process::{
    MediatedDriver, Setup,
    message::{FromMediator, ToMediator},
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        socket::{ControlMessageOwned, MsgFlags, recvmsg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
};
use runtime::{
    ContainerProcess, RuntimeClient, RuntimeError,
    cgroup::{Cgroup, CgroupsPath, Host},
    protocol::{Create, Delete, Exec, RootfsMount, Start, StdioKind},
};
use runtime_config::Bytes;
use serde_json::{Value, json, value::RawValue};

/// The bench of every test: a client and a directory of its own.
pub struct Bench {
    pub client: RuntimeClient,
    pub directory: tempfile::TempDir,
    image: PathBuf,
    next: std::cell::Cell<u32>,
}

impl Bench {
    pub fn new(client: RuntimeClient) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        for below in ["bin", "proc", "dev", "sys", "tmp", "etc", "root"] {
            std::fs::create_dir_all(image.join(below)).unwrap();
        }
        std::fs::copy("/bin/busybox", image.join("bin/busybox")).unwrap();
        for applet in ["sh", "true", "false", "cat", "sleep", "id", "stty", "ls", "grep", "env", "tty", "readlink"] {
            std::os::unix::fs::symlink("busybox", image.join("bin").join(applet)).unwrap();
        }
        std::fs::write(image.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
            .unwrap();
        Self { client, directory, image, next: std::cell::Cell::new(0) }
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("runtime")
    }

    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Adds this test's own executable and the simulated driver's nodes to a spec.
    pub fn add_mediated_probe(&self, spec: &mut Value) {
        self.add_probe(spec);
        let nodes = self.directory.path().join("state/simulated/dev");
        for node in ["nvidiactl", "nvidia0", "nvidia-uvm"] {
            spec["mounts"].as_array_mut().unwrap().push(json!({
                "destination": format!("/dev/{node}"), "type": "bind", "source": nodes.join(node), "options": ["bind"]
            }));
        }
    }

    /// Adds a copy of this test's own executable to a spec, as `/probe` with what it is linked to:
    /// the file itself is the helper's and the mediator's program, and a mediator serves nobody who
    /// executes that.
    pub fn add_probe(&self, spec: &mut Value) {
        let probe = self.directory.path().join("probe");
        if !probe.exists() {
            std::fs::copy(std::env::current_exe().unwrap(), &probe).unwrap();
        }
        let mounts = spec["mounts"].as_array_mut().unwrap();
        for (source, destination) in
            [(probe.as_path(), "/probe"), (Path::new("/lib"), "/lib"), (Path::new("/lib64"), "/lib64")]
        {
            if source.exists() {
                mounts.push(
                    json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", "ro"]}),
                );
            }
        }
    }

    /// A container that is not created yet; `edit` changes its spec.
    pub fn container(&self, args: &[&str], edit: impl FnOnce(&mut Value)) -> Container<'_> {
        let number = self.next.replace(self.next.get() + 1);
        let id = format!("egpu-test-{}-{number}", std::process::id());
        let bundle = self.directory.path().join(&id);
        std::fs::create_dir(&bundle).unwrap();
        let mut spec = spec(&id, args);
        edit(&mut spec);
        let spec = RawValue::from_string(serde_json::to_string_pretty(&spec).unwrap()).unwrap();
        std::fs::write(bundle.join("config.json"), spec.get()).unwrap();
        let create = Create {
            id: id.clone(),
            bundle: bundle.clone(),
            spec,
            runtime_root: self.root(),
            rootfs_mounts: vec![RootfsMount {
                kind: "bind".into(),
                source: self.image.display().to_string(),
                options: vec!["rbind".into(), "rprivate".into()],
            }],
            stdio: StdioKind::Streams,
            mediated: false,
            systemd_cgroup: false,
            no_pivot_root: false,
            no_new_keyring: true,
            io_owner: None,
            injection: None,
            fence: false,
        };
        Container { bench: self, id, bundle, create: Some(create), output: None, mediator: None }
    }
}

/// One container of a test.
pub struct Container<'a> {
    bench: &'a Bench,
    pub id: String,
    pub bundle: PathBuf,
    create: Option<Create>,
    /// Reading end of stdout and stderr.
    output: Option<File>,
    /// Its driver calls are mediated.
    mediator: Option<Mediator>,
}

impl Container<'_> {
    pub fn with(mut self, edit: impl FnOnce(&mut Create)) -> Self {
        edit(self.create.as_mut().unwrap());
        self
    }

    /// Has its driver calls mediated.
    pub fn mediated(mut self, mediator: &Mediator) -> Self {
        self.mediator = Some(mediator.clone());
        self.create.as_mut().unwrap().mediated = true;
        self
    }

    fn intake(&self) -> Option<OwnedFd> {
        self.mediator.as_ref().map(|mediator| mediator.intake.try_clone().unwrap())
    }

    pub async fn create(&mut self) -> Result<ContainerProcess, RuntimeError> {
        let (output, mut stdio) = streams();
        stdio.extend(self.intake());
        self.output = Some(output);
        self.create_on(stdio).await
    }

    pub async fn create_on(&mut self, stdio: Vec<OwnedFd>) -> Result<ContainerProcess, RuntimeError> {
        self.bench.client.create(self.create.take().unwrap(), stdio).await
    }

    pub async fn start(&self) -> Result<(), RuntimeError> {
        self.bench.client.start(Start { id: self.id.clone(), runtime_root: self.bench.root() }).await
    }

    /// The directory that its spec names.
    pub fn cgroup(&self) -> Cgroup {
        let spec: Value = serde_json::from_slice(&std::fs::read(self.bundle.join("config.json")).unwrap()).unwrap();
        let path = spec.pointer("/linux/cgroupsPath").and_then(Value::as_str).map(Path::new);
        Cgroup::intended(&Host::default(), &CgroupsPath::new(path, &self.id, false).unwrap()).unwrap()
    }

    pub async fn exec(&self, process: Value, fence: bool) -> Result<(ContainerProcess, File), RuntimeError> {
        let (output, mut stdio) = streams();
        stdio.extend(self.intake());
        self.bench.client.exec(self.exec_request(process, fence), stdio).await.map(|process| (process, output))
    }

    pub async fn exec_within(&self, limit: Duration, process: Value) -> Result<ContainerProcess, RuntimeError> {
        let (_, stdio) = streams();
        self.bench.client.exec_within(limit, self.exec_request(process, false), stdio).await
    }

    fn exec_request(&self, process: Value, fence: bool) -> Exec {
        Exec {
            id: self.id.clone(),
            runtime_root: self.bench.root(),
            cgroup: self.cgroup(),
            process,
            stdio: StdioKind::Streams,
            mediated: self.mediator.is_some(),
            io_owner: None,
            fence,
        }
    }

    /// Executes a shell line in the running container; exit code and output.
    pub async fn sh(&self, line: &str) -> (i32, String) {
        let (process, output) = self.exec(process(&["/bin/sh", "-c", line]), false).await.unwrap();
        let code = wait(&process);
        (code, read(output))
    }

    pub async fn delete(&self) -> Result<(), RuntimeError> {
        let delete = Delete { id: self.id.clone(), runtime_root: self.bench.root(), bundle: self.bundle.clone() };
        self.bench.client.delete(delete).await
    }

    /// Creates, starts, waits, deletes; exit code and output.
    pub async fn run(mut self) -> Result<(i32, String), RuntimeError> {
        let init = self.create().await?;
        if let Err(error) = self.start().await {
            wait(&init);
            self.delete().await.unwrap();
            self.assert_gone();
            return Err(error);
        }
        let code = wait(&init);
        let output = read(self.output.take().unwrap());
        self.delete().await.unwrap();
        self.assert_gone();
        Ok((code, output))
    }

    /// Nothing of it is left: state, mounts, cgroups.
    pub fn assert_gone(&self) {
        assert!(!self.bench.root().join(&self.id).exists(), "the state directory is left");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&self.id), "a mount is left: {mounts}");
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap() {
            let left = hierarchy.unwrap().path().join("egpu-tests").join(&self.id);
            assert!(!left.exists(), "a cgroup is left: {}", left.display());
        }
    }
}

/// A mediator that plays a card of 4 GiB, of which the container has 1 GiB.
#[derive(Clone)]
pub struct Mediator {
    pub process: std::rc::Rc<ContainerProcess>,
    intake: std::rc::Rc<OwnedFd>,
    control: std::rc::Rc<OwnedFd>,
}

impl Mediator {
    pub async fn start(bench: &Bench) -> Self {
        Self::with(bench, setup(bench)).await.unwrap()
    }

    pub async fn with(bench: &Bench, setup: Setup) -> Result<Self, RuntimeError> {
        let pair = || {
            use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
        };
        let ((intake, intake_end), (control, control_end)) = (pair(), pair());
        let (process, ready) = bench.client.mediate(setup, vec![intake_end, control_end]).await?;
        ready.await?;
        Ok(Self { process: process.into(), intake: intake.into(), control: control.into() })
    }

    /// One message to it, as JSON.
    pub fn tell(&self, message: &ToMediator) {
        nix::unistd::write(&*self.control, &serde_json::to_vec(message).unwrap()).unwrap();
    }

    /// Its next message, whoever comes and goes meanwhile.
    pub fn hear(&self) -> FromMediator {
        loop {
            match self.hear_all() {
                FromMediator::Presence { .. } => {}
                message => return message,
            }
        }
    }

    /// Its next message.
    pub fn hear_all(&self) -> FromMediator {
        let mut text = [0u8; 4096];
        let length = nix::unistd::read(&*self.control, &mut text).unwrap();
        serde_json::from_slice(&text[..length]).unwrap()
    }

    /// Closes what a shim has of it; its exit code.
    pub fn close(self) -> i32 {
        drop((self.intake, self.control));
        wait(&self.process)
    }

    pub fn end(self) {
        let _ = sys::pidfd_send_signal(self.process.pidfd.as_fd(), libc::SIGKILL);
        assert_eq!(wait(&self.process), 137);
    }
}

pub fn setup(bench: &Bench) -> Setup {
    let text = "[driver]\nkind = 'simulated'\n[[driver.simulated]]\nmodel = 'A'\nmemory = '4GiB'\n";
    let config = runtime_config::Config::from_toml(text, "test").unwrap();
    let inventory = cards::discover(&config).unwrap();
    let card = &inventory.cards[0];
    // As the ledger makes it: a card's scheduler looks for its timetable there.
    let timetables = ledger::timetable_dir(&bench.directory.path().join("state"));
    std::fs::create_dir_all(timetables).unwrap();
    // Of this mediator alone: tests kill them.
    let own = tempfile::tempdir_in(bench.directory.path()).unwrap().keep();
    Setup {
        driver: MediatedDriver::Simulated {
            state_dir: bench.directory.path().join("state"),
            inventory: Box::new(inventory.clone()),
        },
        release: "580.159.04".to_owned(),
        pass_unknown_driver: false,
        cards: vec![GrantedCard {
            monitored: false,
            uuid: card.uuid.clone(),
            index: card.index,
            minor: card.minor,
            pci: card.pci,
            memory_limit: Bytes(Bytes::GIB),
            channels: 512,
            whole: false,
            is_capped: false,
            needs_windows: false,
        }],
        pinned_memory: Bytes(Bytes::GIB),
        over_memory: runtime_config::request::OverMemory::Deny,
        reconcile_period_ms: 50,
        usage_file: own.join("usage"),
        grant_id: "grant".to_owned(),
        state_dir: bench.directory.path().join("state"),
        status_file: own.join("schedule"),
        priority: runtime_config::config::PriorityMode::default(),
        throttle: runtime_config::config::Throttle::default(),
        processors_per_card: 1.0,
        may_draw: false,
        cgroups: vec![],
    }
}

/// `process` of a spec.
pub fn process(args: &[&str]) -> Value {
    let capabilities = json!(["CAP_KILL", "CAP_CHOWN", "CAP_SETUID", "CAP_SETGID"]);
    json!({
        "args": args, "cwd": "/", "user": {"uid": 0, "gid": 0},
        "env": ["PATH=/bin:/usr/bin"],
        "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
    })
}

fn spec(id: &str, args: &[&str]) -> Value {
    json!({
        "ociVersion": "1.1.0",
        "process": process(args),
        "root": {"path": "rootfs"},
        "hostname": "test",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
        ],
        "linux": {
            "cgroupsPath": format!("/egpu-tests/{id}"),
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}],
        },
    })
}

/// The reading end of a pipe, and stdio whose outputs write into it.
pub fn streams() -> (File, Vec<OwnedFd>) {
    let (reader, writer) = std::io::pipe().unwrap();
    let stdin = File::open("/dev/null").unwrap();
    let stderr = writer.try_clone().unwrap();
    (File::from(OwnedFd::from(reader)), vec![stdin.into(), writer.into(), stderr.into()])
}

pub fn read(mut file: File) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    text
}

thread_local! {
    /// Children that ended while somebody waited for another.
    static ENDED: RefCell<HashMap<i32, i32>> = RefCell::default();
}

/// Nothing takes so long, on whatever machine; no test measures time with it.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Waits for a process; its exit code, or 128 + signal. Takes every child that ends meanwhile, as a
/// shim does: the last process of a pid namespace does not end before all others are taken.
pub fn wait(process: &ContainerProcess) -> i32 {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(code) = ENDED.with_borrow_mut(|ended| ended.remove(&process.pid)) {
            return code;
        }
        reap();
        assert!(Instant::now() < deadline, "process {} does not end", process.pid);
        let mut ready = [PollFd::new(process.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::from(20u16)).unwrap();
    }
}

/// Takes every child that has ended.
pub fn reap() {
    loop {
        let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, code),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
            Ok(WaitStatus::StillAlive) | Err(nix::Error::ECHILD) => return,
            other => panic!("unexpected {other:?}"),
        };
        ENDED.with_borrow_mut(|ended| ended.insert(pid.as_raw(), code));
    }
}

/// The pty's master that a container's process sent.
pub fn receive_terminal(socket: &UnixStream) -> OwnedFd {
    let mut name = [0u8; 64];
    let mut iov = [std::io::IoSliceMut::new(&mut name)];
    let mut control = nix::cmsg_space!([std::os::fd::RawFd; 1]);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut control), MsgFlags::empty()).unwrap();
    let received: Vec<_> = message.cmsgs().unwrap().collect();
    match received.as_slice() {
        [ControlMessageOwned::ScmRights(fds)] => crate::probe::own(fds[0]),
        other => panic!("no terminal but {other:?}"),
    }
}

/// Returns the output of a terminal until its last process has gone, which reads as an error.
pub fn read_terminal(master: OwnedFd) -> String {
    let mut bytes = Vec::new();
    let mut file = File::from(master);
    let mut buffer = [0u8; 1024];
    while let Ok(count @ 1..) = std::io::Read::read(&mut file, &mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(bytes).unwrap()
}
