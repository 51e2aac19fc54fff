//! containerd's gRPC services, called one after the other: a test reads better without `await`.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use containerd_client::{
    Client as Services,
    services::v1::{
        CheckpointTaskRequest, CloseIoRequest, Container as ContainerRecord, CreateContainerRequest, CreateTaskRequest,
        DeleteContainerRequest, DeleteProcessRequest, DeleteTaskRequest, ExecProcessRequest, GetRequest, KillRequest,
        ListPidsRequest, MetricsRequest, PauseTaskRequest, PublishRequest, ResizePtyRequest, ResumeTaskRequest,
        StartRequest, SubscribeRequest, UpdateTaskRequest, WaitRequest,
    },
    types::{
        Metric,
        v1::{Process, ProcessInfo},
    },
    with_namespace,
};
use tokio::{runtime::Runtime, task::JoinHandle};
use tonic::{Request, Status};

use crate::{
    events::{Event, EventLog},
    wait::DEADLINE,
};

/// A client bound to one namespace.
pub(crate) struct Client {
    runtime: Runtime,
    services: Services,
    namespace: String,
    subscription: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Client").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Calls one method of the task service, with the namespace and a deadline.
macro_rules! call {
    ($self:ident . $service:ident . $method:ident ( $request:expr )) => {{
        let request = $request;
        let namespace = $self.namespace.as_str();
        $self.runtime.block_on(async {
            let mut request = with_namespace!(request, namespace);
            request.set_timeout(DEADLINE * 2);
            $self.services.$service().$method(request).await.map(tonic::Response::into_inner)
        })
    }};
}

impl Client {
    /// Connects; `Err` while containerd is not listening yet.
    pub(crate) fn connect(socket: &Path, namespace: &str) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("start the client's runtime");
        let services = runtime.block_on(async {
            let services = Services::from_path(socket).await.map_err(|error| error.to_string())?;
            services.version().version(()).await.map_err(|status| status.to_string())?;
            Ok::<_, String>(services)
        })?;
        Ok(Self { runtime, services, namespace: namespace.to_owned(), subscription: Mutex::new(None) })
    }

    /// The channel, for the CRI client.
    pub(crate) fn channel(&self) -> tonic::transport::Channel {
        self.services.channel()
    }

    /// Runs a future of another client on this one's runtime.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Writes the namespace's task events into `log` from now on, in place of an earlier
    /// subscription.
    pub(crate) fn subscribe(&self, log: &EventLog) {
        let request = SubscribeRequest { filters: vec![format!("namespace=={}", self.namespace)] };
        let mut events = self.services.events();
        let log = log.clone();
        let subscribed = Arc::new(AtomicBool::new(false));
        let task = self.runtime.spawn({
            let subscribed = Arc::clone(&subscribed);
            async move {
                let Ok(answer) = events.subscribe(request).await else { return };
                let mut stream = answer.into_inner();
                while let Ok(Some(envelope)) = stream.message().await {
                    subscribed.store(true, Ordering::Relaxed);
                    let Some(any) = envelope.event else { continue };
                    if let Some(event) = Event::decode(&envelope.topic, &any) {
                        log.0.lock().unwrap().push(event);
                    }
                }
            }
        });
        if let Some(old) = self.subscription.lock().unwrap().replace(task) {
            old.abort();
        }
        // containerd answers the call with the first event only: send some until one has come
        // round.
        crate::wait::eventually("a subscription to events", || {
            let hello = PublishRequest { topic: "/egpu/test".to_owned(), event: Some(prost_types::Any::default()) };
            let _ = call!(self.events.publish(hello));
            subscribed.load(Ordering::Relaxed).then_some(())
        });
    }

    pub(crate) fn create_container(&self, container: ContainerRecord) -> Result<(), Status> {
        call!(self.containers.create(CreateContainerRequest { container: Some(container) })).map(drop)
    }

    pub(crate) fn delete_container(&self, id: &str) -> Result<(), Status> {
        call!(self.containers.delete(DeleteContainerRequest { id: id.to_owned() }))
    }

