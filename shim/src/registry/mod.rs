//! Records of what a killed shim would leave behind, written outside the bundle before it comes to
//! be.
//!
//! ```text
//! STATE_DIR/registry.lock        flock: sockets are taken and removed by one process at a time
//! STATE_DIR/sweep-NAME.lock      flock of the shim that sweeps for a containerd next; since when
//! STATE_DIR/shims/NAME.json      a socket, and the shim that listens there
//! STATE_DIR/containers/NAME.json a container's note, as in its bundle
//! STATE_DIR/registry.tmp         one of a socket's files, being written
//! STATE_DIR/containers/NAME.tmp  a note that is being written
//! STATE_DIR/runtime/             libcontainer's state
//! ```
//! containerd calls `delete` for a shim that dies while it is connected, but not for one that dies
//! between its `start` and the connection, and it may remove a bundle before `delete` has read it.
//! So after the start of every shim, and at every `delete`, what dead shims of the same containerd
//! left is looked through and finished; of shims that start together one looks for all. What of
//! another containerd, of another process id namespace or of a living shim is there is never
//! touched.

mod orphaned_workers;
mod unfinished_notes;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use base::{
    Surroundings, error_chain,
    file_lock::{FileLock, lock_exclusive, try_lock_exclusive},
    make_directory,
};
use runtime_config::config::{Config, ConfigError};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

pub use self::orphaned_workers::kill as kill_orphaned_workers;
use crate::{bundle::Note, process_instance::ProcessInstance};

/// The lock is held for microseconds; whoever waits this long waits for a process that was stopped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// A cleaning that takes longer has failed in its own way.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(90);
/// A sweep that is next begins in a fraction of this; who holds its lock for longer was stopped.
const NEXT_SWEEP_TIMEOUT: Duration = Duration::from_secs(1);
/// Extension of a note that is being written.
const TEMPORARY: &str = "tmp";

/// A registry that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct RegistryError {
    /// The action that was tried.
    pub action: &'static str,
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

/// The registry of one state directory.
#[derive(Debug, Clone)]
pub struct Registry {
    state_dir: PathBuf,
}

/// A socket and who listens there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ShimEntry {
    socket: PathBuf,
    /// containerd's gRPC address.
    containerd: String,
    /// The `start` that makes the shim; alive, it may be about to.
    starter: ProcessInstance,
    /// The shim, once it runs.
    shim: Option<ProcessInstance>,
}

impl ShimEntry {
    /// Returns whether the shim is gone. One whose `start` was killed before it could be written
    /// down is found by its socket.
    fn is_gone(&self) -> bool {
        self.shim.as_ref().is_none_or(ProcessInstance::is_gone)
            && self.starter.is_gone()
            && !is_listened_to(&self.socket)
    }
}

impl Registry {
    /// Returns the registry of this node's configuration.
    ///
    /// # Errors
    /// When the configuration cannot be read: another directory than its own would have nothing of
    /// this node, and keep what is put there from whoever looks for it.
    pub fn of_this_node() -> Result<Self, ConfigError> {
        Ok(Self::at(Config::load(None)?.state_dir))
    }

    /// Returns the registry in `state_dir`.
    pub fn at(state_dir: PathBuf) -> Self {
        Self { state_dir }
    }

    /// The node's state directory.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The directory in which libcontainer keeps its state unless the options say otherwise.
    pub fn runtime_base(&self) -> PathBuf {
        self.state_dir.join("runtime")
    }

    fn shims(&self) -> PathBuf {
        self.state_dir.join("shims")
    }

    fn containers(&self) -> PathBuf {
        self.state_dir.join("containers")
    }

