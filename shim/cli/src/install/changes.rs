//! Changes of files: shown as a diff, written whole or not at all.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use rustix::fs::XattrFlags;
use similar::TextDiff;

use super::error::InstallError;

/// Lines around a change in a diff.
const CONTEXT_LINES: usize = 3;

/// Change of one text file; `None` as a text: there is no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// The file.
    pub(super) path: PathBuf,
    /// Its text now.
    pub(super) before: Option<String>,
    /// Its text afterwards.
    pub(super) after: Option<String>,
}

impl Change {
    /// Reads the file as it is now, unchanged as yet.
    fn of(path: &Path) -> Result<Self, InstallError> {
        let before = read(path)?;
        Ok(Self { path: path.to_owned(), after: before.clone(), before })
    }

    /// Returns whether anything is to be written.
    fn is_needed(&self) -> bool {
        self.before != self.after
    }

    /// Formats the change as a unified diff.
    pub(super) fn diff(&self) -> String {
        diff(&self.path.display().to_string(), self.before.as_deref(), self.after.as_deref())
    }

    /// Writes the text that it has afterwards.
    pub(super) fn write(&self) -> Result<(), InstallError> {
        if read(&self.path)? != self.before {
            return Err(InstallError::Raced { path: self.path.clone() });
        }
        replace(&self.path, self.after.as_deref())
    }

    /// Writes the text that it had before, unless somebody has changed the file meanwhile.
    pub(super) fn revert(&self) -> Result<(), InstallError> {
        if read(&self.path)? != self.after {
            return Err(InstallError::Raced { path: self.path.clone() });
        }
        replace(&self.path, self.before.as_deref())
    }
}

/// Changes that are being planned, in the order in which they are to be written.
#[derive(Debug, Default)]
pub(super) struct Draft {
    changes: Vec<Change>,
}

impl Draft {
    /// Returns the text that a file is going to have, to be changed.
    pub(super) fn text(&mut self, path: &Path) -> Result<&mut Option<String>, InstallError> {
        let index = match self.changes.iter().position(|change| change.path == path) {
            Some(index) => index,
            None => {
                self.changes.push(Change::of(path)?);
                self.changes.len() - 1
            }
        };
        Ok(&mut self.changes[index].after)
    }

    /// Returns the texts of all files that it knows, by path.
    pub(super) fn overlay(&self) -> BTreeMap<PathBuf, Option<String>> {
        self.changes.iter().map(|change| (change.path.clone(), change.after.clone())).collect()
    }

    /// Returns the changes that there are.
    pub(super) fn finish(self) -> Vec<Change> {
        self.changes.into_iter().filter(Change::is_needed).collect()
    }
}

/// Formats the difference of two texts as a unified diff.
pub(super) fn diff(name: &str, before: Option<&str>, after: Option<&str>) -> String {
    let header = |text: Option<&str>| if text.is_some() { name.to_owned() } else { "/dev/null".to_owned() };
    TextDiff::from_lines(before.unwrap_or_default(), after.unwrap_or_default())
        .unified_diff()
        .context_radius(CONTEXT_LINES)
        .header(&header(before), &header(after))
        .to_string()
}

/// Reads a text file; `None`: there is none.
pub(super) fn read(path: &Path) -> Result<Option<String>, InstallError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(InstallError::Read { path: path.to_owned(), source }),
    }
}

/// Lists a directory's entries; none, when there is no directory.
pub(super) fn entries(directory: &Path) -> Result<Vec<PathBuf>, InstallError> {
    let failed = |source| InstallError::Read { path: directory.to_owned(), source };
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}

/// Replaces a file whole, so that nobody ever reads half of it; `None` as a text removes it. Mode
/// and owner stay. A symbolic link stays, and what it names is replaced.
pub(super) fn replace(path: &Path, text: Option<&str>) -> Result<(), InstallError> {
    let failed = |source| InstallError::Write { path: path.to_owned(), source };
    let path = match fs::canonicalize(path) {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(failed(error)),
    };
    let directory = path.parent().unwrap_or(Path::new("/"));
    match text {
        Some(text) => {
            fs::create_dir_all(directory).map_err(failed)?;
            let new = beside(&path);
            write_beside(&path, &new, |file| file.write_all(text.as_bytes())).map_err(failed)?;
            fs::rename(&new, &path).map_err(failed)?;
        }
        None if path.exists() => fs::remove_file(&path).map_err(failed)?,
        None => return Ok(()),
    }
    sync(directory).map_err(failed)
}

/// Returns the path at which a new version of a file is written. Hidden, and the same each time: a
/// run that was killed leaves at most one, which the next overwrites.
pub(super) fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.egpu-new"))
}

/// Removes the new version of a file that a killed run has left beside it.
pub(super) fn remove_stray(path: &Path) -> Result<(), InstallError> {
    match fs::remove_file(beside(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(InstallError::Write { path: beside(path), source: error })
        }
        _ => Ok(()),
    }
}

fn write_beside(path: &Path, new: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(new)?;
    if let Ok(old) = fs::metadata(path) {
        file.set_permissions(fs::Permissions::from_mode(old.permissions().mode()))?;
        chown(new, Some(old.uid()), Some(old.gid()))?;
        keep_label(path, &file);
    }
    write(&mut file)?;
    file.sync_all()
}

/// Gives a new version of a file the SELinux label of the old one, where there is one.
fn keep_label(path: &Path, new: &File) {
    const LABEL: &str = "security.selinux";
    let mut label = [0; 256];
    if let Ok(length) = rustix::fs::getxattr(path, LABEL, &mut label[..]) {
        // Without the right to, it has the label of its directory.
        let _ = rustix::fs::fsetxattr(new, LABEL, &label[..length], XattrFlags::empty());
    }
}

/// Makes a directory's entries last.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
