//! The state that the runtime keeps of a container: a directory below the runtime root, named by
//! the container's id.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use ledger::ProcessId;
use libcontainer::config::YoukiConfig;
use nix::sys::stat::Mode;
use nvidia_glue::inject::ExecEdits;
use serde::{Deserialize, Serialize};

/// libcontainer's: the last of a create's files before there is a cgroup, and the first to be
/// removed after that is gone. A cgroup is this container's as long as the file is there.
const CONFIG: &str = "youki_config.json";

/// Our own file beside libcontainer's.
const SETTINGS: &str = "egpu.json";

/// Number of tries where others remove the root while it is being made.
const ROOT_TRIES: u32 = 100;

/// Options of `create` that `exec` and `delete` need to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The option [`Create::no_new_keyring`](super::protocol::Create).
    pub(crate) no_new_keyring: bool,
    /// The option [`Create::systemd_cgroup`](super::protocol::Create). libcontainer's own note of
    /// it is not written atomically.
    pub(crate) systemd_cgroup: bool,
    /// The injection, as it applies to execs.
    #[serde(default)]
    pub(crate) exec_edits: ExecEdits,
    /// init, once there is one, so that another process which got its pid is not taken for it.
    pub(crate) init: Option<ProcessId>,
}

/// A state directory that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A name that is no container id.
    #[error("{0:?} is no container id; letters, digits and _ + - . are accepted, at most 1024")]
    Id(String),
    /// A container that exists already.
    #[error("the runtime knows a container {0:?} already; delete it first")]
    Exists(String),
    /// A container that does not exist.
    #[error("the runtime knows no container {0:?}")]
    Unknown(String),
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action that was tried.
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A container's state directory.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    path: PathBuf,
}

impl StateDir {
    /// Names the directory; it need not exist.
    pub(crate) fn at(root: &Path, id: &str) -> Result<Self, StateError> {
        let accepted = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
        if id.is_empty() || id.len() > 1024 || id == "." || id == ".." || !id.bytes().all(accepted) {
            return Err(StateError::Id(id.to_owned()));
        }
        Ok(Self { path: root.join(id) })
    }

    /// Creates it. The directory is also the lock: of two creates with one id, one fails here.
    pub(crate) fn create(root: &Path, id: &str) -> Result<Self, StateError> {
        let this = Self::at(root, id)?;
        let mut tries = 0;
        loop {
            fs::DirBuilder::new().recursive(true).mode(0o711).create(root).map_err(file("make", root))?;
            match fs::DirBuilder::new().mode(0o700).create(&this.path) {
                Ok(()) => return Ok(this),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(StateError::Exists(id.to_owned())),
                // The end of another container has just removed the empty root.
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < ROOT_TRIES => tries += 1,
                Err(e) => return Err(file("make", &this.path)(e)),
            }
        }
    }

    /// Finds an existing one.
    pub(crate) fn open(root: &Path, id: &str) -> Result<Self, StateError> {
        let this = Self::at(root, id)?;
        if this.path.is_dir() { Ok(this) } else { Err(StateError::Unknown(id.to_owned())) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The pipe through which init is told to execute its program.
    pub(crate) fn start(&self) -> PathBuf {
        self.path.join("start")
    }

    /// The pipe through which init reports whether it could execute its program.
    pub(crate) fn outcome(&self) -> PathBuf {
        self.path.join("outcome")
    }

    pub(crate) fn make_outcome(&self) -> Result<fs::File, StateError> {
        make_pipe(&self.outcome(), libc::O_NONBLOCK)
    }

    pub(crate) fn make_start(&self) -> Result<fs::File, StateError> {
        make_pipe(&self.start(), 0)
    }

    pub(crate) fn save(&self, settings: &Settings) -> Result<(), StateError> {
        let path = self.path.join(SETTINGS);
        let text = serde_json::to_vec(settings).map_err(|e| file("write", &path)(e.into()))?;
        write_atomically(&path, &text, None).map_err(file("write", &path))
    }

    /// The configuration that libcontainer keeps; `None`: the container has no cgroup yet, or no
    /// longer. Half a file is one that a create was killed at.
    pub(crate) fn config(&self) -> Result<Option<YoukiConfig>, StateError> {
        let path = self.path.join(CONFIG);
        match fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(file("read", &path)(e)),
        }
    }

    pub(crate) fn settings(&self) -> Result<Settings, StateError> {
        let path = self.path.join(SETTINGS);
        let text = fs::read(&path).map_err(file("read", &path))?;
        serde_json::from_slice(&text).map_err(|e| file("read", &path)(e.into()))
    }

    /// Removes it with all that is in it, and the directories of its namespace and its containerd
    /// when it was the last there; succeeds when there is none. A removal that ends halfway is gone
    /// on with by the next.
    pub(crate) fn remove(&self) -> Result<(), StateError> {
        let done = |removed: io::Result<()>| match removed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(file("remove", &self.path)(e)),
            _ => Ok(()),
        };
        done(fs::remove_file(self.path.join(CONFIG)))?;
        done(fs::remove_dir_all(&self.path))?;
        for empty in self.path.ancestors().skip(1).take(2) {
            if fs::remove_dir(empty).is_err() {
                break;
            }
        }
        Ok(())
    }
}

