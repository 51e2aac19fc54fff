//! Exit codes, and errors with theirs.

use std::{path::PathBuf, process::ExitCode};

/// Table of exit codes for `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  failed; stderr says why
  2  the command line is wrong
  3  the kubeconfig is wrong or cannot be read
  4  there is no such pod, node or card
  5  `drain --evict`: not all pods could be evicted; `undrain`: the card is drained with its whole node

Environment:
  KUBECONFIG  configuration file, instead of ~/.kube/config";

/// Error that keeps a command from its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("cannot read the kubeconfig{}: {source}", .path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    Kubeconfig {
        path: Option<PathBuf>,
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    #[error("cannot make a client from the kubeconfig: {0}")]
    Client(#[source] Box<kube::Error>),
    #[error("cannot {doing}: {}", told(.source))]
    Api {
        doing: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("there is no pod {namespace}/{name}; `kubectl get pods -n {namespace}` lists them")]
    NoPod { namespace: String, name: String },
    #[error("no node {name} publishes cards{}", listed("nodes with cards", .known))]
    NoNode { name: String, known: Vec<String> },
    #[error("node {node} has no card {card}{}", listed("its cards", .known))]
    NoCard { node: String, card: String, known: Vec<String> },
    #[error("node {node} is drained as a whole; `kubectl egpu undrain {node}` ends that, then drain single cards")]
    WholeNode { node: String },
    #[error("{} not evicted: {}", pods(.0.len()), .0.join("; "))]
    NotEvicted(Vec<String>),
    #[error("cannot write to stdout: {0}")]
    Output(#[source] std::io::Error),
    #[error("cannot write as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot start: {0}")]
    Start(#[source] std::io::Error),
}

impl CommandError {
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            // The reader of the output has seen enough.
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
            Self::Kubeconfig { .. } | Self::Client(_) => 3,
            Self::NoPod { .. } | Self::NoNode { .. } | Self::NoCard { .. } => 4,
            Self::WholeNode { .. } | Self::NotEvicted(_) => 5,
            Self::Api { .. } | Self::Output(_) | Self::Json(_) | Self::Start(_) => 1,
        })
    }
}

/// The API server's own words, and what helps.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => format!("{}; a cluster role must allow it", status.message),
        kube::Error::Api(status) if status.code == 404 && status.message.contains("could not find") => {
            "the API server has no resource.k8s.io/v1: Kubernetes 1.34 or later has".to_owned()
        }
        kube::Error::Api(status) => status.message.clone(),
        other => chain(other),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}

fn listed(what: &str, known: &[String]) -> String {
    if known.is_empty() {
        return "; no node does: is egpu-kubelet-plugin running? `kubectl get pods -n egpu -o wide`".to_owned();
    }
    format!("; {what}: {}", known.join(", "))
}

fn pods(count: usize) -> String {
    if count == 1 { "1 pod was".to_owned() } else { format!("{count} pods were") }
}
