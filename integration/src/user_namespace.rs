//! Containers with a user namespace of their own.

use std::{path::Path, process::Command, sync::OnceLock};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::container::ContainerBuilder;

/// The host's id of root in such a namespace. It and those above it are mapped.
pub const HOST_ROOT: u32 = 100_000;

static ROOTFS: OnceLock<TempDir> = OnceLock::new();

/// The usual root file system, owned by [`HOST_ROOT`].
fn rootfs() -> &'static Path {
    let directory = ROOTFS.get_or_init(|| {
        let directory = crate::shared::directory("egpu-rootfs-");
        crate::rootfs::populate(directory.path());
        if let Ok(program) = crate::hostile::built() {
            std::fs::copy(program, directory.path().join("bin/hostile")).expect("copy the test programs");
        }
        let owner = format!("{HOST_ROOT}:{HOST_ROOT}");
        let status = Command::new("chown").args(["-hR", &owner]).arg(directory.path()).status().expect("run chown");
        assert!(status.success(), "chown failed: {status}");
        directory
    });
    directory.path()
}

/// Mappings as `linux.uidMappings` and `linux.gidMappings` have them.
fn mappings() -> Value {
    json!([{ "containerID": 0, "hostID": HOST_ROOT, "size": 65536 }])
}

/// The namespace list of a spec.
#[track_caller]
pub fn namespaces(spec: &mut Value) -> &mut Vec<Value> {
    spec["linux"]["namespaces"].as_array_mut().expect("namespaces")
}

impl ContainerBuilder<'_> {
    /// In a user namespace of its own, with a network of its own: else it may not mount sysfs. The
    /// test programs are at [`PROGRAM`](crate::hostile::PROGRAM).
    #[must_use]
    pub fn user_namespace(self) -> Self {
        self.node().open_to_all();
        self.rootfs(rootfs()).edit(|spec| {
            namespaces(spec).extend([json!({ "type": "user" }), json!({ "type": "network" })]);
            spec["linux"]["uidMappings"] = mappings();
            spec["linux"]["gidMappings"] = mappings();
        })
    }
}
