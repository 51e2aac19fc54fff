//! Changes for each containerd of this node and for Docker, and their restarts.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use super::{
    CommonArguments,
    changes::{Change, Draft},
    containerd::{self, ContainerdPlan, Outcome},
    docker,
    error::InstallError,
    restart,
};
use crate::{
    containerd::{
        config::Daemon,
        distribution::{Installation, Layout},
    },
    say,
};

/// Names for `--only`.
pub(super) const NAMES: [&str; 6] = ["containerd", "k3s", "rke2", "microk8s", "k0s", DOCKER];
const DOCKER: &str = "docker";
const DOCKER_UNIT: &str = "docker.service";
/// The first version with runtimes that containerd's shims are.
const FIRST_DOCKER: u32 = 23;
/// Time after which k0s restarts its containerd when a drop-in has changed.
const K0S_DEBOUNCE: Duration = Duration::from_secs(5);

/// Changes of one containerd's configuration.
struct ContainerdChanges {
    containerd: Installation,
    changes: Vec<Change>,
    /// The file that has the runtime, if it is or will be in one.
    file: Option<PathBuf>,
}

/// Changes of the node's configuration.
pub(super) struct Plan {
    containerds: Vec<ContainerdChanges>,
    /// Docker is here, in a version that can run egpu.
    has_docker: bool,
    wants_docker: bool,
    docker: Vec<Change>,
    /// Changes of files that nobody found here reads.
    others: Vec<Change>,
    /// Nothing is left alone.
    is_whole: bool,
}

impl Plan {
    /// Finds what is to be configured here; nothing is changed as yet.
    pub(super) fn of_this_node(arguments: &CommonArguments) -> Self {
        let is_wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
        let found = Installation::all(arguments.containerd_config.as_deref());
        let containerds = found.into_iter().filter(|containerd| is_wanted(containerd.distribution.name));
        let containerds =
            containerds.map(|containerd| ContainerdChanges { containerd, changes: Vec::new(), file: None }).collect();
        let wants_docker = is_wanted(DOCKER);
        let has_docker = wants_docker && has_docker();
        Self {
            containerds,
            has_docker,
            wants_docker,
            docker: Vec::new(),
            others: Vec::new(),
            is_whole: arguments.only.is_empty(),
        }
    }

    /// Plans what makes `egpu` a runtime.
    pub(super) fn install(&mut self, shim: &Path, force: bool) -> Result<(), InstallError> {
        if self.containerds.is_empty() && !self.has_docker {
            return Err(InstallError::NothingFound);
        }
        for planned in &mut self.containerds {
            let ContainerdChanges { containerd, .. } = planned;
            let mut draft = Draft::default();
            let outcome = ContainerdPlan::read(containerd)?.install(shim, force, &mut draft)?;
            let config = containerd.config.display();
            match &outcome {
                Outcome::Planned(file) => planned.file = Some(file.clone()),
                Outcome::CriIsOff => {
                    say(&format!(
                        "{config}: CRI is off, so there is nothing to configure; ctr and nerdctl find egpu by its name"
                    ));
                }
                Outcome::ByHand => say(&format!("{config}: the runtime `egpu` was made by hand, and stays as it is")),
            }
            planned.changes = draft.finish();
        }
        if self.has_docker {
            let mut draft = Draft::default();
            docker::install(&mut draft, force)?;
            self.docker = draft.finish();
        }
        Ok(())
    }

    /// Plans to take the runtime out again.
    pub(super) fn uninstall(&mut self, shim: &Path, written: &[PathBuf], force: bool) -> Result<(), InstallError> {
        let mut read = Vec::new();
        for planned in &mut self.containerds {
            let Some(plan) = ContainerdPlan::read_for_uninstall(&planned.containerd)? else { continue };
            let mut draft = Draft::default();
            plan.uninstall(shim, written, force, &mut draft)?;
            read.extend(plan.places().into_iter().map(|(path, _)| path));
            planned.changes = draft.finish();
        }
        if self.wants_docker {
            let mut draft = Draft::default();
            docker::uninstall(&mut draft, written, force)?;
            self.docker = draft.finish();
        }
        // Of a containerd that is gone, or was named at the install alone.
        read.push(docker::CONFIG.into());
        let mut draft = Draft::default();
        for path in written.iter().filter(|path| self.is_whole && !read.contains(path)) {
            containerd::remove_parts(path, force, &mut draft)?;
        }
        self.others = draft.finish();
        Ok(())
    }