    /// The right to take, replace and remove sockets.
    ///
    /// # Errors
    /// When the lock's file cannot be made, or somebody holds it for seconds.
    pub fn lock(&self) -> Result<RegistryLock<'_>, RegistryError> {
        let path = self.state_dir.join("registry.lock");
        self.make_directories()?;
        let lock = lock_exclusive(open_lock(&path)?, LOCK_TIMEOUT).map_err(failed("lock", &path))?;
        Ok(RegistryLock { registry: self, _lock: lock })
    }

    fn make_directories(&self) -> Result<(), RegistryError> {
        for directory in [self.shims(), self.containers()] {
            make_directory(&directory, 0o700, 0o711).map_err(failed("make the directory", &directory))?;
        }
        Ok(())
    }

    /// The note of a container, and the right to clean up after it: two processes that do so take
    /// turns. `None` when there is none, or no longer.
    ///
    /// # Errors
    /// When it cannot be opened, or somebody else has been cleaning up for a minute.
    pub fn claim(&self, containerd: &str, namespace: &str, id: &str) -> Result<Option<Claim>, RegistryError> {
        let path = self.note_path(containerd, namespace, id);
        let file = match OpenOptions::new().read(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", &path)(error)),
        };
        let lock = lock_exclusive(file, CLAIM_TIMEOUT).map_err(failed("lock", &path))?;
        Ok(read(&path).transpose().map(|note| Claim { note, lock }))
    }

    /// Returns whether there is a note of the container, so that somebody may be cleaning up after
    /// an earlier one of that name.
    pub fn has_note(&self, containerd: &str, namespace: &str, id: &str) -> bool {
        self.note_path(containerd, namespace, id).exists()
    }

    /// Removes the note: nothing of the container is left.
    pub fn remove_note(&self, containerd: &str, namespace: &str, id: &str) {
        let path = self.note_path(containerd, namespace, id);
        remove(&path.with_extension(TEMPORARY));
        remove(&path);
    }

    /// The notes of all containers. The log names those that cannot be read.
    pub fn notes(&self) -> impl Iterator<Item = Note> + use<> {
        all(&self.containers()).filter_map(|note| {
            note.inspect_err(|error| tracing::warn!(error = error_chain(error), "a container's note is left alone"))
                .ok()
        })
    }

    /// Notes, and entries of shims, that cannot be read: foreign hands, or a bad disk.
    pub fn unreadable(&self) -> Vec<RegistryError> {
        let notes = all::<Note>(&self.containers()).filter_map(Result::err);
        notes.chain(all::<ShimEntry>(&self.shims()).filter_map(Result::err)).collect()
    }

    /// Containers of `containerd` whose shims are gone, so that somebody has to clean up after
    /// them.
    pub fn abandoned(&self, containerd: &str) -> Vec<Note> {
        self.notes().filter(|note| note.containerd == containerd && note.is_abandoned()).collect()
    }

    /// Removes the sockets that dead shims of `containerd` left, and all notes that dead shims had
    /// begun to write. The lock is only taken where there are such sockets: to look at every shim
    /// of the node takes a while.
    ///
    /// # Errors
    /// When the lock cannot be taken.
    pub fn sweep(&self, containerd: &str) -> Result<(), RegistryError> {
        unfinished_notes::sweep(&self.containers());
        if self.dead_shims(containerd).next().is_some() {
            self.lock()?.sweep(containerd);
        }
        Ok(())
    }

    /// The task of being the next to look at what dead shims of `containerd` left; `None`: another
    /// process has it, and has not begun to look. To be dropped before the look.
    ///
    /// # Errors
    /// When the lock's file cannot be used.
    pub fn next_sweep(&self, containerd: &str) -> Result<Option<NextSweep>, RegistryError> {
        let own = Surroundings::own().map_err(failed("tell who sweeps", &self.state_dir))?;
        let path = self.sweep_path(containerd, own.pid_namespace);
        let fail = |source| failed("lock", &path)(source);
        match try_lock_exclusive(open_lock(&path)?).map_err(fail)? {
            Ok(lock) => {
                lock.set_modified(SystemTime::now()).map_err(fail)?;
                Ok(Some(NextSweep { _lock: Some(lock) }))
            }
            Err(file) => {
                let age = file.metadata().and_then(|metadata| metadata.modified()).map_err(fail)?.elapsed();
                let is_about_to = age.is_ok_and(|age| age < NEXT_SWEEP_TIMEOUT);
                Ok((!is_about_to).then_some(NextSweep { _lock: None }))
            }
        }
    }

    /// Removes a socket on which nobody listens.
    ///
    /// # Errors
    /// When there is one, and the lock cannot be taken.
    pub fn remove_dead(&self, socket: &Path) -> Result<(), RegistryError> {
        if is_dead_socket(socket) {
            let locked = self.lock()?;
            // Another shim may have taken it meanwhile.
            if is_dead_socket(socket) {
                locked.retire(socket);
            }
        }
        Ok(())
    }

    /// Entries of `containerd`'s shims that are gone.
    fn dead_shims(&self, containerd: &str) -> impl Iterator<Item = (PathBuf, ShimEntry)> {
        let found = entries(&self.shims()).filter_map(|path| Some((read::<ShimEntry>(&path).ok()??, path)));
        found
            .filter(move |(entry, _)| entry.containerd == containerd && entry.is_gone())
            .map(|(entry, path)| (path, entry))
    }

    /// Keeps a container's note until [`Registry::remove_note`]. Needs no lock: there is one shim
    /// of a container.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save_note(&self, note: &Note) -> Result<(), RegistryError> {
        self.make_directories()?;
        let path = self.note_path(&note.containerd, &note.namespace, &note.id);
        write(&path, &path.with_extension(TEMPORARY), note)
    }

    fn note_path(&self, containerd: &str, namespace: &str, id: &str) -> PathBuf {
        self.containers().join(name(&[containerd, namespace, id]))
    }

    /// One for each process id and time namespace: of shims in another nobody can tell whether they
    /// are dead.
    fn sweep_path(&self, containerd: &str, pid_namespace: u64) -> PathBuf {
        let name = name(&[containerd, &pid_namespace.to_string()]);
        self.state_dir.join(format!("sweep-{name}")).with_extension("lock")
    }

    fn shim_path(&self, socket: &Path) -> PathBuf {
        self.shims().join(name(&[&socket.to_string_lossy()]))
    }
}

