//! The program as a whole: its parts, their start and their end.

use std::{io, net::SocketAddr, path::Path, process::ExitCode, sync::Arc, time::Duration};

use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::watch as flag,
};
use tracing::level_filters::LevelFilter;

use crate::{
    options::Options,
    prioritize::Scorer,
    server,
    watch::{self, Known},
};

/// Longest wait for calls under way when the program ends.
const END: Duration = Duration::from_secs(1);

/// Reason for which the program ends.
#[derive(Debug, thiserror::Error)]
pub enum ScorerError {
    /// The file that says where the API server is.
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[from] KubeconfigError),
    /// This is no pod of a cluster.
    #[error("this is no pod that may speak to the API server; name a --kubeconfig")]
    InCluster(#[from] InClusterError),
    /// The API server's certificates, for instance.
    #[error("the API server cannot be reached with this configuration")]
    Client(#[from] kube::Error),
    /// The address is in use, for instance.
    #[error("cannot listen at {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// Signals, or the runtime.
    #[error("cannot start")]
    Start(#[source] io::Error),
}

/// Runs the command, and says how it ended.
pub fn main_of(options: &Options) -> ExitCode {
    let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_ansi(false);
    subscriber.with_writer(io::stderr).init();
    let runtime = Builder::new_current_thread().enable_all().build().map_err(ScorerError::Start);
    let ended = runtime.and_then(|runtime| {
        let ended = runtime.block_on(run(options));
        runtime.shutdown_timeout(END);
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = base::error_chain(&error), "the scorer ends");
            ExitCode::FAILURE
        }
    }
}

/// Serves until SIGTERM or SIGINT.
async fn run(options: &Options) -> Result<(), ScorerError> {
    let mut terminated = signal(SignalKind::terminate()).map_err(ScorerError::Start)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(ScorerError::Start)?;
    let client = client(options.kubeconfig.as_deref()).await?;
    let failed = |source| ScorerError::Listen { address: options.listen, source };
    let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
    tracing::info!(listen = %options.listen, placement = ?options.placement, "the scorer starts");
    let (ready, is_ready) = flag::channel(false);
    let known = Known::default();
    let scorer = Arc::new(Scorer { known: known.clone(), placement: options.placement, ready: is_ready });
    tokio::select! {
        () = watch::follow(client, known, ready) => {}
        () = server::serve(listener, scorer) => {}
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    Ok(())
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client, ScorerError> {
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => Config::incluster()?,
    };
    Ok(Client::try_from(config)?)
}
