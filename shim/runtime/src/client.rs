//! The shim's side: one async call per operation.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mediator_process::Setup;
use sys::frame::{self, FrameError};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    time::Instant,
};

use super::{
    delete,
    protocol::{
        Create, Delete, Exec, Failure, FailureKind, Freed, Hello, ImageVariable, Operation, Start, StdioKind,
        WorkerReply,
    },
    start,
    zygote::Zygote,
};
use crate::blocking::blocking;

/// Time limit of an operation, after which its worker is killed. Hooks without a timeout of their
/// own count in.
const CREATE_LIMIT: Duration = Duration::from_secs(120);
const START_LIMIT: Duration = Duration::from_secs(120);
const EXEC_LIMIT: Duration = Duration::from_secs(60);
const DELETE_LIMIT: Duration = Duration::from_secs(60);
const INVENTORY_LIMIT: Duration = Duration::from_secs(30);
/// Limit of the answer about an image, longer than the worker gives containerd.
const IMAGE_LIMIT: Duration = Duration::from_secs(10);
/// Time for a process to end after SIGKILL.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Time for another zygote to take the place of one that has ended.
const REPLACEMENT_LIMIT: Duration = Duration::from_secs(5);
/// The driver may have to wake a card first.
const MEDIATE_LIMIT: Duration = Duration::from_secs(60);

/// A process that an operation made: a child of the shim, which waits for it.
#[derive(Debug)]
pub struct ContainerProcess {
    /// Its pid in the shim's namespace.
    pub pid: i32,
    /// Stays bound to the process whatever becomes of the pid. Opened while the process was known
    /// to live.
    pub pidfd: OwnedFd,
    /// Parts of the request that were left out; to be logged.
    pub warnings: Vec<String>,
}

impl ContainerProcess {
    /// Kills it, and waits until it has ended.
    pub async fn end(self) {
        kill(&self.pidfd);
        ended(self.pidfd).await;
    }
}

/// An operation that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The operation itself failed; it has undone what it had begun.
    #[error("{}", .0.message)]
    Failed(Failure),
    /// The zygote is gone, and there is no other yet. Containers that run go on running.
    #[error("the helper process {pid} is gone, so {operation} cannot run; another is being started, try again")]
    ZygoteGone {
        /// The operation asked for.
        operation: &'static str,
        /// The zygote.
        pid: i32,
    },
    /// The worker ended without an answer: a crash, or somebody killed it.
    #[error("the helper's worker for {operation} ended without an answer")]
    WorkerDied {
        /// The operation asked for.
        operation: &'static str,
    },
    /// The shim had no thread for it.
    #[error("cannot start a thread for {operation}")]
    Thread {
        /// The operation asked for.
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    /// It was not done in time. Its worker was killed, if it had one.
    #[error("{operation} took longer than {limit:?} and was given up{doing}")]
    Deadline {
        /// The operation asked for.
        operation: &'static str,
        /// The time limit.
        limit: Duration,
        /// The worker's doing then, if there was one.
        doing: String,
    },
    /// The wrong number of stdio descriptors was handed in.
    #[error("{operation} wants {wanted} stdio descriptors for {kind:?}, got {got}")]
    Stdio {
        /// The operation asked for.
        operation: &'static str,
        /// The kind of stdio.
        kind: StdioKind,
        /// The number that belongs to it.
        wanted: usize,
        /// The number that came.
        got: usize,
    },
    /// The frames between shim and worker failed.
    #[error("talking to the helper about {operation} failed")]
    Frame {
        /// The operation asked for.
        operation: &'static str,
        #[source]
        source: FrameError,
    },
}

impl RuntimeError {
    /// The kind of failure, to branch on.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Failed(failure) => failure.kind,
            _ => FailureKind::Internal,
        }
    }
}

/// Calls operations. Any number may run at the same time; each has a worker of its own.
///
/// The shim's reaper sees children that are nobody's container: the zygote, one worker per
/// operation, and one short-lived process between a worker and each init (libcontainer's
/// intermediate). All of them are the shim's children because init must be. A reaper that gets a
/// pid it does not know keeps its status only while a `create` or an `exec` is under way (the
/// process may have ended before its pid was known), and forgets it after.
#[derive(Debug)]
pub struct RuntimeClient {
    /// Another one when the first has ended.
    zygote: watch::Sender<ActiveZygote>,
    /// True where a supervisor replaces a zygote that ends.
    supervised: AtomicBool,
}

