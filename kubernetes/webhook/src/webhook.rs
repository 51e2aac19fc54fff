//! The program: settings, certificate, server, collection.

use std::{error::Error, io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_rustls::rustls::ServerConfig;
use tracing::level_filters::LevelFilter;

use crate::{
    api::{Api, ConnectError},
    collection,
    options::Options,
    own_certificate::{OwnCertificate, OwnCertificateError},
    server::Server,
    settings::{Settings, SettingsError},
    tls::{self, KeyPair, TlsError},
};

/// Pause before a certificate of one's own is tried again: the API server may come later.
const PAUSE: Duration = Duration::from_secs(2);

/// The webhook cannot start.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The way to the API server.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Its address.
    #[error("{address} cannot be listened at")]
    Listen {
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// Something of the system's.
    #[error("{action} failed")]
    Io {
        /// The step that failed.
        action: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// Runs the command, and says how it ended.
pub fn main_of(options: Options) -> ExitCode {
    let subscriber = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO).with_ansi(false);
    subscriber.with_writer(io::stderr).init();
    let runtime = Builder::new_current_thread().enable_all().build();
    let ran = runtime.map_err(|source| WebhookError::Io { action: "starting", source });
    match ran.and_then(|runtime| runtime.block_on(async { run(options, ending()?).await })) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = base::error_chain(&error as &dyn Error), "the webhook ends");
            ExitCode::FAILURE
        }
    }
}

/// Waits for SIGTERM or SIGINT.
fn ending() -> Result<impl Future<Output = ()>, WebhookError> {
    let failed = |source| WebhookError::Io { action: "waiting for signals", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Serves until `ended`.
///
/// # Errors
/// [`WebhookError`]: it cannot start.
pub async fn run(options: Options, ended: impl Future<Output = ()>) -> Result<(), WebhookError> {
    let settings = options.config.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
    let api = Api::new(options.kubeconfig.as_deref()).await?;
    tokio::pin!(ended);
    let tls = tokio::select! {
        tls = certificate(&options, &api) => tls?,
        () = &mut ended => return Ok(()),
    };
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.map_err(|source| WebhookError::Listen { address: options.listen, source })?;
    tracing::info!(address = %options.listen, "pods are read");
    let collecting = tokio::spawn(collection::run(api.clone(), settings.template_lifetime));
    Arc::new(Server { settings, api }).run(listener, tls, ended).await;
    collecting.abort();
    Ok(())
}

/// The certificate, which is followed from here on.
async fn certificate(options: &Options, api: &Api) -> Result<watch::Receiver<Arc<ServerConfig>>, WebhookError> {
    if let (Some(certificate), Some(key)) = (&options.certificate, &options.key) {
        let pair = KeyPair::read(certificate, key).await?;
        let (served, receiver) = watch::channel(pair.server_config()?);
        tokio::spawn(tls::follow(certificate.clone(), key.clone(), pair, served, tls::PAUSE));
        return Ok(receiver);
    }
    let secret = options.own_certificate.as_deref().unwrap_or_default();
    let own = OwnCertificate::new(api.clone(), secret, options.webhook_configuration.as_deref().unwrap_or_default());
    loop {
        match first(&own).await {
            Ok((pair, config)) => {
                let (served, receiver) = watch::channel(config);
                tokio::spawn(own.follow(pair, served));
                return Ok(receiver);
            }
            Err(error) => tracing::warn!(error = base::error_chain(&error), "the certificate is tried again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn first(own: &OwnCertificate) -> Result<(KeyPair, Arc<ServerConfig>), OwnCertificateError> {
    let pair = own.current().await?;
    let config = pair.server_config()?;
    Ok((pair, config))
}
