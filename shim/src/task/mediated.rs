//! A container whose driver calls are mediated: both end together.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use containerd_shim::protos::events::task::TaskOOM;
use nvidia_glue::{
    event_log::{EventLog, Kind},
    schedule::{CardStatus, Running, StatusFile},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::{
    Context,
    container::{Container, Fixed},
    error::{TaskError, chain},
    incidents::Incidents,
    watchdog,
};
use crate::{
    gpu::{ExcessRules, GpuError, MediationPlan},
    io::{ProcessIo, StdioPaths, StreamContext},
    mediator::message::{Excess, FromMediator, KillReason},
    mediator_client::Mediator,
    sys,
};

/// A container without a process that uses the driver keeps its turns for so long.
const PRESENCE_LINGER: Duration = Duration::from_secs(1);
/// Interval at which the ledger is updated again, should presence have come to count.
const PRESENCE_REFRESH: Duration = Duration::from_secs(2);

/// The mediator of a container, with its events.
#[derive(Debug)]
pub(super) struct Mediated {
    mediator: Arc<Mediator>,
    incidents: Arc<Incidents>,
    excess: ExcessRules,
    /// One script at a time; whoever waits for it makes no call meanwhile.
    script: tokio::sync::Mutex<()>,
    /// Number of processes killed for having, or asking for, too much.
    kills: AtomicU64,
    status_file: PathBuf,
    /// True while any of its processes uses the driver.
    has_processes: watch::Sender<bool>,
}

impl Mediated {
    /// Starts the mediator.
    pub(super) async fn start(context: &Context, id: &str, mediation: MediationPlan) -> Result<Self, TaskError> {
        let status_file = mediation.setup.status_file.clone();
        let cards = mediation.setup.cards.iter().map(|card| (card.uuid.clone(), card.index)).collect();
        let log = EventLog::new(&mediation.setup.state_dir);
        let incidents = Incidents::new(log, (context.gpu.key(id), mediation.pod), cards);
        let mediator = Mediator::start(&context.helper, &context.reaper, mediation.setup).await;
        Ok(Self {
            mediator: mediator.map_err(TaskError::Mediator)?,
            incidents,
            excess: mediation.excess,
            script: tokio::sync::Mutex::default(),
            kills: AtomicU64::new(0),
            status_file,
            has_processes: watch::Sender::new(false),
        })
    }

    /// The mediator's pid and start time.
    pub(super) fn process(&self) -> nvidia_glue::ledger::ProcessId {
        self.mediator.process()
    }

    /// Returns the descriptor over which the helper passes a seccomp listener.
    pub(super) fn intake(&self) -> Result<OwnedFd, TaskError> {
        self.mediator.intake().map_err(TaskError::Mediator)
    }

    /// Ends the mediator: whatever the driver has given the container is given back.
    pub(super) async fn end(&self) -> Result<(), TaskError> {
        let ended = self.mediator.end().await;
        if let Err(error) = &ended {
            self.incidents.record(Kind::Warning, None, 1, &format!("the grant is kept: {error}"));
        }
        ended.map_err(TaskError::Mediator)
    }

    /// Kills for want of a card's memory, for Stats.
    pub(super) fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    /// Waits until no driver call is being handled, so that the container can be frozen.
    pub(super) async fn pause(&self, id: &str) {
        match self.mediator.pause().await {
            Ok(true) => {}
            Ok(false) => tracing::warn!(container = id, "a driver call is still being handled; the pause may fail"),
            Err(error) => tracing::warn!(container = id, error = chain(&error), "cannot pause driver calls"),
        }
    }

    pub(super) async fn resume(&self, id: &str) {
        if let Err(error) = self.mediator.resume().await {
            tracing::warn!(container = id, error = chain(&error), "cannot resume driver calls");
        }
    }
}

impl Container {
    /// Listens to the mediator until it ends. When that comes unasked, the container ends, too:
    /// nobody holds its quota.
    pub(super) fn watch_mediator(self: &Arc<Self>, context: &Arc<Context>) {
        let Some(mediated) = &self.fixed.mediated else { return };
        let (container, context, mediated) = (Arc::clone(self), Arc::clone(context), Arc::clone(mediated));
        tokio::spawn(async move {
            let mediator = &mediated.mediator;
            while let Some((message, pidfd)) = mediator.next().await {
                container.on_message(&context, &mediated, message, pidfd);
            }
            mediated.incidents.finish();
            let Some(exit) = mediator.unexpected_end().await else { return };
            let (id, pid, status) = (&container.fixed.id, mediator.process().pid, exit.status);
            tracing::error!(
                container = id,
                mediator = pid,
                status,
                "the mediator has ended; the container is ended, too"
            );
            let text = format!("the mediator ended with {status}; the container is ended");
            mediated.incidents.record(Kind::MediatorEnded, None, 1, &text);
            if let Err(error) = container.kill_everything().await {
                tracing::error!(
                    container = id,
                    error = chain(&error),
                    "cannot kill a container whose mediator has ended"
                );
            }
        });
    }

    /// Reports to the ledger when processes of the container begin to use the driver, and when the
    /// last has ceased to.
    pub(super) fn watch_presence(self: &Arc<Self>, context: &Arc<Context>) {
        let Some(mediated) = &self.fixed.mediated else { return };
        let (container, context, mediated) = (Arc::clone(self), Arc::clone(context), Arc::clone(mediated));
        tokio::spawn(async move {
            tokio::select! {
                () = container.follow_presence(&context, mediated.has_processes.subscribe()) => {}
                () = mediated.mediator.ended() => {}
            }
        });
    }

    async fn follow_presence(&self, context: &Context, mut has_processes: watch::Receiver<bool>) {
        let Fixed { id, bundle, .. } = &self.fixed;
        let mut again = Duration::MAX;
        loop {
            changes_within(&mut has_processes, again).await;
            // A program that ends is often followed by the next one.
            while !*has_processes.borrow() && changes_within(&mut has_processes, PRESENCE_LINGER).await {}
            let present = *has_processes.borrow();
            let updated = context.gpu.set_present(id, bundle, present).await;
            if let Err(error) = &updated {
                tracing::warn!(container = id, present, error = chain(error), "cannot update the ledger");
            }
            if present && let Err(error) = self.report_window_losses(context).await {
                tracing::warn!(container = id, error = chain(&error), "cannot record window losses in the ledger");
            }
            // A card's policy may become one for which it counts.
            again = if present || updated.is_err() { PRESENCE_REFRESH } else { Duration::MAX };
        }
    }

    /// Reports to the ledger the losses of the container's windows, as its mediator has measured
    /// them.
    async fn report_window_losses(&self, context: &Context) -> Result<(), GpuError> {
        let Some(mediated) = &self.fixed.mediated else { return Ok(()) };
        // A small file in memory. Whoever reads it in the middle of a change finds it next time.
        let Ok(status) = StatusFile::read(&mediated.status_file) else { return Ok(()) };
        let losses: Vec<(String, u64)> =
            status.cards.into_iter().filter_map(|card| Some((card.uuid, card.window_loss_us?))).collect();
        if losses.is_empty() {
            return Ok(());
        }
        context.gpu.set_window_losses(&self.fixed.id, &self.fixed.bundle, losses).await
    }

    /// Ends the container when its mediator has stalled: nobody holds its quota, and its
    /// neighbours' time may be its own.
    pub(super) fn watch_stall(self: &Arc<Self>) {
        let Some(mediated) = &self.fixed.mediated else { return };
        let (container, mediated) = (Arc::clone(self), Arc::clone(mediated));
        tokio::spawn(async move {
            let mediator = &mediated.mediator;
            let has_processes = mediated.has_processes.subscribe();
            let degraded = |card: &CardStatus| {
                let (kind, text) = degraded(card);
                mediated.incidents.record(kind, Some(&card.uuid), 1, &text);
            };
            let stall = tokio::select! {
                stall = watchdog::until_stalled(mediator, mediated.status_file.clone(), has_processes, degraded) => stall,
                () = mediator.ended() => return,
            };
            let (id, pid) = (&container.fixed.id, mediator.process().pid);
            tracing::error!(
                container = id,
                mediator = pid,
                "the mediator has stalled, {stall}; the container is ended"
            );
            let text = format!("the mediator has stalled, {stall}; the container is ended");
            mediated.incidents.record(Kind::Stalled, None, 1, &text);
            if let Err(error) = container.kill_everything().await {
                tracing::error!(
                    container = id,
                    error = chain(&error),
                    "cannot kill a container whose mediator has stalled"
                );
            }
            // What the driver has given the container goes with it, unless others have its files.
            if let Err(error) = mediator.end_stalled().await {
                tracing::error!(container = id, error = chain(&error), "cannot kill a stalled mediator");
            }
        });
    }

    fn on_message(
        self: &Arc<Self>,
        context: &Arc<Context>,
        mediated: &Mediated,
        message: FromMediator,
        pidfd: Option<OwnedFd>,
    ) {
        let id = self.fixed.id.as_str();
        let incidents = &mediated.incidents;
        match message {
            FromMediator::Denied { excess, suppressed } => {
                tracing::info!(container = id, suppressed, "refused: {}", ExcessText(&excess));
                let count = suppressed.saturating_add(1);
                incidents.record(Kind::Denied, Some(&excess.card), count, &ExcessText(&excess).to_string());
            }
            FromMediator::Short { text, count } => {
                tracing::info!(container = id, count, "refused: {text}");
                incidents.record(Kind::Denied, None, count, &text);
            }
            FromMediator::Drift { text } => {
                tracing::warn!(container = id, "{text}");
                incidents.record(Kind::Drift, None, 1, &text);
            }
            FromMediator::Log { warning: true, text } => {
                tracing::warn!(container = id, "{text}");
                incidents.record(Kind::Warning, None, 1, &text);
            }
            FromMediator::Log { warning: false, text } => tracing::info!(container = id, "{text}"),
            FromMediator::EndContainer { text } => self.end_requested(incidents, &text),
            FromMediator::Kill { pid, pid_in_container, reason, suppressed } => {
                report_kill(id, incidents, (pid, pid_in_container), &reason, suppressed);
                let Some(pidfd) = pidfd else { return };
                let (container, context) = (Arc::clone(self), Arc::clone(context));
                // One that asked for too much was refused, and waits. One that has too much would
                // have it for as long as the script runs, and each of its processes after the
                // other.
                let has_script = matches!(reason, KillReason::OverMemory(_));
                tokio::spawn(async move { container.kill_for_excess(&context, pid, &pidfd, has_script).await });
            }
            // Whoever asked for the pause or the end is answered by the mediator's own reader.
            FromMediator::Paused { .. } | FromMediator::Pong | FromMediator::StillHeld { .. } => {}
            FromMediator::WeightsOnly { card } => self.on_weights_only(context, card),
            FromMediator::Presence { has_processes } => {
                mediated.has_processes.send_replace(has_processes);
            }
        }
    }

    fn end_requested(self: &Arc<Self>, incidents: &Arc<Incidents>, text: &str) {
        let text = format!("{text}; the container is ended");
        tracing::error!(container = self.fixed.id, "{text}");
        incidents.record(Kind::Killed, None, 1, &text);
        let container = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = container.kill_everything().await {
                let (id, error) = (&container.fixed.id, chain(&error));
                tracing::error!(container = id, error, "cannot kill a container that exceeds its quota");
            }
        });
    }

    fn on_weights_only(self: &Arc<Self>, context: &Arc<Context>, card: String) {
        tracing::warn!(
            container = self.fixed.id,
            card,
            "a probe has shown that the card cannot take the container off: its share of time is only a weight"
        );
        let (container, context) = (Arc::clone(self), Arc::clone(context));
        tokio::spawn(async move {
            let Fixed { id, bundle, .. } = &container.fixed;
            if let Err(error) = context.gpu.set_weights_only(id, bundle, card).await {
                tracing::warn!(container = id, error = chain(&error), "cannot update the ledger");
            }
        });
    }

    /// Runs the container's script, if it has one and `has_script`, and ends the process, which is
    /// reported as the kernel's OOM kills are: Kubernetes then shows `OOMKilled`, whichever process
    /// it was.
    async fn kill_for_excess(self: &Arc<Self>, context: &Arc<Context>, pid: i32, pidfd: &OwnedFd, has_script: bool) {
        let Some(mediated) = &self.fixed.mediated else { return };
        let id = self.fixed.id.as_str();
        let limit = mediated.excess.oom_script_timeout;
        if let Some(script) = mediated.excess.oom_script.as_deref().filter(|_| has_script && !limit.is_zero()) {
            let _one_at_a_time = mediated.script.lock().await;
            if let Err(error) = self.run_script(context, script, limit).await {
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
        let read = tokio::task::spawn_blocking(move || std::fs::read(path));
        let text = read.await.map_err(|_| TaskError::Ending)?.unwrap_or_default();
        let spec: Value = serde_json::from_slice(&text).map_err(|source| TaskError::Json { field: "spec", source })?;
        match spec.get("process") {
            Some(process @ Value::Object(_)) => Ok(process.clone()),
            _ => Err(TaskError::Invalid { field: "spec", reason: "it has no process".to_owned() }),
        }
    }
}

/// Waits for a change, and returns whether one came within `limit`.
async fn changes_within(value: &mut watch::Receiver<bool>, limit: Duration) -> bool {
    timeout(limit, value.changed()).await.is_ok()
}

/// Logs and notes that a process is killed: its numbers, here and in the container.
fn report_kill(
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
struct ExcessText<'a>(&'a Excess);

impl std::fmt::Display for ExcessText<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Excess { pid, card, asked, used, limit, in_frames } = self.0;
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

/// Puts the mediator's intake, if there is one, behind the descriptors of a process to be made;
/// whether it did.
pub(super) fn pass_listener(mediated: Option<&Mediated>, descriptors: &mut Vec<OwnedFd>) -> Result<bool, TaskError> {
    let Some(mediated) = mediated else { return Ok(false) };
    descriptors.push(mediated.intake()?);
    Ok(true)
}

/// Returns the event of a card that ceases, or begins again, to take the container off.
fn degraded(card: &CardStatus) -> (Kind, String) {
    if card.running != Running::Degraded {
        return (Kind::Recovered, "the card takes the container off again: its share of time is exact".to_owned());
    }
    let status = card.refused.map(|status| format!(" (the driver answers {status:#x})")).unwrap_or_default();
    (
        Kind::Degraded,
        format!("the card does not take the container off as it should{status}: its share of time is a weight"),
    )
}
