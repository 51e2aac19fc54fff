//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;

/// Turns pods that ask in HAMi's, ACK's or egpu's words into pods with claims.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Options {
    /// Settings; by default HAMi's and ACK's own names
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to serve /mutate and /readyz at, by HTTPS
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Certificate, PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "key", required_unless_present = "own_certificate")]
    pub certificate: Option<PathBuf>,
    /// Key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Secret that is there, as NAME or NAMESPACE/NAME, for a certificate of its own making
    #[arg(long, value_name = "SECRET", conflicts_with = "certificate", requires = "webhook_configuration")]
    pub own_certificate: Option<String>,
    /// MutatingWebhookConfiguration that names this webhook, and is told who signs the certificate
    #[arg(long, value_name = "NAME", requires = "own_certificate")]
    pub webhook_configuration: Option<String>,
    /// Way to the API server; by default as a pod does
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_comes_from_files_or_is_its_own() {
        let parse = |arguments: &[&str]| Options::try_parse_from([&["egpu-webhook"], arguments].concat());
        assert!(parse(&["--certificate", "a", "--key", "b"]).is_ok());
        assert!(parse(&["--own-certificate", "a", "--webhook-configuration", "b"]).is_ok());
        let wrong: [&[&str]; 4] = [
            &[],
            &["--certificate", "a"],
            &["--own-certificate", "a"],
            &["--certificate", "a", "--key", "b", "--own-certificate", "a", "--webhook-configuration", "b"],
        ];
        for arguments in wrong {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
    }
}
