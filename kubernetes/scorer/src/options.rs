//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;

use crate::placement::Placement;

/// Scores nodes for Kubernetes' scheduler by what claims hold of their cards.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Options {
    /// Address at which the scheduler asks
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8888")]
    pub listen: SocketAddr,
    /// Placement of pods that do not say one in their annotation egpu.io/node-placement
    #[arg(long, value_enum, default_value_t = Placement::Binpack)]
    pub placement: Placement,
    /// Way to the API server; by default as a pod does
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}
