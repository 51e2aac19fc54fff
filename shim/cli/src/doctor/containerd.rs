//! Checks of containerd's configuration: CRI must know the runtime and pass requests on.

use std::path::Path;

use egpu_shim::info;
use toml::{Table, Value};

use super::{Check, runtime};
use crate::containerd::{
    config::{ContainerdConfig, DEFAULT_FILE},
    cri::{
        CONTAINER_ANNOTATIONS, Form, POD_ANNOTATIONS, RUNC, cri_is_disabled, matches_pattern, runtimes, systemd_cgroup,
    },
};

const CONTAINERD: &str = "containerd";
/// An annotation that must reach the runtime.
const ANNOTATION: &str = "egpu.io/memory";

pub(super) fn checks(file: Option<&Path>) -> Vec<Check> {
    match ContainerdConfig::read(file) {
        Ok(Some(config)) => assess(&config),
        Ok(None) => vec![Check::warning(
            CONTAINERD,
            format!("no containerd runs or is in the PATH, and there is no {DEFAULT_FILE}"),
            "name its configuration with --containerd-config",
        )],
        Err(error) => {
            vec![Check::failure(
                CONTAINERD,
                base::error_chain(&error),
                "correct it, or name another with --containerd-config",
            )]
        }
    }
}

fn assess(config: &ContainerdConfig) -> Vec<Check> {
    let ContainerdConfig { origin, table, .. } = config;
    if cri_is_disabled(table) {
        let how = format!("`ctr run --runtime {}` and nerdctl need no configuration", info::NAME);
        return vec![Check::ok(CONTAINERD, format!("{origin}: CRI is off; {how}"))];
    }
    let runtimes: Vec<(&str, &Table, Form)> =
        runtimes(table).filter_map(|(name, runtime)| Some((name, runtime, Form::of(runtime)?))).collect();
    if runtimes.is_empty() {
        let detail = format!(
            "{origin}: CRI has no runtime of the type {}, and none whose runtime_path is {}, so no pod can use it",
            info::NAME,
            info::BINARY
        );
        return vec![Check::warning(CONTAINERD, detail, REMEDY)];
    }
    let assessed = runtimes.iter().map(|(name, runtime, form)| assess_runtime(config, name, runtime, *form));
    assessed.chain(missing_features(config, &runtimes)).collect()
}

/// Notes the features that pods lack: CRI asks only runc's runtime for its features.
fn missing_features(config: &ContainerdConfig, runtimes: &[(&str, &Table, Form)]) -> Option<Check> {
    let has_drop_in = runtimes.iter().any(|(_, _, form)| *form == Form::DropIn);
    (!has_drop_in && config.knows_runtime_path() == Some(true)).then(|| {
        let how = format!("runtime_type = \"{RUNC}\" and runtime_path = \"{}\"", runtime::installed().display());
        Check::ok(CONTAINERD, format!("with {how} pods could have user namespaces and recursive read-only mounts, too"))
    })
}

const REMEDY: &str = "`egpu install` adds the runtime `egpu`; restart containerd afterwards";

