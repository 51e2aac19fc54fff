//! Containerds that a node may have, and where the administrator of each configures it.

use std::{
    env,
    path::{Path, PathBuf},
};

use super::config::{DEFAULT_FILE, Daemon, version_of};

/// Way in which a distribution is told about another runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// containerd reads the administrator's own file.
    Own,
    /// containerd's file is rendered anew at each start, from the first of these templates that is
    /// there: `(version of the format, name beside it)`.
    Template(&'static [(i64, &'static str)]),
    /// containerd's file is rendered anew at each start, and takes over what is in this folder.
    Folder(&'static str),
}

/// A distribution of containerd.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Distribution {
    /// Name for `--only`.
    pub(crate) name: &'static str,
    /// A path that shows that it is installed; containerd itself is where its program is.
    sign: &'static str,
    /// The file that its containerd reads.
    config: &'static str,
    socket: &'static str,
    /// Its containerd, while none runs; without a `/`, looked for in the PATH.
    program: &'static str,
    pub(crate) layout: Layout,
    /// systemd's units that run it, on nodes of different roles.
    pub(crate) units: &'static [&'static str],
}

/// All that are known; Docker's own containerd reads no file.
pub(crate) const DISTRIBUTIONS: [Distribution; 5] = [
    Distribution {
        name: "containerd",
        sign: "/",
        config: DEFAULT_FILE,
        socket: "/run/containerd/containerd.sock",
        program: "containerd",
        layout: Layout::Own,
        units: &["containerd.service"],
    },
    Distribution {
        name: "k3s",
        sign: "/var/lib/rancher/k3s/agent",
        config: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        socket: "/run/k3s/containerd/containerd.sock",
        program: "/var/lib/rancher/k3s/data/current/bin/containerd",
        layout: Layout::Template(&[(3, "config-v3.toml.tmpl"), (2, "config.toml.tmpl")]),
        units: &["k3s.service", "k3s-agent.service"],
    },
    Distribution {
        name: "rke2",
        sign: "/var/lib/rancher/rke2/agent",
        config: "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        socket: "/run/k3s/containerd/containerd.sock",
        program: "/var/lib/rancher/rke2/bin/containerd",
        layout: Layout::Template(&[(3, "config-v3.toml.tmpl"), (2, "config.toml.tmpl")]),
        units: &["rke2-server.service", "rke2-agent.service"],
    },
    Distribution {
        name: "microk8s",
        sign: "/var/snap/microk8s/current/args",
        config: "/var/snap/microk8s/current/args/containerd.toml",
        socket: "/var/snap/microk8s/common/run/containerd.sock",
        program: "/snap/microk8s/current/bin/containerd",
        layout: Layout::Template(&[(2, "containerd-template.toml")]),
        units: &["snap.microk8s.daemon-containerd.service"],
    },
    Distribution {
        name: "k0s",
        sign: "/etc/k0s/containerd.toml",
        config: "/etc/k0s/containerd.toml",
        socket: "/run/k0s/containerd.sock",
        program: "/var/lib/k0s/bin/containerd",
        layout: Layout::Folder("/etc/k0s/containerd.d"),
        units: &["k0sworker.service", "k0scontroller.service"],
    },
];

/// A containerd of this node.
#[derive(Debug)]
pub(crate) struct Installation {
    pub(crate) distribution: &'static Distribution,
    /// The file that it reads.
    pub(crate) config: PathBuf,
    /// containerd's own version, where it could be asked.
    pub(crate) version: Option<(u32, u32)>,
    /// The program that the next start takes.
    pub(crate) program: PathBuf,
    /// It, as far as it runs.
    pub(crate) daemon: Option<Daemon>,
}

impl Installation {
    /// Lists those of this node. `config`: containerd's own file, where that is another than it
    /// says itself.
    pub(crate) fn all(config: Option<&Path>) -> Vec<Self> {
        DISTRIBUTIONS.iter().filter_map(|distribution| Self::find(distribution, config)).collect()
    }

    fn find(distribution: &'static Distribution, config: Option<&Path>) -> Option<Self> {
        let config = config.filter(|_| distribution.layout == Layout::Own);
        let program = in_path(distribution.program);
        let has_sign = Path::new(distribution.sign).exists();
        // Two of them have the same socket, and say by their file which one they are.
        let is_own = distribution.layout == Layout::Own;
        let folder = format!("/{}/", distribution.name);
        let is_this = |daemon: &Daemon| {
            is_own || daemon.config.as_ref().is_none_or(|config| config.to_string_lossy().contains(&folder))
        };
        let daemon = Daemon::at(Path::new(distribution.socket)).filter(|daemon| has_sign && is_this(daemon));
        let is_there = match distribution.layout {
            Layout::Own => {
                daemon.is_some() || program.is_some() || config.is_some() || Path::new(distribution.config).exists()
            }
            Layout::Template(_) | Layout::Folder(_) => has_sign,
        };
        if !is_there {
            return None;
        }
        let program = daemon.as_ref().map(Daemon::next_program).or(program).unwrap_or(distribution.program.into());
        // A snap's is in the folder of a revision: it is changed through the link.
        let own = daemon.as_ref().filter(|_| is_own).and_then(|daemon| daemon.config.clone());
        let config = config.map(Path::to_owned).or(own).unwrap_or_else(|| distribution.config.into());
        Some(Self { distribution, config, version: version_of(&program), program, daemon })
    }

    /// Path of its socket.
    pub(crate) fn socket(&self) -> &'static Path {
        Path::new(self.distribution.socket)
    }
}

/// Finds a program; one with a `/` is where it is.
fn in_path(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file())
}