    pub(crate) fn create_task(&self, request: CreateTaskRequest) -> Result<u32, Status> {
        call!(self.tasks.create(request)).map(|answer| answer.pid)
    }

    pub(crate) fn start(&self, id: &str, exec: &str) -> Result<u32, Status> {
        call!(self.tasks.start(StartRequest { container_id: id.to_owned(), exec_id: exec.to_owned() }))
            .map(|answer| answer.pid)
    }

    pub(crate) fn state(&self, id: &str, exec: &str) -> Result<Process, Status> {
        call!(self.tasks.get(GetRequest { container_id: id.to_owned(), exec_id: exec.to_owned() }))
            .map(|answer| answer.process.expect("containerd names the process"))
    }

    pub(crate) fn wait(&self, id: &str, exec: &str) -> Result<u32, Status> {
        call!(self.tasks.wait(WaitRequest { container_id: id.to_owned(), exec_id: exec.to_owned() }))
            .map(|answer| answer.exit_status)
    }

    pub(crate) fn kill(&self, id: &str, exec: &str, signal: i32, all: bool) -> Result<(), Status> {
        let signal = signal.cast_unsigned();
        call!(self.tasks.kill(KillRequest { container_id: id.to_owned(), exec_id: exec.to_owned(), signal, all }))
    }

    pub(crate) fn delete_task(&self, id: &str) -> Result<u32, Status> {
        call!(self.tasks.delete(DeleteTaskRequest { container_id: id.to_owned() })).map(|answer| answer.exit_status)
    }

    pub(crate) fn delete_exec(&self, id: &str, exec: &str) -> Result<u32, Status> {
        let request = DeleteProcessRequest { container_id: id.to_owned(), exec_id: exec.to_owned() };
        call!(self.tasks.delete_process(request)).map(|answer| answer.exit_status)
    }

    pub(crate) fn exec(&self, request: ExecProcessRequest) -> Result<(), Status> {
        call!(self.tasks.exec(request))
    }

    pub(crate) fn resize(&self, id: &str, exec: &str, width: u32, height: u32) -> Result<(), Status> {
        let request = ResizePtyRequest { container_id: id.to_owned(), exec_id: exec.to_owned(), width, height };
        call!(self.tasks.resize_pty(request))
    }

    pub(crate) fn close_stdin(&self, id: &str, exec: &str) -> Result<(), Status> {
        let request = CloseIoRequest { container_id: id.to_owned(), exec_id: exec.to_owned(), stdin: true };
        call!(self.tasks.close_io(request))
    }

    pub(crate) fn pause(&self, id: &str) -> Result<(), Status> {
        call!(self.tasks.pause(PauseTaskRequest { container_id: id.to_owned() }))
    }

    pub(crate) fn resume(&self, id: &str) -> Result<(), Status> {
        call!(self.tasks.resume(ResumeTaskRequest { container_id: id.to_owned() }))
    }

    pub(crate) fn pids(&self, id: &str) -> Result<Vec<ProcessInfo>, Status> {
        call!(self.tasks.list_pids(ListPidsRequest { container_id: id.to_owned() })).map(|answer| answer.processes)
    }

    pub(crate) fn checkpoint(&self, id: &str) -> Result<(), Status> {
        let request = CheckpointTaskRequest { container_id: id.to_owned(), ..CheckpointTaskRequest::default() };
        call!(self.tasks.checkpoint(request)).map(drop)
    }

    pub(crate) fn update(&self, id: &str, resources: &serde_json::Value) -> Result<(), Status> {
        let resources = Some(crate::container::any("LinuxResources", resources));
        call!(self.tasks.update(UpdateTaskRequest {
            container_id: id.to_owned(),
            resources,
            annotations: std::collections::HashMap::new()
        }))
    }

    pub(crate) fn metrics(&self, id: &str) -> Result<Vec<Metric>, Status> {
        let request = MetricsRequest { filters: vec![format!("id=={id}")] };
        call!(self.tasks.metrics(request)).map(|answer| answer.metrics)
    }
}
