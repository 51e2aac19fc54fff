//! CRI's part of containerd's configuration.
//!
//! Its table has another name in each version of the file: `plugins.cri` in version 1,
//! `plugins."io.containerd.grpc.v1.cri"` in 2, `plugins."io.containerd.cri.v1.runtime"` in 3.

use std::path::Path;

use egpu_shim::info;
use toml::{Table, Value};

pub(crate) const CRI_TABLES: [&str; 3] = [CRI_V3, "io.containerd.grpc.v1.cri", "cri"];
pub(crate) const CRI_V3: &str = "io.containerd.cri.v1.runtime";
pub(crate) const RUNC: &str = "io.containerd.runc.v2";

/// The pods' annotations that CRI passes on: those of the languages of requests.
pub(crate) const POD_ANNOTATIONS: &str = "pod_annotations = [\"egpu.io/*\", \"hami.io/*\", \
     \"nvidia.com/container.*\", \"gpu-fraction*\", \"gpu-memory\", \"runai/shared-gpu-configmap\"]";
/// Annotations that containers have of their own, as from device plugins.
pub(crate) const CONTAINER_ANNOTATIONS: &str = "container_annotations = [\"egpu.io/*\"]";

/// Way in which a runtime of CRI is egpu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Named by its type.
    Type,
    /// Named as the `runtime_path` of runc's type.
    DropIn,
}

impl Form {
    /// Returns the form of a runtime; `None`: it is another one.
    pub(crate) fn of(runtime: &Table) -> Option<Self> {
        let text = |key| runtime.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("runtime_type") {
            info::NAME => Some(Self::Type),
            RUNC if Path::new(text("runtime_path")).ends_with(info::BINARY) => Some(Self::DropIn),
            _ => None,
        }
    }
}

pub(crate) fn table_at<'a>(config: &'a Table, path: &[&str]) -> Option<&'a Table> {
    path.iter().try_fold(config, |table, name| table.get(*name)?.as_table())
}

/// Lists the runtimes of CRI, whichever version of the format the file has.
pub(crate) fn runtimes(config: &Table) -> impl Iterator<Item = (&str, &Table)> {
    CRI_TABLES
        .iter()
        .filter_map(|name| table_at(config, &["plugins", name, "containerd", "runtimes"]))
        .flatten()
        .filter_map(|(name, runtime)| Some((name.as_str(), runtime.as_table()?)))
}

/// Returns whether CRI's default runtime makes cgroups through systemd.
pub(crate) fn systemd_cgroup(effective: &Table) -> bool {
    let name = default_runtime(effective).unwrap_or("runc");
    let options =
        runtimes(effective).find(|(other, _)| *other == name).and_then(|(_, table)| table_at(table, &["options"]));
    options.and_then(|options| options.get("SystemdCgroup")).and_then(Value::as_bool).unwrap_or(false)
}

/// Returns the name of CRI's default runtime.
pub(crate) fn default_runtime(effective: &Table) -> Option<&str> {
    let mut tables = CRI_TABLES.iter().filter_map(|name| table_at(effective, &["plugins", name, "containerd"]));
    tables.find_map(|table| table.get("default_runtime_name")?.as_str())
}

pub(crate) fn cri_is_disabled(config: &Table) -> bool {
    let disabled = config.get("disabled_plugins").and_then(Value::as_array);
    let disabled: Vec<&str> = disabled.into_iter().flatten().filter_map(Value::as_str).collect();
    CRI_TABLES.iter().any(|name| disabled.contains(name))
}

/// Returns the name of CRI's table in this version of the format.
pub(crate) fn cri_table(format: i64) -> &'static str {
    match format {
        3.. => CRI_V3,
        2 => "io.containerd.grpc.v1.cri",
        _ => "cri",
    }
}

/// Matches like Go's `path.Match`, which containerd uses, as far as it occurs here: literal text,
/// and `*` for anything without a slash.
pub(crate) fn matches_pattern(pattern: &str, annotation: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == annotation,
        Some((before, after)) => {
            let Some(rest) = annotation.strip_prefix(before) else { return false };
            let ends = rest.char_indices().map(|(position, _)| position).chain([rest.len()]);
            ends.filter_map(|end| rest.split_at_checked(end))
                .any(|(skipped, left)| !skipped.contains('/') && matches_pattern(after, left))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_gos() {
        for (pattern, passes) in [
            ("egpu.io/*", true),
            ("egpu.io/memory", true),
            ("egpu.io/mem*", true),
            ("*/*", true),
            ("egpu.*/m*y", true),
            ("*", false),
            ("egpu.io/", false),
            ("egpu.io/*x", false),
            ("nvidia.com/*", false),
        ] {
            assert_eq!(matches_pattern(pattern, "egpu.io/memory"), passes, "{pattern}");
        }
    }
}
