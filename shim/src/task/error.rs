//! Failures of a Task call, and their codes for containerd.

use base::RefusalCode;
pub use base::error_chain as chain;
use runtime::{
    RuntimeError,
    cgroup::{CgroupError, LocateError, UpdateError},
    protocol::FailureKind,
};
use ttrpc::{Code, get_status};

use super::state::{Change, State, Use};
use crate::{
    bundle::BundleError, gpu::GpuError, io::IoError, mediator_client::MediatorError, options::OptionsError,
    registry::RegistryError,
};

/// A Task call that failed.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// No such container in this shim.
    #[error("container {id:?} is not created")]
    NoContainer {
        /// The id asked for.
        id: String,
    },
    /// The id is taken.
    #[error("container {id:?} exists already")]
    ContainerExists {
        /// The id asked for.
        id: String,
    },
    /// No such exec.
    #[error("process {exec_id:?} of container {id:?} does not exist")]
    NoProcess {
        /// The container.
        id: String,
        /// The id asked for.
        exec_id: String,
    },
    /// The exec id is taken.
    #[error("process {exec_id:?} of container {id:?} exists already")]
    ProcessExists {
        /// The container.
        id: String,
        /// The id asked for.
        exec_id: String,
    },
    /// The state does not allow the change.
    #[error("cannot {} a {} process", .change.name(), .state.name())]
    Change {
        /// Asked for.
        change: Change,
        /// Found.
        state: State,
    },
    /// The state does not allow the use.
    #[error("cannot {} a {} container", .wanted.name(), .state.name())]
    Use {
        /// Asked for.
        wanted: Use,
        /// Found.
        state: State,
    },
    /// No exec starts after init has ended.
    #[error("the init process of container {id:?} is not running")]
    InitEnded {
        /// The container.
        id: String,
    },
    /// A signal for a process that has ended.
    #[error("process already finished")]
    Finished,
    /// A signal for an exec that has not been started.
    #[error("process not created")]
    NotStarted,
    /// A request that makes no sense.
    #[error("{field} of the request is not valid: {reason}")]
    Invalid {
        field: &'static str,
        /// The fault, and what is accepted.
        reason: String,
    },
    /// A JSON document in the request.
    #[error("{field} of the request is malformed")]
    Json {
        field: &'static str,
        #[source]
        source: serde_json::Error,
    },
    /// The runtime options.
    #[error("the runtime options of the request cannot be used")]
    Options(#[source] OptionsError),
    #[error("the bundle cannot be used")]
    Bundle(#[source] BundleError),
    /// The records of an earlier container of that name.
    #[error("cannot read the records of an earlier container of that name")]
    Registry(#[source] RegistryError),
    /// The streams.
    #[error("the standard streams cannot be set up")]
    Io(#[source] IoError),
    /// The grant.
    #[error("GPU request refused (code {})", .0.refusal_code())]
    Gpu(#[source] GpuError),
    #[error("the container's GPUs cannot be shared (code {})", RefusalCode::NodeFailure)]
    Mediator(#[source] MediatorError),
    /// Its listeners.
    #[error(
        "driver calls of no further process can be mediated: processes are left of {most} that were started in the \
         container (its first one, execs, OOM scripts); end those that are not needed"
    )]
    TooManyListeners { most: usize },
    /// The helper. The words before the cause are those of containerd's own shim, which clients
    /// look for.
    #[error("OCI runtime {operation} failed")]
    Runtime {
        /// create, start, exec or delete.
        operation: &'static str,
        #[source]
        source: RuntimeError,
    },
    /// The stand-in for a helper that has died.
    #[error("the helper is gone, and the delete command that stands in for it cannot be run")]
    DeleteCommand(#[source] std::io::Error),
    /// The same.
    #[error(
        "the helper is gone, and the delete command that stands in for it failed with status {status}; run \
         `containerd-shim-egpu-v1 -namespace NAMESPACE -address ADDRESS -id ID -bundle BUNDLE delete` to see why"
    )]
    DeleteCommandFailed {
        /// Its exit status.
        status: u32,
    },
    /// The cgroup could not be found.
    #[error("the container's cgroup cannot be found")]
    Locate(#[source] LocateError),
    /// A cgroup in use; with a grant for it, its processes would be taken for this container's.
    #[error(
        "the cgroup of container {id} is in use by process {pid}; end it, or give the container another cgroupsPath"
    )]
    CgroupInUse {
        /// The container's id.
        id: String,
        /// One of them.
        pid: i32,
    },
    /// An operation on the cgroup failed.
    #[error("cannot {action} the container")]
    Cgroup {
        /// The action to be done.
        action: &'static str,
        #[source]
        source: CgroupError,
    },
    /// New limits.
    #[error("the container's limits cannot be updated")]
    Update(#[source] UpdateError),
    /// A signal was not delivered.
    #[error("cannot send signal {signal}")]
    Signal {
        /// The signal's number.
        signal: u32,
        #[source]
        source: std::io::Error,
    },
    /// A terminal did not take its size.
    #[error("cannot resize the terminal")]
    Resize(#[source] std::io::Error),
    /// SIGKILL was sent, but the process is still there.
    #[error(
        "process {pid} was killed but has not ended within {seconds} s; it may be stuck in the kernel (state D in ps)"
    )]
    Unkillable {
        /// The process.
        pid: i32,
        /// The time that was waited.
        seconds: u64,
    },
    /// A feature that egpu does not have.
    #[error("{feature} is not supported")]
    Unsupported { feature: &'static str },
    /// The answer could not be encoded.
    #[error("cannot encode the answer")]
    Encode(#[source] protobuf::Error),
    /// The task that did the work was torn down.
    #[error("the shim is ending")]
    Ending,
    /// Work on files.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// Any of them, at the create of a pod's container.
    #[error(transparent)]
    InPod(Box<TaskError>),
}

impl TaskError {
    /// Returns the text that containerd gets, and hands on to whoever asked. The node's log has the
    /// error with every cause.
    fn message(&self) -> String {
        match self {
            Self::InPod(error) => match &**error {
                Self::Gpu(cause) => format!("{error}: {}", cause.for_pod()),
                error => chain(error),
            },
            error => chain(error),
        }
    }

    /// The code that containerd branches on; the same as its own shim's.
    fn code(&self) -> Code {
        match self {
            Self::NoContainer { .. } | Self::NoProcess { .. } | Self::Finished => Code::NOT_FOUND,
            Self::ContainerExists { .. } | Self::ProcessExists { .. } => Code::ALREADY_EXISTS,
            Self::Change { state: State::Deleted, .. } | Self::Use { state: State::Deleted, .. } => Code::NOT_FOUND,
            Self::Change { .. } | Self::Use { .. } | Self::InitEnded { .. } | Self::NotStarted => {
                Code::FAILED_PRECONDITION
            }
            Self::Invalid { .. } | Self::Json { .. } | Self::Options(_) => Code::INVALID_ARGUMENT,
            Self::Gpu(error) => error.code(),
            Self::InPod(error) => error.code(),
            Self::CgroupInUse { .. } => Code::FAILED_PRECONDITION,
            Self::TooManyListeners { .. } => Code::RESOURCE_EXHAUSTED,
            Self::Runtime { source, .. } => match source.kind() {
                FailureKind::Invalid => Code::INVALID_ARGUMENT,
                FailureKind::NotFound => Code::NOT_FOUND,
                FailureKind::FailedPrecondition => Code::FAILED_PRECONDITION,
                FailureKind::Internal => Code::UNKNOWN,
            },
            Self::Unsupported { .. } => Code::UNIMPLEMENTED,
            Self::Ending | Self::Thread(_) => Code::UNAVAILABLE,
            Self::Bundle(_)
            | Self::Mediator(_)
            | Self::Registry(_)
            | Self::Io(_)
            | Self::DeleteCommand(_)
            | Self::DeleteCommandFailed { .. }
            | Self::Locate(_)
            | Self::Cgroup { .. }
            | Self::Update(_)
            | Self::Signal { .. }
            | Self::Resize(_)
            | Self::Unkillable { .. }
            | Self::Encode(_) => Code::UNKNOWN,
        }
    }
}

impl From<TaskError> for ttrpc::Error {
    fn from(error: TaskError) -> Self {
        let text = error.message();
        Self::RpcStatus(get_status(readable(error.code(), &text), text))
    }
}

/// The code with which containerd passes `text` on unchanged. Its 1.x versions take the messages of
/// codes that they know for format strings: `EGPU_COMPUTE=150% is` arrives as
/// `EGPU_COMPUTE=150%!i(MISSING)s`. Those of an unknown error they leave alone. Only codes on which
/// nobody branches at a refused create are given up for that.
fn readable(code: Code, text: &str) -> Code {
    match code {
        Code::INVALID_ARGUMENT | Code::FAILED_PRECONDITION if text.contains('%') => Code::UNKNOWN,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_gets_the_code_and_every_cause() {
        let error = TaskError::Bundle(BundleError::Read {
            path: "/b/config.json".into(),
            source: std::io::Error::from(std::io::ErrorKind::NotFound),
        });
        let ttrpc::Error::RpcStatus(status) = error.into() else { panic!("not a status") };
        assert_eq!(status.code(), Code::UNKNOWN);
        assert_eq!(status.message(), "the bundle cannot be used: cannot read /b/config.json: entity not found");
    }

    #[test]
    fn messages_with_a_percent_sign_have_a_code_of_which_containerd_makes_no_format_string() {
        let failed = |message: &str| {
            let error = TaskError::Invalid { field: "spec", reason: message.to_owned() };
            let ttrpc::Error::RpcStatus(status) = error.into() else { panic!("not a status") };
            assert!(status.message().contains(message), "{}", status.message());
            status.code()
        };
        assert_eq!(failed("EGPU_COMPUTE=150% is not accepted"), Code::UNKNOWN);
        assert_eq!(failed("EGPU_COMPUTE=150 is not accepted"), Code::INVALID_ARGUMENT);
        // Branched upon.
        assert_eq!(readable(Code::NOT_FOUND, "100%"), Code::NOT_FOUND);
        assert_eq!(readable(Code::ALREADY_EXISTS, "100%"), Code::ALREADY_EXISTS);
    }

    #[test]
    fn codes_are_those_of_containerds_own_shim() {
        let id = || "c".to_owned();
        for (error, code) in [
            (TaskError::NoContainer { id: id() }, Code::NOT_FOUND),
            (TaskError::Finished, Code::NOT_FOUND),
            (TaskError::ProcessExists { id: id(), exec_id: id() }, Code::ALREADY_EXISTS),
            (TaskError::Change { change: Change::Start, state: State::Stopped }, Code::FAILED_PRECONDITION),
            (TaskError::Change { change: Change::Delete, state: State::Deleted }, Code::NOT_FOUND),
            (TaskError::InitEnded { id: id() }, Code::FAILED_PRECONDITION),
            (TaskError::Unsupported { feature: "checkpoint" }, Code::UNIMPLEMENTED),
        ] {
            assert_eq!(error.code(), code, "{error}");
        }
    }
}