/// The zygote that takes operations now.
#[derive(Debug, Clone)]
struct ActiveZygote {
    socket: Arc<AsyncFd<OwnedFd>>,
    pid: i32,
}

impl ActiveZygote {
    fn of(zygote: Zygote) -> io::Result<Self> {
        Ok(Self { socket: Arc::new(sys::nonblocking(zygote.socket)?), pid: zygote.pid })
    }
}

impl RuntimeClient {
    /// Wraps a zygote; call it inside the tokio runtime.
    pub fn new(zygote: Zygote) -> io::Result<Self> {
        Ok(Self { zygote: watch::channel(ActiveZygote::of(zygote)?).0, supervised: AtomicBool::new(false) })
    }

    /// The zygote's pid; a child of the shim.
    pub fn zygote_pid(&self) -> i32 {
        self.zygote.borrow().pid
    }

    /// Sends operations to another zygote from now on.
    pub(super) fn replace(&self, zygote: Zygote) -> io::Result<()> {
        self.zygote.send_replace(ActiveZygote::of(zygote)?);
        Ok(())
    }

    /// Marks the zygote as supervised: an operation that finds none waits for the next.
    pub(super) fn set_supervised(&self) {
        self.supervised.store(true, Ordering::Relaxed);
    }

    /// Hands a frame to the zygote. One that has ended takes none, so that the next can have the
    /// same.
    async fn send(
        &self,
        operation: &'static str,
        packed: &OwnedFd,
        beside: &[BorrowedFd<'_>],
    ) -> Result<(), RuntimeError> {
        let mut zygotes = self.zygote.subscribe();
        loop {
            let current = zygotes.borrow_and_update().clone();
            let sent = current
                .socket
                .async_io(Interest::WRITABLE, |socket| frame::send(socket.as_fd(), packed, beside).map_err(to_io))
                .await;
            match sent.map_err(from_io) {
                Ok(()) => return Ok(()),
                Err(FrameError::Closed) => {
                    let next = tokio::time::timeout(REPLACEMENT_LIMIT, zygotes.changed());
                    if !self.supervised.load(Ordering::Relaxed) || !matches!(next.await, Ok(Ok(()))) {
                        return Err(RuntimeError::ZygoteGone { operation, pid: current.pid });
                    }
                }
                Err(source) => return Err(RuntimeError::Frame { operation, source }),
            }
        }
    }

    /// Mounts the root file system and creates the container; its init then waits for
    /// [`start`](Self::start).
    ///
    /// `stdio`: see [`StdioKind`], and [`Create::mediated`] for what follows it. When it fails
    /// nothing is left; when the worker was lost, what it may have left has been deleted as far as
    /// possible.
    pub async fn create(&self, create: Create, stdio: Vec<OwnedFd>) -> Result<ContainerProcess, RuntimeError> {
        let (kind, undo) = (
            (create.stdio, create.mediated),
            Delete { id: create.id.clone(), runtime_root: create.runtime_root.clone(), bundle: create.bundle.clone() },
        );
        check_stdio("create", kind, &stdio)?;
        let result = self.process("create", Operation::Create(create), stdio, CREATE_LIMIT).await;
        if let Err(RuntimeError::WorkerDied { .. } | RuntimeError::Deadline { .. } | RuntimeError::Frame { .. }) =
            result
        {
            // The first error is the one that counts.
            let _ = self.delete(undo).await;
        }
        result
    }

    /// Lets a created container's init execute its program; returns once it has, or with the reason
    /// why it could not.
    pub async fn start(&self, start: Start) -> Result<(), RuntimeError> {
        let own = start.clone();
        let begin = move || start::start(&own, START_LIMIT).map_err(|e| Failure::new(e.kind(), &e));
        if !here("start", START_LIMIT, begin).await? {
            return Ok(());
        }
        let hooks = self.done("start", Operation::Poststart(start.clone()), START_LIMIT).await;
        if !matches!(hooks, Ok(()) | Err(RuntimeError::Failed(_))) {
            let end = move || {
                start::end(&start);
                Ok(())
            };
            // The first error is the one that counts.
            let _ = here("start", START_LIMIT, end).await;
        }
        hooks
    }

    /// Runs one more process in a running container; returns once it executes its program.
    pub async fn exec(&self, exec: Exec, stdio: Vec<OwnedFd>) -> Result<ContainerProcess, RuntimeError> {
        self.exec_within(EXEC_LIMIT, exec, stdio).await
    }

    /// Runs one more process like [`Self::exec`], for a caller that must not wait long. The
    /// container can hold it up: it sees the process from its birth on, and can stop it.
    pub async fn exec_within(
        &self,
        limit: Duration,
        exec: Exec,
        stdio: Vec<OwnedFd>,
    ) -> Result<ContainerProcess, RuntimeError> {
        check_stdio("exec", (exec.stdio, exec.mediated), &stdio)?;
        self.process("exec", Operation::Exec(exec), stdio, limit.min(EXEC_LIMIT)).await
    }

    /// Kills what is left of a container and removes its cgroups, mounts and state. Succeeds when
    /// there is nothing.
    pub async fn delete(&self, delete: Delete) -> Result<(), RuntimeError> {
        let removed = here("delete", DELETE_LIMIT, move || {
            if delete::needs_worker(&delete) {
                return Ok(Some(delete));
            }
            delete::remove(&delete).map(|()| None).map_err(|e| Failure::new(e.kind(), &e))
        });
        match removed.await? {
            Some(delete) => self.done("delete", Operation::Delete(delete), DELETE_LIMIT).await,
            None => Ok(()),
        }
    }

    /// The node's cards, asked from the driver in a worker so that NVML never enters the shim.
    pub async fn inventory(&self) -> Result<cards::Inventory, RuntimeError> {
        let (reply, _) = self.call("inventory", Operation::Inventory, vec![], INVENTORY_LIMIT).await?;
        match reply {
            WorkerReply::Inventory(cards) => Ok(*cards),
            _ => Err(unexpected("inventory")),
        }
    }

    /// Looks whether the memory of a grant whose mediator was killed is free again, and notes it.
    pub async fn freed(&self, asked: Freed) -> Result<(), RuntimeError> {
        self.done("memory", Operation::Freed(asked), INVENTORY_LIMIT).await
    }

    /// Returns the values that a container's image gives an environment variable.
    pub async fn image_variable(&self, asked: ImageVariable) -> Result<Vec<String>, RuntimeError> {
        match self.call("image", Operation::ImageVariable(asked), vec![], IMAGE_LIMIT).await?.0 {
            WorkerReply::ImageVariable(values) => Ok(values),
            _ => Err(unexpected("image")),
        }
    }

    /// Forks a mediator, and returns it with what waits until it is ready to take listeners.
    /// `sockets`: its ends of intake and control.
    pub async fn mediate(
        &self,
        setup: Setup,
        sockets: Vec<OwnedFd>,
    ) -> Result<(ContainerProcess, impl Future<Output = Result<(), RuntimeError>> + use<>), RuntimeError> {
        let mut call =
            self.ask("the start of the mediator", Operation::Mediate(Box::new(setup)), sockets, MEDIATE_LIMIT).await?;
        let Hello { pid } = call.hello().await?;
        let pidfd = call.received.worker.take().ok_or(unexpected("the start of the mediator"))?;
        let ready = async move { call.reply().await.map(drop) };
        Ok((ContainerProcess { pid, pidfd, warnings: vec![] }, ready))
    }

    async fn process(
        &self,
        name: &'static str,
        operation: Operation,
        stdio: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<ContainerProcess, RuntimeError> {
        match self.call(name, operation, stdio, limit).await? {
            (WorkerReply::Process { pid, warnings }, Some(pidfd)) => Ok(ContainerProcess { pid, pidfd, warnings }),
            _ => Err(unexpected(name)),
        }
    }

    async fn done(&self, name: &'static str, operation: Operation, limit: Duration) -> Result<(), RuntimeError> {
        match self.call(name, operation, vec![], limit).await?.0 {
            WorkerReply::Done => Ok(()),
            _ => Err(unexpected(name)),
        }
    }

    async fn call(
        &self,
        operation: &'static str,
        content: Operation,
        fds: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<(WorkerReply, Option<OwnedFd>), RuntimeError> {
        let mut call = self.ask(operation, content, fds, limit).await?;
        call.hello().await?;
        call.reply().await
    }

    /// Hands an operation to the zygote.
    async fn ask(
        &self,
        operation: &'static str,
        content: Operation,
        fds: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<Call, RuntimeError> {
        let failed = |source| RuntimeError::Frame { operation, source };
        let (ours, theirs) = frame::pair().map_err(|e| failed(FrameError::Socket(e)))?;
        let packed = frame::pack(&content).map_err(failed)?;
        let mut beside = vec![theirs.as_fd()];
        beside.extend(fds.iter().map(AsFd::as_fd));
        self.send(operation, &packed, &beside).await?;
        drop(beside);
        drop((theirs, packed, fds));
        let socket = sys::nonblocking(ours).map_err(|e| failed(FrameError::Socket(e)))?;
        Ok(Call { operation, socket, limit, deadline: Instant::now() + limit, received: ReceivedPidfds::default() })
    }
}

/// Does without a worker what needs none: each takes a millisecond of processor time and more.
async fn here<T: Send + 'static>(
    operation: &'static str,
    limit: Duration,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::time::timeout(limit, blocking(work)).await {
        Ok(Ok(result)) => result.map_err(RuntimeError::Failed),
        Ok(Err(source)) => Err(RuntimeError::Thread { operation, source }),
        Err(_) => Err(RuntimeError::Deadline { operation, limit, doing: String::new() }),
    }
}

/// An operation under way.
#[derive(Debug)]
struct Call {
    operation: &'static str,
    socket: AsyncFd<OwnedFd>,
    limit: Duration,
    deadline: Instant,
    received: ReceivedPidfds,
}

impl Call {
    /// Reads what the worker says first.
    async fn hello(&mut self) -> Result<Hello, RuntimeError> {
        let (hello, mut fds) = self.receive().await?;
        self.received.worker = fds.pop();
        match frame::unpack::<Hello>(hello) {
            Ok(hello) => {
                self.received.pid = Some(hello.pid);
                Ok(hello)
            }
            Err(error) => Err(self.lost(error).await),
        }
    }

    /// Reads the answer. The pidfds that come before it are kept: when the worker is lost, its
    /// processes are ended.
    async fn reply(&mut self) -> Result<(WorkerReply, Option<OwnedFd>), RuntimeError> {
        loop {
            let (reply, mut fds) = self.receive().await?;
            match frame::unpack::<WorkerReply>(reply) {
                Ok(WorkerReply::Launched) => self.received.process = fds.pop(),
                // It has undone what it had begun.
                Ok(WorkerReply::Failed(failure)) => return Err(RuntimeError::Failed(failure)),
                Ok(reply) => return Ok((reply, fds.pop())),
                Err(error) => return Err(self.lost(error).await),
            }
        }
    }

    async fn receive(&mut self) -> Result<(OwnedFd, Vec<OwnedFd>), RuntimeError> {
        let read = self.socket.async_io(Interest::READABLE, |socket| frame::receive(socket.as_fd()).map_err(to_io));
        match tokio::time::timeout_at(self.deadline, read).await {
            Ok(Ok(received)) => Ok(received),
            Ok(Err(error)) => Err(self.lost(from_io(error)).await),
            Err(_) => {
                let doing = self.received.pid.map_or_else(|| "; no worker began".to_owned(), whereabouts);
                self.received.end().await;
                Err(RuntimeError::Deadline { operation: self.operation, limit: self.limit, doing })
            }
        }
    }

    /// Ends what there is of an operation whose worker is lost.
    async fn lost(&mut self, error: FrameError) -> RuntimeError {
        self.received.end().await;
        match error {
            FrameError::Closed => RuntimeError::WorkerDied { operation: self.operation },
            source => RuntimeError::Frame { operation: self.operation, source },
        }
    }
}

/// Facts that come before an operation's answer: pidfds.
#[derive(Debug, Default)]
struct ReceivedPidfds {
    worker: Option<OwnedFd>,
    /// The worker's pid.
    pid: Option<i32>,
    /// The process that it has made.
    process: Option<OwnedFd>,
}

impl ReceivedPidfds {
    /// Ends the processes of an operation of which nobody knows how far it came.
    async fn end(&mut self) {
        let processes = [self.worker.take(), self.process.take()];
        processes.iter().flatten().for_each(kill);
        for process in processes.into_iter().flatten() {
            ended(process).await;
        }
    }
}

fn kill(process: &OwnedFd) {
    // It may have ended by itself.
    let _ = sys::pidfd_send_signal(process.as_fd(), libc::SIGKILL);
}

/// Waits until a process that was killed has ended: a system call that it is in may yet make
/// something that is to be undone.
async fn ended(process: OwnedFd) {
    if let Ok(process) = sys::async_fd(process) {
        let _ = tokio::time::timeout(END_LIMIT, process.readable()).await;
    }
}

/// Describes where a worker and its children wait, for whoever looks for what holds them up.
fn whereabouts(pid: i32) -> String {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    let describe = |pid: i32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let (name, stat, function) = (read("comm"), read("stat"), read("wchan"));
        let state = stat.rsplit_once(") ").map_or("gone", |(_, fields)| fields.get(..1).unwrap_or_default());
        format!("; process {pid} ({}) is in state {state}, in {function}", name.trim_end())
    };
    std::iter::once(pid).chain(children).map(describe).collect()
}

/// tokio's readiness loop wants an `io::Error`; ours travels inside one.
fn to_io(error: FrameError) -> io::Error {
    if error.would_block() { io::ErrorKind::WouldBlock.into() } else { io::Error::other(error) }
}

fn from_io(error: io::Error) -> FrameError {
    match error.downcast::<FrameError>() {
        Ok(error) => error,
        Err(error) => FrameError::Socket(error),
    }
}

fn check_stdio(
    operation: &'static str,
    (kind, mediated): (StdioKind, bool),
    stdio: &[OwnedFd],
) -> Result<(), RuntimeError> {
    let streams = match kind {
        StdioKind::Streams => 3,
        StdioKind::Terminal => 1,
    };
    let wanted = streams + usize::from(mediated);
    if stdio.len() == wanted {
        return Ok(());
    }
    Err(RuntimeError::Stdio { operation, kind, wanted, got: stdio.len() })
}

fn unexpected(operation: &'static str) -> RuntimeError {
    RuntimeError::Frame { operation, source: FrameError::Foreign("an answer to another question") }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// A worker that says nothing more: where it waits is told.
    #[tokio::test]
    async fn who_takes_too_long_is_told_of() {
        let (shim, zygote) = frame::pair().unwrap();
        let client = RuntimeClient::new(Zygote { socket: shim, pid: 1 }).unwrap();
        let mut process = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(process.id()).unwrap();
        let worker = std::thread::spawn(move || {
            let (_, mut fds) = frame::receive(zygote.as_fd()).unwrap();
            let reply = fds.remove(0);
            frame::send_value(&reply, &Hello { pid }, &[]).unwrap();
            reply
        });
        let limit = Duration::from_millis(200);
        let late = client.call("exec", Operation::Inventory, vec![], limit).await.unwrap_err().to_string();
        assert!(late.contains(&format!("process {pid} (")), "{late}");
        drop(worker.join().unwrap());
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// A worker that makes a process and is lost then.
    #[tokio::test]
    async fn a_lost_exec_leaves_no_process() {
        let (shim, zygote) = frame::pair().unwrap();
        let client = RuntimeClient::new(Zygote { socket: shim, pid: 1 }).unwrap();
        let mut process = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let pidfd = sys::pidfd_open(i32::try_from(process.id()).unwrap()).unwrap();
        let worker = std::thread::spawn(move || {
            let (_, mut fds) = frame::receive(zygote.as_fd()).unwrap();
            let reply = fds.remove(0);
            frame::send_value(&reply, &Hello { pid: 1 }, &[]).unwrap();
            frame::send_value(&reply, &WorkerReply::Launched, &[pidfd.as_fd()]).unwrap();
        });
        let lost = client.call("exec", Operation::Inventory, vec![], EXEC_LIMIT).await.unwrap_err();
        assert!(matches!(lost, RuntimeError::WorkerDied { .. }), "{lost}");
        worker.join().unwrap();
        let status = std::os::unix::process::ExitStatusExt::signal(&process.wait().unwrap());
        assert_eq!(status, Some(libc::SIGKILL));
    }
}
