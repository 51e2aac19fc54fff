//! The plugin as a whole: its parts, their start and their end.

use std::{error::Error, io, process::ExitCode, sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task,
};
use tracing::level_filters::LevelFilter;

use crate::{
    api_client::{ApiClient, ConnectError},
    cdi::CdiDirectory,
    changes::Change,
    events::Events,
    grpc::Server,
    local_changes::LocalChanges,
    node::{self, Node},
    options::Options,
    prepare::DraPlugin,
    publisher::{PublishError, Publisher, WAITING},
    registration::Registration,
};

/// Threads for calls that block: claims are prepared side by side.
const BLOCKING_THREADS: usize = 16;
/// A thread that has nothing to do ends after that.
const THREAD_KEPT: Duration = Duration::from_secs(5);
/// Longest wait for calls under way when the plugin ends.
const END: Duration = Duration::from_secs(1);
/// Exit code where the API server drops fields.
const FIELDS_DROPPED: u8 = 3;

/// Reason for which the plugin ends.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The node's configuration, cards or ledger.
    #[error("this node cannot be read")]
    Node(#[source] Box<dyn Error + Send + Sync>),
    /// The way to the API server.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The node's label.
    #[error("this node cannot be labelled")]
    Label(#[source] Box<dyn Error + Send + Sync>),
    /// A socket, or a signal.
    #[error("cannot {action}")]
    Io {
        /// The action that failed.
        action: &'static str,
        #[source]
        source: io::Error,
    },
    /// The API server drops fields.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

impl PluginError {
    fn node(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Node(Box::new(error))
    }
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> PluginError {
    move |source| PluginError::Io { action, source }
}

/// Runs the command, and says how it ended.
pub fn main_of(options: Options) -> ExitCode {
    let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_ansi(false);
    subscriber.with_writer(io::stderr).init();
    if options.discover {
        return match node::discover(options.config.as_deref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failure(&error, 1),
        };
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(THREAD_KEPT)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failure(&error, 1),
    };
    let ended = runtime.block_on(async {
        match options.label_node {
            true => label_node(&options, ending()?).await,
            false => run(options, ending()?).await,
        }
    });
    runtime.shutdown_timeout(END);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ PluginError::Publish(PublishError::FieldsDropped(_))) => failure(&error, FIELDS_DROPPED),
        Err(error) => failure(&error, 1),
    }
}

fn failure(error: &dyn Error, code: u8) -> ExitCode {
    tracing::error!(error = base::error_chain(error), "the plugin ends");
    ExitCode::from(code)
}

/// Waits for SIGTERM or SIGINT.
fn ending() -> Result<impl Future<Output = ()>, PluginError> {
    let mut signals =
        [SignalKind::terminate(), SignalKind::interrupt()].map(|kind| signal(kind).map_err(failed("wait for signals")));
    Ok(async move {
        let [Ok(terminate), Ok(interrupt)] = &mut signals else { return };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Labels the node, once: if somebody takes the label away, that is meant.
async fn label_node(options: &Options, ended: impl Future<Output = ()>) -> Result<(), PluginError> {
    let node_name = options.node_name.clone().unwrap_or_default();
    let api = ApiClient::new(options.kubeconfig.as_deref(), &node_name).await?;
    api.label_node().await.map_err(|error| PluginError::Label(Box::new(error)))?;
    tracing::info!(node = node_name, label = kubernetes_api::names::READY_LABEL, "labelled");
    ended.await;
    Ok(())
}

/// Runs the plugin until `ended`. Its sockets are gone then, and its slices are not: the kubelet
/// removes them if no other instance comes.
///
/// # Errors
/// [`PluginError`]: it cannot start, or must not go on.
pub async fn run(options: Options, ended: impl Future<Output = ()>) -> Result<(), PluginError> {
    let node_name = options.node_name.clone().unwrap_or_default();
    let path = options.config.clone();
    let opened = task::spawn_blocking(move || Node::open(path)).await.map_err(PluginError::node)?;
    let (node, config) = opened.map_err(PluginError::node)?;
    let node = Arc::new(node);
    let cdi = CdiDirectory::new(&options.cdi_dir, &options.plugin_dir());
    let api = ApiClient::new(options.kubeconfig.as_deref(), &node_name).await?;
    // Before the kubelet can start a container that was prepared earlier.
    rebuild(&node, &cdi).await?;
    let (changes, received) = mpsc::channel(WAITING);
    let (health, states) = watch::channel(Vec::new());
    let plugin = Arc::new(DraPlugin {
        api: api.clone(),
        node: Arc::clone(&node),
        cdi: cdi.clone(),
        events: Events::start(api.clone()),
        health: states,
    });
    let local = LocalChanges::watch(&config.state_dir, &options.cdi_dir).map_err(failed("watch directories"))?;
    let publisher = Publisher::new(api.clone(), Arc::clone(&node), health);
    let mut sockets = Sockets { options: &options, plugin, servers: None };
    sockets.ensure()?;
    tokio::select! {
        () = ended => Ok(()),
        published = publisher.run(received) => Ok(published?),
        () = async { tokio::join!(api.clone().follow_slices(changes.clone()), api.follow_node(changes.clone())); } => Ok(()),
        followed = follow_local(&local, &node, &cdi, &changes, &mut sockets) => followed,
    }
}

/// Follows changes on the node, and makes up for what is lost of it.
async fn follow_local(
    local: &LocalChanges,
    node: &Arc<Node>,
    cdi: &CdiDirectory,
    changes: &mpsc::Sender<Change>,
    sockets: &mut Sockets<'_>,
) -> Result<(), PluginError> {
    loop {
        if changes.send(Change::Local).await.is_err() {
            return Ok(());
        }
        local.next().await.map_err(failed("watch directories"))?;
        sockets.ensure()?;
        if let Err(error) = rebuild(node, cdi).await {
            tracing::error!(error = base::error_chain(&error), "CDI files are not as they should be");
        }
    }
}

async fn rebuild(node: &Arc<Node>, cdi: &CdiDirectory) -> Result<(), PluginError> {
    let (node, cdi) = (Arc::clone(node), cdi.clone());
    let rebuilt = task::spawn_blocking(move || cdi.rebuild(&node.ledger)).await.map_err(PluginError::node)?;
    let changed = rebuilt.map_err(PluginError::node)?;
    if changed > 0 {
        tracing::info!(files = changed, "CDI files were brought in line with the ledger");
    }
    Ok(())
}

/// The two sockets. The one for claims comes first: the kubelet dials it as soon as it has found
/// the other.
struct Sockets<'a> {
    options: &'a Options,
    plugin: Arc<DraPlugin>,
    servers: Option<[Server; 2]>,
}

impl Sockets<'_> {
    /// Serves both, anew if somebody has taken one away.
    fn ensure(&mut self) -> Result<(), PluginError> {
        if self.servers.as_ref().is_some_and(|servers| servers.iter().all(Server::is_there)) {
            return Ok(());
        }
        if self.servers.take().is_some() {
            tracing::warn!("a socket was taken away: registering anew");
        }
        let endpoint = self.options.endpoint();
        let claims =
            Server::start(&endpoint, Arc::clone(&self.plugin)).map_err(failed("serve the socket for claims"))?;
        let registration = Arc::new(Registration { endpoint });
        let socket = self.options.registration_socket();
        let registration = Server::start(&socket, registration).map_err(failed("serve the registration socket"))?;
        self.servers = Some([registration, claims]);
        Ok(())
    }
}