fn make_pipe(path: &Path, flags: i32) -> Result<fs::File, StateError> {
    nix::unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).map_err(|e| file("make", path)(e.into()))?;
    // Reading and writing: opening does not wait for the other side.
    fs::File::options().read(true).write(true).custom_flags(flags).open(path).map_err(file("open", path))
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    move |source| StateError::File { action, path: path.to_owned(), source }
}

/// Replaces a file in one step; a reader sees the old or the new content, also after a crash.
pub(crate) fn write_atomically(path: &Path, content: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = (|| {
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        drop(file);
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // The first error is the one that counts.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_cannot_leave_the_root() {
        let root = tempfile::tempdir().unwrap();
        for bad in ["", ".", "..", "a/b", "../x", "a\0b", "ä"] {
            assert!(matches!(StateDir::create(root.path(), bad), Err(StateError::Id(_))), "{bad:?}");
        }
    }

    #[test]
    fn the_directory_is_made_once() {
        let root = tempfile::tempdir().unwrap();
        let below = root.path().join("new");
        let state = StateDir::create(&below, "a").unwrap();
        assert!(matches!(StateDir::create(&below, "a"), Err(StateError::Exists(_))));
        let settings =
            Settings { no_new_keyring: true, systemd_cgroup: false, exec_edits: ExecEdits::default(), init: None };
        state.save(&settings).unwrap();
        assert!(StateDir::open(&below, "a").unwrap().settings().unwrap().no_new_keyring);
        state.remove().unwrap();
        state.remove().unwrap();
        assert!(matches!(StateDir::open(&below, "a"), Err(StateError::Unknown(_))));
    }

    /// libcontainer's own state as well: the next version's `delete` may have another libcontainer.
    #[test]
    fn states_of_every_version_are_read() {
        let of_crate = env!("CARGO_MANIFEST_DIR");
        let settings: Settings = serde_json::from_slice(&testing::fixture(of_crate, "state-1.json")).unwrap();
        assert_eq!(settings.init.map(|init| init.pid), Some(5437));
        testing::is_fixture(of_crate, "state-1.json", &serde_json::to_vec(&settings).unwrap());
        let root = tempfile::tempdir().unwrap();
        let text = testing::fixture(of_crate, "libcontainer-state-1.json");
        fs::write(root.path().join("state.json"), text).unwrap();
        let state = libcontainer::container::State::load(root.path()).unwrap();
        assert_eq!((state.id.as_str(), state.pid), ("one", Some(5437)));
    }

    #[test]
    fn the_last_one_takes_its_directories_along() {
        let base = tempfile::tempdir().unwrap();
        let (one, other) = (base.path().join("containerd/one"), base.path().join("containerd/other"));
        let [a, b, c] = [(&one, "a"), (&one, "b"), (&other, "c")].map(|(root, id)| StateDir::create(root, id).unwrap());
        a.remove().unwrap();
        assert!(b.path().exists());
        b.remove().unwrap();
        assert!(!one.exists() && c.path().exists());
        c.remove().unwrap();
        assert!(!base.path().join("containerd").exists() && base.path().exists());
    }
}
