//! containerd's Task service, v2 and v3: the messages are the same, and so is what answers them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use containerd_shim::{
    TtrpcContext, TtrpcResult,
    protos::{
        api::{
            CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
            CreateTaskResponse, DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, KillRequest, PauseRequest,
            PidsRequest, PidsResponse, ProcessInfo, ResizePtyRequest, ResumeRequest, ShutdownRequest, StartRequest,
            StartResponse, StateRequest, StateResponse, StatsRequest, StatsResponse, Status, UpdateTaskRequest,
            WaitRequest, WaitResponse,
        },
        shim::oci::ProcessDetails,
        shim_async::{Task, create_task},
    },
};
use protobuf::{EnumOrUnknown, Message, MessageField, well_known_types::any::Any};
use runtime::reaper::ProcessExit;
use sys::{spans, sync::lock};
use tokio::time::sleep;
use ttrpc::r#async::Service;

use super::{
    Context,
    create::create,
    error::{TaskError, chain},
    process::Process,
};
use crate::{bundle::ProcessView, gpu::AdmissionWait, io::StdioPaths};

const V2: &str = "containerd.task.v2.Task";
/// Signals that ask a container's init to end.
const ENDING: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGKILL];
/// Time after which containerd has had its answers and events of a start, and the memory that they
/// took is free.
const STARTED: Duration = Duration::from_millis(200);

/// Answers containerd.
#[derive(Debug, Clone)]
pub struct TaskService(Arc<Context>);

impl TaskService {
    /// Serves the containers of `context`.
    pub fn new(context: Arc<Context>) -> Self {
        Self(context)
    }

    /// Returns both versions of the service, to be registered on one server.
    pub fn versions(&self) -> HashMap<String, Service> {
        let service = || create_task(Arc::new(self.clone()));
        let mut versions = service();
        // The generated code knows v3 alone.
        versions.extend(service().into_values().map(|v3| (V2.to_owned(), v3)));
        versions
    }

    /// Runs to the end whatever becomes of the connection, and logs a failure.
    async fn carry_out<T: Send + 'static>(
        &self,
        call: &'static str,
        id: &str,
        work: impl Future<Output = Result<T, TaskError>> + Send + 'static,
    ) -> TtrpcResult<T> {
        tracing::debug!(call, container = id, "called");
        let result = tokio::spawn(work).await.unwrap_or(Err(TaskError::Ending));
        result.map_err(|error| {
            tracing::info!(call, container = id, error = chain(&error), "failed");
            error.into()
        })
    }
}

fn wire_pid(pid: i32) -> u32 {
    pid.unsigned_abs()
}

fn details_of(exec_id: String) -> Result<Any, TaskError> {
    let details = ProcessDetails { exec_id, ..Default::default() };
    Ok(Any {
        type_url: "containerd.runc.v1.ProcessDetails".to_owned(),
        value: details.write_to_bytes().map_err(TaskError::Encode)?,
        ..Default::default()
    })
}

fn terminal_size(request: &ResizePtyRequest) -> Result<(u16, u16), TaskError> {
    let side = |field, value: u32| {
        u16::try_from(value)
            .map_err(|_| TaskError::Invalid { field, reason: format!("{value} is more than a terminal has, 65535") })
    };
    Ok((side("width", request.width)?, side("height", request.height)?))
}

fn new_exec(request: ExecProcessRequest) -> Result<Process, TaskError> {
    if request.exec_id.is_empty() {
        return Err(TaskError::Invalid { field: "exec_id", reason: "it must not be empty".to_owned() });
    }
    let json = |source| TaskError::Json { field: "spec", source };
    let spec: serde_json::Value = serde_json::from_slice(&request.spec.value).map_err(json)?;
    let view: ProcessView = serde_json::from_slice(&request.spec.value).map_err(json)?;
    let stdio =
        StdioPaths { stdin: request.stdin, stdout: request.stdout, stderr: request.stderr, terminal: request.terminal };
    Ok(Process::new(request.exec_id, stdio, view.console_size, spec))
}

