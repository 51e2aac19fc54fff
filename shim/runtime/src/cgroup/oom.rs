//! Learning that the kernel killed for want of memory.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::{
        eventfd::{EfdFlags, EventFd},
        inotify::{AddWatchFlags, InitFlags, Inotify},
    },
};
use tokio::{io::unix::AsyncFd, runtime::Handle};

use super::{Cgroup, CgroupError, Layout, files};
use crate::blocking::detached;

/// The kernel ran out of the container's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OomEvent {
    /// Processes killed for it since the cgroup was made, as the kernel counts them. v1 reports the
    /// shortage before it kills, so the kill that belongs to this event may not be counted yet, and
    /// a shortage of a parent (a pod's limit) is reported to each container below it, whoever is
    /// killed.
    pub kills: u64,
}

/// Watches one cgroup for shortages of memory. Arm it once the container is created; drop it to end
/// it.
#[derive(Debug)]
pub struct OomWatch {
    source: OomSource,
}

#[derive(Debug)]
enum OomSource {
    /// cgroup v1 memory controller, `Documentation/admin-guide/cgroup-v1/memory.rst` section 10.
    V1 {
        notifications: AsyncFd<OwnedFd>,
        directory: PathBuf,
        /// The registration lasts as long as both descriptors.
        _control: File,
    },
    /// `memory.events`, which the kernel reports as modified
    /// (`Documentation/admin-guide/cgroup-v2.rst`).
    V2 { notifications: SlowToClose, directory: PathBuf, kills: u64 },
}

/// An inotify instance. The kernel closes it only after a grace period, 5 to 20 ms; another thread
/// than the runtime's waits for that.
#[derive(Debug)]
struct SlowToClose(Option<AsyncFd<OwnedFd>>);

impl Drop for SlowToClose {
    fn drop(&mut self) {
        let inotify = self.0.take();
        if Handle::try_current().is_ok() {
            detached(move || drop(inotify));
        }
    }
}

impl Cgroup {
    /// Starts to watch. To be called within a tokio runtime.
    pub fn watch_oom(&self) -> Result<OomWatch, CgroupError> {
        let source = match &self.layout {
            Layout::V1 { .. } => {
                let directory =
                    self.v1_controller("memory").ok_or(CgroupError::NoController { controller: "memory" })?;
                watch_v1(directory)?
            }
            Layout::V2 { directory, .. } => watch_v2(directory)?,
        };
        Ok(OomWatch { source })
    }
}

impl OomWatch {
    /// The next shortage; `None` once the cgroup is gone, or (v2) has no process left. Safe to
    /// cancel.
    pub async fn next(&mut self) -> Option<OomEvent> {
        match &mut self.source {
            OomSource::V1 { notifications, directory, .. } => {
                wait(notifications).await?;
                // Removal of the cgroup is signalled in the same way.
                let control = files::read_if_present(&directory.join("memory.oom_control")).ok().flatten()?;
                Some(OomEvent { kills: files::keyed(&control, "oom_kill").unwrap_or(0) })
            }
            OomSource::V2 { notifications, directory, kills } => loop {
                wait(notifications.0.as_ref()?).await?;
                let now = v2_kills(directory)?;
                if now > *kills {
                    *kills = now;
                    return Some(OomEvent { kills: now });
                }
                let events = files::read_if_present(&directory.join("cgroup.events")).ok().flatten()?;
                if files::keyed(&events, "populated") == Some(0) {
                    return None;
                }
            },
        }
    }
}

fn watch_v1(directory: &Path) -> Result<OomSource, CgroupError> {
    let control_path = directory.join("memory.oom_control");
    let control =
        File::open(&control_path).map_err(|source| CgroupError::Read { path: control_path.clone(), source })?;
    let watch = |source: io::Error| CgroupError::Watch { path: control_path.clone(), source };
    let eventfd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|errno| watch(io::Error::from(errno)))?;
    let registration = format!("{} {}", eventfd.as_raw_fd(), control.as_raw_fd());
    files::write(&directory.join("cgroup.event_control"), &registration)?;
    Ok(OomSource::V1 {
        notifications: sys::async_fd(eventfd.into()).map_err(watch)?,
        directory: directory.to_owned(),
        _control: control,
    })
}

