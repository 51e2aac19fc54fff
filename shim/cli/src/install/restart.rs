//! Restarts of containerd and Docker, and whether they came up.

use std::{
    fs,
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use base::error_chain;
use nix::time::{ClockId, clock_gettime};
use procfs_core::{FromRead, process::Stat};
use prost::Message;
use runtime::containerd::{ContainerdClient, ContainerdError};

use super::error::InstallError;
use crate::containerd::distribution::Installation;

/// A containerd with many containers connects to all of their shims before it answers.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(200);
/// An answer from a containerd that is up takes milliseconds.
const ANSWER: Duration = Duration::from_secs(5);
const CRI_TYPE: &str = "io.containerd.grpc.v1";
const CRI: &str = "cri";

/// Returns the unit that runs this containerd here.
pub(super) fn unit(containerd: &Installation) -> &'static str {
    let units = containerd.distribution.units;
    let active = units.iter().find(|unit| is_active(unit));
    active.or(units.first()).copied().unwrap_or("containerd.service")
}

/// Returns whether a unit runs.
pub(super) fn is_active(unit: &str) -> bool {
    systemctl(&["is-active", "--quiet", unit]).is_ok()
}

/// Restarts a unit.
pub(super) fn restart(unit: &str) -> Result<(), InstallError> {
    systemctl(&["restart", unit])
}

/// Has a unit read its configuration again; containers go on.
pub(super) fn reload(unit: &str) -> Result<(), InstallError> {
    systemctl(&["reload", unit])
}

fn systemctl(arguments: &[&str]) -> Result<(), InstallError> {
    let command = || format!("systemctl {}", arguments.join(" "));
    let failed = |output: String| InstallError::Command { command: command(), output };
    // In a container whose root directory is now the host's, systemctl would do nothing.
    let output = Command::new("systemctl").args(arguments).env("SYSTEMD_IGNORE_CHROOT", "1").output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(if said.is_empty() { output.status.to_string() } else { said }))
}

/// Returns whether CRI works there: containerd 1.x starts without, when its configuration makes no
/// sense.
pub(super) fn has_cri(socket: &Path) -> bool {
    ask(socket).is_ok_and(|plugins| cri_error(&plugins).is_none())
}

/// Waits until containerd answers, and CRI with it, if it is to.
pub(super) fn wait_until_up(socket: &Path, wants_cri: bool) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let why = match ask(socket) {
            Ok(_) if !wants_cri => return Ok(()),
            Ok(plugins) => match cri_error(&plugins) {
                None => return Ok(()),
                Some(error) => format!("CRI: {error}"),
            },
            Err(error) => error_chain(&error),
        };
        if Instant::now() > deadline {
            return Err(why);
        }
        sleep(RETRY);
    }
}

/// Returns the reason for which CRI does not work.
fn cri_error(plugins: &[Plugin]) -> Option<&str> {
    match plugins.iter().find(|plugin| plugin.kind == CRI_TYPE && plugin.id == CRI) {
        Some(cri) => cri.error.as_ref().map(|error| error.message.as_str()),
        None => Some("it is not there"),
    }
}

/// An answer that did not come.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("cannot make a runtime to wait with")]
    Runtime(#[source] std::io::Error),
    #[error(transparent)]
    Containerd(#[from] ContainerdError),
    #[error("containerd did not answer within {} s", ANSWER.as_secs())]
    Timeout,
}

fn ask(socket: &Path) -> Result<Vec<Plugin>, AskError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AskError::Runtime)?;
    let question = async {
        let mut client = ContainerdClient::connect(&socket.to_string_lossy(), "default").await?;
        client.ask("/containerd.services.introspection.v1.Introspection/Plugins", &PluginsRequest {}).await
    };
    let answer: Vec<PluginsResponse> = runtime.block_on(async {
        tokio::time::timeout(ANSWER, question).await.map_err(|_| AskError::Timeout)?.map_err(AskError::from)
    })?;
    Ok(answer.into_iter().flat_map(|answer| answer.plugins).collect())
}

/// `containerd.services.introspection.v1.PluginsRequest`, without a filter.
#[derive(Clone, PartialEq, Message)]
struct PluginsRequest {}

/// `containerd.services.introspection.v1.PluginsResponse`.
#[derive(Clone, PartialEq, Message)]
struct PluginsResponse {
    #[prost(message, repeated, tag = "1")]
    plugins: Vec<Plugin>,
}

/// `containerd.services.introspection.v1.Plugin`, as far as it is read.
#[derive(Clone, PartialEq, Message)]
struct Plugin {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    id: String,
    #[prost(message, optional, tag = "7")]
    error: Option<Status>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Returns whether a process was started before a file was changed; false, where it cannot be
/// told.
pub(super) fn is_older(pid: i32, file: &Path) -> bool {
    let changed = fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
    started_at(pid).zip(changed).is_some_and(|(started, changed)| started < changed)
}

fn started_at(pid: i32) -> Option<SystemTime> {
    let stat = Stat::from_file(format!("/proc/{pid}/stat")).ok()?;
    let ticks_a_second = Duration::from_secs(rustix::param::clock_ticks_per_second());
    let after_boot = Duration::from_secs(stat.starttime).div_duration_f64(ticks_a_second);
    let uptime = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    SystemTime::now().checked_sub(uptime.checked_sub(Duration::from_secs_f64(after_boot))?)
}
