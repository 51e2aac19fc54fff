//! containerd's configuration: whether CRI knows the runtime and lets requests through.
//!
//! CRI's table has another name in each version of the file: `plugins.cri` in version 1,
//! `plugins."io.containerd.grpc.v1.cri"` in 2, `plugins."io.containerd.cri.v1.runtime"` in 3.

use std::{fs, io, path::Path, process::Command};

use nvidia_glue::doctor::Check;
use toml::{Table, Value};

use super::{failure, ok, warning};
use crate::info;

const CONTAINERD: &str = "containerd";
const DEFAULT_FILE: &str = "/etc/containerd/config.toml";
const CRI_TABLES: [&str; 3] = [CRI_V3, "io.containerd.grpc.v1.cri", "cri"];
const CRI_V3: &str = "io.containerd.cri.v1.runtime";
/// An annotation that must reach the runtime.
const ANNOTATION: &str = "egpu.io/memory";

/// Why there is no configuration to look at.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{file} cannot be read")]
    File {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("{origin} is not TOML")]
    Toml {
        origin: String,
        #[source]
        source: Box<toml::de::Error>,
    },
}

pub(super) fn checks(file: Option<&Path>) -> Vec<Check> {
    match read(file) {
        Ok(Some((origin, config))) => judge(&origin, &config),
        Ok(None) => vec![warning(
            CONTAINERD,
            format!("no containerd is in the PATH, and there is no {DEFAULT_FILE}"),
            "name its configuration with --containerd-config",
        )],
        Err(error) => {
            vec![failure(CONTAINERD, crate::cli::chain(&error), "correct it, or name another with --containerd-config")]
        }
    }
}

/// What `containerd config dump` prints, imports included; without containerd, its file.
fn read(file: Option<&Path>) -> Result<Option<(String, Table)>, ReadError> {
    if file.is_none()
        && let Ok(output) = Command::new("containerd").args(["config", "dump"]).output()
        && output.status.success()
    {
        let origin = "`containerd config dump`".to_owned();
        return parse(origin, &String::from_utf8_lossy(&output.stdout)).map(Some);
    }
    let path = file.unwrap_or(Path::new(DEFAULT_FILE));
    let origin = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(text) => parse(origin, &text).map(Some),
        Err(error) if file.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ReadError::File { file: origin, source }),
    }
}

fn parse(origin: String, text: &str) -> Result<(String, Table), ReadError> {
    match text.parse() {
        Ok(table) => Ok((origin, table)),
        Err(source) => Err(ReadError::Toml { origin, source: Box::new(source) }),
    }
}

fn judge(origin: &str, config: &Table) -> Vec<Check> {
    if cri_is_disabled(config) {
        let how = format!("`ctr run --runtime {}` and nerdctl need no configuration", info::NAME);
        return vec![ok(CONTAINERD, format!("{origin}: CRI is off; {how}"))];
    }
    let runtimes: Vec<(&String, &Table)> = CRI_TABLES
        .iter()
        .filter_map(|name| table_at(config, &["plugins", name, "containerd", "runtimes"]))
        .flatten()
        .filter_map(|(name, runtime)| Some((name, runtime.as_table()?)))
        .filter(|(_, runtime)| runtime.get("runtime_type").and_then(Value::as_str) == Some(info::NAME))
        .collect();
    if runtimes.is_empty() {
        return vec![warning(
            CONTAINERD,
            format!("{origin}: CRI has no runtime of the type {}, so no pod can use it", info::NAME),
            remedy(config),
        )];
    }
    runtimes.into_iter().map(|(name, runtime)| judge_runtime(origin, name, runtime)).collect()
}

fn remedy(config: &Table) -> String {
    let cri = cri_table(config);
    let runtimes = table_at(config, &["plugins", cri, "containerd", "runtimes"]);
    let has_runc = runtimes.is_some_and(|runtimes| runtimes.contains_key("runc"));
    // containerd 1.x forgets its built-in table as soon as there is another one.
    let runc = if has_runc || cri == CRI_V3 {
        String::new()
    } else {
        format!(
            "[plugins.\"{cri}\".containerd.runtimes.runc] with runtime_type = \"io.containerd.runc.v2\" (without it CRI would no longer start) and "
        )
    };
    format!(
        "add {runc}[plugins.\"{cri}\".containerd.runtimes.egpu] with runtime_type = \"{}\" and pod_annotations = \
         [\"egpu.io/*\", \"hami.io/*\"], then restart containerd",
        info::NAME
    )
}