/// A container that this process cleans up after; see [`Registry::claim`].
#[derive(Debug)]
pub struct Claim {
    /// The note that says what to clean up. The bundle has another copy.
    pub note: Result<Note, RegistryError>,
    /// Held as long as this process cleans up.
    pub lock: FileLock,
}

/// See [`Registry::next_sweep`].
#[derive(Debug)]
pub struct NextSweep {
    /// `None`: whoever holds it is stopped.
    _lock: Option<FileLock>,
}

/// The right to change sockets and notes; see [`Registry::lock`].
#[derive(Debug)]
pub struct RegistryLock<'r> {
    registry: &'r Registry,
    _lock: FileLock,
}

impl RegistryLock<'_> {
    /// Records a socket and this process as its starter. To be called before the socket is made.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn announce(&self, socket: &Path, containerd: &str) -> Result<(), RegistryError> {
        let path = self.registry.shim_path(socket);
        let starter = ProcessInstance::current().map_err(failed("tell who writes", &path))?;
        let entry = ShimEntry { socket: socket.to_owned(), containerd: containerd.to_owned(), starter, shim: None };
        self.write(&path, &entry)
    }

    /// Records that the calling process is the shim that listens on `socket`. Nothing is written
    /// once the socket has been retired: a shim that is shut down at once may get here late.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn adopt(&self, socket: &Path, containerd: &str) -> Result<(), RegistryError> {
        let path = self.registry.shim_path(socket);
        let own = ProcessInstance::current().map_err(failed("tell who writes", &path))?;
        let announced = read(&path)?;
        if announced.is_none() && !socket.exists() {
            return Ok(());
        }
        let starter = announced.map_or_else(|| own.clone(), |entry: ShimEntry| entry.starter);
        let (socket, containerd) = (socket.to_owned(), containerd.to_owned());
        self.write(&path, &ShimEntry { socket, containerd, starter, shim: Some(own) })
    }

    /// Removes the calling process's own socket and its entry.
    pub fn retire(&self, socket: &Path) {
        remove(socket);
        remove(&self.registry.shim_path(socket));
    }

    /// Removes the sockets that dead shims of `containerd` left.
    fn sweep(&self, containerd: &str) {
        for (path, entry) in self.registry.dead_shims(containerd) {
            tracing::info!(socket = %entry.socket.display(), "removed after a shim that was killed");
            remove(&entry.socket);
            remove(&path);
        }
    }

    fn write(&self, path: &Path, entry: &ShimEntry) -> Result<(), RegistryError> {
        write(path, &self.registry.state_dir.join("registry.tmp"), entry)
    }
}

fn open_lock(path: &Path) -> Result<File, RegistryError> {
    let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map_err(failed("open", path))
}

/// Writes elsewhere and renames, so that a reader sees the old or the new whole. Who is killed
/// meanwhile leaves a file that the next one overwrites.
fn write<T: Serialize>(path: &Path, temporary: &Path, value: &T) -> Result<(), RegistryError> {
    let written = serde_json::to_vec(value)
        .map_err(io::Error::from)
        .and_then(|text| fs::write(temporary, text))
        .and_then(|()| fs::rename(temporary, path));
    written.map_err(|error| {
        // It takes up room on a disk that may be full.
        let _ = fs::remove_file(temporary);
        failed("write", path)(error)
    })
}

/// Returns whether some process accepts connections there. A listener with a full queue counts.
pub fn is_listened_to(socket: &Path) -> bool {
    socket.exists() && !is_dead_socket(socket)
}

/// Returns whether nobody listens there, without waiting for room in the listener's queue, which a
/// stopped process may never make.
fn is_dead_socket(socket: &Path) -> bool {
    let connect = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(client, &SocketAddrUnix::new(socket)?)
    };
    connect() == Err(rustix::io::Errno::CONNREFUSED)
}

fn name(parts: &[&str]) -> String {
    // Lengths keep two lists of parts apart that are the same when joined.
    let hash = parts
        .iter()
        .fold(Sha256::new(), |hash, part| hash.chain_update(part.len().to_le_bytes()).chain_update(part.as_bytes()));
    let hex: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.json")
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    found.filter(|path| path.extension().is_some_and(|extension| extension == "json"))
}

/// The values of a directory's files.
fn all<T: DeserializeOwned>(directory: &Path) -> impl Iterator<Item = Result<T, RegistryError>> + use<T> {
    entries(directory).filter_map(|path| read(&path).transpose())
}

/// `None`: there is none.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RegistryError> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed("read", path)(error.into())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Removes a file; one that cannot be removed is only litter.
fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "cannot be removed");
        }
        _ => {}
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
    move |source| RegistryError { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
