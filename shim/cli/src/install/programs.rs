//! The programs, and what `egpu install` remembers of having put them somewhere.

use std::{
    env, fs,
    fs::File,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use egpu_shim::info::BINARY;
use serde::{Deserialize, Serialize};

use super::{changes, error::InstallError};

/// Directory of what is remembered and of the backups.
pub(super) const STATE: &str = "/var/lib/egpu";
const COMMAND: &str = "egpu";
/// Programs for clusters, which are installed where they come along, as in the image.
const COMPANIONS: [&str; 3] = ["egpu-kubelet-plugin", "egpu-webhook", "egpu-scorer"];
/// Folders of programs that packages and `make install` fill, and in which containerd looks for a
/// shim.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/bin"];

/// Record of what `egpu install` did on this node: `/var/lib/egpu/install.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstallRecord {
    /// Version of this format, 1.
    pub(super) version: u32,
    /// Programs that it has copied.
    pub(super) programs: Vec<PathBuf>,
    /// Files of containerd and Docker that it has changed.
    #[serde(default)]
    pub(super) files: Vec<PathBuf>,
    /// The text of egpu's configuration that it has written.
    #[serde(default)]
    pub(super) config: Option<String>,
    /// Folders that it has made, each behind the one that it is in.
    #[serde(default)]
    pub(super) folders: Vec<PathBuf>,
}

impl InstallRecord {
    /// Path of the file.
    pub(super) fn path() -> PathBuf {
        Path::new(STATE).join("install.json")
    }

    /// Returns whether there is nothing to remember.
    pub(super) fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.files.is_empty() && self.config.is_none() && self.folders.is_empty()
    }

    /// Remembers files that are going to be written, where it does not know them already.
    pub(super) fn remember(known: &mut Vec<PathBuf>, paths: impl Iterator<Item = PathBuf>) {
        for path in paths {
            if !known.contains(&path) {
                known.push(path);
            }
        }
    }

    /// Remembers the folders of these files that are not there yet.
    pub(super) fn remember_new_folders<'a>(&mut self, files: impl Iterator<Item = &'a Path>) {
        for file in files {
            let missing: Vec<&Path> = file.ancestors().skip(1).take_while(|folder| !folder.exists()).collect();
            Self::remember(&mut self.folders, missing.into_iter().rev().map(Path::to_owned));
        }
    }

    /// Reads it; an empty one, when there is none.
    pub(super) fn read() -> Result<Self, InstallError> {
        let path = Self::path();
        let Some(text) = changes::read(&path)? else { return Ok(Self { version: 1, ..Self::default() }) };
        serde_json::from_str(&text).map_err(|source| InstallError::Json { path, source })
    }

    /// Writes it, before what it tells of is done.
    pub(super) fn write(&self) -> Result<(), InstallError> {
        let path = Self::path();
        let text = serde_json::to_string_pretty(self);
        let text = text.map_err(|source| InstallError::Json { path: path.clone(), source })?;
        changes::replace(&path, Some(&(text + "\n")))
    }
}

/// This program, its shim, and what is beside them for clusters, open: the root directory may
/// change before they are copied.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
    files: Vec<(&'static str, File)>,
}

impl Programs {
    /// Opens them.
    pub(super) fn open() -> Result<Self, InstallError> {
        let own = env::current_exe().map_err(|source| InstallError::Read { path: "/proc/self/exe".into(), source })?;
        let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
        let open = |name: &'static str| {
            let path = folder.join(name);
            File::open(&path).map(|file| (name, file)).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => InstallError::Incomplete { path },
                _ => InstallError::Read { path, source },
            })
        };
        let mut files = vec![open(BINARY)?, open(COMMAND)?];
        for name in COMPANIONS.into_iter().filter(|name| folder.join(name).is_file()) {
            files.push(open(name)?);
        }
        Ok(Self { files, folder })
    }

    /// Returns the folder in which they stay; `bin_dir`: they have to be copied there, as nobody
    /// else has put them into a folder of the system.
    pub(super) fn destination(&self, bin_dir: &Path, other_root: bool) -> PathBuf {
        let is_in_place = !other_root && SYSTEM_FOLDERS.iter().any(|folder| Path::new(folder) == self.folder);
        if is_in_place { self.folder.clone() } else { bin_dir.to_owned() }
    }

    /// Lists those that are to be copied to the folder, with their bytes: what is there already is
    /// not.
    pub(super) fn missing(&mut self, folder: &Path, other_root: bool) -> Result<Vec<(PathBuf, Vec<u8>)>, InstallError> {
        if !other_root && folder == self.folder {
            return Ok(Vec::new());
        }
        let mut missing = Vec::new();
        for (name, file) in &mut self.files {
            let path = folder.join(*name);
            let mut bytes = Vec::new();
            let read = file.read_to_end(&mut bytes);
            read.map_err(|source| InstallError::Read { path: self.folder.join(*name), source })?;
            if fs::read(&path).ok().as_ref() != Some(&bytes) {
                missing.push((path, bytes));
            }
        }
        Ok(missing)
    }
}

/// Puts a program in place, by rename: containerd may start the shim at any moment, and running
/// ones keep the file that they were started from.
pub(super) fn copy(path: &Path, bytes: &[u8]) -> Result<(), InstallError> {
    let new = changes::beside(path);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let write = || {
        fs::create_dir_all(folder)?;
        fs::write(&new, bytes)?;
        let file = File::open(&new)?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        changes::sync(folder)
    };
    write().map_err(|source| InstallError::Write { path: path.to_owned(), source })
}

/// Removes a program.
pub(super) fn remove(path: &Path) -> Result<bool, InstallError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(InstallError::Write { path: path.to_owned(), source }),
    }
}
