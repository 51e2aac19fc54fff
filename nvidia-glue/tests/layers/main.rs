//! The layers: which crate may use which, no cycle between crates nor between the top-level modules
//! of one, and where `unsafe` may stand.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod source;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use source::Edges;

/// One crate of the layers.
struct Layer {
    name: &'static str,
    /// Folder below the repository.
    folder: &'static str,
    /// Crates of this repository that it depends on, tests apart.
    may_use: &'static [&'static str],
    unsafe_code: UnsafeCode,
}

enum UnsafeCode {
    Forbidden,
    /// Module `sys` alone may.
    InSys,
    /// The crate is there for it.
    Allowed,
}
use UnsafeCode::{Allowed, Forbidden, InSys};

/// The layers, the lowest first.
///
/// `fence` is not part of the mediator: `trace` installs the same filter. Simulated cards stay in
/// `cards`, since the configuration says at discovery which kind a node has. `cards` and `ledger`
/// take their settings from `runtime-config`, which has the units of `base`.
#[rustfmt::skip]
const LAYERS: &[Layer] = &[
    Layer { name: "base", folder: "nvidia-glue/base", may_use: &[], unsafe_code: Forbidden },
    Layer { name: "abi", folder: "nvidia-glue/abi", may_use: &[], unsafe_code: Forbidden },
    Layer { name: "kubernetes-api", folder: "kubernetes/api", may_use: &["base"], unsafe_code: Forbidden },
    Layer { name: "account", folder: "nvidia-glue/account", may_use: &["abi", "base"], unsafe_code: Forbidden },
    Layer { name: "schedule", folder: "nvidia-glue/schedule", may_use: &["abi", "base"], unsafe_code: Forbidden },
    Layer { name: "runtime-config", folder: "runtime-config", may_use: &["base", "kubernetes-api", "schedule"], unsafe_code: Forbidden },
    Layer { name: "fence", folder: "nvidia-glue/fence", may_use: &["abi"], unsafe_code: Forbidden },
    Layer { name: "driver", folder: "nvidia-glue/driver", may_use: &["abi", "base", "schedule"], unsafe_code: InSys },
    Layer { name: "cards", folder: "nvidia-glue/cards", may_use: &["base", "runtime-config"], unsafe_code: InSys },
    Layer {
        name: "simulator",
        folder: "nvidia-glue/simulator",
        may_use: &["abi", "base", "cards", "driver", "schedule"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "mediator",
        folder: "nvidia-glue/mediator",
        may_use: &["abi", "account", "base", "driver", "schedule"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "ledger",
        folder: "nvidia-glue/ledger",
        may_use: &["base", "cards", "runtime-config", "schedule"],
        unsafe_code: Forbidden,
    },
    Layer { name: "trace", folder: "nvidia-glue/trace", may_use: &["abi", "base", "driver", "fence"], unsafe_code: InSys },
    Layer { name: "testing", folder: "nvidia-glue/testing", may_use: &["abi", "base", "trace"], unsafe_code: Forbidden },
    Layer {
        name: "nvidia-glue",
        folder: "nvidia-glue",
        may_use: &["base", "cards", "ledger", "runtime-config"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "egpu-kubelet-plugin",
        folder: "kubernetes/kubelet-plugin",
        may_use: &["base", "cards", "kubernetes-api", "ledger", "runtime-config"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "kubectl-egpu",
        folder: "kubernetes/kubectl-egpu",
        may_use: &["kubernetes-api"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "egpu-webhook",
        folder: "kubernetes/webhook",
        may_use: &["base", "kubernetes-api", "runtime-config"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "egpu-scorer",
        folder: "kubernetes/scorer",
        may_use: &["base", "kubernetes-api"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "sys",
        folder: "shim/sys",
        may_use: &["base"],
        unsafe_code: Allowed,
    },
    Layer {
        name: "mediator-process",
        folder: "shim/mediator",
        may_use: &["abi", "account", "base", "cards", "driver", "fence", "ledger", "mediator", "nvidia-glue", "runtime-config", "schedule", "simulator", "sys"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "runtime",
        folder: "shim/runtime",
        may_use: &["base", "cards", "driver", "fence", "ledger", "mediator", "mediator-process", "nvidia-glue", "runtime-config", "simulator", "sys"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "egpu-shim",
        folder: "shim",
        may_use: &["base", "cards", "ledger", "mediator", "mediator-process", "nvidia-glue", "runtime", "runtime-config", "schedule", "sys"],
        unsafe_code: Forbidden,
    },
    Layer {
        name: "egpu-cli",
        folder: "shim/cli",
        may_use: &["abi", "base", "cards", "driver", "egpu-shim", "fence", "ledger", "mediator-process", "nvidia-glue", "runtime", "runtime-config", "schedule", "sys", "trace"],
        unsafe_code: Forbidden,
    },
];

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn dependencies_are_those_of_the_table() {
    let known: BTreeSet<&str> = LAYERS.iter().map(|layer| layer.name).collect();
    let root = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let packages: BTreeMap<&str, &str> = dependencies(&root).into_iter().collect();
    for layer in LAYERS {
        let manifest = fs::read_to_string(repository().join(layer.folder).join("Cargo.toml")).unwrap();
        let names = dependencies(&manifest).into_iter();
        let names =
            names.map(|(name, package)| if name == package { packages.get(name).unwrap_or(&name) } else { package });
        let uses: BTreeSet<&str> = names.filter(|name| known.contains(name)).collect();
        let may_use = layer.may_use.iter().copied().collect();
        assert_eq!(uses, may_use, "{}: its dependencies (left) are not those of the table (right)", layer.name);
    }
}

/// Dependencies of a manifest with the package that each is, those of tests alone left out.
fn dependencies(manifest: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut is_read = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            assert!(!section.contains("dependencies."), "a dependency is a line of its section: {line}");
            is_read = section.ends_with("dependencies]") && !section.ends_with("dev-dependencies]");
        } else if is_read && !line.is_empty() && !line.starts_with('#') {
            let name = line.split(['.', '=', ' ']).next().unwrap();
            let package = line.split_once("package = \"").map(|(_, rest)| rest.split('"').next().unwrap());
            found.push((name, package.unwrap_or(name)));
        }
    }
    found
}

#[test]
fn dependencies_are_read_of_every_section_but_those_of_tests() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\n# b\nb.workspace = true\nc = { package = \"d\" }\n\n\
                    [target.'cfg(unix)'.dependencies]\ne = \"1\"\n[build-dependencies]\nf = \"1\"\n\
                    [dev-dependencies]\ng = \"1\"\n[lints]\nworkspace = true\n";
    assert_eq!(dependencies(manifest), [("b", "b"), ("c", "d"), ("e", "e"), ("f", "f")]);
}

#[test]
fn every_crate_below_nvidia_glue_is_in_the_table() {
    let folders = fs::read_dir(repository().join("nvidia-glue")).unwrap().map(|entry| entry.unwrap().path());
    for folder in folders.filter(|folder| folder.join("Cargo.toml").exists()) {
        assert!(LAYERS.iter().any(|layer| repository().join(layer.folder) == folder), "{}", folder.display());
    }
}

#[test]
fn crates_make_no_cycle() {
    for (at, layer) in LAYERS.iter().enumerate() {
        for used in layer.may_use {
            assert!(LAYERS[..at].iter().any(|lower| lower.name == *used), "{} uses {used}, no lower layer", layer.name);
        }
    }
}

#[test]
fn top_level_modules_make_no_cycle() {
    let mut wrong = String::new();
    for layer in LAYERS {
        let edges = source::module_edges(&repository().join(layer.folder));
        for cycle in cycles(&edges) {
            writeln!(wrong, "{}: these modules use each other:", layer.name).unwrap();
            for module in &cycle {
                let used: Vec<&str> = edges[*module].iter().map(String::as_str).collect();
                let used: Vec<&str> = used.into_iter().filter(|used| cycle.contains(used)).collect();
                writeln!(wrong, "  {module} -> {}", used.join(", ")).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The groups of modules that use each other, directly or through others.
fn cycles(edges: &Edges) -> Vec<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|module| (module.as_str(), reach(edges, module))).collect();
    let mut cycles: Vec<BTreeSet<&str>> = Vec::new();
    for (module, reach) in &reached {
        let cycle: BTreeSet<&str> = reach.iter().copied().filter(|other| reached[other].contains(module)).collect();
        if !cycle.is_empty() && !cycles.contains(&cycle) {
            cycles.push(cycle);
        }
    }
    cycles
}

fn reach<'a>(edges: &'a Edges, module: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = edges[module].iter().map(String::as_str).collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(edges[module].iter().map(String::as_str));
        }
    }
    reached
}

#[test]
fn unsafe_code_stands_where_the_table_says() {
    for layer in LAYERS {
        let source = repository().join(layer.folder).join("src");
        match layer.unsafe_code {
            Forbidden => {
                let root = source::tokens(&fs::read_to_string(source.join("lib.rs")).unwrap());
                let forbids = ["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"];
                let is_there = root.windows(forbids.len()).any(|tokens| tokens == forbids);
                assert!(is_there, "{}: lib.rs does not forbid unsafe", layer.name);
            }
            Allowed => {}
            InSys => {
                for file in files(&source) {
                    let place = file.strip_prefix(&source).unwrap();
                    let is_sys = place.starts_with("sys") || place == Path::new("sys.rs");
                    assert!(is_sys || !has_unsafe(&file), "{}: unsafe code", file.display());
                }
            }
        }
    }
}

fn has_unsafe(file: &Path) -> bool {
    source::tokens(&fs::read_to_string(file).unwrap()).iter().any(|token| token == "unsafe")
}

fn files(folder: &PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
