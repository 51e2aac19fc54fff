//! A container: its init, its execs, and the order in which they may begin and end.

mod exec;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use containerd_shim::protos::events::task::{TaskDelete, TaskExit, TaskOOM, TaskPaused, TaskResumed, TaskStart};
use ledger::{
    ReleaseReason,
    event_log::{Entry, EventLog, Kind},
};
use protobuf::MessageField;
use runtime::{blocking::detached, cgroup::Cgroup, protocol, reaper::ProcessExit};
use sys::{spans, sync::lock};
use tokio::{
    sync::{Notify, oneshot},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use super::{
    Context,
    error::{TaskError, chain},
    mediated::Mediated,
    process::Process,
    state::{Change, State, Use},
};
use crate::{
    bundle::Note,
    events::TaskEvents,
    gpu::{ExecRules, GrantNote},
};

/// Time for which an exit waits for the ledger before it is reported.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for which a kill waits for the ledger before it is answered.
const MARK_LEAVING_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which a container's record is looked for.
const RECORD_INTERVAL: Duration = Duration::from_secs(10);

/// Time for a process that was sent SIGKILL to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Wait for an init whose end others may delay, and the number of waits: after each they are
/// killed, and after the last the container's mediator is ended.
const KILL_PAUSE: Duration = Duration::from_secs(1);
const KILL_PASSES: usize = 5;
const SIGKILL: u32 = libc::SIGKILL.unsigned_abs();

/// The facts of a container that stay as it was created.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) id: String,
    pub(super) bundle: PathBuf,
    pub(super) runtime_root: PathBuf,
    pub(super) cgroup: Cgroup,
    pub(super) io_owner: Option<(u32, u32)>,
    /// The static filter is on init, and has to be on every exec.
    pub(super) fence: bool,
    /// Rules that the container's grant has for every exec.
    pub(super) exec_rules: ExecRules,
    /// Its driver calls are mediated, and those of every exec.
    pub(super) mediated: Option<Arc<Mediated>>,
    /// The ledger that has its grant; `None`: it was granted nothing.
    pub(super) grant: Option<GrantNote>,
    /// The kernel ends all its processes with init.
    pub(super) own_pid_namespace: bool,
}

/// A created container. What changes it locks no more than the process that it is about.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) fixed: Fixed,
    pub(super) init: Arc<Process>,
    execs: Mutex<HashMap<String, Arc<Process>>>,
    lifecycle: Mutex<Lifecycle>,
    /// An exec has ended, or its start has failed.
    exec_over: Notify,
    oom_watch: Mutex<Option<AbortHandle>>,
}

/// The order that keeps init's end the last of the container.
#[derive(Debug, Default)]
struct Lifecycle {
    /// Init was reaped; this is known before it is published.
    init_ended: bool,
    /// SIGKILL is on its way to init.
    init_killed: bool,
    /// Execs that run or are being started.
    active_execs: usize,
}

impl Container {
    pub(super) fn new(fixed: Fixed, init: Process) -> Arc<Self> {
        Arc::new(Self {
            fixed,
            init: Arc::new(init),
            execs: Mutex::default(),
            lifecycle: Mutex::default(),
            exec_over: Notify::new(),
            oom_watch: Mutex::default(),
        })
    }

    /// Returns whether it has ended and its bundle is gone: containerd's `delete` command has
    /// cleaned up after it, or nobody will ever ask for it again.
    pub(super) fn is_disowned(&self) -> bool {
        self.init.exit().is_some() && !self.fixed.bundle.exists()
    }

    /// Init for the empty id, else the exec.
    pub(super) fn process(&self, exec_id: &str) -> Result<Arc<Process>, TaskError> {
        if exec_id.is_empty() {
            return Ok(Arc::clone(&self.init));
        }
        let exec = lock(&self.execs).get(exec_id).cloned();
        exec.ok_or_else(|| TaskError::NoProcess { id: self.fixed.id.clone(), exec_id: exec_id.to_owned() })
    }

