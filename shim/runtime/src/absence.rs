//! Absence in a spec, as runc sees it: to Go's decoder a field that is null, or an empty string, is
//! one that is not there. oci-spec refuses the one in most places, and takes the other for a value.

use serde_json::Value;

/// Fields that are maps of strings, in which an empty one is a value like any other.
const MAPS: [&str; 3] = ["annotations", "sysctl", "unified"];

/// Takes such fields out, at any depth. Items of lists stay.
pub(super) fn drop_absent(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
            fields
                .iter_mut()
                .filter(|(name, _)| !MAPS.contains(&name.as_str()))
                .for_each(|(_, value)| drop_absent(value));
        }
        Value::Array(items) => items.iter_mut().for_each(drop_absent),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_and_the_empty_string_are_absent_and_nothing_else_is() {
        let mut spec = json!({
            "hostname": "", "hooks": null,
            "process": {"args": ["sh", ""], "user": {"uid": null}, "capabilities": {}, "noNewPrivileges": false},
            "linux": {"namespaces": [{"type": "network", "path": ""}], "resources": {"unified": {"a": ""}}, "sysctl": {"b": ""}},
            "annotations": {"c": ""},
        });
        drop_absent(&mut spec);
        let wanted = json!({
            "process": {"args": ["sh", ""], "user": {}, "capabilities": {}, "noNewPrivileges": false},
            "linux": {"namespaces": [{"type": "network"}], "resources": {"unified": {"a": ""}}, "sysctl": {"b": ""}},
            "annotations": {"c": ""},
        });
        assert_eq!(spec, wanted);
    }
}