    /// Lists all changes, in the order in which they are to be written.
    pub(super) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.containerds.iter().flat_map(|planned| &planned.changes).chain(&self.others).chain(&self.docker)
    }

    /// Refuses what would restart a containerd when nobody has said so.
    pub(super) fn refuse_own_restarts(&self, restart: bool) -> Result<(), InstallError> {
        let own = self
            .containerds
            .iter()
            .filter(|planned| matches!(planned.containerd.distribution.layout, Layout::Folder(_)));
        match own.flat_map(|planned| &planned.changes).next() {
            Some(change) if !restart => Err(InstallError::RestartsItself { path: change.path.clone() }),
            _ => Ok(()),
        }
    }

    /// Has containerd and Docker read what was written, or says how to.
    pub(super) fn restart(&self, restart: bool) -> Result<(), InstallError> {
        for planned in self.containerds.iter().filter(|planned| planned.needs_restart()) {
            let unit = restart::unit(&planned.containerd);
            if restart {
                planned.restart(unit)?;
                say(&format!("restarted {unit}"));
            } else {
                say(&format!("not in force before `systemctl restart {unit}`; running containers go on meanwhile"));
            }
        }
        if self.docker.is_empty() || !restart::is_active(DOCKER_UNIT) {
            return Ok(());
        }
        if restart {
            restart::reload(DOCKER_UNIT)?;
            say(&format!("reloaded {DOCKER_UNIT}"));
        } else {
            say(&format!("not in force before `systemctl reload {DOCKER_UNIT}`; running containers go on meanwhile"));
        }
        Ok(())
    }
}

impl ContainerdChanges {
    /// It runs, and has not read what is written.
    fn needs_restart(&self) -> bool {
        let Some(daemon) = &self.containerd.daemon else { return false };
        !self.changes.is_empty() || self.file.as_ref().is_some_and(|file| restart::is_older(daemon.pid, file))
    }

    /// Restarts it; where it does not come up, puts the old configuration back.
    fn restart(&self, unit: &str) -> Result<(), InstallError> {
        let socket = self.containerd.socket();
        // Where it does not work, no configuration of egpu's is to blame.
        let wants_cri = restart::has_cri(socket);
        let Err(why) = self.come_up(unit, wants_cri) else { return Ok(()) };
        let service = unit.to_owned();
        let old = self.containerd.daemon.as_ref().map(|daemon| daemon.pid);
        if old.is_some() && Daemon::at(socket).map(|daemon| daemon.pid) == old {
            return Err(InstallError::NotRestarted { service, why });
        }
        for change in self.changes.iter().rev() {
            put_back(change)?;
        }
        match self.come_up(unit, wants_cri) {
            Ok(()) => Err(InstallError::RolledBack { service, why }),
            Err(now) => Err(InstallError::StillDown { service, why, now }),
        }
    }

    fn come_up(&self, unit: &str, wants_cri: bool) -> Result<(), String> {
        match self.containerd.distribution.layout {
            Layout::Folder(_) => sleep(K0S_DEBOUNCE),
            Layout::Own | Layout::Template(_) => restart::restart(unit).map_err(|error| error.to_string())?,
        }
        restart::wait_until_up(self.containerd.socket(), wants_cri)
    }
}

/// Puts a file back as it was; where somebody has edited it meanwhile, takes egpu's part out.
fn put_back(change: &Change) -> Result<(), InstallError> {
    match change.revert() {
        Err(InstallError::Raced { .. }) => {
            let mut draft = Draft::default();
            containerd::remove_parts(&change.path, true, &mut draft)?;
            draft.finish().iter().try_for_each(Change::write)
        }
        reverted => reverted,
    }
}

/// Returns whether a Docker is here that can run egpu.
fn has_docker() -> bool {
    let Ok(output) = Command::new("dockerd").arg("--version").output() else { return false };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match docker_version(&text) {
        Some(version) if version < FIRST_DOCKER => {
            say(&format!("Docker {version} is left alone: runtimes of containerd can be named from {FIRST_DOCKER} on"));
            false
        }
        version => version.is_some(),
    }
}

/// `Docker version 26.1.5+dfsg1, build a72d7cd`: 26.
fn docker_version(text: &str) -> Option<u32> {
    let number = text.strip_prefix("Docker version ")?;
    number.split('.').next()?.parse().ok()
}