    /// Reports shortages of memory, from now until the container is deleted.
    pub(super) fn watch_oom_events(&self, context: &Arc<Context>) {
        let mut watch = match self.fixed.cgroup.watch_oom() {
            Ok(watch) => watch,
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(
                    container = self.fixed.id,
                    error,
                    "cannot watch for OOM kills; no OOM events will be published"
                );
                return;
            }
        };
        let (context, container_id) = (Arc::clone(context), self.fixed.id.clone());
        let task = tokio::spawn(async move {
            while watch.next().await.is_some() {
                let container_id = container_id.clone();
                context.events.publish_once(&TaskOOM { container_id, ..Default::default() });
            }
        });
        *lock(&self.oom_watch) = Some(task.abort_handle());
    }

    /// Handles init's end once it comes. To be called when the container's creation has been
    /// published.
    pub(super) fn watch_init(self: &Arc<Self>, context: &Arc<Context>, exit: oneshot::Receiver<ProcessExit>) {
        let (container, context) = (Arc::clone(self), Arc::clone(context));
        tokio::spawn(async move {
            let Ok(exit) = exit.await else { return };
            spans::mark("init exited", &container.fixed.id);
            lock(&container.lifecycle).init_ended = true;
            // The start is published first, by whoever is starting it.
            drop(container.init.operation.lock().await);
            if !container.fixed.own_pid_namespace {
                container.kill_rest().await;
            }
            container.wait_for_execs().await;
            container.give_back(&context).await;
            spans::mark("exit published", &container.fixed.id);
            container.init.set_exited(exit);
            container.publish_exit(&context, &container.init, exit);
        });
    }

    /// Ends the container when its record is gone, as it is where the state directory was emptied:
    /// what it has of the cards is granted to others then.
    pub(super) fn watch_record(self: &Arc<Self>, context: &Arc<Context>) {
        let (context, container) = (Arc::clone(context), Arc::downgrade(self));
        tokio::spawn(async move {
            loop {
                sleep(RECORD_INTERVAL).await;
                let Some(container) = container.upgrade() else { return };
                let Fixed { id, grant, .. } = &container.fixed;
                let is_recorded = context.gpu.is_recorded(id, grant.as_ref()).await;
                // Its record goes after that.
                if lock(&container.lifecycle).init_ended {
                    return;
                }
                match is_recorded {
                    Ok(Some(true)) => {}
                    Ok(None) => return,
                    Ok(Some(false)) => container.end_unrecorded(&context).await,
                    Err(error) => {
                        tracing::warn!(container = id, error = chain(&error), "cannot look for the container's grant");
                    }
                }
            }
        });
    }

    async fn end_unrecorded(self: &Arc<Self>, context: &Context) {
        let id = &self.fixed.id;
        let text = "its record is gone from the ledger, so others may be granted what it has; the container is ended";
        tracing::error!(container = id, "{text}");
        let (log, key) = (EventLog::new(context.registry.state_dir()), context.gpu.key(id));
        let write = move || log.write([Entry::new(Kind::Killed, &key).with_text(text)]);
        if let Err(error) = self.kill_everything().await {
            tracing::error!(container = id, error = chain(&error), "cannot kill a container without a record");
        }
        detached(write);
    }

    /// Releases the grant of a container that has ended, even if nobody deletes it for a long time.
    /// A grant that cannot be released yet, because something of it still runs, is released at
    /// Delete.
    async fn give_back(&self, context: &Context) {
        if let Err(error) = self.end_mediation().await {
            let error = chain(&error);
            tracing::warn!(container = self.fixed.id, error, "the grant is kept until Delete");
            return;
        }
        spans::mark("mediator ended", &self.fixed.id);
        let release =
            context.gpu.release(&context.runtime, &self.fixed.id, self.fixed.grant.as_ref(), ReleaseReason::Ended);
        match tokio::time::timeout(RELEASE_TIMEOUT, release).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = chain(&error);
                tracing::warn!(container = self.fixed.id, error, "the grant is kept until Delete");
            }
            Err(_) => tracing::warn!(container = self.fixed.id, "the ledger is busy; the exit is published first"),
        }
    }

    /// Gives back what the driver has given the container, before its grant is.
    async fn end_mediation(&self) -> Result<(), TaskError> {
        match &self.fixed.mediated {
            Some(mediated) => mediated.end(&self.fixed.id).await,
            None => Ok(()),
        }
    }

    fn publish_exit(&self, context: &Context, process: &Process, exit: ProcessExit) {
        // containerd names init by the container's id.
        let id = if process.exec_id.is_empty() { &self.fixed.id } else { &process.exec_id };
        context.events.publish(&TaskExit {
            container_id: self.fixed.id.clone(),
            id: id.clone(),
            pid: process.pid().unsigned_abs(),
            exit_status: exit.status,
            exited_at: MessageField::some(exit.at.into()),
            ..Default::default()
        });
    }

    async fn wait_for_execs(&self) {
        loop {
            let over = self.exec_over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if lock(&self.lifecycle).active_execs == 0 {
                return;
            }
            over.await;
        }
    }

    /// Processes that init leaves behind, as it may in a pid namespace that is not its own.
    async fn kill_rest(&self) {
        if let Err(error) = self.fixed.cgroup.kill_all().await {
            let error = chain(&error);
            tracing::warn!(container = self.fixed.id, error, "cannot kill the processes that init left running");
        }
    }

    pub(super) async fn start_init(&self, context: &Context) -> Result<i32, TaskError> {
        let _operation = self.init.operation.lock().await;
        self.init.check(Change::Start)?;
        if lock(&self.lifecycle).init_ended {
            return Err(TaskError::Change { change: Change::Start, state: State::Stopped });
        }
        let start = protocol::Start { id: self.fixed.id.clone(), runtime_root: self.fixed.runtime_root.clone() };
        context.runtime.start(start).await.map_err(|source| TaskError::Runtime { operation: "start", source })?;
        self.init.change(Change::Start)?;
        let pid = self.init.pid();
        context.events.publish(&TaskStart {
            container_id: self.fixed.id.clone(),
            pid: pid.unsigned_abs(),
            ..Default::default()
        });
        Ok(pid)
    }

    /// Sends a signal to one process, or to all of the container.
    pub(super) async fn kill(self: &Arc<Self>, exec_id: &str, signal: u32, all: bool) -> Result<(), TaskError> {
        let process = self.process(exec_id)?;
        if signal == SIGKILL && exec_id.is_empty() {
            // Before it is sent: a pause in progress checks it at its end.
            let known = std::mem::replace(&mut lock(&self.lifecycle).init_killed, true);
            if !known {
                tokio::spawn(Arc::clone(self).enforce_kill());
            }
        }
        if all && exec_id.is_empty() {
            self.signal_all(signal).await?;
        } else {
            process.signal(signal)?;
        }
        self.thaw_killed().await
    }

    /// Records that init was asked to end: other containers may wait for the room that this one
    /// has.
    pub(super) async fn mark_leaving(&self, context: &Context) {
        let note = context.gpu.set_leaving(&self.fixed.id, self.fixed.grant.as_ref(), self.init.pid());
        if let Ok(Err(error)) = timeout(MARK_LEAVING_TIMEOUT, note).await {
            let error = chain(&error);
            tracing::warn!(container = self.fixed.id, error, "cannot tell the ledger that the container is ending");
        }
    }

    /// Enforces a SIGKILL of init, which ends the container. Its other processes may delay that by
    /// freezing init on v1 as often as it is thawed: so they are killed, too. Whatever delays it
    /// after that, in the driver or on a disk that does not answer: its part of the cards is given
    /// back meanwhile.
    async fn enforce_kill(self: Arc<Self>) {
        for _ in 0..KILL_PASSES {
            if timeout(KILL_PAUSE, self.init.wait()).await.is_ok() {
                return;
            }
            self.kill_rest().await;
        }
        tracing::warn!(container = self.fixed.id, pid = self.init.pid(), "init was killed but has not exited");
        if let Err(error) = self.end_mediation().await {
            tracing::warn!(
                container = self.fixed.id,
                error = chain(&error),
                "cannot take back the container's GPU resources"
            );
        }
    }

    /// Thaws a container whose init was killed: a frozen process does not die before. A killed exec
    /// waits for its container to be resumed, as under runc.
    async fn thaw_killed(&self) -> Result<(), TaskError> {
        if !lock(&self.lifecycle).init_killed {
            return Ok(());
        }
        let failed = |source| TaskError::Cgroup { action: "thaw", source };
        if self.init.state() != State::Paused {
            return self.fixed.cgroup.thaw_killed().map_err(failed);
        }
        self.fixed.cgroup.thaw().await.map_err(failed)?;
        self.fixed.cgroup.thaw_killed().map_err(failed)?;
        self.resume_mediation().await;
        // It may have ended meanwhile.
        let _ = self.init.change(Change::Resume);
        Ok(())
    }

    async fn resume_mediation(&self) {
        if let Some(mediated) = &self.fixed.mediated {
            mediated.resume(&self.fixed.id).await;
        }
    }

    /// Sends SIGKILL to all processes of the container.
    pub(super) async fn kill_everything(self: &Arc<Self>) -> Result<(), TaskError> {
        match self.kill("", SIGKILL, true).await {
            Err(TaskError::Finished) => Ok(()),
            killed => killed,
        }
    }

    async fn signal_all(&self, signal: u32) -> Result<(), TaskError> {
        let number = i32::try_from(signal).ok().filter(|number| (0..=libc::SIGRTMAX()).contains(number));
        let number = number.ok_or_else(|| TaskError::Invalid {
            field: "signal",
            reason: format!("{signal} is not a signal's number"),
        })?;
        self.init.check_use(Use::Kill).map_err(|_| TaskError::Finished)?;
        self.fixed.cgroup.signal_all(number).await.map_err(|source| TaskError::Cgroup { action: "kill", source })
    }

    pub(super) async fn pause(&self, events: &TaskEvents) -> Result<(), TaskError> {
        let _operation = self.init.operation.lock().await;
        self.init.check(Change::Pause)?;
        if let Some(mediated) = &self.fixed.mediated {
            mediated.pause(&self.fixed.id).await;
        }
        if let Err(source) = self.fixed.cgroup.freeze().await {
            self.resume_mediation().await;
            return Err(TaskError::Cgroup { action: "pause", source });
        }
        // Nothing of it is in a call now; the other containers of its claim go on.
        if self.fixed.mediated.as_ref().is_some_and(|mediated| mediated.is_shared()) {
            self.resume_mediation().await;
        }
        self.init.change(Change::Pause)?;
        events.publish(&TaskPaused { container_id: self.fixed.id.clone(), ..Default::default() });
        self.thaw_killed().await
    }

    pub(super) async fn resume(&self, events: &TaskEvents) -> Result<(), TaskError> {
        let _operation = self.init.operation.lock().await;
        self.init.check(Change::Resume)?;
        self.fixed.cgroup.thaw().await.map_err(|source| TaskError::Cgroup { action: "resume", source })?;
        self.resume_mediation().await;
        self.init.change(Change::Resume)?;
        events.publish(&TaskResumed { container_id: self.fixed.id.clone(), ..Default::default() });
        Ok(())
    }

    /// New limits: OCI `LinuxResources`, JSON.
    pub(super) async fn update(&self, resources: &[u8]) -> Result<(), TaskError> {
        let _operation = self.init.operation.lock().await;
        self.init.check_use(Use::Update)?;
        self.fixed.cgroup.update(resources).await.map_err(TaskError::Update)
    }

    /// Pids of the container, each with the id of the exec that it is.
    pub(super) fn pids(&self) -> Result<Vec<(i32, Option<String>)>, TaskError> {
        let pids = self.fixed.cgroup.pids().map_err(|source| TaskError::Cgroup { action: "list", source })?;
        let execs: HashMap<i32, String> = lock(&self.execs)
            .values()
            .filter(|exec| exec.exit().is_none())
            .map(|exec| (exec.pid(), exec.exec_id.clone()))
            .collect();
        Ok(pids.into_iter().map(|pid| (pid, execs.get(&pid).cloned())).collect())
    }

    /// Delete of the container. When it fails, the container is still there, and can be deleted
    /// again.
    pub(super) async fn delete(&self, context: &Context) -> Result<ProcessExit, TaskError> {
        self.end_created().await?;
        let _operation = self.init.operation.lock().await;
        self.init.check(Change::Delete)?;
        let exit = self.init.wait().await?;
        self.kill_rest().await;
        self.finish_all_io().await;
        let delete = protocol::Delete {
            id: self.fixed.id.clone(),
            runtime_root: self.fixed.runtime_root.clone(),
            bundle: self.fixed.bundle.clone(),
        };
        spans::mark("io finished", &self.fixed.id);
        context.remove(delete).await?;
        spans::mark("removed", &self.fixed.id);
        self.fixed.cgroup.destroy().await.map_err(|source| TaskError::Cgroup { action: "remove", source })?;
        self.end_mediation().await?;
        let released = context
            .gpu
            .release(&context.runtime, &self.fixed.id, self.fixed.grant.as_ref(), ReleaseReason::Ended)
            .await;
        released.map_err(TaskError::Gpu)?;
        context.registry.remove_note(&context.containerd, &context.namespace, &self.fixed.id);
        if let Err(error) = Note::mark_deleted(&self.fixed.bundle) {
            tracing::debug!(container = self.fixed.id, error = chain(&error), "`delete` looks again");
        }
        if let Some(watch) = lock(&self.oom_watch).take() {
            watch.abort();
        }
        self.init.change(Change::Delete)?;
        context.events.publish(&TaskDelete {
            container_id: self.fixed.id.clone(),
            pid: self.init.pid().unsigned_abs(),
            exit_status: exit.status,
            exited_at: MessageField::some(exit.at.into()),
            ..Default::default()
        });
        Ok(exit)
    }

    /// Ends an init that waits for a Start which never comes.
    async fn end_created(&self) -> Result<(), TaskError> {
        {
            let _operation = self.init.operation.lock().await;
            if self.init.state() != State::Created {
                return Ok(());
            }
            match self.init.signal(SIGKILL) {
                Ok(()) | Err(TaskError::Finished) => {}
                Err(error) => return Err(error),
            }
        }
        match timeout(KILL_LIMIT, self.init.wait()).await {
            Ok(ended) => ended.map(drop),
            Err(_) => Err(TaskError::Unkillable { pid: self.init.pid(), seconds: KILL_LIMIT.as_secs() }),
        }
    }

    async fn finish_all_io(&self) {
        // Each may take as long as its reader lets it.
        let mut drains: JoinSet<()> = lock(&self.execs)
            .drain()
            .map(|(_, exec)| exec)
            .chain([Arc::clone(&self.init)])
            .map(|process| async move { process.finish_io().await })
            .collect();
        while drains.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests;
