//! The shim process: serves the Task API on a socket that it was given, until its last container is
//! gone.

use std::{
    env, fs, io,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use runtime::{RuntimeClient, Zygote, ZygoteSupervisor, reaper::Reaper};
use runtime_config::config::ConfigError;
use rustix::process::{getpid, set_child_subreaper};
use sys::spans;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::{sleep, timeout},
};
use ttrpc::r#async::{Server, transport::Listener};

use crate::{
    args::Identity,
    events::TaskEvents,
    logging,
    registry::Registry,
    start::TTRPC_ADDRESS,
    task::{Context, TaskService, chain},
};

/// A shim that containerd has no use for ends after one to two of these. Between starting a shim
/// and its first request containerd needs milliseconds.
const DISOWNED_INTERVAL: Duration = Duration::from_secs(15);
/// Time for the answer to Shutdown to reach containerd.
const ANSWER_GRACE: Duration = Duration::from_millis(20);
/// Time for the last events to be taken.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// A shim that cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// stdin is not the socket.
    #[error("stdin is not the listening socket that `start` hands over; this program is not for use by hand")]
    Socket(#[source] io::Error),
    /// Orphans of containers would not come to the shim.
    #[error("cannot become the subreaper of the containers' processes")]
    Subreaper(#[source] io::Error),
    /// The configuration, which says where the notes are.
    #[error("the configuration cannot be read")]
    Config(#[source] ConfigError),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error("cannot talk to the helper")]
    Runtime(#[source] io::Error),
    /// The server.
    #[error("cannot serve the Task API")]
    Serve(#[source] ttrpc::Error),
}

/// The part of the start that has to be done while the process has one thread.
#[derive(Debug)]
pub struct PreparedServer {
    listener: UnixListener,
}

/// Takes the socket from stdin, before anything else gets to have it: a copy that a container's
/// process kept would make a dead shim look alive.
pub fn prepare() -> Result<PreparedServer, ServeError> {
    // Not `io::stdin`, which makes a buffer that stays.
    let socket: OwnedFd = rustix::stdio::stdin().try_clone_to_owned().map_err(ServeError::Socket)?;
    let null = fs::File::open("/dev/null").map_err(ServeError::Socket)?;
    rustix::stdio::dup2_stdin(null).map_err(|error| ServeError::Socket(error.into()))?;
    let listener = UnixListener::from(socket);
    listener.local_addr().and_then(|_| listener.set_nonblocking(true)).map_err(ServeError::Socket)?;
    set_child_subreaper(Some(getpid())).map_err(|error| ServeError::Subreaper(error.into()))?;
    Ok(PreparedServer { listener })
}

/// Serves until Shutdown finds no container, or containerd has disowned it, or SIGTERM or SIGINT
/// come. In the latter case containers that are left go on, and containerd, which sees the shim go,
/// calls `delete` for each.
pub async fn serve(
    prepared: PreparedServer,
    identity: Identity,
    socket: PathBuf,
    zygote: Zygote,
) -> Result<(), ServeError> {
    let bundle = env::current_dir().unwrap_or_else(|_| Path::new("/").to_owned());
    logging::to_bundle(&bundle, identity.debug);
    let reaper = Arc::new(Reaper::default());
    tokio::spawn(Arc::clone(&reaper).run().map_err(ServeError::Signals)?);
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;

    let events = Arc::new(TaskEvents::new(identity.namespace.clone()));
    let ttrpc_address = env::var(TTRPC_ADDRESS).unwrap_or_default();
    tokio::spawn(Arc::clone(&events).run(ttrpc_address));
    let runtime = Arc::new(RuntimeClient::new(zygote).map_err(ServeError::Runtime)?);
    let supervisor = ZygoteSupervisor::new(Arc::clone(&runtime), Arc::clone(&reaper), identity.helper_arguments());
    let registry = Registry::of_this_node().map_err(ServeError::Config)?;
    let Identity { namespace, address, .. } = identity;
    let context = Arc::new(Context::new(namespace, address, runtime, reaper, Arc::clone(&events), registry.clone()));
    let service = TaskService::new(Arc::clone(&context));

    let listener = Listener::try_from(prepared.listener).map_err(ServeError::Socket)?;
    let mut server = Server::new().add_listener(listener).register_service(service.versions());
    server.start().await.map_err(ServeError::Serve)?;
    spans::mark("serving", "");
    tracing::debug!(socket = %socket.display(), "serving");
    let (ending, ended) = oneshot::channel::<()>();
    let sweeping = tokio::spawn({
        let (context, socket) = (Arc::clone(&context), socket.clone());
        async move { context.sweep(&socket, ended).await }
    });

    tokio::select! {
        () = context.shutdown.notified() => tracing::debug!("shutdown was asked for"),
        () = context.disowned(DISOWNED_INTERVAL) => tracing::warn!("containerd has no container in this shim any more"),
        _ = terminate.recv() => tracing::info!("SIGTERM"),
        _ = interrupt.recv() => tracing::info!("SIGINT"),
    }
    context.end_waits();
    // First, so that nobody connects any more; containerd starts another shim if it needs one.
    match registry.lock() {
        Ok(locked) => locked.retire(&socket),
        Err(error) => {
            tracing::warn!(error = chain(&error), "the socket is removed all the same");
            // Nobody else has taken it: this process listens there.
            let _ = fs::remove_file(&socket);
        }
    }
    events.flush(FLUSH_LIMIT).await;
    // A shim that lives for milliseconds sweeps all the same, if it is to; it may be the last on
    // this node for long.
    drop(ending);
    let _ = timeout(FLUSH_LIMIT, sweeping).await;
    sleep(ANSWER_GRACE).await;
    supervisor.end().await;
    Ok(())
}
