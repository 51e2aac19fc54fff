//! Note about the container's grant that the shim leaves in the bundle: the ledger that has it.
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

use super::GpuError;

const NOTE: &str = "egpu-grant.json";

/// The note; written before anything is reserved, removed after it was given back.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GrantNote {
    /// The directory of the ledger.
    pub(super) state_dir: PathBuf,
    /// The log of decisions.
    log_file: PathBuf,
    /// Requests of claims that the container uses; empty: its grant is its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) claims: Vec<ContainerKey>,
}

impl GrantNote {
    pub(super) fn new(config: &Config) -> Self {
        Self { state_dir: config.state_dir.clone(), log_file: config.log_file.clone(), claims: Vec::new() }
    }

    /// The note of a container that uses requests of claims.
    pub(super) fn using(self, claims: Vec<ContainerKey>) -> Self {
        Self { claims, ..self }
    }

    pub(super) fn write(&self, bundle: &Path) -> Result<(), GpuError> {
        let path = bundle.join(NOTE);
        let text = serde_json::to_vec(self).map_err(GpuError::Encode)?;
        let temporary = bundle.join("egpu-grant.json.new");
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|source| GpuError::Note { action: "write", path, source })
    }

    /// Reads the note; `None`: the container was granted nothing.
    pub(super) fn read(bundle: &Path) -> Result<Option<Self>, GpuError> {
        let path = bundle.join(NOTE);
        let failed = |source| GpuError::Note { action: "read", path: path.clone(), source };
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) fn remove(bundle: &Path) -> Result<(), GpuError> {
        let path = bundle.join(NOTE);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(GpuError::Note { action: "remove", path, source })
            }
            _ => Ok(()),
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
    use testing::{fixture, is_fixture};

    use super::*;

    #[test]
    fn notes_of_every_version_are_read() {
        let of_crate = env!("CARGO_MANIFEST_DIR");
        let note: GrantNote = serde_json::from_slice(&fixture(of_crate, "grant-note-1.json")).unwrap();
        assert!(note.state_dir.ends_with("egpu") && note.log_file.ends_with("egpu.log"));
        is_fixture(of_crate, "grant-note-1.json", &serde_json::to_vec(&note).unwrap());
    }
}
