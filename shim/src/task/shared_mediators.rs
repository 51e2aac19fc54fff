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
