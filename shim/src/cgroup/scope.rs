//! A container's scope: the unit that systemd makes around a process, cgroup included (systemd.scope(5),
//! org.freedesktop.systemd1(5)).
//!
//! libcgroups has this too; it hands processors over in a type that systemd refuses, reads `unified` values as others than they are,
//! and joins whatever unit has the name.

use std::{future::poll_fn, pin::pin, time::Duration};

use oci_spec::runtime::LinuxResources;
use zbus::{
    Connection, MatchRule, MessageStream,
    export::futures_core::Stream,
    message::{Message, Type},
    zvariant::{DynamicType, OwnedObjectPath, Value},
};

use super::{Cgroup, CgroupError, UpdateError};

/// What systemd may take to answer, and to make a scope: what runc waits.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A scope of that name that has just ended is forgotten within moments: 10 ms, 20 ms, ... 1.3 s, about 2.5 s in all.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const TRIES: u32 = 9;
const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// Why systemd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// It is not there, or refused.
    #[error("systemd refused, or could not be asked over the system bus")]
    Bus(#[source] Box<zbus::Error>),
    /// It did not answer.
    #[error("systemd did not answer within 30 s")]
    Timeout,
    /// The unit's start went wrong; systemd's journal says why.
    #[error("systemd could not start the unit: its job ended as {result:?}")]
    Job {
        /// systemd's word for it.
        result: String,
    },
    /// Another container's, most likely in another slice.
    #[error("systemd has a unit of that name already; end it, or give the container another cgroupsPath")]
    Exists,
}

impl From<zbus::Error> for SystemdError {
    fn from(error: zbus::Error) -> Self {
        Self::Bus(Box::new(error))
    }
}

/// Why there is no scope.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScopeError {
    /// systemd's part.
    #[error("systemd cannot make the container's cgroup {unit}")]
    Systemd {
        unit: String,
        #[source]
        source: SystemdError,
    },
    /// The controllers.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The limits.
    #[error(transparent)]
    Limits(#[from] UpdateError),
    /// Waiting needs a clock.
    #[error("cannot make a runtime to wait with")]
    Runtime(#[source] std::io::Error),
}

/// A scope, and the slice that it lies in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    /// `kubepods-burstable.slice`.
    pub(crate) slice: String,
    /// `cri-containerd-ID.scope`.
    pub(crate) unit: String,
}

impl Scope {
    /// Has systemd make the scope around process `pid`, the only one in it, and tells it the limits. `cgroup` is the scope's; its
    /// files are the caller's to write: systemd has not all of them. Blocks; starts no thread, so that the caller may go on to
    /// unshare a user namespace.
    pub(crate) fn start(
        &self,
        id: &str,
        pid: u32,
        cgroup: &Cgroup,
        resources: Option<&LinuxResources>,
    ) -> Result<(), ScopeError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ScopeError::Runtime)?;
        runtime.block_on(async {
            let failed = |source| ScopeError::Systemd { unit: self.unit.clone(), source };
            within_limit(self.start_unit(id, pid)).await.map_err(failed)?;
            // systemd hands down only the controllers of which it knows.
            cgroup.make()?;
            Ok(cgroup.tell_systemd(resources).await?)
        })
    }

    async fn start_unit(&self, id: &str, pid: u32) -> Result<(), SystemdError> {
        let bus = Connection::system().await?;
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(NAME)?
            .path(PATH)?
            .interface(MANAGER)?
            .member("JobRemoved")?
            .build();
        // Before the job is there, so that its end is not missed.
        let mut ended_jobs = pin!(MessageStream::for_match_rule(rule, &bus, None).await?);
        let job = self.request(&bus, id, pid).await?;
        loop {
            let message = poll_fn(|context| ended_jobs.as_mut().poll_next(context)).await;
            let Some(message) = message else { return Err(SystemdError::Timeout) };
            let message = message?;
            let (_, path, _, result): (u32, OwnedObjectPath, String, String) = message.body().deserialize()?;
            if path == job {
                return if result == "done" { Ok(()) } else { Err(SystemdError::Job { result }) };
            }
        }
    }

    /// The job that starts it. A failed unit of that name is forgotten, one that is about to go is waited for.
    async fn request(&self, bus: &Connection, id: &str, pid: u32) -> Result<OwnedObjectPath, SystemdError> {
        let no_others: [(&str, Vec<(&str, Value<'_>)>); 0] = [];
        let mut wait = FIRST_WAIT;
        for _ in 0..TRIES {
            let request = (self.unit.as_str(), "replace", self.properties(id, pid), &no_others[..]);
            match call(bus, "StartTransientUnit", &request).await {
                Ok(reply) => return Ok(reply.body().deserialize()?),
                Err(error) if is(&error, "org.freedesktop.systemd1.UnitExists") => {}
                Err(error) => return Err(error.into()),
            }
            // There may be nothing that failed.
            let _ = call(bus, "ResetFailedUnit", &self.unit.as_str()).await;
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        Err(SystemdError::Exists)
    }

    /// Those of runc, and that the unit is forgotten when it has failed (its processes killed for want of memory, say): nobody
    /// has to ask for that when the container is deleted.
    ///
    /// No device policy: the filter is egpu's own. A second one of systemd's would have to name each granted node too, and would
    /// take it away where it names it by a path that is missing.
    fn properties(&self, id: &str, pid: u32) -> Vec<(&'static str, Value<'_>)> {
        vec![
            ("Description", Value::from(format!("egpu container {id}"))),
            ("Slice", Value::from(self.slice.as_str())),
            ("Delegate", Value::from(true)),
            ("DefaultDependencies", Value::from(false)),
            ("CollectMode", Value::from("inactive-or-failed")),
            ("CPUAccounting", Value::from(true)),
            ("MemoryAccounting", Value::from(true)),
            ("IOAccounting", Value::from(true)),
            ("TasksAccounting", Value::from(true)),
            ("PIDs", Value::from(vec![pid])),
        ]
    }
}

/// Sets properties of `unit` until the next boot.
pub(super) async fn set_properties(unit: &str, properties: Vec<(&str, Value<'_>)>) -> Result<(), SystemdError> {
    within_limit(async {
        let bus = Connection::system().await?;
        call(&bus, "SetUnitProperties", &(unit, true, properties)).await?;
        Ok(())
    })
    .await
}

async fn call(
    bus: &Connection,
    method: &str,
    body: &(impl serde::Serialize + DynamicType),
) -> Result<Message, zbus::Error> {
    bus.call_method(Some(NAME), PATH, Some(MANAGER), method, body).await
}

fn is(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(own, ..) if own.as_str() == name)
}

async fn within_limit<T>(work: impl Future<Output = Result<T, SystemdError>>) -> Result<T, SystemdError> {
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or(Err(SystemdError::Timeout))
}
