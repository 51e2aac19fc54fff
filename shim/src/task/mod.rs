//! The Task service: what containerd asks for, carried out on containers.
//!
//! Requests come in on any connection and run side by side. ttrpc drops a handler when its
//! connection is lost, so what changes a container runs in a task of its own: a containerd that
//! restarts in the middle finds the work done.

mod container;
mod create;
mod error;
mod excess;
mod incidents;
mod mediated;
mod process;
mod removal;
mod service;
mod shared_mediators;
mod state;
mod watchdog;

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use runtime::{RuntimeClient, reaper::Reaper};
use sys::sync::lock;
use tokio::{sync::Notify, time::sleep};

use self::{container::Container, shared_mediators::SharedMediators};
pub use self::{
    error::{TaskError, chain},
    service::TaskService,
};
use crate::{
    events::TaskEvents,
    gpu::{AdmissionWait, Gpu},
    process_instance::ProcessInstance,
    registry::Registry,
};

/// State that all containers of a shim share.
#[derive(Debug)]
pub struct Context {
    /// containerd's namespace.
    pub namespace: String,
    /// containerd's gRPC address.
    pub containerd: String,
    /// Runs libcontainer.
    pub runtime: Arc<RuntimeClient>,
    /// Waits for children.
    pub reaper: Arc<Reaper>,
    /// Queue of events for containerd.
    pub events: Arc<TaskEvents>,
    /// Grants.
    pub gpu: Gpu,
    /// Records for whoever cleans up if this shim is killed.
    pub registry: Registry,
    /// The shim's own process.
    pub shim: Option<ProcessInstance>,
    /// Told when the shim shall end.
    pub shutdown: Notify,
    containers: Mutex<HashMap<String, Slot>>,
    mediators: Arc<SharedMediators>,
    /// Told when a creation has ended, either way.
    creations: Notify,
}

/// A container's place in the shim's list.
#[derive(Debug)]
enum Slot {
    /// Its creation is under way, and may wait for room.
    Reserved(AdmissionWait),
    /// A container that exists.
    Created(Arc<Container>),
}

impl Context {
    /// Returns the context of a shim without containers.
    pub fn new(
        namespace: String,
        containerd: String,
        runtime: Arc<RuntimeClient>,
        reaper: Arc<Reaper>,
        events: Arc<TaskEvents>,
        registry: Registry,
    ) -> Self {
        let gpu = Gpu::new(&containerd, &namespace);
        // Without /proc nobody can tell that the containers are a dead shim's, and they are left to
        // `delete`.
        let shim = ProcessInstance::current().ok();
        Self {
            namespace,
            containerd,
            runtime,
            reaper,
            events,
            gpu,
            registry,
            shim,
            shutdown: Notify::new(),
            containers: Mutex::default(),
            mediators: Arc::default(),
            creations: Notify::new(),
        }
    }

    /// Waits until two checks, `interval` apart, have found no container of which containerd still
    /// knows, nor a creation. containerd ends a shim itself; one that was killed while it used the
    /// shim cannot, and may disown it afterwards.
    pub async fn disowned(&self, interval: Duration) {
        let mut was_disowned = false;
        loop {
            sleep(interval).await;
            let is_disowned = self.is_disowned();
            if was_disowned && is_disowned {
                return;
            }
            was_disowned = is_disowned;
        }
    }

    fn is_disowned(&self) -> bool {
        lock(&self.containers).values().all(|slot| match slot {
            Slot::Reserved(_) => false,
            Slot::Created(container) => container.is_disowned(),
        })
    }

    /// Ends a creation that waits for room: nobody wants the container any more.
    fn end_wait(&self, id: &str) {
        if let Some(Slot::Reserved(wait)) = lock(&self.containers).get(id) {
            wait.end();
        }
    }

    /// Ends all creations that wait for room: the shim ends.
    pub fn end_waits(&self) {
        for slot in lock(&self.containers).values() {
            if let Slot::Reserved(wait) = slot {
                wait.end();
            }
        }
    }

    /// A container, once its creation has ended: who asks in the middle of one takes "no such
    /// container" for its end. A client that closes stdin as soon as all of it is written, as
    /// nerdctl does, would have the container read on forever. A containerd that was killed
    /// meanwhile and starts again asks for the processes, and removes the bundle of a shim that has
    /// none: the container would come to be, and nobody would know of it.
    async fn container(&self, id: &str) -> Result<Arc<Container>, TaskError> {
        loop {
            let mut ended = pin!(self.creations.notified());
            // Counted from here on, so that an end between the check and the wait is not missed.
            ended.as_mut().enable();
            match lock(&self.containers).get(id) {
                Some(Slot::Created(container)) => return Ok(Arc::clone(container)),
                None => return Err(TaskError::NoContainer { id: id.to_owned() }),
                Some(Slot::Reserved(_)) => {}
            }
            ended.await;
        }
    }
}
