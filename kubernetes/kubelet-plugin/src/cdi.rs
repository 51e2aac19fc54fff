//! CDI files of prepared claims: one a claim, which tells containers where their claim is recorded
//! and nothing else. Without egpu's runtime, such a container has no GPU.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use base::file_lock::FileLock;
use kubernetes_api::{
    ClaimVariable,
    names::{CDI_KIND, cdi_device, cdi_file, claim_of_cdi_file},
};
use ledger::Ledger;
use serde_json::json;

/// The oldest CDI that has all of what these files need: since 0.5.0, names of devices may begin
/// with a digit, as uids do. containerd leaves out a file whose version is too old for it.
const CDI_VERSION: &str = "0.5.0";

/// A CDI file that cannot be written, or not be told to be there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CdiError {
    /// The files.
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the ledger cannot be read")]
    Ledger(#[from] ledger::StoreError),
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CdiError {
    let path = path.to_owned();
    move |source| CdiError::Io { action, path, source }
}

/// A claim's files, by their requests.
pub(crate) type Requests = Vec<ClaimVariable>;

/// The directory of CDI files. Made for one claim by whoever prepares it, and for all from the
/// ledger's records.
#[derive(Debug, Clone)]
pub(crate) struct CdiDirectory {
    directory: PathBuf,
    /// Held by whoever changes a file. Whoever makes all files anew must not take one away that
    /// comes to be at that moment.
    lock: PathBuf,
}

impl CdiDirectory {
    /// The files in `directory`, changed under a lock in `plugin_dir`.
    pub(crate) fn new(directory: &Path, plugin_dir: &Path) -> Self {
        Self { directory: directory.to_owned(), lock: plugin_dir.join("cdi.lock") }
    }

    /// Writes the file of a claim, whose records are in the ledger.
    pub(crate) fn write(&self, uid: &str, requests: &Requests) -> Result<(), CdiError> {
        let _lock = self.lock()?;
        self.replace(uid, &content(requests))
    }

    /// Removes the file of a claim, whose records are gone.
    pub(crate) fn remove(&self, uid: &str) -> Result<(), CdiError> {
        let _lock = self.lock()?;
        self.unlink(&cdi_file(uid))
    }

    /// Makes the files anew that are not as the ledger says, and takes those away whose claim is
    /// gone. Returns how many files were not right.
    pub(crate) fn rebuild(&self, ledger: &Ledger) -> Result<usize, CdiError> {
        let _lock = self.lock()?;
        let claims = claims(ledger)?;
        let mut changed = 0;
        for (uid, requests) in &claims {
            let content = content(requests);
            if fs::read(self.directory.join(cdi_file(uid))).ok().as_ref() != Some(&content) {
                self.replace(uid, &content)?;
                changed += 1;
            }
        }
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
            if claim_of_cdi_file(&name).is_some_and(|uid| !claims.contains_key(uid)) {
                self.unlink(&name)?;
                changed += 1;
            }
        }
        Ok(changed)
    }

    fn lock(&self) -> Result<FileLock, CdiError> {
        if let Some(directory) = self.lock.parent() {
            fs::create_dir_all(directory).map_err(failed("make directory", directory))?;
        }
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&self.lock);
        let file = opened.map_err(failed("open", &self.lock))?;
        FileLock::wait(file).map_err(failed("lock", &self.lock))
    }

    fn replace(&self, uid: &str, content: &[u8]) -> Result<(), CdiError> {
        fs::create_dir_all(&self.directory).map_err(failed("make directory", &self.directory))?;
        let path = self.directory.join(cdi_file(uid));
        // Readers of the directory take files that end in .json.
        let new = path.with_extension("new");
        let written = fs::write(&new, content).and_then(|()| fs::rename(&new, &path));
        written.map_err(failed("write", &path))
    }

    fn unlink(&self, name: &str) -> Result<(), CdiError> {
        let path = self.directory.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }
}

/// Requests of all claims that the ledger has, by uid.
fn claims(ledger: &Ledger) -> Result<BTreeMap<String, Requests>, CdiError> {
    let mut claims: BTreeMap<String, Requests> = BTreeMap::new();
    for record in ledger.claims()? {
        let Some(grant) = record.claim else { continue };
        // Prepared by this driver, so its names were good.
        let variable = ClaimVariable::new(&grant.claim.namespace, &grant.claim.uid, &grant.request);
        claims.entry(grant.claim.uid).or_default().extend(variable);
    }
    claims.values_mut().for_each(|requests| requests.sort_unstable());
    Ok(claims)
}

fn content(requests: &Requests) -> Vec<u8> {
    let mut requests: Vec<&ClaimVariable> = requests.iter().collect();
    requests.sort_unstable();
    let devices = requests.into_iter().map(|request| {
        // Nothing else may act on what an image or a pod says.
        let env = [request.to_string(), "NVIDIA_VISIBLE_DEVICES=void".to_owned()];
        json!({"name": cdi_device(&request.uid, &request.request), "containerEdits": {"env": env}})
    });
    let devices: Vec<_> = devices.collect();
    format!("{}\n", json!({"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": devices})).into_bytes()
}
