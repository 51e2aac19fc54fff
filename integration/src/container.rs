//! One container, made through containerd's gRPC services.

use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use containerd_client::{
    services::v1::{Container as ContainerRecord, CreateTaskRequest, container::Runtime},
    types::{
        Mount,
        v1::{Process, ProcessInfo, Status as TaskStatus},
    },
};
use containerd_shim_protos::{
    cgroups::metrics::Metrics, cgroups_v2::metrics::Metrics as MetricsV2, shim::oci::Options,
};
use nix::sys::signal::Signal;
use prost_types::Any;
use protobuf::Message as _;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    node::Node,
    spec,
    stdio::{Output, Stdio, Streams},
};

mod exec;

pub use exec::{Exec, ExecBuilder};

/// An OCI runtime object as containerd carries it.
pub(crate) fn any(kind: &str, value: &Value) -> Any {
    Any {
        type_url: format!("types.containerd.io/opencontainers/runtime-spec/1/{kind}"),
        value: value.to_string().into_bytes(),
    }
}

/// A change of the spec.
type Edit<'node> = Box<dyn FnOnce(&mut Value) + 'node>;

/// A container to be created.
pub struct ContainerBuilder<'node> {
    node: &'node Node,
    id: String,
    arguments: Vec<String>,
    environment: Vec<String>,
    annotations: HashMap<String, String>,
    labels: HashMap<String, String>,
    streams: Streams,
    edits: Vec<Edit<'node>>,
    rootfs: Option<PathBuf>,
    runtime: Option<String>,
    options: Option<Options>,
}

impl std::fmt::Debug for ContainerBuilder<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ContainerBuilder").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Node {
    /// State of a task, as a client asks that did not make it.
    pub fn task_state(&self, id: &str) -> Result<Process, Status> {
        self.client().state(id, "")
    }
}

impl<'node> ContainerBuilder<'node> {
    pub(crate) fn new(node: &'node Node, id: &str) -> Self {
        Self {
            node,
            id: id.to_owned(),
            arguments: vec!["sleep".to_owned(), "infinity".to_owned()],
            environment: Vec::new(),
            annotations: HashMap::new(),
            labels: HashMap::new(),
            streams: Streams::default(),
            edits: Vec::new(),
            rootfs: None,
            runtime: None,
            options: None,
        }
    }

    /// On another runtime than the node's.
    #[must_use]
    pub fn runtime(mut self, runtime: &str) -> Self {
        self.runtime = Some(runtime.to_owned());
        self
    }

    /// On this runc, through the shim that containerd brings.
    #[must_use]
    pub fn runc(mut self, binary: &Path) -> Self {
        self.options = Some(Options { binary_name: binary.display().to_string(), ..Options::default() });
        self.runtime("io.containerd.runc.v2")
    }

    /// In a scope of systemd's (`SystemdCgroup = true`): [`Node::scope`], in system.slice.
    #[must_use]
    pub fn systemd(mut self) -> Self {
        self.options = Some(Options { systemd_cgroup: true, ..Options::default() });
        let path = format!("system.slice:{}:{}", self.node.cgroup_parent(), self.id);
        self.edit(move |spec| spec["linux"]["cgroupsPath"] = json!(path))
    }

    /// With runtime options that say who owns the streams (`IoUid`, `IoGid`), as `ctr run --uidmap`
    /// sends them.
    #[must_use]
    pub fn io_owner(mut self, id: u32) -> Self {
        self.options = Some(Options { io_uid: id, io_gid: id, ..Options::default() });
        self
    }

