//! The table that makes `egpu` a runtime of CRI, in the form that containerd's version takes.

use std::path::Path;

use egpu_shim::info;
use toml::{Table, Value};

use crate::containerd::{
    config::FIRST_WITH_RUNTIME_PATH,
    cri::{CONTAINER_ANNOTATIONS, CRI_V3, Form, POD_ANNOTATIONS, RUNC, cri_table, systemd_cgroup},
    distribution::Installation,
};

/// Name of the runtime: the handler that a RuntimeClass names.
pub(super) const HANDLER: &str = "egpu";

/// Settings of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuntimeTable<'a> {
    /// Name of CRI's table in the files' version of the format.
    pub(super) cri: &'static str,
    pub(super) form: Form,
    /// Pods' cgroups are made through systemd.
    pub(super) systemd_cgroup: bool,
    pub(super) shim: &'a Path,
}

impl<'a> RuntimeTable<'a> {
    /// Returns the one for a containerd whose main file is of that version of the format.
    pub(super) fn of(containerd: &Installation, format: i64, effective: &Table, shim: &'a Path) -> Self {
        let cri = cri_table(format);
        let knows_path = match containerd.version {
            Some(version) => version >= FIRST_WITH_RUNTIME_PATH,
            None => cri == CRI_V3,
        };
        let form = if knows_path { Form::DropIn } else { Form::Type };
        Self { cri, form, systemd_cgroup: systemd_cgroup(effective), shim }
    }

    /// Formats it as TOML, as `examples/containerd` shows it.
    pub(super) fn text(&self) -> String {
        let table = format!("plugins.\"{}\".containerd.runtimes.{HANDLER}", self.cri);
        let runtime = match self.form {
            Form::Type => format!("  runtime_type = \"{}\"\n", info::NAME),
            Form::DropIn => {
                format!(
                    "  runtime_type = \"{RUNC}\"\n  runtime_path = {}\n",
                    Value::from(self.shim.to_string_lossy().as_ref())
                )
            }
        };
        let annotations = format!("  {POD_ANNOTATIONS}\n  {CONTAINER_ANNOTATIONS}\n");
        // Before 1.7 a runtime of another type has no options, unless they say something.
        let options = match (self.form, self.systemd_cgroup) {
            (Form::Type, false) => String::new(),
            (_, systemd) => format!("  [{table}.options]\n    SystemdCgroup = {systemd}\n"),
        };
        format!("[{table}]\n{runtime}{annotations}{options}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containerd::cri::runtimes;

    /// The examples are what people copy who do without `egpu install`.
    #[test]
    fn it_is_what_the_examples_show() {
        let shim = Path::new("/usr/local/bin/containerd-shim-egpu-v1");
        for (example, cri, form) in [
            ("config-1.x.toml", "io.containerd.grpc.v1.cri", Form::Type),
            ("drop-in-1.7.toml", "io.containerd.grpc.v1.cri", Form::DropIn),
            ("drop-in-2.x.toml", CRI_V3, Form::DropIn),
        ] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/containerd").join(example);
            let example: Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
            let own: Table = RuntimeTable { cri, form, systemd_cgroup: false, shim }.text().parse().unwrap();
            let runtime =
                |table: &Table| runtimes(table).find(|(name, _)| *name == HANDLER).map(|(_, table)| table.clone());
            assert_eq!(runtime(&own), runtime(&example), "{}", path.display());
        }
    }

    #[test]
    fn cgroups_are_made_as_the_default_runtimes_are() {
        let runtimes = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'kata'\n\
            [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = false\n\
            [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata.options]\nSystemdCgroup = true\n";
        assert!(systemd_cgroup(&runtimes.parse().unwrap()));
        assert!(!systemd_cgroup(&runtimes.replace("'kata'", "'runc'").parse().unwrap()));
        assert!(!systemd_cgroup(&Table::new()));
        let shim = Path::new("/s");
        let table = RuntimeTable { cri: "cri", form: Form::Type, systemd_cgroup: true, shim };
        assert!(table.text().contains("SystemdCgroup = true"), "{}", table.text());
    }
}
