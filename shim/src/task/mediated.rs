//! Containers whose driver calls are mediated: they and their mediator end together. A container
//! has a mediator of its own, or one with the other containers of its claim.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ledger::event_log::{EventLog, Kind};
use mediator_process::{
    MOST_LISTENERS,
    message::{FromMediator, KillReason},
    rate_limit::{MAX_PER_PERIOD, RateLimit},
};
use schedule::{CardStatus, Running, StatusFile};
use sys::sync::lock;
use tokio::{sync::watch, time::timeout};

use super::{
    Context,
    container::{Container, Fixed},
    error::{TaskError, chain},
    excess::{ExcessText, report_kill},
    incidents::Incidents,
    shared_mediators::SharedMediators,
    watchdog,
};
use crate::{
    gpu::{ExcessRules, GpuError, MediationPlan},
    mediator_client::Mediator,
};

/// A container without a process that uses the driver keeps its turns for so long.
const PRESENCE_LINGER: Duration = Duration::from_secs(1);
/// Interval at which the ledger is updated again, should presence have come to count.
const PRESENCE_REFRESH: Duration = Duration::from_secs(2);

/// A mediator, with its containers and their events.
#[derive(Debug)]
pub(super) struct Mediated {
    mediator: Arc<Mediator>,
    /// Name of its grant, for the log.
    name: String,
    /// Registry of mediators that it is in, if several containers may have it.
    shared: Option<Arc<SharedMediators>>,
    /// Its containers by id; without the container while that is being created.
    users: Mutex<BTreeMap<String, Weak<Container>>>,
    incidents: Arc<Incidents>,
    pub(super) excess: ExcessRules,
    /// One script at a time, and no more than a few a second; whoever waits for it makes no call
    /// meanwhile.
    pub(super) script: tokio::sync::Mutex<RateLimit>,
    /// Number of processes killed for having, or asking for, too much.
    pub(super) kills: AtomicU64,
    status_file: PathBuf,
    /// True while any process uses the driver.
    has_processes: watch::Sender<bool>,
    /// It has as many listeners as it may.
    has_most_listeners: AtomicBool,
    /// Tasks follow it.
    is_watched: AtomicBool,
}

impl Mediated {
    /// Starts the mediator of a container, or makes the container a user of its claim's. It may not
    /// be [ready](Self::ready) yet.
    pub(super) async fn start(context: &Context, id: &str, mediation: MediationPlan) -> Result<Arc<Self>, TaskError> {
        if mediation.is_shared {
            return context.mediators.join(context, id, mediation).await;
        }
        Ok(Arc::new(Self::new(context, id, mediation, None).await?))
    }

    /// Starts a mediator, with its first user.
    pub(super) async fn new(
        context: &Context,
        id: &str,
        mediation: MediationPlan,
        shared: Option<Arc<SharedMediators>>,
    ) -> Result<Self, TaskError> {
        let status_file = mediation.setup.status_file.clone();
        let cards = mediation.setup.cards.iter().map(|card| (card.uuid.clone(), card.index)).collect();
        let log = EventLog::new(&mediation.setup.state_dir);
        let name = mediation.container.id.clone();
        let incidents = Incidents::new(log, (mediation.container, mediation.pod), cards);
        let mediator = Mediator::start(&context.runtime, &context.reaper, mediation.setup).await;
        Ok(Self {
            mediator: mediator.map_err(TaskError::Mediator)?,
            name,
            shared,
            users: Mutex::new(BTreeMap::from([(id.to_owned(), Weak::new())])),
            incidents,
            excess: mediation.excess,
            script: tokio::sync::Mutex::new(RateLimit::new(Instant::now())),
            kills: AtomicU64::new(0),
            status_file,
            has_processes: watch::Sender::new(false),
            has_most_listeners: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
        })
    }

    /// Waits until the mediator is ready: without it the container must not come to be.
    pub(super) async fn ready(&self) -> Result<(), TaskError> {
        self.mediator.ready().await.map_err(TaskError::Mediator)
    }

    /// The mediator's pid and start time.
    pub(super) fn process(&self) -> ledger::ProcessId {
        self.mediator.process()
    }

    /// Returns the descriptor over which the helper passes a seccomp listener.
    pub(super) fn intake(&self) -> Result<OwnedFd, TaskError> {
        self.mediator.intake().map_err(TaskError::Mediator)
    }

    /// Adds a container that is going to use it. Its cgroups become known before it has processes.
    pub(super) fn add_user(&self, id: &str, cgroups: &[PathBuf]) -> Result<(), TaskError> {
        self.mediator.add_cgroups(cgroups).map_err(TaskError::Mediator)?;
        lock(&self.users).insert(id.to_owned(), Weak::new());
        Ok(())
    }

    /// Takes a container out. Returns whether nobody uses it any more.
    pub(super) fn remove_user(&self, id: &str) -> bool {
        let mut users = lock(&self.users);
        users.remove(id);
        users.is_empty()
    }

    /// Returns whether it runs, and somebody uses it.
    pub(super) fn is_in_use(&self) -> bool {
        self.mediator.is_running() && self.has_users()
    }