fn assess_runtime(config: &ContainerdConfig, name: &str, runtime: &Table, form: Form) -> Check {
    let origin = &config.origin;
    if form == Form::DropIn && config.knows_runtime_path() == Some(false) {
        return Check::warning(
            CONTAINERD,
            format!("{origin}: containerd 1.6 ignores runtime_path, so pods of the runtime `{name}` run under runc"),
            format!("set runtime_type = \"{}\" in the runtime `{name}`, then restart containerd", info::NAME),
        );
    }
    let options = runtime.get("options").and_then(Value::as_table);
    let systemd = options.and_then(|options| options.get("SystemdCgroup")).and_then(Value::as_bool).unwrap_or(false);
    if form == Form::DropIn && systemd != systemd_cgroup(&config.table) {
        return Check::warning(
            CONTAINERD,
            format!("{origin}: the runtime `{name}` has SystemdCgroup = {systemd}, CRI's default runtime has not"),
            "`egpu install` takes it over; restart containerd afterwards",
        );
    }
    let passes_annotation = |key: &str| {
        let patterns = runtime.get(key).and_then(Value::as_array);
        patterns.into_iter().flatten().filter_map(Value::as_str).any(|pattern| matches_pattern(pattern, ANNOTATION))
    };
    let detail = match (passes_annotation("pod_annotations"), passes_annotation("container_annotations")) {
        (true, true) => {
            let form = if form == Form::DropIn { " in runc's place" } else { "" };
            let detail =
                format!("{origin}: pods use it as the runtime `{name}`{form}, egpu.io/* annotations are let through");
            return Check::ok(CONTAINERD, detail);
        }
        (true, false) => "egpu.io/* annotations that containers have of their own, as from device plugins",
        (false, true) => "the pods' egpu.io/* annotations",
        (false, false) => "egpu.io/* annotations: only variables can ask",
    };
    Check::warning(
        CONTAINERD,
        format!("{origin}: the runtime `{name}` does not see {detail}"),
        format!("set {POD_ANNOTATIONS} and {CONTAINER_ANNOTATIONS} in the runtime `{name}`, then restart containerd"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    fn assessed_by(version: Option<(u32, u32)>, text: &str) -> Vec<(Level, String)> {
        let config = ContainerdConfig { origin: "file".to_owned(), table: text.parse().unwrap(), version };
        let checks = assess(&config);
        checks.into_iter().map(|check| (check.level, check.detail + check.remedy.as_deref().unwrap_or(""))).collect()
    }

    fn assessed(text: &str) -> Vec<(Level, String)> {
        assessed_by(None, text)
    }

    const LET_THROUGH: &str = "pod_annotations = ['x/*', 'egpu.io/*']\ncontainer_annotations = ['egpu.io/*']";

    #[test]
    fn the_runtime_is_found_in_each_version_of_the_file() {
        for (version, table) in
            [(1, "cri"), (2, "\"io.containerd.grpc.v1.cri\""), (3, "\"io.containerd.cri.v1.runtime\"")]
        {
            let head = format!("version = {version}\n[plugins.{table}.containerd.runtimes.shared]\n");
            let good = assessed(&format!("{head}runtime_type = 'io.containerd.egpu.v1'\n{LET_THROUGH}"));
            assert_eq!(good[0].0, Level::Ok, "{good:?}");
            let none = assessed(&format!("{head}runtime_type = 'io.containerd.runc.v2'"));
            assert_eq!(none[0].0, Level::Warning);
            assert!(none[0].1.contains("`egpu install`"), "{none:?}");
        }
    }

    #[test]
    fn annotations_of_pods_and_of_containers_must_be_let_through() {
        let head = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.shared]\nruntime_type = 'io.containerd.egpu.v1'\n";
        for (lines, unseen) in [
            ("", "does not see egpu.io/* annotations: only variables can ask"),
            ("pod_annotations = ['*/*']", "annotations that containers have of their own"),
            ("container_annotations = ['egpu.io/*']", "does not see the pods' egpu.io/* annotations"),
        ] {
            let (level, text) = assessed(&format!("{head}{lines}")).remove(0);
            assert_eq!(level, Level::Warning, "{text}");
            for part in ["`shared`", unseen, "set pod_annotations = [", "and container_annotations = ["] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }

    #[test]
    fn in_runcs_place_where_containerd_can() {
        let cri = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes";
        let by_type = format!("{cri}.egpu]\nruntime_type = 'io.containerd.egpu.v1'\n{LET_THROUGH}");
        let path = "runtime_path = '/opt/containerd-shim-egpu-v1'";
        let drop_in = format!("{cri}.egpu]\nruntime_type = 'io.containerd.runc.v2'\n{path}\n{LET_THROUGH}");
        let none = format!("{cri}.runc]\nruntime_type = 'io.containerd.runc.v2'");
        let stale = format!("{drop_in}\n{cri}.runc.options]\nSystemdCgroup = true");
        let levels = |version, text: &str| -> Vec<Level> {
            assessed_by(version, text).into_iter().map(|(level, _)| level).collect()
        };
        for (version, text, expected, part) in [
            (Some((1, 6)), &by_type, &[Level::Ok][..], "as the runtime `egpu`,"),
            (None, &by_type, &[Level::Ok], "as the runtime `egpu`,"),
            (Some((1, 7)), &by_type, &[Level::Ok, Level::Ok], "user namespaces and recursive read-only mounts"),
            (Some((1, 6)), &drop_in, &[Level::Warning], "ignores runtime_path"),
            (Some((2, 1)), &drop_in, &[Level::Ok], "as the runtime `egpu` in runc's place"),
            (None, &drop_in, &[Level::Ok], "in runc's place"),
            (Some((2, 1)), &none, &[Level::Warning], "`egpu install`"),
            (Some((2, 1)), &stale, &[Level::Warning], "SystemdCgroup = false"),
        ] {
            assert_eq!(levels(version, text), expected, "{version:?} {text}");
            assert!(
                assessed_by(version, text).iter().any(|(_, reported)| reported.contains(part)),
                "{version:?} {part}"
            );
        }
    }

    #[test]
    fn without_cri_nothing_has_to_be_configured() {
        let off = assessed("version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri']");
        assert_eq!(off[0].0, Level::Ok);
    }

    #[test]
    fn odd_files_are_judged_too() {
        for text in ["", "plugins = 1", "[plugins.cri]\ncontainerd = []", "disabled_plugins = 'cri'", "version = 'two'"]
        {
            assert_eq!(assessed(text)[0].0, Level::Warning, "{text}");
        }
    }
}
