//! Configuration of containerd: the running daemon's, with the files that it imports, as
//! `containerd config dump` prints it.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use toml::{Table, Value};

pub(crate) const DEFAULT_FILE: &str = "/etc/containerd/config.toml";
/// Variable by which `ctr` and `nerdctl` find another daemon, too.
const ADDRESS_VARIABLE: &str = "CONTAINERD_ADDRESS";
const ADDRESSES: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/k0s/containerd.sock",
];
const VERSION: &str = "--version";
/// The first version whose CRI starts the shim at `runtime_path`; 1.6 takes the key and ignores it.
pub(crate) const FIRST_WITH_RUNTIME_PATH: (u32, u32) = (1, 7);

/// Error of reading the configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{file} cannot be read")]
    File {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("{origin} is not TOML")]
    Toml {
        origin: String,
        #[source]
        source: Box<toml::de::Error>,
    },
}

/// Configuration of containerd.
#[derive(Debug)]
pub(crate) struct ContainerdConfig {
    /// The file, as people name it.
    pub(crate) origin: String,
    pub(crate) table: Table,
    /// containerd's own version, where it could be asked.
    pub(crate) version: Option<(u32, u32)>,
}

impl ContainerdConfig {
    /// Reads `file`; without one, that of the running daemon, or the default one. `None`: there is
    /// none, and no containerd either.
    pub(crate) fn read(file: Option<&Path>) -> Result<Option<Self>, ReadError> {
        let daemon = match std::env::var_os(ADDRESS_VARIABLE) {
            Some(address) => Daemon::at(Path::new(&address)),
            None => ADDRESSES.iter().find_map(|address| Daemon::at(Path::new(address))),
        };
        let named = file.map(Path::to_owned).or_else(|| daemon.as_ref()?.config.clone());
        let path = named.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        // The daemon's own program: others of other versions may be installed.
        let run = |arguments: &[&OsStr]| match &daemon {
            Some(daemon) => output_of(&daemon.program(), arguments),
            None => output_of(Path::new("containerd"), arguments),
        };
        let version = run(&[OsStr::new(VERSION)]).and_then(|text| version_in(&text));
        let is_there = path.exists();
        if is_there || named.is_none() {
            let arguments = [OsStr::new("--config"), path.as_os_str(), OsStr::new("config"), OsStr::new("dump")];
            if let Some(text) = run(if is_there { &arguments } else { &arguments[2..] }) {
                let origin = match is_there {
                    true => path.display().to_string(),
                    false => format!("containerd's defaults, as there is no {DEFAULT_FILE}"),
                };
                return Self::parse(origin, &text, version).map(Some);
            }
        }
        let origin = path.display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(origin, &text, version).map(Some),
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ReadError::File { file: origin, source }),
        }
    }

    fn parse(origin: String, text: &str, version: Option<(u32, u32)>) -> Result<Self, ReadError> {
        match text.parse() {
            Ok(table) => Ok(Self { origin, table, version }),
            Err(source) => Err(ReadError::Toml { origin, source: Box::new(source) }),
        }
    }

    /// Returns whether CRI starts the shim at a runtime's `runtime_path`; `None`: the file does not
    /// show it.
    pub(crate) fn knows_runtime_path(&self) -> Option<bool> {
        let format = self.table.get("version").and_then(Value::as_integer);
        let version = self.version.map(|version| version >= FIRST_WITH_RUNTIME_PATH);
        version.or_else(|| (format? >= 3).then_some(true))
    }
}

/// A containerd that runs.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) pid: i32,
    /// The file that it was given; `None`: the default file.
    pub(crate) config: Option<PathBuf>,
}

impl Daemon {
    /// Finds the daemon that listens there, if it is root's: its program is going to be executed.
    pub(crate) fn at(address: &Path) -> Option<Self> {
        let peer = getsockopt(&UnixStream::connect(address).ok()?, PeerCredentials).ok()?;
        if peer.uid() != 0 {
            return None;
        }
        let pid = peer.pid();
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        // A relative path starts at the directory in which it was started.
        let started_in = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        let config = config_argument(&arguments).map(|path| started_in.join(OsStr::from_bytes(path)));
        Some(Self { pid, config })
    }

    /// The program that it is.
    fn program(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/exe", self.pid))
    }

    /// The program that it will be after a restart: a package may have been renewed meanwhile.
    pub(crate) fn next_program(&self) -> PathBuf {
        let installed = fs::read_link(self.program()).ok();
        let installed = installed.map(|path| path.to_string_lossy().trim_end_matches(" (deleted)").to_owned());
        installed.map(PathBuf::from).filter(|path| path.exists()).unwrap_or_else(|| self.program())
    }
}

/// Finds the file that a command line of containerd names. Go's flags have one dash or two, their
/// values behind `=` or a space.
fn config_argument(cmdline: &[u8]) -> Option<&[u8]> {
    let mut arguments = cmdline.split(|byte| *byte == 0).skip(1);
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix(b"--").or_else(|| argument.strip_prefix(b"-")) else { continue };
        let mut parts = flag.splitn(2, |byte| *byte == b'=');
        if matches!(parts.next(), Some(b"config" | b"c")) {
            return parts.next().or_else(|| arguments.next()).filter(|path| !path.is_empty());
        }
    }
    None
}

/// Returns the output of containerd; `None`: it fails.
fn output_of(program: &Path, arguments: &[&OsStr]) -> Option<String> {
    // k3s has many programs in one: the name selects.
    let output = Command::new(program).arg0("containerd").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the version of a program.
pub(crate) fn version_of(program: &Path) -> Option<(u32, u32)> {
    version_in(&output_of(program, &[OsStr::new(VERSION)])?)
}

/// `containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b71`: 2.1.
fn version_in(text: &str) -> Option<(u32, u32)> {
    let number = text.split_whitespace().nth(2)?;
    let mut parts = number.strip_prefix('v').unwrap_or(number).split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_command_line_names_its_file() {
        for (line, file) in [
            ("/usr/bin/containerd", None),
            ("containerd --config /a.toml --log-level debug", Some("/a.toml")),
            ("containerd --config=/a.toml", Some("/a.toml")),
            ("containerd -l x -c /b=c.toml -a /run/k3s/containerd.sock", Some("/b=c.toml")),
            ("containerd -config a.toml", Some("a.toml")),
            ("containerd --config-path /a.toml", None),
            ("--config /a.toml", None),
            ("containerd --config", None),
        ] {
            let cmdline: Vec<u8> = line.split(' ').flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
            assert_eq!(config_argument(&cmdline), file.map(str::as_bytes), "{line}");
        }
    }

    #[test]
    fn versions_are_read() {
        for (text, version) in [
            ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3\n", Some((1, 6))),
            ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4", Some((2, 1))),
            ("containerd github.com/k3s-io/containerd v1.7.23-k3s2", Some((1, 7))),
            ("something else", None),
        ] {
            assert_eq!(version_in(text), version, "{text}");
        }
    }

    #[test]
    fn a_file_that_is_named_is_read_or_reported() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        assert!(matches!(ContainerdConfig::read(Some(&file)), Err(ReadError::File { .. })));
        fs::write(&file, "= 1").unwrap();
        assert!(matches!(ContainerdConfig::read(Some(&file)), Err(ReadError::Toml { .. })));
        fs::write(&file, "version = 2\n[plugins.x]\ny = 'z'").unwrap();
        let read = ContainerdConfig::read(Some(&file)).unwrap().unwrap();
        assert_eq!((read.origin, &read.table["plugins"]["x"]["y"]), (file.display().to_string(), &"z".into()));
    }
}
