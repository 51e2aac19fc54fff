//! The containerd runtime `io.containerd.null.v1`: it answers each call at once, and runs nothing.
//!
//! The time that `ctr` takes with it is that of containerd, `ctr` and starting a shim: the floor
//! under what any runtime can reach. A "process" ends when it is started.

use std::{
    collections::{HashMap, HashSet},
    env,
    error::Error,
    fs,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixListener, process::CommandExt},
    },
    path::Path,
    process::{self, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use containerd_shim::{Flags, TtrpcContext, TtrpcResult, parse, protos::api, socket_address};
use containerd_shim_protos::shim_async::{Task, create_task};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use ttrpc::r#async::{Server, Service, transport::Listener};

/// The name by which containerd before 2.0 calls the service; the generated code knows v3 alone.
const V2: &str = "containerd.task.v2.Task";
/// Time for the answer to Shutdown to reach containerd, as egpu's.
const ANSWER_GRACE: Duration = Duration::from_millis(20);

/// Starts the process that serves, which gets the socket as its stdin, and answers in the form that
/// every containerd takes.
fn start(flags: &Flags) -> Result<(), Box<dyn Error>> {
    let address = socket_address(&flags.address, &flags.namespace, &flags.id);
    let path = Path::new(address.trim_start_matches("unix://"));
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let listener = UnixListener::bind(path)?;
    Command::new(env::current_exe()?)
        .args(["-namespace", &flags.namespace, "-id", &flags.id, "-address", &flags.address])
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok(io::stdout().write_all(address.as_bytes())?)
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let task = Arc::new(NullTask::default());
    let service = || create_task(Arc::clone(&task) as _);
    let mut versions: HashMap<String, Service> = service();
    versions.extend(service().into_values().map(|v3| (V2.to_owned(), v3)));
    let mut server = Server::new().add_listener(Listener::try_from(listener)?).register_service(versions);
    server.start().await?;
    task.exit.notified().await;
    address.as_pathname().map_or(Ok(()), fs::remove_file)?;
    sleep(ANSWER_GRACE).await;
    Ok(())
}

/// A task and its execs.
#[derive(Default)]
struct NullTask {
    exit: Notify,
    /// Ids of those that were started, and have ended with that; the task's is empty.
    started: watch::Sender<HashSet<String>>,
}

fn own_pid() -> u32 {
    process::id()
}

#[async_trait]
impl Task for NullTask {
    async fn create(&self, _: &TtrpcContext, _: api::CreateTaskRequest) -> TtrpcResult<api::CreateTaskResponse> {
        Ok(api::CreateTaskResponse { pid: own_pid(), ..Default::default() })
    }

    async fn start(&self, _: &TtrpcContext, request: api::StartRequest) -> TtrpcResult<api::StartResponse> {
        self.started.send_modify(|started| {
            started.insert(request.exec_id);
        });
        Ok(api::StartResponse { pid: own_pid(), ..Default::default() })
    }

    async fn exec(&self, _: &TtrpcContext, _: api::ExecProcessRequest) -> TtrpcResult<api::Empty> {
        Ok(api::Empty::default())
    }

    async fn state(&self, _: &TtrpcContext, request: api::StateRequest) -> TtrpcResult<api::StateResponse> {
        let is_over = self.started.borrow().contains(&request.exec_id);
        let status = if is_over { api::Status::STOPPED } else { api::Status::CREATED };
        Ok(api::StateResponse { id: request.id, pid: own_pid(), status: status.into(), ..Default::default() })
    }

    async fn wait(&self, _: &TtrpcContext, request: api::WaitRequest) -> TtrpcResult<api::WaitResponse> {
        // The sender lives as long as the shim.
        let _ = self.started.subscribe().wait_for(|started| started.contains(&request.exec_id)).await;
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
        self.exit.notify_one();
        Ok(api::Empty::default())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let flags = parse(&arguments)?;
    match flags.action.as_str() {
        "start" => start(&flags),
        // An empty DeleteResponse.
        "delete" => Ok(()),
        _ => serve().await,
    }
}
