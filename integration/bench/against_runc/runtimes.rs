//! The runtimes that are compared.

use std::{path::PathBuf, process::Command};

use integration::{EGPU_RUNTIME, node};

const RUNC_RUNTIME: &str = "io.containerd.runc.v2";

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    /// Heading of its column.
    pub name: String,
    /// Arguments of `ctr run` and its like.
    pub arguments: Vec<String>,
    /// Its part in the comparison.
    pub role: Role,
}

/// Part of a runtime in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is measured.
    Egpu,
    /// It is 1.
    Runc,
    /// It runs nothing: no runtime can be faster.
    Floor,
    /// One more column.
    Other,
}

impl Runtime {
    fn new(name: &str, role: Role, runtime: &str, program: Option<&str>) -> Self {
        let mut arguments = vec!["--runtime".to_owned(), runtime.to_owned()];
        if let Some(program) = program {
            arguments.extend(["--runc-binary".to_owned(), program.to_owned()]);
        }
        Self { name: name.to_owned(), arguments, role }
    }

    /// egpu, this machine's runc, the one that runs nothing, and what else there is: the runc that
    /// `integration/setup-runc.sh` has built, and crun.
    pub(crate) fn all() -> Vec<Self> {
        let null = node::shim_directory().join("containerd-shim-null-v1");
        let null = null.to_str().expect("a path in UTF-8");
        let current = node::target_directory().map(|target| target.join("runc/runc")).filter(|path| path.exists());
        let crun = Some(PathBuf::from("/usr/bin/crun")).filter(|path| path.exists());
        let mut all = vec![
            Self::new("egpu", Role::Egpu, EGPU_RUNTIME, None),
            Self::new(&version("runc"), Role::Runc, RUNC_RUNTIME, None),
            Self::new("nothing", Role::Floor, null, None),
        ];
        all.extend(current.into_iter().chain(crun).map(|program| {
            let program = program.display().to_string();
            Self::new(&version(&program), Role::Other, RUNC_RUNTIME, Some(&program))
        }));
        all
    }

    /// Returns this machine's runc among `runtimes`.
    pub(crate) fn runc(runtimes: &[Self]) -> &Self {
        runtimes.iter().find(|runtime| runtime.role == Role::Runc).expect("runc is always compared with")
    }
}

/// `runc 1.1.5`, from the first line of what it says.
fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.lines().next().unwrap_or_default().split_whitespace().collect();
    match words.as_slice() {
        [name, "version", version, ..] => format!("{name} {}", version.split(['+', '-']).next().unwrap_or(version)),
        _ => panic!("{program} --version says {text:?}"),
    }
}
