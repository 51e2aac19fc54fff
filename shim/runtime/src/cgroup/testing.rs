//! Made-up hosts for this module's tests, and a real cgroup of their own where the host allows it.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ::testing::skipped;
use tempfile::TempDir;

use super::{Cgroup, CgroupError, Hierarchy, Layout};

/// Time after which a test calls it "never".
const TIMEOUT: Duration = Duration::from_secs(120);

/// A directory with these files in it.
pub(super) fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    add(directory.path(), files);
    directory
}

/// Adds or replaces files below a directory.
pub(super) fn add(directory: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

pub(super) fn v1(hierarchies: &[(&[&str], &Path)]) -> Cgroup {
    let hierarchies = hierarchies
        .iter()
        .map(|(controllers, directory)| Hierarchy {
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
            directory: (*directory).to_owned(),
        })
        .collect();
    Cgroup { layout: Layout::V1 { hierarchies, systemd_unit: None } }
}

pub(super) fn v2(directory: &Path) -> Cgroup {
    Cgroup { layout: Layout::V2 { directory: directory.to_owned(), systemd_unit: None } }
}

/// A cgroup of this test on the running host, removed at the end with all that is in it.
pub(super) struct RealCgroup {
    pub(super) cgroup: Cgroup,
    children: Vec<Child>,
}

impl RealCgroup {
    /// Creates a cgroup on the host's v1 hierarchies of these controllers.
    pub(super) fn v1(test: &str, controllers: &[&str]) -> Option<Self> {
        let directories: Vec<(String, PathBuf)> = controllers
            .iter()
            .map(|name| ((*name).to_owned(), Path::new("/sys/fs/cgroup").join(name).join(own_name(test))))
            .collect();
        for (_, directory) in &directories {
            if !directory.parent().unwrap().join("cgroup.procs").exists() || fs::create_dir(directory).is_err() {
                skipped(format_args!("no cgroup v1 in which to create {}", directory.display()));
                directories.iter().for_each(|(_, made)| drop(fs::remove_dir(made)));
                return None;
            }
        }
        let layout = Layout::V1 {
            hierarchies: directories
                .into_iter()
                .map(|(name, directory)| Hierarchy { controllers: vec![name], directory })
                .collect(),
            systemd_unit: None,
        };
        Some(Self { cgroup: Cgroup { layout }, children: Vec::new() })
    }

    /// Creates a cgroup on the host's unified hierarchy, a hybrid host's without controllers
    /// included.
    pub(super) fn v2(test: &str) -> Option<Self> {
        let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .into_iter()
            .map(Path::new)
            .find(|root| root.join("cgroup.controllers").exists());
        let directory = root.map(|root| root.join(own_name(test))).filter(|path| fs::create_dir(path).is_ok());
        let Some(directory) = directory else {
            skipped("no cgroup v2 in which to create a group");
            return None;
        };
        Some(Self { cgroup: v2(&directory), children: Vec::new() })
    }

    /// Creates a cgroup on the host's v1 hierarchies of these controllers, and on its unified one.
    pub(super) fn hybrid(test: &str, controllers: &[&str]) -> Option<Self> {
        let (mut real, mut unified) = (Self::v1(test, controllers)?, Self::v2(test)?);
        if let (Layout::V1 { hierarchies, .. }, Layout::V2 { directory, .. }) =
            (&mut real.cgroup.layout, &mut unified.cgroup.layout)
        {
            // Whose end it is from now on.
            let directory = std::mem::replace(directory, PathBuf::from("/nowhere"));
            hierarchies.push(Hierarchy { controllers: Vec::new(), directory });
        }
        Some(real)
    }

    /// Runs a shell script in the cgroup, or in one of this name below it; answers its pid.
    pub(super) fn spawn(&mut self, below: &str, script: &str) -> i32 {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        for directory in self.cgroup.directories().map(|directory| directory.join(below)) {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        self.children.push(child);
        pid
    }

    /// Waits for the end of the processes that were started; answers the signals that ended them.
    pub(super) fn wait(&mut self) -> Vec<Option<i32>> {
        use std::os::unix::process::ExitStatusExt;
        self.children.iter_mut().map(|child| child.wait().unwrap().signal()).collect()
    }
}

impl Drop for RealCgroup {
    /// A test that has failed already is not failed again, which would abort all others.
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for child in &mut self.children {
            let _ = child.kill();
        }
        // On a thread of its own: the test may be inside a runtime.
        let cgroup = self.cgroup.clone();
        let destroyed = std::thread::spawn(move || {
            let _ = runtime.block_on(cgroup.thaw());
            runtime.block_on(retry(async || cgroup.destroy().await));
        })
        .join();
        for child in &mut self.children {
            let _ = child.wait();
        }
        assert!(destroyed.is_ok() || std::thread::panicking(), "the cgroup of the test is left behind");
    }
}

/// Tries until it succeeds; fails when it never does. Who is killed leaves its cgroup when the
/// machine comes to it, and what is tested here waits for that for a second.
pub(super) async fn retry(mut attempt: impl AsyncFnMut() -> Result<(), CgroupError>) {
    let deadline = Instant::now() + TIMEOUT;
    while let Err(error) = attempt().await {
        assert!(Instant::now() < deadline, "never: {error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until `holds`; fails when it never does.
pub(super) fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn own_name(test: &str) -> String {
    format!("egpu-test-{}-{test}", std::process::id())
}
