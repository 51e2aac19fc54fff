//! Execs of a container: further processes in it, each with streams and an end of its own.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use containerd_shim::protos::events::task::{TaskExecAdded, TaskExecStarted};
use runtime::{ContainerProcess, protocol, reaper::ProcessExit};
use sys::{spans, sync::lock};
use tokio::sync::oneshot;

use super::{Container, SIGKILL};
use crate::{
    io::{ChildEnds, ProcessIo, StreamContext},
    task::{
        Context,
        error::TaskError,
        mediated,
        process::Process,
        state::{Change, State, Use},
    },
};

/// Exit status of an exec that never ran.
const START_FAILED: u32 = 255;

impl Container {
    /// Adds an exec, to be started later.
    pub(in crate::task) fn add_exec(&self, context: &Context, exec: Process) -> Result<(), TaskError> {
        self.init.check_use(Use::Exec)?;
        let exec_id = exec.exec_id.clone();
        {
            let mut execs = lock(&self.execs);
            if execs.contains_key(&exec_id) {
                return Err(TaskError::ProcessExists { id: self.fixed.id.clone(), exec_id });
            }
            execs.insert(exec_id.clone(), Arc::new(exec));
        }
        context.events.publish(&TaskExecAdded { container_id: self.fixed.id.clone(), exec_id, ..Default::default() });
        Ok(())
    }

    /// Start of an exec. One that could not be started has ended, for who waits for it; that is not
    /// published.
    pub(in crate::task) async fn start_exec(
        self: &Arc<Self>,
        context: &Arc<Context>,
        exec: &Arc<Process>,
    ) -> Result<i32, TaskError> {
        let _operation = exec.operation.lock().await;
        exec.check(Change::Start)?;
        let started = self.run_exec(context, exec).await;
        if started.is_err() && exec.pid() == 0 {
            exec.set_exited(ProcessExit { status: START_FAILED, at: SystemTime::now() });
        }
        started
    }

    async fn run_exec(self: &Arc<Self>, context: &Arc<Context>, exec: &Arc<Process>) -> Result<i32, TaskError> {
        let slot = self.exec_slot()?;
        self.init.check_use(Use::Exec)?;
        let spec = self.fixed.exec_rules.apply(&exec.spec).map_err(TaskError::Gpu)?;
        let owner = StreamContext { id: &self.fixed.id, namespace: &context.namespace, reaper: &context.reaper };
        let (mut io, ends) = ProcessIo::open(&exec.stdio, &owner).await.map_err(TaskError::Io)?;
        let (child, exit) = self.make_exec(context, spec, ends, Duration::MAX).await?;
        let pid = child.pid;
        for warning in &child.warnings {
            tracing::warn!(container = self.fixed.id, exec = exec.exec_id, "{warning}");
        }
        let terminal = io.take_terminal(exec.console_size).await;
        exec.attach(child, io);
        if let Err(error) = terminal {
            // It runs, but nobody can talk to it. It ends like any other.
            let _ = exec.signal(SIGKILL);
            self.watch_exec(context, Arc::clone(exec), exit, slot);
            return Err(TaskError::Io(error));
        }
        exec.change(Change::Start)?;
        context.events.publish(&TaskExecStarted {
            container_id: self.fixed.id.clone(),
            exec_id: exec.exec_id.clone(),
            pid: pid.unsigned_abs(),
            ..Default::default()
        });
        self.watch_exec(context, Arc::clone(exec), exit, slot);
        Ok(pid)
    }

    /// Has the helper make a process in the container, within `limit` or less; it and its end.
    pub(in crate::task) async fn make_exec(
        &self,
        context: &Context,
        process: serde_json::Value,
        mut ends: ChildEnds,
        limit: Duration,
    ) -> Result<(ContainerProcess, oneshot::Receiver<ProcessExit>), TaskError> {
        let request = protocol::Exec {
            id: self.fixed.id.clone(),
            runtime_root: self.fixed.runtime_root.clone(),
            cgroup: self.fixed.cgroup.clone(),
            process,
            stdio: ends.kind,
            mediated: mediated::pass_listener(self.fixed.mediated.as_deref(), &mut ends.descriptors)?,
            io_owner: self.fixed.io_owner,
            fence: self.fixed.fence,
        };
        let expectation = context.reaper.expect();
        let child = context
            .runtime
            .exec_within(limit, request, ends.descriptors)
            .await
            .map_err(|source| TaskError::Runtime { operation: "exec", source })?;
        let exit = expectation.claim(child.pid);
        Ok((child, exit))
    }

    /// Takes a slot that keeps init's end from being published, from the check that init lives
    /// until the exec's end was published.
    pub(in crate::task) fn exec_slot(self: &Arc<Self>) -> Result<ExecSlot, TaskError> {
        let mut lifecycle = lock(&self.lifecycle);
        if lifecycle.init_ended {
            return Err(TaskError::InitEnded { id: self.fixed.id.clone() });
        }
        lifecycle.active_execs += 1;
        Ok(ExecSlot(Arc::clone(self)))
    }

    fn watch_exec(
        self: &Arc<Self>,
        context: &Arc<Context>,
        exec: Arc<Process>,
        exit: oneshot::Receiver<ProcessExit>,
        slot: ExecSlot,
    ) {
        let (container, context) = (Arc::clone(self), Arc::clone(context));
        tokio::spawn(async move {
            let Ok(exit) = exit.await else { return };
            spans::mark("exec exited", &container.fixed.id);
            drop(exec.operation.lock().await);
            exec.set_exited(exit);
            container.publish_exit(&context, &exec, exit);
            drop(slot);
        });
    }

    /// Delete of an exec: its output is delivered, and its id is free.
    pub(in crate::task) async fn delete_exec(&self, exec: &Process) -> Result<ProcessExit, TaskError> {
        let _operation = exec.operation.lock().await;
        if exec.state() == State::Created {
            exec.set_exited(ProcessExit { status: 0, at: SystemTime::now() });
        }
        exec.check(Change::Delete)?;
        let exit = exec.wait().await?;
        exec.finish_io().await;
        exec.change(Change::Delete)?;
        lock(&self.execs).remove(&exec.exec_id);
        Ok(exit)
    }
}

/// One exec that runs or is being started.
#[derive(Debug)]
pub(in crate::task) struct ExecSlot(Arc<Container>);

impl Drop for ExecSlot {
    fn drop(&mut self) {
        lock(&self.0.lifecycle).active_execs -= 1;
        self.0.exec_over.notify_waiters();
    }
}