#[async_trait]
impl Task for TaskService {
    async fn create(&self, asked: &TtrpcContext, request: CreateTaskRequest) -> TtrpcResult<CreateTaskResponse> {
        let id = request.id.clone();
        let wait = AdmissionWait::new(asked.timeout_nano);
        // Dropped with this call when the connection is lost.
        let _caller = wait.ends_when_dropped();
        // In a box from the beginning: copies on the way to its task would be the deepest use of
        // the stack, which keeps what was used once.
        let work = Box::pin(create(Arc::clone(&self.0), request, wait));
        let pid = self.carry_out("create", &id, work).await?;
        Ok(CreateTaskResponse { pid: wire_pid(pid), ..Default::default() })
    }

    async fn start(&self, _: &TtrpcContext, request: StartRequest) -> TtrpcResult<StartResponse> {
        let context = Arc::clone(&self.0);
        let id = request.id.clone();
        let work = async move {
            spans::mark("start process", &request.id);
            let container = context.container(&request.id).await?;
            if request.exec_id.is_empty() {
                container.start_init(&context).await
            } else {
                let exec = container.process(&request.exec_id)?;
                container.start_exec(&context, &exec).await
            }
        };
        let pid = self.carry_out("start", &id, work).await?;
        spans::mark("started", &id);
        tokio::spawn(async {
            sleep(STARTED).await;
            sys::give_back_free_memory();
        });
        Ok(StartResponse { pid: wire_pid(pid), ..Default::default() })
    }

    async fn state(&self, _: &TtrpcContext, request: StateRequest) -> TtrpcResult<StateResponse> {
        let container = self.0.container(&request.id).await?;
        let process = container.process(&request.exec_id)?;
        let exit = process.exit();
        let stdio = process.stdio.clone();
        Ok(StateResponse {
            id: if process.exec_id.is_empty() { request.id } else { process.exec_id.clone() },
            bundle: container.fixed.bundle.to_string_lossy().into_owned(),
            pid: wire_pid(process.pid()),
            status: EnumOrUnknown::new(Status::from(process.state())),
            stdin: stdio.stdin,
            stdout: stdio.stdout,
            stderr: stdio.stderr,
            terminal: stdio.terminal,
            exit_status: exit.map_or(0, |exit| exit.status),
            exited_at: exit.map(|exit| exit.at.into()).into(),
            exec_id: process.exec_id.clone(),
            ..Default::default()
        })
    }

    async fn exec(&self, _: &TtrpcContext, request: ExecProcessRequest) -> TtrpcResult<Empty> {
        let context = Arc::clone(&self.0);
        let id = request.id.clone();
        spans::mark("exec", &id);
        let work = async move {
            let container = context.container(&request.id).await?;
            container.add_exec(&context, new_exec(request)?)
        };
        self.carry_out("exec", &id, work).await?;
        Ok(Empty::new())
    }

    async fn resize_pty(&self, _: &TtrpcContext, request: ResizePtyRequest) -> TtrpcResult<Empty> {
        let process = self.0.container(&request.id).await?.process(&request.exec_id)?;
        let (width, height) = terminal_size(&request)?;
        process.resize(width, height)?;
        Ok(Empty::new())
    }

    async fn close_io(&self, _: &TtrpcContext, request: CloseIORequest) -> TtrpcResult<Empty> {
        let process = self.0.container(&request.id).await?.process(&request.exec_id)?;
        if request.stdin {
            process.close_stdin();
        }
        Ok(Empty::new())
    }

    async fn kill(&self, _: &TtrpcContext, request: KillRequest) -> TtrpcResult<Empty> {
        let ends = request.exec_id.is_empty() && ENDING.contains(&request.signal.cast_signed());
        if ends {
            self.0.end_wait(&request.id);
        }
        let (container, context) = (self.0.container(&request.id).await?, Arc::clone(&self.0));
        let id = request.id.clone();
        let work = async move {
            container.kill(&request.exec_id, request.signal, request.all).await?;
            if ends {
                container.mark_leaving(&context).await;
            }
            Ok(())
        };
        self.carry_out("kill", &id, work).await?;
        Ok(Empty::new())
    }

