//! Injection for processes that are executed in a container later: their clients know nothing of
//! it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    InjectError,
    spec_edit::{array, set_env},
};
use crate::spec::{integer, items};

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Changes of an injection to the container's own `process`, to be done to every other of the
/// container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEdits {
    /// Groups by which granted nodes are reached.
    additional_gids: Vec<u64>,
    /// Variables that were set.
    env: Vec<Variable>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Variable {
    name: String,
    /// Value that the container had, and that a client that passes on the container's variables
    /// still has.
    before: Option<String>,
    after: String,
}

impl ExecEdits {
    /// Edits that lead from the container's spec before the injection to the one after it.
    pub fn between(before: &Value, after: &Value) -> Self {
        let gids = |spec: &Value| -> Vec<u64> {
            items(spec.pointer("/process/user/additionalGids")).iter().filter_map(integer).collect()
        };
        let had = gids(before);
        let additional_gids = gids(after).into_iter().filter(|gid| !had.contains(gid)).collect();
        let variables = items(after.pointer("/process/env")).iter().filter_map(|item| item.as_str()?.split_once('='));
        let env = variables.filter_map(|(name, value)| {
            let before = variable(before.get("process")?, name);
            (before.as_deref() != Some(value)).then(|| Variable {
                name: name.to_owned(),
                before,
                after: value.to_owned(),
            })
        });
        Self { additional_gids, env: env.collect() }
    }

    /// Applies the edits to another OCI `process`. A variable that its client has set to something
    /// of its own stays so; the driver's libraries are found all the same.
    ///
    /// # Errors
    /// When it is no OCI `process`.
    pub fn apply(&self, process: &mut Value) -> Result<(), InjectError> {
        if *self == Self::default() {
            return Ok(());
        }
        let mut spec = json!({ "process": process.take() });
        let edited = self.edit(&mut spec);
        *process = spec["process"].take();
        edited
    }

    fn edit(&self, spec: &mut Value) -> Result<(), InjectError> {
        if !self.additional_gids.is_empty() {
            let present = array(spec, &["process", "user", "additionalGids"], "process.user.additionalGids")?;
            for gid in &self.additional_gids {
                if !present.iter().any(|present| integer(present) == Some(*gid)) {
                    present.push(Value::from(*gid));
                }
            }
        }
        for Variable { name, before, after } in &self.env {
            let own = variable(&spec["process"], name);
            if own == *before {
                set_env(spec, name, |_| after.clone())?;
            } else if name == LIBRARY_PATH {
                let added = before.as_deref().and_then(|before| after.strip_suffix(&format!(":{before}")));
                set_env(spec, name, |own| prepend(added.unwrap_or(after), own.unwrap_or_default()))?;
            }
        }
        Ok(())
    }
}

/// The last of a name is the one that counts.
fn variable(process: &Value, name: &str) -> Option<String> {
    let items = items(process.get("env")).iter().rev().filter_map(|item| item.as_str()?.split_once('='));
    items.into_iter().find(|(present, _)| *present == name).map(|(_, value)| value.to_owned())
}

fn prepend(added: &str, own: &str) -> String {
    match own {
        "" => added.to_owned(),
        own if own.split(':').any(|listed| listed == added) => own.to_owned(),
        own => format!("{added}:{own}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits() -> ExecEdits {
        let before = json!({ "process": {
            "user": { "additionalGids": [5] }, "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0", "LD_LIBRARY_PATH=/opt"],
        }});
        let after = json!({ "process": {
            "user": { "additionalGids": [5, 44] },
            "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=GPU-1", "LD_LIBRARY_PATH=/run/egpu/lib64:/opt"],
        }});
        let edits = ExecEdits::between(&before, &after);
        // It is kept as JSON.
        serde_json::from_value(serde_json::to_value(&edits).unwrap()).unwrap()
    }

    #[test]
    fn an_exec_gets_what_the_containers_process_got() {
        for (client, wanted) in [
            (
                json!({ "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0", "LD_LIBRARY_PATH=/opt"] }),
                json!({
                    "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=GPU-1", "LD_LIBRARY_PATH=/run/egpu/lib64:/opt"],
                    "user": { "additionalGids": [44] },
                }),
            ),
            (
                json!({ "env": ["NVIDIA_VISIBLE_DEVICES=none", "LD_LIBRARY_PATH=/own"], "user": { "additionalGids": [44] } }),
                json!({
                    "env": ["NVIDIA_VISIBLE_DEVICES=none", "LD_LIBRARY_PATH=/run/egpu/lib64:/own"],
                    "user": { "additionalGids": [44] },
                }),
            ),
            (
                json!({ "user": { "uid": 7 } }),
                json!({
                    "user": { "uid": 7, "additionalGids": [44] }, "env": ["LD_LIBRARY_PATH=/run/egpu/lib64"],
                }),
            ),
        ] {
            let mut process = client.clone();
            edits().apply(&mut process).unwrap();
            assert_eq!(process, wanted, "{client}");
            edits().apply(&mut process).unwrap();
            assert_eq!(process, wanted, "twice");
        }
    }

    #[test]
    fn nothing_injected_is_nothing_done() {
        let spec = json!({ "process": { "env": ["A=1"] } });
        let none = ExecEdits::between(&spec, &spec);
        for client in [json!({}), json!({ "env": 7 }), json!(null)] {
            let mut process = client.clone();
            none.apply(&mut process).unwrap();
            assert_eq!(process, client);
        }
        assert!(edits().apply(&mut json!({ "env": 7 })).is_err());
        assert!(edits().apply(&mut json!("text")).is_err());
    }
}