    /// The program and its arguments; `sleep infinity` unless said.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self
    }

    /// A shell script as the program.
    #[must_use]
    pub fn script(self, script: &str) -> Self {
        self.args(&["sh", "-c", script])
    }

    /// Adds a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// Adds several variables.
    #[must_use]
    pub fn envs(mut self, variables: &[(&str, &str)]) -> Self {
        self.environment.extend(variables.iter().map(|(name, value)| format!("{name}={value}")));
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Adds a label of containerd's.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Gives it standard input.
    #[must_use]
    pub fn stdin(mut self) -> Self {
        self.streams.stdin = true;
        self
    }

    /// Gives it a terminal (and standard input).
    #[must_use]
    pub fn terminal(mut self) -> Self {
        self.streams = Streams { stdin: true, terminal: true, absent: false };
        self
    }

    /// Gives it no streams.
    #[must_use]
    pub fn without_streams(mut self) -> Self {
        self.streams = Streams { absent: true, ..Streams::default() };
        self
    }

    /// Changes the spec just before it is handed over.
    #[must_use]
    pub fn edit(mut self, edit: impl FnOnce(&mut Value) + 'node) -> Self {
        self.edits.push(Box::new(edit));
        self
    }

    /// Joins another container's pid namespace, so that it does not end with its first process.
    #[must_use]
    pub fn in_pid_namespace_of(self, other: &Container<'_>) -> Self {
        let path = format!("/proc/{}/ns/pid", other.pid());
        self.edit(move |spec| {
            let namespaces = spec["linux"]["namespaces"].as_array_mut().expect("namespaces");
            namespaces.retain(|namespace| namespace["type"] != "pid");
            namespaces.push(json!({ "type": "pid", "path": path }));
        })
    }

    /// Adds an OCI hook (`createRuntime`, ...).
    #[must_use]
    pub fn hook(self, kind: &'static str, script: &str) -> Self {
        let script = script.to_owned();
        self.edit(move |spec| {
            spec["hooks"][kind] = json!([{ "path": "/bin/sh", "args": ["sh", "-c", script] }]);
        })
    }

    /// The node that it is on.
    pub(crate) const fn node(&self) -> &'node Node {
        self.node
    }

    /// Another root file system than the node's own, read only by an overlay.
    #[must_use]
    pub fn rootfs(mut self, lower: impl Into<PathBuf>) -> Self {
        self.rootfs = Some(lower.into());
        self
    }

    /// Creates the container and its task.
    pub fn create(self) -> Result<Container<'node>, Status> {
        let Self { node, id, arguments, environment, annotations, labels, streams, edits, rootfs, runtime, options } =
            self;
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut spec =
            spec::container(&spec::process(&arguments, &environment, streams.terminal), &node.cgroup_path(&id));
        if !annotations.is_empty() {
            spec["annotations"] = json!(annotations);
        }
        for edit in edits {
            edit(&mut spec);
        }
        let serial = node.serial();
        node.track(&id);
        node.client().create_container(ContainerRecord {
            id: id.clone(),
            labels,
            runtime: Some(Runtime {
                name: runtime.unwrap_or_else(|| node.runtime().to_owned()),
                options: options.as_ref().map(runtime_options),
            }),
            spec: Some(any("Spec", &spec)),
            ..ContainerRecord::default()
        })?;
        let stdio = Stdio::create(&node.directory().join(format!("fifo/{id}-{serial}")), streams);
        let request = CreateTaskRequest {
            container_id: id.clone(),
            rootfs: vec![overlay(node, &format!("{id}-{serial}"), rootfs)],
            stdin: stdio.path("stdin"),
            stdout: stdio.path("stdout"),
            stderr: stdio.path("stderr"),
            terminal: streams.terminal,
            ..CreateTaskRequest::default()
        };
        match node.client().create_task(request) {
            Ok(pid) => Ok(Container { node, id, pid, stdio, deleted: false }),
            Err(status) => {
                // As `ctr run` does: a task that could not be created leaves no container. Where
                // nobody has answered, there may be a task, and without its container's record
                // nobody could end it.
                if is_answer(&status) {
                    let _ = node.client().delete_container(&id);
                }
                Err(status)
            }
        }
    }

    /// Creates and starts it.
    pub fn start(self) -> Result<Container<'node>, Status> {
        let container = self.create()?;
        container.start()?;
        Ok(container)
    }

    /// Creates it, runs it to its end and deletes it: exit code and output.
    pub fn run(self) -> Result<(u32, Output), Status> {
        let mut container = self.start()?;
        let status = container.wait()?;
        container.delete()?;
        Ok((status, container.stdio.finish()))
    }
}

/// Tells containerd's own answers from those of a client that lost its connection.
fn is_answer(status: &Status) -> bool {
    std::error::Error::source(status).is_none() && status.code() != tonic::Code::Unavailable
}

/// As containerd hands on what its configuration says of a runtime.
fn runtime_options(options: &Options) -> Any {
    Any {
        type_url: "containerd.runc.v1.Options".to_owned(),
        value: options.write_to_bytes().expect("runtime options encode"),
    }
}

fn overlay(node: &Node, name: &str, lower: Option<PathBuf>) -> Mount {
    let [upper, work] = ["upper", "work"].map(|part| node.directory().join("layers").join(name).join(part));
    for directory in [&upper, &work] {
        std::fs::create_dir_all(directory).expect("create an overlay's directory");
    }
    let lower = lower.unwrap_or_else(|| node.rootfs().to_owned());
    // A test may name one that is not there.
    if let Ok(owner) = std::fs::metadata(&lower) {
        std::os::unix::fs::chown(&upper, Some(owner.uid()), Some(owner.gid())).expect("give the root to its owner");
    }
    Mount {
        r#type: "overlay".to_owned(),
        source: "overlay".to_owned(),
        options: vec![
            format!("lowerdir={}", lower.display()),
            format!("upperdir={}", upper.display()),
            format!("workdir={}", work.display()),
        ],
        ..Mount::default()
    }
}

/// A task that exists. Dropped without [`Container::delete`] it is killed and deleted.
#[derive(Debug)]
pub struct Container<'node> {
    node: &'node Node,
    id: String,
    pid: u32,
    /// Its streams.
    pub stdio: Stdio,
    deleted: bool,
}

impl<'node> Container<'node> {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Init's pid on the host.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Runs the user's program.
    pub fn start(&self) -> Result<u32, Status> {
        self.node.client().start(&self.id, "")
    }

    /// State of init.
    pub fn state(&self) -> Result<Process, Status> {
        self.node.client().state(&self.id, "")
    }