    async fn pause(&self, _: &TtrpcContext, request: PauseRequest) -> TtrpcResult<Empty> {
        let (container, context) = (self.0.container(&request.id).await?, Arc::clone(&self.0));
        self.carry_out("pause", &request.id, async move { container.pause(&context.events).await }).await?;
        Ok(Empty::new())
    }

    async fn resume(&self, _: &TtrpcContext, request: ResumeRequest) -> TtrpcResult<Empty> {
        let (container, context) = (self.0.container(&request.id).await?, Arc::clone(&self.0));
        self.carry_out("resume", &request.id, async move { container.resume(&context.events).await }).await?;
        Ok(Empty::new())
    }

    async fn pids(&self, _: &TtrpcContext, request: PidsRequest) -> TtrpcResult<PidsResponse> {
        let mut processes = Vec::new();
        for (pid, exec_id) in self.0.container(&request.id).await?.pids()? {
            let info = exec_id.map(details_of).transpose()?;
            processes.push(ProcessInfo { pid: wire_pid(pid), info: info.into(), ..Default::default() });
        }
        Ok(PidsResponse { processes, ..Default::default() })
    }

    async fn stats(&self, _: &TtrpcContext, request: StatsRequest) -> TtrpcResult<StatsResponse> {
        let container = self.0.container(&request.id).await?;
        let oom_kills = container.fixed.mediated.as_ref().map_or(0, |mediated| mediated.kills());
        let metrics = container.fixed.cgroup.metrics(oom_kills);
        Ok(StatsResponse { stats: MessageField::some(metrics), ..Default::default() })
    }

    async fn update(&self, _: &TtrpcContext, request: UpdateTaskRequest) -> TtrpcResult<Empty> {
        let container = self.0.container(&request.id).await?;
        let id = request.id.clone();
        self.carry_out("update", &id, async move { container.update(&request.resources.value).await }).await?;
        Ok(Empty::new())
    }

    async fn wait(&self, _: &TtrpcContext, request: WaitRequest) -> TtrpcResult<WaitResponse> {
        let process = self.0.container(&request.id).await?.process(&request.exec_id)?;
        let ProcessExit { status, at } = process.wait().await?;
        Ok(WaitResponse { exit_status: status, exited_at: MessageField::some(at.into()), ..Default::default() })
    }

    async fn delete(&self, _: &TtrpcContext, request: DeleteRequest) -> TtrpcResult<DeleteResponse> {
        let context = Arc::clone(&self.0);
        let id = request.id.clone();
        if request.exec_id.is_empty() {
            self.0.end_wait(&id);
        }
        spans::mark("delete", &id);
        let work = async move {
            let container = context.container(&request.id).await?;
            let process = container.process(&request.exec_id)?;
            let exit = if request.exec_id.is_empty() {
                let exit = container.delete(&context).await?;
                lock(&context.containers).remove(&request.id);
                exit
            } else {
                container.delete_exec(&process).await?
            };
            Ok((process.pid(), exit))
        };
        let (pid, exit) = self.carry_out("delete", &id, work).await?;
        spans::mark("delete answers", &id);
        Ok(DeleteResponse {
            pid: wire_pid(pid),
            exit_status: exit.status,
            exited_at: MessageField::some(exit.at.into()),
            ..Default::default()
        })
    }

    async fn checkpoint(&self, _: &TtrpcContext, request: CheckpointTaskRequest) -> TtrpcResult<Empty> {
        self.0.container(&request.id).await?;
        Err(TaskError::Unsupported { feature: "checkpointing a container" }.into())
    }

    async fn connect(&self, _: &TtrpcContext, request: ConnectRequest) -> TtrpcResult<ConnectResponse> {
        let task_pid = self.0.container(&request.id).await.map_or(0, |container| container.init.pid());
        Ok(ConnectResponse { shim_pid: std::process::id(), task_pid: wire_pid(task_pid), ..Default::default() })
    }

    async fn shutdown(&self, _: &TtrpcContext, _: ShutdownRequest) -> TtrpcResult<Empty> {
        if lock(&self.0.containers).is_empty() {
            spans::mark("shutdown", "");
            self.0.shutdown.notify_one();
        }
        Ok(Empty::new())
    }
}
