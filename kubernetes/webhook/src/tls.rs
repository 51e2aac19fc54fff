//! The server's certificate: read from files, and read again when they change.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{fs, sync::watch};
use tokio_rustls::rustls::{
    self, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject as _},
};

/// Pause between two looks at the files.
pub(crate) const PAUSE: Duration = Duration::from_secs(10);

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Its file.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// No PEM.
    #[error("certificate or key is not PEM")]
    Pem(#[from] pem::Error),
    /// Key and certificate do not go together, for instance.
    #[error("certificate and key cannot be served")]
    Rustls(#[from] rustls::Error),
}

/// A certificate with its key, PEM both.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KeyPair {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl KeyPair {
    /// Reads two files.
    pub(crate) async fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let read =
            async |path: &Path| fs::read(path).await.map_err(|source| TlsError::Read { path: path.to_owned(), source });
        Ok(Self { certificate: read(certificate).await?, key: read(key).await? })
    }

    /// The server's side of TLS with it.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)?;
        let provider = Arc::new(ring::default_provider());
        let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        Ok(Arc::new(versions.with_no_client_auth().with_single_cert(chain, key)?))
    }
}

/// Looks at the files after each pause, and serves them anew whenever they change, for ever. Files
/// that cannot be used change nothing.
pub(crate) async fn follow(
    certificate: PathBuf,
    key: PathBuf,
    mut serving: KeyPair,
    served: watch::Sender<Arc<ServerConfig>>,
    pause: Duration,
) {
    loop {
        tokio::time::sleep(pause).await;
        let read = KeyPair::read(&certificate, &key).await;
        let changed = match read {
            Ok(pair) if pair == serving => continue,
            Ok(pair) => pair.server_config().map(|config| (pair, config)),
            Err(error) => Err(error),
        };
        match changed {
            Ok((pair, config)) => {
                tracing::info!("the certificate has changed");
                serving = pair;
                served.send_replace(config);
            }
            Err(error) => tracing::warn!(error = base::error_chain(&error), "the certificate stays as it was"),
        }
    }
}