fn watch_v2(directory: &Path) -> Result<OomSource, CgroupError> {
    let events = directory.join("memory.events");
    let watch = |source: io::Error| CgroupError::Watch { path: events.clone(), source };
    let inotify =
        Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(|errno| watch(io::Error::from(errno)))?;
    for path in [&events, &directory.join("cgroup.events")] {
        inotify
            .add_watch(path, AddWatchFlags::IN_MODIFY)
            .map_err(|errno| CgroupError::Watch { path: path.clone(), source: io::Error::from(errno) })?;
    }
    Ok(OomSource::V2 {
        notifications: SlowToClose(Some(sys::async_fd(inotify.into()).map_err(watch)?)),
        directory: directory.to_owned(),
        // Counted after the watch is set, so that no kill falls between the two.
        kills: v2_kills(directory).unwrap_or(0),
    })
}

fn v2_kills(directory: &Path) -> Option<u64> {
    let events = files::read_if_present(&directory.join("memory.events")).ok().flatten()?;
    Some(files::keyed(&events, "oom_kill").unwrap_or(0))
}

/// Waits for a notification and empties the descriptor: what happened is read from the control
/// files. `None` when the descriptor is of no use any more.
async fn wait(notifications: &AsyncFd<OwnedFd>) -> Option<()> {
    loop {
        let mut ready = notifications.readable().await.ok()?;
        let mut buffer = [0; 4096];
        match nix::unistd::read(notifications.get_ref(), &mut buffer) {
            Ok(0) => return None,
            Ok(_) => return Some(()),
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ::testing::skipped;

    use super::*;
    use crate::cgroup::testing::{self, RealCgroup};

    async fn next(watch: &mut OomWatch) -> Option<OomEvent> {
        tokio::time::timeout(Duration::from_secs(120), watch.next()).await.expect("no event, and no end")
    }

    #[tokio::test]
    async fn v1_reports_a_kill_and_the_end() {
        let Some(mut real) = RealCgroup::v1("oom", &["memory", "freezer"]) else { return };
        // What can be swapped out does not run out.
        let counts_swap = real.cgroup.v1_controller("memory").unwrap().join("memory.memsw.limit_in_bytes").exists();
        let has_swap = std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1);
        let limits: &[u8] = match counts_swap {
            true => br#"{"memory":{"limit":8388608,"swap":8388608}}"#,
            false if has_swap => return skipped("there is swap, and this kernel does not count it for cgroups"),
            false => br#"{"memory":{"limit":8388608}}"#,
        };
        real.cgroup.update(limits).await.unwrap();
        let mut watch = real.cgroup.watch_oom().unwrap();
        real.spawn("", "x=$(head -c 100000000 /dev/zero | tr '\\0' x)");
        next(&mut watch).await.unwrap();
        real.wait();
        // The kernel may kill the shell's pipeline, too, before the first that it chose is gone.
        let kills = files::keyed(&oom_control(&real), "oom_kill").unwrap();
        assert!(kills >= 1, "nothing was killed");
        let metrics = real.cgroup.metrics(0);
        assert_eq!(metrics.type_url, "io.containerd.cgroups.v1.Metrics");
        testing::retry(async || real.cgroup.remove().await).await;
        while let Some(event) = next(&mut watch).await {
            assert!(event.kills >= kills, "{event:?}, {kills} before");
        }
    }

    fn oom_control(real: &RealCgroup) -> String {
        files::read(&real.cgroup.v1_controller("memory").unwrap().join("memory.oom_control")).unwrap()
    }

    #[tokio::test]
    async fn v2_reports_each_new_kill_once() {
        let fake = testing::directory(&[
            ("memory.events", "low 0\noom 3\noom_kill 1\n"),
            ("cgroup.events", "populated 1\nfrozen 0\n"),
        ]);
        let mut watch = testing::v2(fake.path()).watch_oom().unwrap();
        // A limit was hit, and nobody killed: not an event.
        testing::add(fake.path(), &[("memory.events", "low 0\noom 4\noom_kill 1\n")]);
        testing::add(fake.path(), &[("memory.events", "low 0\noom 5\noom_kill 3\n")]);
        assert_eq!(next(&mut watch).await, Some(OomEvent { kills: 3 }));
        testing::add(fake.path(), &[("cgroup.events", "populated 0\nfrozen 0\n")]);
        assert_eq!(next(&mut watch).await, None);
    }

    #[tokio::test]
    async fn without_a_memory_controller_it_says_so() {
        let cgroup = testing::v1(&[(&["pids"], Path::new("/nowhere"))]);
        assert!(matches!(cgroup.watch_oom(), Err(CgroupError::NoController { controller: "memory" })));
        assert!(matches!(testing::v2(Path::new("/nowhere")).watch_oom(), Err(CgroupError::Watch { .. })));
    }
}
