//! The command line.

use std::path::PathBuf;

use clap::Parser;
use kubernetes_api::names::DRIVER;

/// Publishes this node's cards to Kubernetes and prepares the claims that it allocates.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Options {
    /// Name of this node in Kubernetes
    #[arg(long, env = "NODE_NAME", required_unless_present = "discover")]
    pub node_name: Option<String>,
    /// Way to the API server; by default as a pod does
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// egpu's configuration; by default /etc/egpu/config.toml
    #[arg(long, value_name = "FILE", env = "EGPU_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory of the kubelet
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Directory of the CDI files that are lost at reboot
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Uid of the pod that this runs in, if it is one: two instances may then run side by side
    /// while one takes the other's place
    #[arg(long, env = "POD_UID")]
    pub pod_uid: Option<String>,
    /// Asks the driver for the node's cards, writes them down, and ends
    #[arg(long, hide = true)]
    pub discover: bool,
    /// Gives this node the label egpu.io/ready=true, and waits for its end: for a pod whose
    /// container runs under egpu, and so has shown that it can
    #[arg(long, conflicts_with = "discover")]
    pub label_node: bool,
}

impl Options {
    /// Directory of the plugin's own files.
    pub(crate) fn plugin_dir(&self) -> PathBuf {
        self.kubelet_dir.join("plugins").join(DRIVER)
    }

    /// The socket for claims and health.
    pub(crate) fn endpoint(&self) -> PathBuf {
        self.plugin_dir().join(format!("dra{}.sock", self.instance()))
    }

    /// The socket at which the kubelet finds the plugin. The `@` is needed: the kubelet dials this
    /// socket without an authority of its own, so that grpc-go sends the escaped path as one. That
    /// is a valid authority only if what is escaped comes before an `@`, and h2 refuses others.
    pub(crate) fn registration_socket(&self) -> PathBuf {
        self.kubelet_dir.join("plugins_registry").join(format!("egpu@{DRIVER}{}-reg.sock", self.instance()))
    }

    fn instance(&self) -> String {
        self.pod_uid.iter().filter(|uid| !uid.is_empty()).map(|uid| format!("-{uid}")).collect()
    }
}
