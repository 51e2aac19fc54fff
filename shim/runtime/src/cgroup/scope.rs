//! A container's scope: the unit that systemd makes around a process, cgroup included
//! (systemd.scope(5), org.freedesktop.systemd1(5)).
//!
//! libcgroups has this too; it hands processors over in a type that systemd refuses, reads
//! `unified` values as others than they are, and joins whatever unit has the name.

use std::{future::poll_fn, io, pin::Pin, time::Duration};

use oci_spec::runtime::LinuxResources;
use tokio::runtime::Runtime;
use zbus::{
    Connection, MatchRule, MessageStream,
    export::futures_core::Stream,
    message::{Message, Type},
    zvariant::{DynamicType, OwnedObjectPath, Value},
};

use super::{Cgroup, CgroupError, Property, UpdateError};

/// Time for systemd to answer, and to make a scope: what runc waits.
const TIMEOUT: Duration = Duration::from_secs(30);
/// An empty scope harms nobody, and the rest of a delete waits: containerd gives it five seconds in
/// all.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// A scope of that name that is about to end is forgotten within moments: 10 ms, 20 ms, ... 1.3 s,
/// about 2.5 s in all.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const TRIES: u32 = 9;
const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// A request that systemd did not carry out.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// A bus that is not there, or that refused.
    #[error("systemd refused, or could not be asked over the system bus")]
    Bus(#[source] Box<zbus::Error>),
    /// An answer that did not come.
    #[error("systemd did not answer within {seconds} s")]
    Timeout {
        /// The time limit.
        seconds: u64,
    },
    /// The bus was closed.
    #[error("the system bus was closed before systemd had answered")]
    Lost,
    /// The unit's start or stop went wrong; systemd's journal says why.
    #[error("systemd's job ended as {result:?}")]
    Job {
        /// systemd's name for it.
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

/// A scope that could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScopeError {
    /// systemd's part.
    #[error("systemd cannot make or end the container's cgroup {unit}")]
    Systemd {
        unit: String,
        #[source]
        source: SystemdError,
    },
    /// The controllers.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Limits(#[from] UpdateError),
    /// Waiting needs a clock.
    #[error("cannot make a runtime to wait with")]
    Runtime(#[source] io::Error),
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
    /// Asks systemd to create the scope around process `pid`, the only one in it, with its limits.
    /// `cgroup` is the scope's; its files are the caller's to write: systemd has not all of them.
    /// `given` are properties beside its own. Blocks; starts no thread, so that the caller may go
    /// on to unshare a user namespace.
    pub(crate) fn start(
        &self,
        id: &str,
        pid: u32,
        cgroup: &Cgroup,
        resources: Option<&LinuxResources>,
        given: &[Property],
    ) -> Result<(), ScopeError> {
        let runtime = runtime().map_err(ScopeError::Runtime)?;
        runtime.block_on(async {
            let started = within_limit(TIMEOUT, self.start_unit(id, pid, cgroup, resources, given)).await;
            started.map_err(|source| self.failed(source))?;
            // systemd hands down only the controllers of which it knows.
            cgroup.make()?;
            Ok(cgroup.set_systemd_limits(resources).await?)
        })
    }

    /// Asks systemd to forget the scope, whose cgroup is gone. It would do so by itself if it saw
    /// the last process end; but the kernel reports that at most once in 10 ms, and not at all when
    /// the cgroup is removed before. Succeeds when there is none, and when the name belongs to a
    /// scope elsewhere. Blocks.
    pub(crate) fn stop(&self) -> Result<(), ScopeError> {
        let stop = async {
            let bus = Connection::system().await?;
            self.stop_unit(&bus).await
        };
        runtime()
            .map_err(ScopeError::Runtime)?
            .block_on(within_limit(STOP_TIMEOUT, stop))
            .map_err(|source| self.failed(source))
    }

    fn failed(&self, source: SystemdError) -> ScopeError {
        ScopeError::Systemd { unit: self.unit.clone(), source }
    }

    async fn start_unit(
        &self,
        id: &str,
        pid: u32,
        cgroup: &Cgroup,
        resources: Option<&LinuxResources>,
        given: &[Property],
    ) -> Result<(), SystemdError> {
        let bus = Connection::system().await?;
        let version = version(&bus).await?;
        let mut own = self.properties(id, pid, cgroup.is_v1(), version);
        own.extend(oom_policy(resources, version).map(|policy| ("OOMPolicy", Value::from(policy))));
        // Of equal names the last counts.
        let given = given.iter().map(|(name, value)| (name.as_str(), value));
        let properties: Vec<_> = own.iter().map(|(name, value)| (*name, value)).chain(given).collect();
        let mut jobs = Jobs::of(&bus).await?;
        let mut wait = FIRST_WAIT;
        let no_others: [(&str, Vec<(&str, Value<'_>)>); 0] = [];
        for _ in 0..TRIES {
            let request = (self.unit.as_str(), "replace", &properties, &no_others[..]);
            match call(&bus, "StartTransientUnit", &request).await {
                Ok(reply) => return jobs.wait_for(&reply).await,
                Err(error) if is(&error, "org.freedesktop.systemd1.UnitExists") => {}
                Err(error) => return Err(error.into()),
            }
            // Left over; one with somebody in it is not.
            if cgroup.is_empty().unwrap_or(false) {
                self.stop_unit(&bus).await?;
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        Err(SystemdError::Exists)
    }

    async fn stop_unit(&self, bus: &Connection) -> Result<(), SystemdError> {
        let path: OwnedObjectPath = match call(bus, "GetUnit", &self.unit.as_str()).await {
            Ok(reply) => reply.body().deserialize()?,
            Err(error) if is(&error, NO_SUCH_UNIT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let reply = get(bus, path.as_str(), ("org.freedesktop.systemd1.Scope", "Slice")).await?;
        if reply.body().deserialize::<Value<'_>>()? != Value::from(self.slice.as_str()) {
            return Ok(());
        }
        let mut jobs = Jobs::of(bus).await?;
        match call(bus, "StopUnit", &(self.unit.as_str(), "replace")).await {
            Ok(reply) => jobs.wait_for(&reply).await?,
            Err(error) if is(&error, NO_SUCH_UNIT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // One that failed is forgotten, too. Most likely it has not.
        let _ = call(bus, "ResetFailedUnit", &self.unit.as_str()).await;
        Ok(())
    }

    /// Returns the properties that runc sets, and one more: a unit that has failed (its processes
    /// killed for want of memory, say) is forgotten without being asked for.
    ///
    /// No device policy on v2: the filter is egpu's own. A second one of systemd's would have to
    /// name each granted node too, and would take it away where it names it by a path that is
    /// missing.
    fn properties(&self, id: &str, pid: u32, v1: bool, version: u32) -> Vec<(&str, Value<'_>)> {
        let mut properties = vec![
            ("Description", Value::from(format!("egpu container {id}"))),
            ("Slice", Value::from(self.slice.as_str())),
            ("Delegate", Value::from(true)),
            ("DefaultDependencies", Value::from(false)),
            ("CPUAccounting", Value::from(true)),
            ("MemoryAccounting", Value::from(true)),
            (if v1 { "BlockIOAccounting" } else { "IOAccounting" }, Value::from(true)),
            ("TasksAccounting", Value::from(true)),
            ("PIDs", Value::from(vec![pid])),
        ];
        if version >= 236 {
            properties.push(("CollectMode", Value::from("inactive-or-failed")));
        }
        properties
    }
}

/// The spec's `memory.oom.group`, which systemd else writes back with every change of a memory
/// limit, and knows at the start alone.
fn oom_policy(resources: Option<&LinuxResources>, version: u32) -> Option<&'static str> {
    let asked = resources?.unified().as_ref()?.get("memory.oom.group")?;
    match asked.trim() {
        "0" if version >= 253 => Some("continue"),
        "1" if version >= 253 => Some("kill"),
        _ => None,
    }
}

/// systemd's version: of `252.38-1~deb12u1`, 252. 0 if it does not say.
async fn version(bus: &Connection) -> Result<u32, SystemdError> {
    let reply = get(bus, PATH, (MANAGER, "Version")).await?;
    let body = reply.body();
    let text: Value<'_> = body.deserialize()?;
    Ok(if let Value::Str(text) = text { leading_number(&text) } else { 0 })
}

fn leading_number(text: &str) -> u32 {
    let text = text.trim_start_matches('v');
    let end = text.find(|one: char| !one.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The ends of systemd's jobs, from now on.
struct Jobs(Pin<Box<MessageStream>>);

impl Jobs {
    /// Subscribes to the ends of jobs. To be called before the job is asked for, so that its end is
    /// not missed.
    async fn of(bus: &Connection) -> Result<Self, SystemdError> {
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(NAME)?
            .path(PATH)?
            .interface(MANAGER)?
            .member("JobRemoved")?
            .build();
        Ok(Self(Box::pin(MessageStream::for_match_rule(rule, bus, None).await?)))
    }

    /// Waits for the job that `reply` names.
    async fn wait_for(&mut self, reply: &Message) -> Result<(), SystemdError> {
        let job: OwnedObjectPath = reply.body().deserialize()?;
        loop {
            let message = poll_fn(|context| self.0.as_mut().poll_next(context)).await;
            let Some(message) = message.transpose()? else { return Err(SystemdError::Lost) };
            let (_, path, _, result): (u32, OwnedObjectPath, String, String) = message.body().deserialize()?;
            if path == job {
                return if result == "done" { Ok(()) } else { Err(SystemdError::Job { result }) };
            }
        }
    }
}

/// Returns a runtime of this thread alone.
fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Sets properties of `unit` until the next boot: those that systemd of this version knows.
/// True if there were some.
pub(super) async fn set_properties(
    unit: &str,
    of_version: impl Fn(u32) -> Vec<(&'static str, Value<'static>)>,
) -> Result<bool, SystemdError> {
    within_limit(TIMEOUT, async {
        let bus = Connection::system().await?;
        let properties = of_version(version(&bus).await?);
        if properties.is_empty() {
            return Ok(false);
        }
        call(&bus, "SetUnitProperties", &(unit, true, properties)).await?;
        Ok(true)
    })
    .await
}

/// A property: its interface, its name.
async fn get(bus: &Connection, path: &str, property: (&str, &str)) -> Result<Message, zbus::Error> {
    bus.call_method(Some(NAME), path, Some("org.freedesktop.DBus.Properties"), "Get", &property).await
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

async fn within_limit<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, SystemdError>>,
) -> Result<T, SystemdError> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(SystemdError::Timeout { seconds: limit.as_secs() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_gets_the_properties_that_this_version_knows() {
        let scope = Scope { slice: "system.slice".to_owned(), unit: "a.scope".to_owned() };
        let names =
            |v1, version| scope.properties("a", 1, v1, version).into_iter().map(|(name, _)| name.to_owned()).collect();
        let (old, new): (Vec<String>, Vec<String>) = (names(true, 219), names(false, 252));
        assert!(old.iter().any(|name| name == "BlockIOAccounting") && !old.iter().any(|name| name == "IOAccounting"));
        assert!(new.iter().any(|name| name == "IOAccounting") && !new.iter().any(|name| name == "BlockIOAccounting"));
        assert_eq!([old, new].map(|names| names.iter().any(|name| name == "CollectMode")), [false, true]);
    }

    #[test]
    fn an_oom_group_is_a_policy_of_the_scope() {
        let resources = |group: &str| -> LinuxResources {
            serde_json::from_value(serde_json::json!({ "unified": { "memory.oom.group": group } })).unwrap()
        };
        for (group, version, policy) in
            [("1", 253, Some("kill")), ("0", 253, Some("continue")), ("1", 252, None), ("2", 253, None)]
        {
            assert_eq!(oom_policy(Some(&resources(group)), version), policy, "{group} {version}");
        }
        assert_eq!(oom_policy(Some(&LinuxResources::default()), 257), None);
        assert_eq!(oom_policy(None, 257), None);
    }

    #[test]
    fn a_version_begins_with_its_number() {
        let rows =
            [("252.38-1~deb12u1", 252), ("v245.4-1.fc32", 245), ("219", 219), ("257~rc1", 257), ("", 0), ("x", 0)];
        for (text, version) in rows {
            assert_eq!(leading_number(text), version, "{text}");
        }
    }
}
