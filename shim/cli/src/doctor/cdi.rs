//! CDI specs on disk that were made for another driver than the one that is loaded.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use base::Roots;
use cards::kernel_module;

use super::Check;

const SPECS: &str = "CDI specs";
/// A spec is a few hundred KiB at most.
const LARGEST: u64 = 16 << 20;

/// A check for each spec of NVIDIA's that names libraries of another version; one if all is well;
/// none without specs.
pub(super) fn stale_specs(roots: &Roots) -> Vec<Check> {
    let Some(module) = kernel_module::loaded(roots) else { return Vec::new() };
    let specs: Vec<(PathBuf, BTreeSet<String>)> = [roots.etc.join("cdi"), roots.run.join("cdi")]
        .iter()
        .flat_map(|dir| spec_files(dir))
        .filter_map(|path| {
            let versions = library_versions(&read(&path)?);
            (!versions.is_empty()).then_some((path, versions))
        })
        .collect();
    let stale: Vec<Check> = specs
        .iter()
        .filter(|(_, versions)| !versions.contains(&module.version))
        .map(|(path, versions)| {
            let named = versions.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            Check::warning(
                SPECS,
                format!("{} is for driver {named}, {} is loaded", path.display(), module.version),
                format!("`nvidia-ctk cdi generate --output={}`, or remove it", path.display()),
            )
        })
        .collect();
    if stale.is_empty() && !specs.is_empty() {
        return vec![Check::ok(SPECS, format!("{} for driver {}", specs.len(), module.version))];
    }
    stale
}

fn spec_files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let spec = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "json" || kind == "yaml" || kind == "yml");
    files.retain(spec);
    files.sort();
    files
}

fn read(path: &Path) -> Option<String> {
    let small = fs::metadata(path).ok()?.len() <= LARGEST;
    if small { Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned()) } else { None }
}

/// The versions in which the text names libcuda and libnvidia-ml. Text, not YAML: all that matters
/// is the file names.
fn library_versions(text: &str) -> BTreeSet<String> {
    let ends = ["libcuda.so.", "libnvidia-ml.so."].into_iter().flat_map(|name| text.split(name).skip(1));
    ends.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default().trim_end_matches('.')
    })
    .filter(|version| kernel_module::is_version(version))
    .map(str::to_owned)
    .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_are_those_of_file_names() {
        let text = "hostPath: /usr/lib/libcuda.so.580.159.04\ncontainerPath: \"/usr/lib/libnvidia-ml.so.570.1\", \
                    args: [libcuda.so.1::/usr/lib/libcuda.so, libcuda.so.]";
        let versions: Vec<_> = library_versions(text).into_iter().collect();
        assert_eq!(versions, ["570.1", "580.159.04"]);
    }

    proptest! {
        #[test]
        fn any_text_has_versions_or_none(text in "(libcuda\\.so\\.)?\\PC*") {
            let _ = library_versions(&text);
        }
    }
}
