//! The life of a container on a shim that is driven as containerd drives one: its commands, and the
//! Task service on its socket.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use containerd_shim_protos::{
    api::{
        CreateTaskRequest, DeleteRequest, ExecProcessRequest, KillRequest, Mount, ShutdownRequest, StartRequest,
        UpdateTaskRequest, WaitRequest,
    },
    protobuf::well_known_types::any::Any,
    shim_sync::{Client, TaskClient},
    ttrpc::{self, context},
};
use integration::{Node, injector::Injector, processes, spec};
use nix::mount::{MntFlags, umount2};
use serde_json::{Value, json};

/// More than anything takes, on a busy machine as well.
const LIMIT: Duration = Duration::from_secs(40);
/// A share of a card, as an ordinary pod asks for one.
const SHARE: [&str; 2] = ["EGPU_MEMORY=1GiB", "EGPU_COMPUTE=20%"];

/// A step of a life. Faults are injected into one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The shim's `start` command.
    Begin,
    Create,
    Start,
    /// Another process, from its registration to its deletion.
    Exec,
    Update,
    /// `egpu set`.
    Set,
    /// The kill, and the wait for the end.
    Kill,
    Delete,
    /// The `delete` command after the container was deleted.
    DeleteAnswers,
    /// The `delete` command after the shim of a running container was killed.
    DeleteCleans,
}

impl Step {
    pub(super) const ALL: [Self; 10] = [
        Self::Begin,
        Self::Create,
        Self::Start,
        Self::Exec,
        Self::Update,
        Self::Set,
        Self::Kill,
        Self::Delete,
        Self::DeleteAnswers,
        Self::DeleteCleans,
    ];

    /// The steps before it.
    pub(super) const fn before(self) -> &'static [Self] {
        match self {
            Self::Begin => &[],
            Self::Create => &[Self::Begin],
            Self::Start => &[Self::Begin, Self::Create],
            Self::Exec | Self::Update | Self::Set | Self::Kill | Self::DeleteCleans => {
                &[Self::Begin, Self::Create, Self::Start]
            }
            Self::Delete => &[Self::Begin, Self::Create, Self::Start, Self::Kill],
            Self::DeleteAnswers => &[Self::Begin, Self::Create, Self::Start, Self::Kill, Self::Delete],
        }
    }
}

/// A step that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// An error with its reason.
    Refused(String),
    /// There is no such container or process.
    Absent(String),
    /// The shim's connection or a command was lost.
    Lost(String),
    /// No answer in time.
    Hangs,
}

impl From<ttrpc::Error> for Failure {
    fn from(error: ttrpc::Error) -> Self {
        match error {
            ttrpc::Error::RpcStatus(status) if status.code() == ttrpc::Code::NOT_FOUND => {
                Self::Absent(status.message().to_owned())
            }
            ttrpc::Error::RpcStatus(status) => Self::Refused(status.message().to_owned()),
            ttrpc::Error::Others(text) if text.contains("timeout") => Self::Hangs,
            error => Self::Lost(error.to_string()),
        }
    }
}

pub(super) struct Life<'node> {
    node: &'node Node,
    pub(super) injector: &'node mut Injector,
    id: String,
    task: Option<TaskClient>,
    /// Init's, once created.
    pid: u32,
}

impl<'node> Life<'node> {
    /// Nothing of it is there yet but its bundle.
    pub(super) fn new(node: &'node Node, injector: &'node mut Injector, id: &str, has_share: bool) -> Self {
        node.track(id);
        let environment: Vec<String> = if has_share { SHARE.map(str::to_owned).to_vec() } else { Vec::new() };
        let process = spec::process(&["sleep", "infinity"], &environment, false);
        let spec = spec::container(&process, &node.cgroup_path(id));
        let life = Self { node, injector, id: id.to_owned(), task: None, pid: 0 };
        fs::create_dir_all(life.bundle().join("rootfs")).expect("make a bundle");
        fs::write(life.bundle().join("config.json"), spec.to_string()).expect("write a spec");
        life
    }

    fn bundle(&self) -> PathBuf {
        self.node.bundle(&self.id)
    }

