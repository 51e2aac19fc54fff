//! The part of a container's note that is about its grant: the ledger that has it.
//!
//! The configuration may change, or break, while a container runs; its grant is given back to the
//! ledger that gave it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ledger::{ContainerKey, Ledger, decision_log::DecisionLog};
use runtime_config::config::Config;
use serde::{Deserialize, Serialize};

use super::{GpuError, configuration};

/// The file that builds before this one left in the bundle instead.
const FORMER_NOTE: &str = "egpu-grant.json";

/// Entry of a container's note about its grant, written before anything is reserved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotedGrant {
    /// None: the note is of a build that had a file of its own for it.
    #[default]
    Former,
    /// It was granted nothing.
    Nothing,
    /// It may have been granted something.
    At(GrantNote),
}

/// The ledger that has a container's grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantNote {
    /// The directory of the ledger.
    pub(super) state_dir: PathBuf,
    /// The log of decisions.
    log_file: PathBuf,
    /// Requests of claims that the container uses; empty: its grant is its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) claims: Vec<ContainerKey>,
}

impl From<Option<GrantNote>> for NotedGrant {
    fn from(grant: Option<GrantNote>) -> Self {
        grant.map_or(Self::Nothing, Self::At)
    }
}

impl NotedGrant {
    /// Returns what the container whose bundle this is may have been granted.
    ///
    /// # Errors
    /// When a former build's file cannot be read, or the bundle that had it is gone and the
    /// configuration, or its ledger, cannot be read.
    pub(crate) fn of(&self, key: &ContainerKey, bundle: &Path) -> Result<Option<GrantNote>, GpuError> {
        self.of_node(key, bundle, configuration)
    }

    fn of_node(
        &self,
        key: &ContainerKey,
        bundle: &Path,
        configuration: impl FnOnce() -> Result<Config, GpuError>,
    ) -> Result<Option<GrantNote>, GpuError> {
        match self {
            Self::Nothing => Ok(None),
            Self::At(note) => Ok(Some(note.clone())),
            Self::Former => match GrantNote::former(bundle) {
                Ok(None) if bundle.exists() => Ok(None),
                Ok(Some(note)) => Ok(Some(note)),
                unread => {
                    // containerd has removed the bundle since, or the file is damaged.
                    if let Err(error) = unread {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(container = %key, error, "the ledger is looked for by the configuration");
                    }
                    let note = GrantNote::new(&configuration()?);
                    let requests = note.open()?.0.requests_of(key);
                    Ok(Some(note.using(requests.map_err(|source| GpuError::Ledger(Box::new(source)))?)))
                }
            },
        }
    }
}

impl GrantNote {
    pub(super) fn new(config: &Config) -> Self {
        Self { state_dir: config.state_dir.clone(), log_file: config.log_file.clone(), claims: Vec::new() }
    }

    /// The note of a container that uses requests of claims.
    pub(super) fn using(self, claims: Vec<ContainerKey>) -> Self {
        Self { claims, ..self }
    }

    /// Reads the file of a former build; `None`: the container was granted nothing.
    fn former(bundle: &Path) -> Result<Option<Self>, GpuError> {
        let path = bundle.join(FORMER_NOTE);
        let failed = |source| GpuError::Note { path: path.clone(), source };
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Opens the ledger and the log that the grant belongs to.
    pub(super) fn open(&self) -> Result<(Ledger, DecisionLog), GpuError> {
        let ledger = Ledger::open(&self.state_dir).map_err(|source| GpuError::Ledger(Box::new(source)))?;
        Ok((ledger, DecisionLog::new(&self.log_file, &self.state_dir)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_former_build_is_read() {
        let bundle = tempfile::tempdir().unwrap();
        let key = ContainerKey { containerd: "c".into(), namespace: "n".into(), id: "id".into() };
        assert_eq!(NotedGrant::Former.of(&key, bundle.path()).unwrap(), None);
        let file = testing::fixture(env!("CARGO_MANIFEST_DIR"), "grant-note-1.json");
        fs::write(bundle.path().join(FORMER_NOTE), &file).unwrap();
        let note = NotedGrant::Former.of(&key, bundle.path()).unwrap().unwrap();
        assert!(note.state_dir.ends_with("egpu") && note.log_file.ends_with("egpu.log"));
        assert_eq!(NotedGrant::At(note.clone()).of(&key, bundle.path()).unwrap(), Some(note));
        assert_eq!(NotedGrant::Nothing.of(&key, bundle.path()).unwrap(), None);
        // It is damaged, or its bundle is gone.
        fs::write(bundle.path().join(FORMER_NOTE), &file[1..]).unwrap();
        for bundle in [bundle.path(), Path::new("/no/such/bundle")] {
            let state = tempfile::tempdir().unwrap();
            let config = Config { state_dir: state.path().to_owned(), ..Config::default() };
            let note = NotedGrant::Former.of_node(&key, bundle, || Ok(config)).unwrap().unwrap();
            assert_eq!(note.state_dir, state.path());
        }
    }
}