fn judge_runtime(origin: &str, name: &str, runtime: &Table) -> Check {
    let patterns = runtime.get("pod_annotations").and_then(Value::as_array);
    let mut patterns = patterns.into_iter().flatten().filter_map(Value::as_str);
    if patterns.any(|pattern| lets_through(pattern, ANNOTATION)) {
        return ok(
            CONTAINERD,
            format!("{origin}: pods use it as the runtime `{name}`, egpu.io/* annotations are let through"),
        );
    }
    warning(
        CONTAINERD,
        format!("{origin}: the runtime `{name}` does not see the pods' egpu.io/* annotations: only variables can ask"),
        format!("set pod_annotations = [\"egpu.io/*\"] in the runtime `{name}`, then restart containerd"),
    )
}

fn table_at<'a>(config: &'a Table, path: &[&str]) -> Option<&'a Table> {
    path.iter().try_fold(config, |table, name| table.get(*name)?.as_table())
}

fn cri_is_disabled(config: &Table) -> bool {
    let disabled = config.get("disabled_plugins").and_then(Value::as_array);
    let disabled: Vec<&str> = disabled.into_iter().flatten().filter_map(Value::as_str).collect();
    CRI_TABLES.iter().any(|name| disabled.contains(name))
}

/// The name of CRI's table in this version of the file.
fn cri_table(config: &Table) -> &'static str {
    match config.get("version").and_then(Value::as_integer) {
        Some(3..) => CRI_V3,
        Some(2) => "io.containerd.grpc.v1.cri",
        _ => "cri",
    }
}

/// As Go's `path.Match`, which containerd uses, of what occurs here: literal text, and `*` for anything without a slash.
fn lets_through(pattern: &str, annotation: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == annotation,
        Some((before, after)) => {
            let Some(rest) = annotation.strip_prefix(before) else { return false };
            let ends = rest.char_indices().map(|(position, _)| position).chain([rest.len()]);
            ends.filter_map(|end| rest.split_at_checked(end))
                .any(|(skipped, left)| !skipped.contains('/') && lets_through(after, left))
        }
    }
}

#[cfg(test)]
mod tests {
    use nvidia_glue::doctor::Level;

    use super::*;

    fn judged(text: &str) -> Vec<(Level, String)> {
        let checks = judge("file", &text.parse().unwrap());
        checks.into_iter().map(|check| (check.level, check.detail + check.remedy.as_deref().unwrap_or(""))).collect()
    }

    #[test]
    fn the_runtime_is_found_in_each_version_of_the_file() {
        for (version, table) in
            [(1, "cri"), (2, "\"io.containerd.grpc.v1.cri\""), (3, "\"io.containerd.cri.v1.runtime\"")]
        {
            let head = format!("version = {version}\n[plugins.{table}.containerd.runtimes.shared]\n");
            let good = judged(&format!(
                "{head}runtime_type = 'io.containerd.egpu.v1'\npod_annotations = ['x/*', 'egpu.io/*']"
            ));
            assert_eq!(good.len(), 1);
            assert_eq!(good[0].0, Level::Ok, "{good:?}");
            let closed = judged(&format!("{head}runtime_type = 'io.containerd.egpu.v1'"));
            assert_eq!(closed[0].0, Level::Warning);
            assert!(closed[0].1.contains("`shared`"), "{closed:?}");
            let none = judged(&format!("{head}runtime_type = 'io.containerd.runc.v2'"));
            assert_eq!(none[0].0, Level::Warning);
            assert!(
                none[0].1.contains(&format!("[plugins.\"{}\".containerd.runtimes.egpu]", table.trim_matches('"'))),
                "{none:?}"
            );
            assert_eq!(none[0].1.contains(".containerd.runtimes.runc]"), version < 3, "{none:?}");
            let own = judged(&format!(
                "version = {version}\n[plugins.{table}.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'"
            ));
            assert!(!own[0].1.contains(".containerd.runtimes.runc]"), "{own:?}");
        }
    }

    #[test]
    fn without_cri_nothing_has_to_be_configured() {
        let off = judged("version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri']");
        assert_eq!(off[0].0, Level::Ok);
    }

    #[test]
    fn odd_files_are_judged_too() {
        for text in ["", "plugins = 1", "[plugins.cri]\ncontainerd = []", "disabled_plugins = 'cri'", "version = 'two'"]
        {
            assert_eq!(judged(text)[0].0, Level::Warning, "{text}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        assert_eq!(checks(Some(&file))[0].level, Level::Failure);
        fs::write(&file, "= 1").unwrap();
        assert_eq!(checks(Some(&file))[0].level, Level::Failure);
    }

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
            assert_eq!(lets_through(pattern, ANNOTATION), passes, "{pattern}");
        }
    }
}
