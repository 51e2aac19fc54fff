//! Ends of processes that ask for more memory of a card than their container may have, or that have
//! more.

use std::{
    fmt,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use base::amounts::human;
use containerd_shim::protos::events::task::TaskOOM;
use ledger::event_log::Kind;
use mediator_process::message::{Excess, KillReason};
use runtime::blocking::blocking;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    Context,
    container::Container,
    error::{TaskError, chain},
    incidents::Incidents,
};
use crate::io::{ProcessIo, StdioPaths, StreamContext};

impl Container {
    /// Runs the container's script, if it has one and `has_script`, and ends the process, which is
    /// reported as the kernel's OOM kills are: Kubernetes then shows `OOMKilled`, whichever process
    /// it was.
    pub(super) async fn kill_for_excess(
        self: &Arc<Self>,
        context: &Arc<Context>,
        pid: i32,
        pidfd: &OwnedFd,
        has_script: bool,
    ) {
        let Some(mediated) = &self.fixed.mediated else { return };
        let id = self.fixed.id.as_str();
        let limit = mediated.excess.oom_script_timeout;
        if let Some(script) = mediated.excess.oom_script.as_deref().filter(|_| has_script && !limit.is_zero()) {
            let mut one_at_a_time = mediated.script.lock().await;
            if one_at_a_time.take(Instant::now()).is_none() {
                mediated.script_left_out();
            } else if let Err(error) = self.run_script(context, script, limit).await {
                let script = script.display();
                tracing::warn!(container = id, %script, error = chain(&error), "the OOM script failed");
            }
        }
        // It may have ended by itself meanwhile.
        if sys::pidfd_send_signal(pidfd.as_fd(), 0).is_err() {
            return;
        }
        mediated.kills.fetch_add(1, Ordering::Relaxed);
        // Before the kill: whoever asks after the container's end finds the reason.
        context.events.publish_once(&TaskOOM { container_id: id.to_owned(), ..Default::default() });
        if pid == self.init.pid() {
            // As anybody's SIGKILL to it: a paused container is thawed, or it would not die.
            match self.kill("", libc::SIGKILL.unsigned_abs(), false).await {
                Ok(()) | Err(TaskError::Finished) => {}
                Err(error) => {
                    let error = chain(&error);
                    tracing::error!(
                        container = id,
                        pid,
                        error,
                        "cannot kill a container that exceeds its GPU memory quota"
                    );
                }
            }
            return;
        }
        match sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                tracing::error!(container = id, pid, %error, "cannot kill a process that exceeds its GPU memory quota");
            }
            _ => {}
        }
    }

    /// Runs a program of the container's as its first process would be run, for no longer than
    /// `limit`.
    async fn run_script(
        self: &Arc<Self>,
        context: &Arc<Context>,
        script: &Path,
        limit: Duration,
    ) -> Result<(), TaskError> {
        let _slot = self.exec_slot()?;
        let mut process = self.first_process().await?;
        process["args"] = json!([script]);
        process["terminal"] = json!(false);
        let owner = StreamContext { id: &self.fixed.id, namespace: &context.namespace, reaper: &context.reaper };
        let (io, ends) = ProcessIo::open(&StdioPaths::default(), &owner).await.map_err(TaskError::Io)?;
        let begun = Instant::now();
        let (child, exit) = self.make_exec(context, process, ends, limit).await?;
        let ended = timeout(limit.saturating_sub(begun.elapsed()), exit).await;
        if ended.is_err() {
            // It may have ended in this instant.
            let _ = sys::pidfd_send_signal(child.pidfd.as_fd(), libc::SIGKILL);
            tracing::warn!(container = self.fixed.id, ?limit, "the OOM script took too long and was killed");
        }
        io.finish().await;
        Ok(())
    }

    async fn first_process(&self) -> Result<Value, TaskError> {
        let path = self.fixed.bundle.join("config.json");
        let read = blocking(move || std::fs::read(path));
        let text = read.await.map_err(TaskError::Thread)?.unwrap_or_default();
        let spec: Value = serde_json::from_slice(&text).map_err(|source| TaskError::Json { field: "spec", source })?;
        match spec.get("process") {
            Some(process @ Value::Object(_)) => Ok(process.clone()),
            _ => Err(TaskError::Invalid { field: "spec", reason: "it has no process".to_owned() }),
        }
    }
}

/// Logs and notes that a process is killed: its numbers, here and in the container.
pub(super) fn report_kill(
    id: &str,
    incidents: &Arc<Incidents>,
    (pid, pid_in_container): (i32, i32),
    reason: &KillReason,
    suppressed: Option<u64>,
) {
    let (card, why) = match reason {
        KillReason::OverMemory(excess) => (Some(excess.card.as_str()), ExcessText(excess).to_string()),
        KillReason::Drift(text) => (None, text.clone()),
    };
    if let Some(untold) = suppressed {
        tracing::warn!(container = id, pid, pid_in_container, untold, "killed: {why}");
    }
    incidents.record(Kind::Killed, card, 1, &format!("process {pid_in_container} of the container: {why}"));
}

/// Text of an excess: the process and the amounts, for the log.
pub(super) struct ExcessText<'a>(pub(super) &'a Excess);

impl fmt::Display for ExcessText<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Excess { pid, card, in_frames, .. } = self.0;
        let [asked, used, limit] = [self.0.asked, self.0.used, self.0.limit].map(human);
        if *in_frames {
            return write!(
                formatter,
                "process {pid} asked for memory of {card} in pieces smaller than 2 MiB, which may hold {asked} of it open in frames of 2 MiB: the \
                 container holds {used} open so, and may hold {limit}, a sixty-fourth of its quota and 128 MiB beyond that"
            );
        }
        write!(formatter, "process {pid} asked for {asked} of {card}; the container uses {used} of its {limit}")
    }
}
