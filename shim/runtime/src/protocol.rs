//! Requests of the shim to the helper, and their replies.

use std::{error::Error, path::PathBuf};

use base::error_chain;
use nvidia_glue::inject::Injection;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::cgroup::Cgroup;

/// One operation, executed by a worker of its own. File descriptors travel beside it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Operation {
    /// Mounts the root file system, completes the spec, and creates the container up to its init
    /// waiting for `Start`.
    Create(Create),
    /// Runs the hooks of a container that has been started.
    Poststart(Start),
    /// Runs one more process in a running container.
    Exec(Exec),
    /// Removes what libcontainer and the mounts left: state, cgroups, root file system.
    Delete(Delete),
    /// Asks the driver for the node's cards (NVML is never loaded into the shim).
    Inventory,
    /// Looks whether the memory of a grant whose mediator was killed is free again.
    Freed(Freed),
    /// Asks containerd for the value that a container's image gives an environment variable
    /// (nothing of gRPC is ever in the shim's memory).
    ImageVariable(ImageVariable),
    /// Becomes the mediator of a container: the answer comes when it is ready, and the worker lives
    /// on. Two descriptors follow: the receiving end of its intake, its control socket.
    Mediate(Box<mediator_process::Setup>),
}

/// The standard streams of a process; the descriptors travel beside the operation in the order of
/// the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdioKind {
    /// Three descriptors: stdin, stdout, stderr.
    Streams,
    /// One descriptor: a connected socket on which the pty's master is sent back (SCM_RIGHTS).
    Terminal,
}

/// Parameters of [`Operation::Create`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Create {
    /// The container's id.
    pub id: String,
    /// The bundle, into which the spec goes as it was edited.
    pub bundle: PathBuf,
    /// The OCI spec, as it stands in the bundle.
    pub spec: Box<RawValue>,
    /// The directory in which libcontainer keeps the state of this namespace's containers.
    pub runtime_root: PathBuf,
    /// Mounts that containerd wants at the bundle's `rootfs` (or the spec's root path) first, in
    /// this order.
    pub rootfs_mounts: Vec<RootfsMount>,
    /// Descriptors that follow.
    pub stdio: StdioKind,
    /// The container's driver calls are mediated: after stdio's comes the descriptor of the
    /// mediator's intake.
    #[serde(default)]
    pub mediated: bool,
    /// Use systemd for cgroups (`SystemdCgroup` of the runtime options).
    pub systemd_cgroup: bool,
    /// `NoPivotRoot` of the runtime options.
    pub no_pivot_root: bool,
    /// `NoNewKeyring` of the runtime options: keep the session keyring that the shim has.
    #[serde(default)]
    pub no_new_keyring: bool,
    /// Owner that the options want for the streams' pipes and the pty; default the spec's user.
    pub io_owner: Option<(u32, u32)>,
    /// The container was granted GPUs: what the grant puts into it.
    pub injection: Option<Box<Injection>>,
    /// Install the static filter that refuses driver calls.
    pub fence: bool,
}

/// One entry of containerd's rootfs mounts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RootfsMount {
    /// File system type.
    pub kind: String,
    pub source: String,
    /// Options, flags and data mixed as in fstab.
    pub options: Vec<String>,
}

/// The container to be started, or that was.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    /// The container's id.
    pub id: String,
    /// The directory of libcontainer's state, as in [`Create`].
    pub runtime_root: PathBuf,
}

/// Parameters of [`Operation::Exec`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Exec {
    /// The container's id.
    pub id: String,
    /// The directory of libcontainer's state, as in [`Create`].
    pub runtime_root: PathBuf,
    /// The container's cgroup, which the process joins.
    pub cgroup: Cgroup,
    /// The OCI `process` object, JSON.
    pub process: serde_json::Value,
    /// Descriptors that follow.
    pub stdio: StdioKind,
    /// True where a seccomp listener goes to the mediator, as in [`Create`].
    #[serde(default)]
    pub mediated: bool,
    /// The owner of the streams, as in [`Create`].
    pub io_owner: Option<(u32, u32)>,
    /// True where the driver's calls are refused, as in [`Create`].
    pub fence: bool,
}

/// Parameters of [`Operation::Delete`]. Succeeds when there is nothing left to remove.
#[derive(Debug, Serialize, Deserialize)]
pub struct Delete {
    /// The container's id.
    pub id: String,
    /// The directory of libcontainer's state, as in [`Create`].
    pub runtime_root: PathBuf,
    /// The bundle, whose root file system is unmounted.
    pub bundle: PathBuf,
}

/// Parameters of [`Operation::Freed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    /// egpu's state directory.
    pub state_dir: PathBuf,
    /// The name of the grant's files.
    pub grant: String,
}

/// Parameters of [`Operation::ImageVariable`].
#[derive(Debug, Serialize, Deserialize)]
pub struct ImageVariable {
    /// containerd's gRPC address.
    pub containerd: String,
    /// containerd's namespace.
    pub namespace: String,
    /// The container's id.
    pub container: String,
    /// The variable's name.
    pub name: String,
}

/// A worker's first frame; a pidfd of the worker travels beside it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Hello {
    /// The worker's pid in the shim's namespace.
    pub pid: i32,
}

/// A message of a worker after that. All but `Launched` is its answer, and its last frame.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerReply {
    /// Reply to `Create` and `Exec` that is not the last: there is a process now, which may still
    /// fail; a pidfd of it travels beside. Whoever loses the worker after this has to end it.
    Launched,
    /// Reply to `Create`, `Exec` and `Mediate`: the process, a child of the shim; a pidfd of it
    /// travels beside.
    Process {
        /// Its pid in the shim's namespace.
        pid: i32,
        /// Parts of the request that were left out, for the shim's log.
        warnings: Vec<String>,
    },
    /// Reply to `Poststart`, `Delete` and `Freed`.
    Done,
    /// Reply to `Inventory`.
    Inventory(Box<cards::Inventory>),
    /// Reply to `ImageVariable`: each value that the image sets it to.
    ImageVariable(Vec<String>),
    /// Reply to anything.
    Failed(Failure),
}

/// A failed operation, in words that containerd passes on to its user.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure, to branch on.
    pub kind: FailureKind,
    /// The message, with the chain of causes.
    pub message: String,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, error: &dyn Error) -> Self {
        Self { kind, message: error_chain(error) }
    }
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The spec or the request is at fault; the same call fails again.
    Invalid,
    /// The container is unknown to the runtime.
    NotFound,
    /// The container's state does not allow it.
    FailedPrecondition,
    /// Anything else.
    Internal,
}
