//! Changes of Docker's configuration: one runtime more in `daemon.json`.
//!
//! The file is edited as text, so that nobody's order and indentation changes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use egpu_shim::info;
use serde_json::{Value, json, value::RawValue};

use super::{changes::Draft, error::InstallError};

/// Docker's configuration file.
pub(super) const CONFIG: &str = "/etc/docker/daemon.json";
const RUNTIMES: &str = "runtimes";
const NAME: &str = "egpu";

/// Plans what makes `egpu` a runtime of Docker.
pub(super) fn install(draft: &mut Draft, force: bool) -> Result<(), InstallError> {
    let path = Path::new(CONFIG);
    let text = draft.text(path)?;
    let current = text.as_deref().unwrap_or_default();
    match entry(path, current)? {
        Some(entry) if entry == runtime() => return Ok(()),
        Some(_) if !force => return Err(InstallError::ForeignDocker { path: path.to_owned() }),
        Some(_) => *text = remove(path, current)?,
        None => {}
    }
    let with = add(path, text.as_deref().unwrap_or_default())?;
    *text = Some(with);
    Ok(())
}

/// Plans to take the runtime out again. `written`: files that it was put into.
pub(super) fn uninstall(draft: &mut Draft, written: &[PathBuf], force: bool) -> Result<(), InstallError> {
    let path = Path::new(CONFIG);
    if !force && !written.iter().any(|written| written == path) {
        return Ok(());
    }
    let text = draft.text(path)?;
    let Some(current) = text.as_deref() else { return Ok(()) };
    let Some(entry) = entry(path, current)? else { return Ok(()) };
    if entry != runtime() && !force {
        return Err(InstallError::ForeignDocker { path: path.to_owned() });
    }
    if parse(path, current)?.get("default-runtime").and_then(Value::as_str) == Some(NAME) {
        return Err(InstallError::DockerDefault { path: path.to_owned() });
    }
    *text = remove(path, current)?;
    Ok(())
}

fn runtime() -> Value {
    json!({ "runtimeType": info::NAME })
}

/// An empty file is no configuration.
fn parse(path: &Path, text: &str) -> Result<Value, InstallError> {
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_str(text).map_err(|source| InstallError::Json { path: path.to_owned(), source })
}

fn entry(path: &Path, text: &str) -> Result<Option<Value>, InstallError> {
    Ok(parse(path, text)?.get(RUNTIMES).and_then(|runtimes| runtimes.get(NAME)).cloned())
}

/// Adds the entry, as the first of its object.
fn add(path: &Path, text: &str) -> Result<String, InstallError> {
    if text.trim().is_empty() {
        return Ok(whole_file());
    }
    let runtimes = object_of_runtimes(path, text)?;
    let (at, addition) = match runtimes {
        Some(at) => (at, own_entry()),
        None => (text.find('{').map_or(0, |at| at + 1), own_runtimes()),
    };
    let (before, after) = text.split_at(at);
    let comma = if after.trim_start().starts_with('}') { "" } else { "," };
    Ok(format!("{before}{addition}{comma}{after}"))
}

/// Takes the entry out again: the text that was added, or else, where somebody has formatted the
/// file anew, the entry. `None`: the file was ours.
fn remove(path: &Path, text: &str) -> Result<Option<String>, InstallError> {
    if text == whole_file() {
        return Ok(None);
    }
    let mut expected = parse(path, text)?;
    let others = expected.get_mut(RUNTIMES).and_then(Value::as_object_mut);
    let is_last = others.is_some_and(|runtimes| {
        runtimes.remove(NAME);
        runtimes.is_empty()
    });
    let mut without_runtimes = expected.clone();
    if let Some(object) = without_runtimes.as_object_mut().filter(|_| is_last) {
        object.remove(RUNTIMES);
    }
    for addition in [own_runtimes(), own_entry()] {
        for addition in [format!("{addition},"), format!(",{addition}"), addition] {
            let rest = text.replacen(&addition, "", 1);
            if rest != text && parse(path, &rest).is_ok_and(|rest| rest == expected || rest == without_runtimes) {
                return Ok(Some(rest));
            }
        }
    }
    let formatted = serde_json::to_string_pretty(&without_runtimes);
    formatted.map(|text| Some(text + "\n")).map_err(|source| InstallError::Json { path: path.to_owned(), source })
}

fn own_entry() -> String {
    format!("\n    \"{NAME}\": {{\n      \"runtimeType\": \"{}\"\n    }}", info::NAME)
}

fn own_runtimes() -> String {
    format!("\n  \"{RUNTIMES}\": {{{}\n  }}", own_entry())
}

fn whole_file() -> String {
    format!("{{{}\n}}\n", own_runtimes())
}

/// Returns where the runtimes' object has its first entry.
fn object_of_runtimes(path: &Path, text: &str) -> Result<Option<usize>, InstallError> {
    let keys: BTreeMap<String, &RawValue> =
        serde_json::from_str(text).map_err(|source| InstallError::Json { path: path.to_owned(), source })?;
    let Some(raw) = keys.get(RUNTIMES).map(|raw| raw.get()) else { return Ok(None) };
    // A part of the text, so this far behind its beginning.
    let start = raw.as_ptr().addr() - text.as_ptr().addr();
    if raw.starts_with('{') { Ok(Some(start + 1)) } else { Err(InstallError::DockerRuntimes { path: path.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "daemon.json";

    #[test]
    fn what_was_there_before_is_there_afterwards() {
        for text in [
            "{}",
            "{\"debug\": true}",
            "{\n\t\"debug\": true\n}",
            "{\n  \"runtimes\": {},\n  \"debug\": true\n}\n",
            "{\n    \"log-opts\": {\"runtimes\": \"x\"},\n    \"runtimes\" : {\n        \"kata\": {\"runtimeType\": \"k\"}\n    }\n}\n",
        ] {
            let with = add(Path::new(PATH), text).unwrap();
            assert_eq!(entry(Path::new(PATH), &with).unwrap(), Some(runtime()), "{with}");
            assert_eq!(remove(Path::new(PATH), &with).unwrap().as_deref(), Some(text), "{with}");
        }
        let made = add(Path::new(PATH), " \n").unwrap();
        assert_eq!(made, include_str!("../../../../examples/docker/daemon.json"));
        assert_eq!(remove(Path::new(PATH), &made).unwrap(), None);
    }

    #[test]
    fn changes_of_others_stay() {
        let with = add(Path::new(PATH), "{\n  \"debug\": true\n}\n").unwrap();
        let mut others: Value = serde_json::from_str(&with).unwrap();
        others["runtimes"]["kata"] = json!({"runtimeType": "k"});
        let left = remove(Path::new(PATH), &others.to_string()).unwrap().unwrap();
        let left: Value = serde_json::from_str(&left).unwrap();
        assert_eq!(left, json!({"debug": true, "runtimes": {"kata": {"runtimeType": "k"}}}));
        for wrong in ["{", "[]", "{\"runtimes\": []}", "{\"runtimes\": null}", "// {}"] {
            assert!(add(Path::new(PATH), wrong).and_then(|text| entry(Path::new(PATH), &text)).is_err(), "{wrong}");
        }
    }
}
