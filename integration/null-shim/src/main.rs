//! The containerd runtime `io.containerd.null.v1`: it answers each call at once, and runs nothing.
//!
//! The time that `ctr` takes with it is that of containerd, `ctr` and starting a shim: the floor
//! under what any runtime can reach. A "process" ends when it is started.

use std::{process, sync::Arc};

use async_trait::async_trait;
use containerd_shim::{
    Config, Flags, StartOpts, TtrpcContext, TtrpcResult,
    asynchronous::{ExitSignal, Shim, publisher::RemotePublisher, run, spawn},
    protos::api,
};
use containerd_shim_protos::shim_async::Task;
use tokio::sync::watch;

struct NullShim {
    exit: Arc<ExitSignal>,
}

#[async_trait]
impl Shim for NullShim {
    type T = NullTask;

    async fn new(_runtime_id: &str, _flags: &Flags, _config: &mut Config) -> Self {
        Self { exit: Arc::default() }
    }

    async fn start_shim(&mut self, options: StartOpts) -> containerd_shim::Result<String> {
        let group = options.id.clone();
        spawn(options, &group, Vec::new()).await
    }

    async fn delete_shim(&mut self) -> containerd_shim::Result<api::DeleteResponse> {
        Ok(api::DeleteResponse::default())
    }

    async fn wait(&mut self) {
        self.exit.wait().await;
    }

    async fn create_task_service(&self, _publisher: RemotePublisher) -> NullTask {
        NullTask { exit: Arc::clone(&self.exit), started: watch::Sender::default() }
    }
}

/// A task and its execs. containerd's client waits for one at a time.
struct NullTask {
    exit: Arc<ExitSignal>,
    /// Count of those that were started; a wait ends with the next.
    started: watch::Sender<u32>,
}

fn own_pid() -> u32 {
    process::id()
}

#[async_trait]
impl Task for NullTask {
    async fn create(&self, _: &TtrpcContext, _: api::CreateTaskRequest) -> TtrpcResult<api::CreateTaskResponse> {
        Ok(api::CreateTaskResponse { pid: own_pid(), ..Default::default() })
    }

    async fn start(&self, _: &TtrpcContext, _: api::StartRequest) -> TtrpcResult<api::StartResponse> {
        self.started.send_modify(|count| *count += 1);
        Ok(api::StartResponse { pid: own_pid(), ..Default::default() })
    }

    async fn exec(&self, _: &TtrpcContext, _: api::ExecProcessRequest) -> TtrpcResult<api::Empty> {
        Ok(api::Empty::default())
    }

    async fn state(&self, _: &TtrpcContext, request: api::StateRequest) -> TtrpcResult<api::StateResponse> {
        let status = if *self.started.borrow() == 0 { api::Status::CREATED } else { api::Status::STOPPED };
        Ok(api::StateResponse { id: request.id, pid: own_pid(), status: status.into(), ..Default::default() })
    }

    async fn wait(&self, _: &TtrpcContext, _: api::WaitRequest) -> TtrpcResult<api::WaitResponse> {
        // The sender lives as long as the shim.
        let _ = self.started.subscribe().changed().await;
        Ok(api::WaitResponse::default())
    }

    async fn kill(&self, _: &TtrpcContext, _: api::KillRequest) -> TtrpcResult<api::Empty> {
        Ok(api::Empty::default())
    }

    async fn close_io(&self, _: &TtrpcContext, _: api::CloseIORequest) -> TtrpcResult<api::Empty> {
        Ok(api::Empty::default())
    }

    async fn delete(&self, _: &TtrpcContext, _: api::DeleteRequest) -> TtrpcResult<api::DeleteResponse> {
        Ok(api::DeleteResponse { pid: own_pid(), ..Default::default() })
    }

    async fn connect(&self, _: &TtrpcContext, _: api::ConnectRequest) -> TtrpcResult<api::ConnectResponse> {
        Ok(api::ConnectResponse { shim_pid: own_pid(), task_pid: own_pid(), ..Default::default() })
    }

    async fn shutdown(&self, _: &TtrpcContext, _: api::ShutdownRequest) -> TtrpcResult<api::Empty> {
        self.exit.signal();
        Ok(api::Empty::default())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    run::<NullShim>("io.containerd.null.v1", None).await;
}
