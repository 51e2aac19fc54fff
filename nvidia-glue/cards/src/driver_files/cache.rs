//! Keeps what was found for the next container: looking takes milliseconds, reading one file a
//! fraction of one.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{DriverFiles, find};

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct Cached {
    root: PathBuf,
    files: DriverFiles,
}

/// Finds the driver's files like [`find`], from `<state_dir>/driver-files.json` where that was
/// written for the same root and version and all its libraries are still there. The state directory
/// is gone at reboot, as the driver's sockets are.
///
/// A cache that cannot be read or written costs time and nothing else.
pub fn find_cached(root: &Path, version: &str, state_dir: &Path) -> DriverFiles {
    let path = state_dir.join("driver-files.json");
    if let Some(files) = load(&path, root, version) {
        return files;
    }
    let files = find(root, version);
    // An installation that is under way must not be remembered.
    if files.warnings.is_empty() {
        let cached = Cached { root: root.to_owned(), files };
        if let Err(error) = store(&path, &cached) {
            tracing::warn!(path = %path.display(), %error, "the list of driver files is not kept");
        }
        return cached.files;
    }
    files
}

fn load(path: &Path, root: &Path, version: &str) -> Option<DriverFiles> {
    let cached: Cached = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let files = cached.files;
    let there = || {
        let others = files.binaries.iter().chain(&files.firmware).chain(&files.configs).chain(&files.sockets);
        let mut hosts = files.libraries.iter().map(|library| &library.host).chain(others.map(|file| &file.host));
        hosts.all(|host| host.exists())
    };
    (cached.root == root && files.version == version && there()).then_some(files)
}

/// Replaces the file as a whole; of two at once the later one wins, and both wrote the same.
fn store(path: &Path, cached: &Cached) -> io::Result<()> {
    let temporary = path.with_extension(format!("json.{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(&serde_json::to_vec(cached)?))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // Nothing to do if that fails as well: the name is reused.
        let _ = fs::remove_file(&temporary);
    }
    written
}
