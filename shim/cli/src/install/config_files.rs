//! containerd's configuration as it would be after changes, asked of containerd's own parser
//! without touching the node.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use toml::{Table, Value};

use super::{changes, error::InstallError};
use crate::containerd::{
    config::DEFAULT_FILE,
    cri::{CRI_TABLES, matches_pattern, table_at},
};

/// Texts that stand for those of files; `None`: the file is gone.
pub(super) type Overlay = BTreeMap<PathBuf, Option<String>>;

/// The main file and those that it imports, in the order in which containerd reads them.
#[derive(Debug, Clone)]
pub(super) struct ConfigFiles {
    pub(super) files: Vec<ConfigFile>,
}

#[derive(Debug, Clone)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    pub(super) table: Table,
}

impl ConfigFiles {
    /// Reads them, as they are with the overlay. None at all when there is no main file.
    pub(super) fn read(main: &Path, overlay: &Overlay) -> Result<Self, InstallError> {
        let mut files = Vec::new();
        let mut seen = BTreeSet::new();
        let mut queue = VecDeque::from([main.to_owned()]);
        while let Some(path) = queue.pop_front() {
            if !seen.insert(path.clone()) {
                continue;
            }
            let text = match overlay.get(&path) {
                Some(text) => text.clone(),
                None => changes::read(&path)?,
            };
            let Some(text) = text else {
                if path == main {
                    break;
                }
                return Err(InstallError::MissingImport { path });
            };
            let table = parse(&path, &text)?;
            for pattern in imports(&table) {
                queue.extend(matches(&path, pattern, overlay));
            }
            files.push(ConfigFile { path, table });
        }
        Ok(Self { files })
    }

    /// Version of the main file's format.
    pub(super) fn version(&self) -> Option<i64> {
        self.files.first()?.table.get("version")?.as_integer()
    }

    /// Returns the file whose table of CRI holds in containerd 1.x: the last that has one.
    pub(super) fn with_cri(&self) -> Option<&ConfigFile> {
        let has_cri = |table: &Table| CRI_TABLES.iter().any(|name| table_at(table, &["plugins", name]).is_some());
        self.files.iter().rfind(|file| has_cri(&file.table))
    }

    /// Adds tables for a check, where the distribution would: to the main file, or, where files are
    /// not merged, to the one whose table of CRI holds.
    pub(super) fn add(&mut self, tables: Table, merges: bool) {
        let with_cri = self.with_cri().filter(|_| !merges).map(|file| file.path.clone());
        let file = match with_cri {
            Some(path) => self.files.iter_mut().find(|file| file.path == path),
            None => self.files.first_mut(),
        };
        if let Some(file) = file {
            merge(&mut file.table, tables);
        }
    }

    /// Returns what containerd makes of them, by `containerd config dump`; `None`: there is no
    /// containerd to ask.
    pub(super) fn dump(&self, program: &Path) -> Result<Option<Table>, InstallError> {
        let failed = |source| InstallError::Stage { source };
        let staging = tempfile::Builder::new().prefix("egpu-install-").tempdir().map_err(failed)?;
        let path = |index| staging.path().join(format!("{index}.toml"));
        let paths: Vec<PathBuf> = (0..self.files.len()).map(path).collect();
        for (index, (file, path)) in self.files.iter().zip(&paths).enumerate() {
            let mut table = file.table.clone();
            table.remove("imports");
            if index == 0 && paths.len() > 1 {
                let imports = paths[1..].iter().map(|path| Value::String(path.display().to_string()));
                table.insert("imports".to_owned(), Value::Array(imports.collect()));
            }
            fs::write(path, table.to_string()).map_err(failed)?;
        }
        let main = self.files.first().map_or(Path::new(DEFAULT_FILE), |file| &file.path);
        let mut command = Command::new(program);
        // k3s has many programs in one: the name selects.
        command.arg0("containerd");
        match paths.first() {
            Some(staged) => command.arg("--config").arg(staged).args(["config", "dump"]),
            None => command.args(["config", "default"]),
        };
        let output = match command.output() {
            Ok(output) if output.status.success() => output,
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(InstallError::Rejected { path: main.to_owned(), program: program.to_owned(), why });
            }
            Err(_) if !program.exists() => return Ok(None),
            Err(source) => return Err(InstallError::Ask { program: program.to_owned(), source }),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let mut table = parse(main, &text)?;
        // The staged ones.
        table.remove("imports");
        Ok(Some(table))
    }
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

/// Parses a file of containerd's.
pub(super) fn parse(path: &Path, text: &str) -> Result<Table, InstallError> {
    text.parse().map_err(|source| InstallError::Toml { path: path.to_owned(), source: Box::new(source) })
}

/// The files and patterns that a file imports.
pub(super) fn imports(table: &Table) -> impl Iterator<Item = &str> {
    table.get("imports").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the files of a pattern, as containerd finds them: relative to the importing file, by
/// name.
fn matches(importing: &Path, pattern: &str, overlay: &Overlay) -> Vec<PathBuf> {
    let pattern = importing.parent().unwrap_or(Path::new("/")).join(pattern);
    if !pattern.to_string_lossy().contains('*') {
        return vec![pattern];
    }
    let (Some(directory), Some(name)) = (pattern.parent(), pattern.file_name()) else { return Vec::new() };
    let there = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: BTreeSet<PathBuf> = there.filter(|path| !overlay.contains_key(path)).collect();
    found.extend(overlay.iter().filter(|(_, text)| text.is_some()).map(|(path, _)| path.clone()));
    let name = name.to_string_lossy();
    let is_match = |path: &PathBuf| {
        path.parent() == Some(directory)
            && path.file_name().is_some_and(|file| matches_pattern(&name, &file.to_string_lossy()))
    };
    found.into_iter().filter(is_match).collect()
}
