//! The id -1, which is nobody's.
//!
//! setresuid(2), setresgid(2) and chown(2) take it for "leave as it is" and report success: who
//! asks to be that user would stay root. containerd before 2.0.4 writes it for an image's
//! `USER 4294967295`, and every containerd for a user to whom the image's `/etc/passwd` gives it.

use serde_json::{Map, Value};

use super::refused::Refused;

/// -1, as specs write it.
const NO_ID: u64 = 0xffff_ffff;

/// Fields of ids, wherever they are in a spec.
const FIELDS: [&str; 5] = ["uid", "gid", "additionalGids", "containerID", "hostID"];

/// Ends of the names of file systems' options for ids.
const OPTIONS: [&str; 4] = ["uid", "gid", "user_id", "group_id"];

/// Refuses a value that names it anywhere. `field` is the value's own name, if it has one.
pub(super) fn check(field: &str, value: &Value) -> Result<(), Refused> {
    let place = find(field, value).map(|below| format!("{field}{below}"));
    place.map_or(Ok(()), |place| {
        Err(Refused(format!(
            "{} is or takes in the id {NO_ID}, which to the kernel means \"leave as it is\"; ids up to {} are accepted",
            place.trim_start_matches('.'),
            NO_ID - 1
        )))
    })
}

/// The place in the value of the field `name`, as it is written after that name.
fn find(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::Number(id) => (FIELDS.contains(&name) && id.as_u64() == Some(NO_ID)).then(String::new),
        Value::String(option) => (name == "options" && is_in_option(option)).then(|| format!(" ({option:?})")),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(at, item)| Some(format!("[{at}]{}", find(name, item)?)))
        }
        Value::Object(fields) => {
            let inside = fields.iter().find_map(|(name, value)| Some(format!(".{name}{}", find(name, value)?)));
            inside.or_else(|| is_in_range(fields).then(|| ".size".to_owned()))
        }
        Value::Null | Value::Bool(_) => None,
    }
}

/// Of a mapping. The kernel takes a range that ends right before it.
fn is_in_range(mapping: &Map<String, Value>) -> bool {
    let number = |name: &str| mapping.get(name).and_then(Value::as_u64);
    let mut starts = ["containerID", "hostID"].into_iter().filter_map(number);
    number("size").is_some_and(|size| starts.any(|start| start.saturating_add(size) > NO_ID))
}

fn is_in_option(option: &str) -> bool {
    option.split_once('=').is_some_and(|(name, id)| {
        OPTIONS.iter().any(|end| name.ends_with(end)) && id.parse::<u64>().is_ok_and(|id| id == NO_ID)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_refused_in_every_field() {
        for (field, spec) in [
            ("process.user.uid", json!({"process": {"user": {"uid": NO_ID, "gid": 0}}})),
            ("process.user.gid", json!({"process": {"user": {"uid": 0, "gid": NO_ID}}})),
            ("process.user.additionalGids[1]", json!({"process": {"user": {"additionalGids": [5, NO_ID]}}})),
            ("linux.uidMappings[0].hostID", json!({"linux": {"uidMappings": [{"hostID": NO_ID, "size": 1}]}})),
            ("linux.gidMappings[0].containerID", json!({"linux": {"gidMappings": [{"containerID": NO_ID}]}})),
            ("linux.uidMappings[0].size", json!({"linux": {"uidMappings": [{"hostID": NO_ID - 9, "size": 10}]}})),
            (
                "mounts[0].gidMappings[0].size",
                json!({"mounts": [{"gidMappings": [{"containerID": 1, "size": NO_ID}]}]}),
            ),
            ("mounts[0].uidMappings[0].hostID", json!({"mounts": [{"uidMappings": [{"hostID": NO_ID}]}]})),
            ("mounts[0].options[1] (\"uid=4294967295\")", json!({"mounts": [{"options": ["ro", "uid=4294967295"]}]})),
            (
                "mounts[0].options[0] (\"group_id=4294967295\")",
                json!({"mounts": [{"options": ["group_id=4294967295"]}]}),
            ),
            ("linux.devices[0].uid", json!({"linux": {"devices": [{"path": "/dev/x", "uid": NO_ID}]}})),
            ("linux.devices[0].gid", json!({"linux": {"devices": [{"path": "/dev/x", "gid": NO_ID}]}})),
        ] {
            let refused = check("", &spec).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{field} is or takes in the id 4294967295")), "{field}: {refused}");
        }
        let refused = check("process", &json!({"user": {"uid": NO_ID}})).unwrap_err().to_string();
        assert!(refused.starts_with("process.user.uid "), "{refused}");
    }

    #[test]
    fn every_other_id_and_number_passes() {
        let user = json!({"uid": NO_ID - 1, "gid": 2_147_483_648_u64, "additionalGids": [0, NO_ID - 1]});
        let limits = json!([{"type": "RLIMIT_CORE", "soft": NO_ID, "hard": u64::MAX}]);
        // All that the host's own namespace has.
        let mappings = json!([{"containerID": 0, "hostID": 0, "size": NO_ID}]);
        let options = json!(["uid=4294967294", "size=4294967295", "uuid=on", "gid=group"]);
        let spec = json!({
            "process": {"user": user, "rlimits": limits},
            "linux": {"uidMappings": mappings, "resources": {"pids": {"limit": -1}}},
            "mounts": [{"options": options}],
            "annotations": {"uid": "4294967295"},
        });
        assert_eq!(check("", &spec), Ok(()));
    }
}