    /// Takes a step.
    pub(super) fn take(&mut self, step: Step) -> Result<(), Failure> {
        match step {
            Step::Begin => {
                let address = self.command("start")?;
                // containerd takes the last line, as well.
                let address = address.trim_end().lines().last().unwrap_or_default();
                let client = Client::connect(address).map_err(|error| Failure::Lost(error.to_string()))?;
                self.task = Some(TaskClient::new(client));
                Ok(())
            }
            Step::Create => self.create(),
            Step::Start => {
                self.call(|task, id| task.start(context(), &StartRequest { id, ..Default::default() }).map(drop))
            }
            Step::Exec => self.exec(),
            Step::Update => self.call(|task, id| {
                let resources =
                    Some(any("LinuxResources", &json!({ "pids": { "limit": 100 }, "cpu": { "shares": 512 } })));
                let request = UpdateTaskRequest { id, resources: resources.into(), ..Default::default() };
                task.update(context(), &request).map(drop)
            }),
            Step::Set => {
                let program = self.node.programs().join("egpu");
                self.run(&format!("{} set {} --memory 2GiB --compute 30%", program.display(), self.id)).map(drop)
            }
            Step::Kill => self.kill(),
            Step::Delete => {
                self.call(|task, id| task.delete(context(), &DeleteRequest { id, ..Default::default() }).map(drop))
            }
            Step::DeleteAnswers | Step::DeleteCleans => self.command("delete").map(drop),
        }
    }

    fn call(&self, call: impl FnOnce(&TaskClient, String) -> ttrpc::Result<()>) -> Result<(), Failure> {
        let task = self.task.as_ref().ok_or_else(|| Failure::Lost("there is no shim".to_owned()))?;
        call(task, self.id.clone()).map_err(Failure::from)
    }

    fn create(&mut self) -> Result<(), Failure> {
        let layers = self.node.directory().join("layers").join(&self.id);
        let [upper, work] = ["upper", "work"].map(|part| layers.join(part));
        for directory in [&upper, &work] {
            fs::create_dir_all(directory).expect("create an overlay's directory");
        }
        let option = |name: &str, path: &std::path::Path| format!("{name}={}", path.display());
        let root = Mount {
            type_: "overlay".to_owned(),
            source: "overlay".to_owned(),
            options: vec![option("lowerdir", self.node.rootfs()), option("upperdir", &upper), option("workdir", &work)],
            ..Default::default()
        };
        let bundle = self.bundle().display().to_string();
        let mut pid = 0;
        self.call(|task, id| {
            let request = CreateTaskRequest { id, bundle, rootfs: vec![root], ..Default::default() };
            pid = task.create(context(), &request)?.pid;
            Ok(())
        })?;
        self.pid = pid;
        Ok(())
    }

    fn exec(&self) -> Result<(), Failure> {
        let exec_id = || "e".to_owned();
        let process = spec::process(&["true"], &[], false);
        let request = |id: &str| ExecProcessRequest {
            id: id.to_owned(),
            exec_id: exec_id(),
            spec: Some(any("Process", &process)).into(),
            ..Default::default()
        };
        self.call(|task, id| task.exec(context(), &request(&id)).map(drop))?;
        let started = self.call(|task, id| {
            task.start(context(), &StartRequest { id: id.clone(), exec_id: exec_id(), ..Default::default() })?;
            task.wait(context(), &WaitRequest { id, exec_id: exec_id(), ..Default::default() }).map(drop)
        });
        let delete = || {
            self.call(|task, id| {
                task.delete(context(), &DeleteRequest { id, exec_id: exec_id(), ..Default::default() }).map(drop)
            })
        };
        // As ctr and CRI do: also after a failed start, and once more where it fails.
        let deleted = delete();
        if let Err(Failure::Refused(_)) = deleted {
            let _ = delete();
        }
        started.and(deleted)
    }

    fn kill(&self) -> Result<(), Failure> {
        self.call(|task, id| {
            task.kill(context(), &KillRequest { id: id.clone(), signal: 9, all: true, ..Default::default() })?;
            task.wait(context(), &WaitRequest { id, ..Default::default() }).map(drop)
        })
    }