    /// Status alone.
    #[track_caller]
    pub fn status(&self) -> TaskStatus {
        self.state().expect("the state of the task").status()
    }

    /// Waits for init's end: its exit code, 128 + signal for a kill.
    pub fn wait(&self) -> Result<u32, Status> {
        self.node.client().wait(&self.id, "")
    }

    /// Signals init.
    pub fn kill(&self, signal: Signal) -> Result<(), Status> {
        self.node.client().kill(&self.id, "", signal as i32, false)
    }

    /// Signals every process.
    pub fn kill_all(&self, signal: Signal) -> Result<(), Status> {
        self.node.client().kill(&self.id, "", signal as i32, true)
    }

    /// Freezes it.
    pub fn pause(&self) -> Result<(), Status> {
        self.node.client().pause(&self.id)
    }

    /// Thaws it.
    pub fn resume(&self) -> Result<(), Status> {
        self.node.client().resume(&self.id)
    }

    /// Its processes.
    pub fn pids(&self) -> Result<Vec<ProcessInfo>, Status> {
        self.node.client().pids(&self.id)
    }

    /// Sets init's terminal size.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), Status> {
        self.node.client().resize(&self.id, "", width, height)
    }

    /// Closes init's standard input.
    pub fn close_stdin(&mut self) -> Result<(), Status> {
        self.stdio.close_stdin();
        self.node.client().close_stdin(&self.id, "")
    }

    /// Asks for a checkpoint.
    pub fn checkpoint(&self) -> Result<(), Status> {
        self.node.client().checkpoint(&self.id)
    }

    /// Changes its limits: OCI `LinuxResources`.
    pub fn update(&self, resources: &Value) -> Result<(), Status> {
        self.node.client().update(&self.id, resources)
    }

    /// Its metrics, still encoded, as containerd passes them on.
    pub fn metrics(&self) -> Result<Any, Status> {
        let metric = self.node.client().metrics(&self.id)?.pop();
        metric.and_then(|metric| metric.data).ok_or_else(|| Status::not_found("no metrics"))
    }

    /// Its metrics as cgroup v1 has them.
    pub fn metrics_v1(&self) -> Metrics {
        let any = self.metrics().expect("metrics");
        assert_eq!(any.type_url, "io.containerd.cgroups.v1.Metrics");
        Metrics::parse_from_bytes(&any.value).expect("cgroup v1 metrics decode")
    }

    /// Number of its processes that were killed for want of memory, from its metrics of either
    /// cgroup version. Kubernetes shows `OOMKilled` by this, after the exit.
    #[track_caller]
    pub fn oom_kills(&self) -> u64 {
        let any = self.metrics().expect("metrics");
        match any.type_url.as_str() {
            "io.containerd.cgroups.v1.Metrics" => {
                let metrics = Metrics::parse_from_bytes(&any.value).expect("cgroup v1 metrics decode");
                metrics.memory_oom_control.oom_kill
            }
            "io.containerd.cgroups.v2.Metrics" => {
                let metrics = MetricsV2::parse_from_bytes(&any.value).expect("cgroup v2 metrics decode");
                metrics.memory_events.oom_kill
            }
            other => panic!("metrics of neither cgroup version: {other}"),
        }
    }

    /// Starts preparing another process.
    pub fn exec(&self, exec_id: &str, arguments: &[&str]) -> ExecBuilder<'_> {
        let process = spec::process(arguments, &[], false);
        ExecBuilder { container: self, id: exec_id.to_owned(), process, streams: Streams::default() }
    }

    /// Runs a shell script as an exec: exit code and output.
    #[track_caller]
    pub fn sh(&self, script: &str) -> (u32, Output) {
        let id = format!("sh{}", self.node.serial());
        self.exec(&id, &["sh", "-c", script]).run().expect("exec a script")
    }

    /// Output of a script that must succeed, without the last newline.
    #[track_caller]
    pub fn read(&self, script: &str) -> String {
        let (status, output) = self.sh(script);
        assert_eq!(status, 0, "{script}: {}{}", output.stdout(), output.stderr());
        output.stdout().trim_end().to_owned()
    }

    /// Deletes the task and the container, once init has ended.
    pub fn delete(&mut self) -> Result<u32, Status> {
        let status = self.node.client().delete_task(&self.id)?;
        self.node.client().delete_container(&self.id)?;
        self.deleted = true;
        Ok(status)
    }

    /// Kills everything and deletes it: init's exit code.
    #[track_caller]
    pub fn end(mut self) -> u32 {
        let _ = self.kill_all(Signal::SIGKILL);
        self.wait().expect("wait for a killed task");
        self.delete().expect("delete a task that has ended")
    }

    /// Deletes what containerd still knows of it, after its shim was killed.
    pub fn forget(mut self) {
        let _ = self.node.client().delete_task(&self.id);
        let _ = self.node.client().delete_container(&self.id);
        self.deleted = true;
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if !self.deleted {
            let _ = self.kill_all(Signal::SIGKILL);
            let _ = self.wait();
            let _ = self.node.client().delete_task(&self.id);
            let _ = self.node.client().delete_container(&self.id);
        }
    }
}
