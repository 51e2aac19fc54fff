//! Mediators that the containers of a claim have together: each lives from the first container's
//! create to the last one's end.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::{Context, error::TaskError, mediated::Mediated};
use crate::{gpu::MediationPlan, mediator_client::MediatorError};

/// Time for the containers of a mediator that has died to be gone: they are killed by then.
const DYING_LIMIT: Duration = Duration::from_secs(5);

/// The mediators of a shim's claims, by the name of their grant. Locked while one starts or ends,
/// so that no container joins one that is about to end.
#[derive(Debug, Default)]
pub(super) struct SharedMediators(Mutex<HashMap<String, Arc<Mediated>>>);

impl SharedMediators {
    /// Returns the mediator of the grant, of which the container is a user then.
    ///
    /// # Errors
    /// When it cannot be started; or it has died, and containers of it are still there.
    pub(super) async fn join(
        self: &Arc<Self>,
        context: &Context,
        id: &str,
        mediation: MediationPlan,
    ) -> Result<Arc<Mediated>, TaskError> {
        let grant = mediation.setup.grant_id.clone();
        let begin = Instant::now();
        let mut mediators = self.0.lock().await;
        while let Some(mediated) = mediators.get(&grant) {
            if mediated.is_in_use() {
                mediated.add_user(id, &mediation.setup.cgroups)?;
                return Ok(Arc::clone(mediated));
            }
            if !mediated.has_users() {
                // What the driver did not free at its containers' end is freed first.
                mediated.end_mediator().await?;
                mediators.remove(&grant);
            } else if begin.elapsed() > DYING_LIMIT {
                let pid = mediated.process().pid;
                return Err(TaskError::Mediator(MediatorError::Ended { pid }));
            } else {
                drop(mediators);
                sleep(DYING_LIMIT / 100).await;
                mediators = self.0.lock().await;
            }
        }
        let mediated = Arc::new(Mediated::new(context, id, mediation, Some(Arc::clone(self))).await?);
        // Nobody else joins one that cannot begin.
        if let Err(error) = mediated.ready().await {
            mediated.end_mediator().await?;
            return Err(error);
        }
        mediators.insert(grant, Arc::clone(&mediated));
        Ok(mediated)
    }

    /// Takes a container out; the mediator ends with its last one.
    ///
    /// # Errors
    /// When the driver does not free what they had; it may be asked again.
    pub(super) async fn leave(&self, mediated: &Mediated, id: &str) -> Result<(), TaskError> {
        let mut mediators = self.0.lock().await;
        if !mediated.remove_user(id) {
            return Ok(());
        }
        mediated.end_mediator().await?;
        mediators.retain(|_, other| !std::ptr::eq(Arc::as_ptr(other), mediated));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::{AsFd, OwnedFd},
        process::Command,
    };

    use ledger::ContainerKey;
    use mediator_process::{MediatedDriver, Setup};
    use runtime::{
        RuntimeClient, Zygote,
        protocol::{Failure, FailureKind, Hello, WorkerReply},
        reaper::Reaper,
    };
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    use sys::frame;

    use super::{super::error::chain, *};
    use crate::{events::TaskEvents, gpu::ExcessRules, registry::Registry};

    /// Answers the next operation with a process that has ended, and `reply` as its last words.
    fn answer(zygote: &OwnedFd, reply: &WorkerReply) {
        let (_, mut fds) = frame::receive(zygote.as_fd()).unwrap();
        let pid = i32::try_from(Command::new("true").spawn().unwrap().id()).unwrap();
        waitid(WaitId::Pid(Pid::from_raw(pid).unwrap()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let socket = fds.remove(0);
        frame::send_value(&socket, &Hello { pid }, &[sys::pidfd_open(pid).unwrap().as_fd()]).unwrap();
        frame::send_value(&socket, reply, &[]).unwrap();
    }

    fn context(runtime: RuntimeClient) -> Context {
        let reaper = Arc::new(Reaper::default());
        // Only the children that it knows: others are other tests'.
        std::mem::forget(reaper.expect());
        let registry = Registry::at("/nowhere".into());
        let events = Arc::new(TaskEvents::new("ns".into()));
        Context::new("ns".into(), "/c.sock".into(), Arc::new(runtime), reaper, events, registry)
    }

    fn plan() -> MediationPlan {
        let setup = Setup {
            driver: MediatedDriver::Nvidia { device_root: "/nowhere".into() },
            release: "580.159.04".into(),
            pass_unknown_driver: false,
            cards: Vec::new(),
            pinned_memory: Default::default(),
            over_memory: Default::default(),
            reconcile_period_ms: 1000,
            usage_file: "/nowhere/usage".into(),
            grant_id: "claim".into(),
            state_dir: "/nowhere".into(),
            status_file: "/nowhere/status".into(),
            priority: Default::default(),
            throttle: Default::default(),
            may_draw: false,
            cgroups: Vec::new(),
            processors_per_card: 1.0,
        };
        let container = ContainerKey { containerd: "/c.sock".into(), namespace: "ns".into(), id: "claim".into() };
        MediationPlan { setup, excess: ExcessRules::default(), container, pod: None, is_shared: true }
    }

    #[tokio::test]
    async fn nobody_joins_a_mediator_that_cannot_begin_and_it_says_why() {
        let (shim, zygote) = frame::pair().unwrap();
        let context = context(RuntimeClient::new(Zygote { socket: shim, pid: 1 }).unwrap());
        let zygote = std::thread::spawn(move || {
            let failure = Failure { kind: FailureKind::Internal, message: "no inotify instance".into() };
            for reply in [WorkerReply::Failed(failure), WorkerReply::Done] {
                answer(&zygote, &reply);
            }
        });
        let error = context.mediators.join(&context, "a", plan()).await.unwrap_err();
        assert!(chain(&error).contains("no inotify instance"), "{}", chain(&error));
        // The next container has another one, which begins.
        context.mediators.join(&context, "b", plan()).await.unwrap();
        zygote.join().unwrap();
    }
}
