//! The Task service: what containerd asks for, carried out on containers.
//!
//! Requests come in on any connection and run side by side. ttrpc drops a handler when its connection is lost, so what
//! changes a container runs in a task of its own: a containerd that restarts in the middle finds the work done.

mod container;
mod create;
mod error;
mod process;
mod removal;
mod service;
mod state;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

use self::container::Container;
pub use self::{
    error::{TaskError, chain},
    service::TaskService,
};
use crate::{events::Events, gpu::Gpu, helper::HelperClient, reaper::Reaper, sync::lock};

/// What all containers of a shim share.
#[derive(Debug)]
pub struct Context {
    /// containerd's namespace.
    pub namespace: String,
    /// containerd's gRPC address.
    pub containerd: String,
    /// Runs libcontainer.
    pub helper: HelperClient,
    /// Waits for children.
    pub reaper: Arc<Reaper>,
    /// Tells containerd.
    pub events: Arc<Events>,
    /// Grants.
    pub gpu: Gpu,
    /// Told when the shim shall end.
    pub shutdown: Notify,
    containers: Mutex<HashMap<String, Slot>>,
}

/// A container's place in the shim's list.
#[derive(Debug)]
enum Slot {
    /// Its creation is under way.
    Reserved,
    /// It exists.
    Created(Arc<Container>),
}

impl Context {
    /// Of a shim without containers.
    pub fn new(
        namespace: String,
        containerd: String,
        helper: HelperClient,
        reaper: Arc<Reaper>,
        events: Arc<Events>,
    ) -> Self {
        let gpu = Gpu::new(&containerd, &namespace);
        Self {
            namespace,
            containerd,
            helper,
            reaper,
            events,
            gpu,
            shutdown: Notify::new(),
            containers: Mutex::default(),
        }
    }

    /// Returns once there has been no container, nor the creation of one, at two looks `interval` apart. containerd tells a
    /// shim to end; one that is killed between starting a shim and using it cannot, and may forget the shim as well.
    pub async fn unused(&self, interval: Duration) {
        let mut was_empty = false;
        loop {
            sleep(interval).await;
            let is_empty = lock(&self.containers).is_empty();
            if was_empty && is_empty {
                return;
            }
            was_empty = is_empty;
        }
    }

    fn container(&self, id: &str) -> Result<Arc<Container>, TaskError> {
        match lock(&self.containers).get(id) {
            Some(Slot::Created(container)) => Ok(Arc::clone(container)),
            Some(Slot::Reserved) | None => Err(TaskError::NoContainer { id: id.to_owned() }),
        }
    }
}
