//! `/proc/driver` in containers that are fenced off from NVIDIA's driver: nothing.
//!
//! The `registry` files in its directory `nvidia` take the driver's settings from any uid 0,
//! without asking for a capability (kernel-open/nvidia/nv-procfs.c). Containers with GPUs get a
//! read-only copy, which the injection brings; who has none needs none of it. The directory above
//! is masked, which is always there: the driver may be loaded later, or again.

use serde_json::{Value, json};

const PROC_DRIVER: &str = "/proc/driver";

/// Adds it to the paths that are masked. A mount namespace that is not the container's own stays as
/// it is.
pub(crate) fn mask(spec: &mut Value) {
    let Some(linux) = spec.get_mut("linux").and_then(Value::as_object_mut) else { return };
    let is_own = |namespace: &Value| {
        namespace.get("type").and_then(Value::as_str) == Some("mount")
            && namespace.get("path").and_then(Value::as_str).unwrap_or_default().is_empty()
    };
    if !linux.get("namespaces").and_then(Value::as_array).is_some_and(|namespaces| namespaces.iter().any(is_own)) {
        return;
    }
    match linux.get_mut("maskedPaths") {
        Some(Value::Array(paths)) => paths.push(PROC_DRIVER.into()),
        None | Some(Value::Null) => {
            linux.insert("maskedPaths".to_owned(), json!([PROC_DRIVER]));
        }
        // Refused by who reads it as what it should be.
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_in_a_mount_namespace_of_its_own() {
        let masked = |linux: Value| {
            let mut spec = json!({ "linux": linux });
            mask(&mut spec);
            spec["linux"]["maskedPaths"].clone()
        };
        let own = json!([{ "type": "pid" }, { "type": "mount" }]);
        for (linux, expected) in [
            (json!({ "namespaces": own }), json!(["/proc/driver"])),
            (json!({ "namespaces": own, "maskedPaths": null }), json!(["/proc/driver"])),
            (json!({ "namespaces": own, "maskedPaths": ["/proc/kcore"] }), json!(["/proc/kcore", "/proc/driver"])),
            (json!({ "namespaces": [{ "type": "mount", "path": "/proc/1/ns/mnt" }] }), Value::Null),
            (json!({ "namespaces": [{ "type": "pid" }] }), Value::Null),
            (json!({}), Value::Null),
        ] {
            assert_eq!(masked(linux.clone()), expected, "{linux}");
        }
    }
}