    /// Returns whether a container uses it.
    pub(super) fn has_users(&self) -> bool {
        !lock(&self.users).is_empty()
    }

    /// Ends the mediation of a container. With the last one the mediator ends: whatever the driver
    /// has given them is given back.
    pub(super) async fn end(&self, id: &str) -> Result<(), TaskError> {
        match &self.shared {
            Some(shared) => shared.leave(self, id).await,
            None => self.end_mediator().await,
        }
    }

    pub(super) async fn end_mediator(&self) -> Result<(), TaskError> {
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

    /// Returns whether other containers may use it.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    pub(super) async fn resume(&self, id: &str) {
        if let Err(error) = self.mediator.resume().await {
            tracing::warn!(container = id, error = chain(&error), "cannot resume driver calls");
        }
    }

    /// Adds a container that has come to be. With the first one begins what goes on as long as the
    /// mediator runs.
    pub(super) fn attach(self: &Arc<Self>, context: &Arc<Context>, container: &Arc<Container>) {
        lock(&self.users).insert(container.fixed.id.clone(), Arc::downgrade(container));
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            self.watch_mediator(context);
            self.watch_stall();
            self.watch_presence(context);
        } else if !self.mediator.is_running() {
            // It died while the container was created: who ended the others did not see this one.
            let mediated = Arc::clone(self);
            tokio::spawn(async move { mediated.kill_containers("whose mediator has ended").await });
        }
    }

    fn containers(&self) -> Vec<Arc<Container>> {
        lock(&self.users).values().filter_map(Weak::upgrade).collect()
    }

    /// The container that a process is of.
    fn container_of(&self, pid: i32) -> Option<Arc<Container>> {
        let containers = self.containers();
        match containers.as_slice() {
            [container] => Some(Arc::clone(container)),
            several => several.iter().find(|container| container.has_process(pid)).cloned(),
        }
    }

    /// Listens to the mediator until it ends. When that comes unasked, its containers end, too:
    /// nobody holds their quota.
    fn watch_mediator(self: &Arc<Self>, context: &Arc<Context>) {
        let (context, mediated) = (Arc::clone(context), Arc::clone(self));
        tokio::spawn(async move {
            let mediator = &mediated.mediator;
            while let Some((message, pidfd)) = mediator.next().await {
                mediated.on_message(&context, message, pidfd);
            }
            mediated.incidents.finish();
            let Some(exit) = mediator.unexpected_end().await else { return };
            let (name, pid, status) = (&mediated.name, mediator.process().pid, exit.status);
            tracing::error!(
                container = name,
                mediator = pid,
                status,
                "the mediator has ended; the container is ended, too"
            );
            let text = format!("the mediator ended with {status}; the container is ended");
            mediated.incidents.record(Kind::MediatorEnded, None, 1, &text);
            mediated.kill_containers("whose mediator has ended").await;
        });
    }

    /// Kills everything in all containers, which are `why`.
    async fn kill_containers(&self, why: &str) {
        for container in self.containers() {
            if let Err(error) = container.kill_everything().await {
                let (id, error) = (&container.fixed.id, chain(&error));
                tracing::error!(container = id, error, "cannot kill a container {why}");
            }
        }
    }

    /// Reports to the ledger when processes begin to use the driver, and when the last has ceased
    /// to.
    fn watch_presence(self: &Arc<Self>, context: &Arc<Context>) {
        let (context, mediated) = (Arc::clone(context), Arc::clone(self));
        tokio::spawn(async move {
            tokio::select! {
                () = mediated.follow_presence(&context, mediated.has_processes.subscribe()) => {}
                () = mediated.mediator.ended() => {}
            }
        });
    }

    async fn follow_presence(&self, context: &Context, mut has_processes: watch::Receiver<bool>) {
        let mut again = Duration::MAX;
        loop {
            changes_within(&mut has_processes, again).await;
            // A program that ends is often followed by the next one.
            while !*has_processes.borrow() && changes_within(&mut has_processes, PRESENCE_LINGER).await {}
            let present = *has_processes.borrow();
            let Some(container) = self.containers().pop() else {
                // The next one is being created.
                again = PRESENCE_REFRESH;
                continue;
            };
            let Fixed { id, grant, .. } = &container.fixed;
            let updated = context.gpu.set_present(id, grant.as_ref(), present).await;
            if let Err(error) = &updated {
                tracing::warn!(container = id, present, error = chain(error), "cannot update the ledger");
            }
            if present && let Err(error) = self.report_window_losses(context, &container.fixed).await {
                tracing::warn!(container = id, error = chain(&error), "cannot record window losses in the ledger");
            }
            // A card's policy may become one for which it counts.
            again = if present || updated.is_err() { PRESENCE_REFRESH } else { Duration::MAX };
        }
    }

    /// Reports to the ledger the losses of the grant's windows, as its mediator has measured them.
    async fn report_window_losses(&self, context: &Context, user: &Fixed) -> Result<(), GpuError> {
        // A small file in memory. Whoever reads it in the middle of a change finds it next time.
        let Ok(status) = StatusFile::read(&self.status_file) else { return Ok(()) };
        let losses: Vec<(String, u64)> =
            status.cards.into_iter().filter_map(|card| Some((card.uuid, card.window_loss_us?))).collect();
        if losses.is_empty() {
            return Ok(());
        }
        context.gpu.set_window_losses(&user.id, user.grant.as_ref(), losses).await
    }

    /// Ends the containers when their mediator has stalled: nobody holds their quota, and their
    /// neighbours' time may be their own.
    fn watch_stall(self: &Arc<Self>) {
        let mediated = Arc::clone(self);
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
            let (name, pid) = (&mediated.name, mediator.process().pid);
            tracing::error!(
                container = name,
                mediator = pid,
                "the mediator has stalled, {stall}; the container is ended"
            );
            let text = format!("the mediator has stalled, {stall}; the container is ended");
            mediated.incidents.record(Kind::Stalled, None, 1, &text);
            mediated.kill_containers("whose mediator has stalled").await;
            // What the driver has given the container goes with it, unless others have its files.
            if let Err(error) = mediator.end_stalled().await {
                tracing::error!(container = name, error = chain(&error), "cannot kill a stalled mediator");
            }
            // Those that have come to be meanwhile.
            mediated.kill_containers("whose mediator has stalled").await;
        });
    }

    fn on_message(self: &Arc<Self>, context: &Arc<Context>, message: FromMediator, pidfd: Option<OwnedFd>) {
        let (id, incidents) = (self.name.as_str(), &self.incidents);
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
            FromMediator::EndContainer { text } => self.end_requested(&text),
            FromMediator::Kill { pid, pid_in_container, reason, suppressed } => {
                report_kill(id, incidents, (pid, pid_in_container), &reason, suppressed);
                let Some(pidfd) = pidfd else { return };
                // One that asked for too much was refused, and waits. One that has too much would
                // have it for as long as the script runs, and each of its processes after the
                // other.
                let has_script = matches!(reason, KillReason::OverMemory(_));
                let (mediated, context) = (Arc::clone(self), Arc::clone(context));
                tokio::spawn(async move {
                    match mediated.container_of(pid) {
                        Some(container) => container.kill_for_excess(&context, pid, &pidfd, has_script).await,
                        // Its container has ended, and it is about to.
                        None => drop(sys::pidfd_send_signal(pidfd.as_fd(), libc::SIGKILL)),
                    }
                });
            }
            // Whoever asked for the pause or the end is answered by the mediator's own reader.
            FromMediator::Paused { .. }
            | FromMediator::Pong
            | FromMediator::Freeing
            | FromMediator::StillHeld { .. } => {}
            FromMediator::WeightsOnly { card } => self.on_weights_only(context, card),
            FromMediator::Presence { has_processes } => {
                self.has_processes.send_replace(has_processes);
            }
            FromMediator::Listeners { are_most } => self.has_most_listeners.store(are_most, Ordering::Relaxed),
        }
    }

    /// Notes that a process is killed without the OOM script.
    pub(super) fn script_left_out(&self) {
        let text = format!("an OOM script was left out: a container may have {MAX_PER_PERIOD} within a second");
        self.incidents.record(Kind::Warning, None, 1, &text);
    }

    fn end_requested(self: &Arc<Self>, text: &str) {
        let text = format!("{text}; the container is ended");
        tracing::error!(container = self.name, "{text}");
        self.incidents.record(Kind::Killed, None, 1, &text);
        let mediated = Arc::clone(self);
        tokio::spawn(async move { mediated.kill_containers("that exceeds its quota").await });
    }

    fn on_weights_only(self: &Arc<Self>, context: &Arc<Context>, card: String) {
        tracing::warn!(
            container = self.name,
            card,
            "a probe has shown that the card cannot take the container off: its share of time is only a weight"
        );
        let Some(container) = self.containers().pop() else { return };
        let context = Arc::clone(context);
        tokio::spawn(async move {
            let Fixed { id, grant, .. } = &container.fixed;
            if let Err(error) = context.gpu.set_weights_only(id, grant.as_ref(), card).await {
                tracing::warn!(container = id, error = chain(&error), "cannot update the ledger");
            }
        });
    }
}

impl Container {
    /// Returns whether a process is the container's.
    fn has_process(&self, pid: i32) -> bool {
        self.init.pid() == pid || self.fixed.cgroup.pids().is_ok_and(|pids| pids.contains(&pid))
    }
}

/// Waits for a change, and returns whether one came within `limit`.
async fn changes_within(value: &mut watch::Receiver<bool>, limit: Duration) -> bool {
    timeout(limit, value.changed()).await.is_ok()
}

/// Puts the mediator's intake, if there is one, behind the descriptors of a process to be made;
/// whether it did.
pub(super) fn pass_listener(mediated: Option<&Mediated>, descriptors: &mut Vec<OwnedFd>) -> Result<bool, TaskError> {
    let Some(mediated) = mediated else { return Ok(false) };
    if mediated.has_most_listeners.load(Ordering::Relaxed) {
        return Err(TaskError::TooManyListeners { most: MOST_LISTENERS });
    }
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