    /// The shim's command of this name, in the bundle.
    fn command(&mut self, action: &str) -> Result<String, Failure> {
        let program = self.node.programs().join("containerd-shim-egpu-v1");
        let (bundle, program) = (self.bundle(), program.display());
        let (namespace, socket, id) = (self.node.namespace(), self.node.socket(), &self.id);
        let (bundle, socket) = (bundle.display(), socket.display());
        let command =
            format!("cd {bundle} && exec {program} -namespace {namespace} -id {id} -address {socket} {action}");
        self.run(&command)
    }

    fn run(&mut self, command: &str) -> Result<String, Failure> {
        match self.injector.run(command, LIMIT) {
            None => Err(Failure::Hangs),
            Some(ended) if ended.code == 0 => Ok(ended.stdout),
            Some(ended) if ended.code > 128 => Err(Failure::Lost(format!("the command was killed ({})", ended.code))),
            Some(ended) => Err(Failure::Refused(format!("{}{}", ended.stdout, ended.stderr))),
        }
    }

    /// Kills the shim, so that `delete` has something to clean.
    pub(super) fn lose_shim(&mut self) {
        let own = format!(" -id {} ", self.id);
        self.node.shims().iter().filter(|shim| shim.command.contains(&own)).for_each(processes::Process::kill);
        self.task = None;
    }

    /// Processes in the container beside its init.
    pub(super) fn strangers(&self) -> Vec<String> {
        let members = processes::in_cgroup(&self.node.cgroup_path(&self.id));
        let strangers = members.into_iter().filter(|process| process.pid.cast_unsigned() != self.pid);
        strangers.map(|process| format!("process {} {} in the container", process.pid, process.name)).collect()
    }

    /// Rights and mounts of init, once it has executed its program; none when it has ended.
    pub(super) fn facts(&self) -> Vec<String> {
        let read = |name| fs::read_to_string(format!("/proc/{}/{name}", self.pid)).unwrap_or_default();
        let of_rights = ["Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Cap"];
        let status = read("status");
        let rights = status.lines().filter(|line| of_rights.iter().any(|name| line.starts_with(name)));
        let mounts = read("mountinfo");
        // Place and options; what is mounted has the container's name in it.
        let mounts = mounts.lines().map(|line| line.split(' ').skip(4).take(2).collect::<Vec<_>>().join(" "));
        rights.map(str::to_owned).chain(mounts).collect()
    }

    /// Does what a client and containerd do until nothing is known of the container, whatever
    /// became of it: what is left to be done, at the end.
    pub(super) fn end(mut self) -> Result<(), String> {
        let mut undeletable = Ok(());
        if self.task.is_some() {
            for _ in 0..3 {
                let _ = self.kill();
                undeletable = match self.take(Step::Delete) {
                    Err(Failure::Refused(why)) => Err(format!("Delete fails for the third time: {why}")),
                    Err(Failure::Hangs) => Err("Delete hangs".to_owned()),
                    // A create that failed has left nothing to delete.
                    Ok(()) | Err(Failure::Absent(_) | Failure::Lost(_)) => Ok(()),
                };
                if undeletable.is_ok() {
                    break;
                }
            }
            let _ =
                self.call(|task, id| task.shutdown(context(), &ShutdownRequest { id, ..Default::default() }).map(drop));
            self.task = None;
        }
        let cleaned = self.take(Step::DeleteCleans).or_else(|_| self.take(Step::DeleteCleans));
        let cleaned = cleaned.map_err(|failure| format!("the delete command fails a second time: {failure:?}"));
        // As containerd does, which does not ask what is mounted there.
        let _ = umount2(&self.bundle().join("rootfs"), MntFlags::MNT_DETACH);
        let _ = fs::remove_dir_all(self.bundle());
        undeletable.and(cleaned)
    }

    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }
}

fn context() -> context::Context {
    context::with_duration(LIMIT)
}

fn any(kind: &str, value: &Value) -> Any {
    Any {
        type_url: format!("types.containerd.io/opencontainers/runtime-spec/1/{kind}"),
        value: value.to_string().into_bytes(),
        ..Default::default()
    }
}

/// Waits for `find` to find nothing: what it finds at the end.
pub(super) fn settle(limit: Duration, mut find: impl FnMut() -> Vec<String>) -> Vec<String> {
    let deadline = Instant::now() + limit;
    loop {
        let found = find();
        if found.is_empty() || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
