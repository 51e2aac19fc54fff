//! A made-up machine for tests: trees that stand for `/proc`, `/sys` and `/dev`.

use std::{fs, path::Path};

use base::Roots;

/// The trees, empty at first.
#[derive(Debug)]
pub struct FakeNode {
    /// Removed with the node.
    pub tree: tempfile::TempDir,
    /// Roots of its trees.
    pub roots: Roots,
}

impl FakeNode {
    /// An empty machine that has just started.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let node = Self { tree, roots };
        node.proc("sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n");
        node.dev("kmsg", "");
        node
    }

    /// Writes `/proc/<path>`.
    pub fn proc(&self, path: &str, text: &str) {
        write(&self.roots.proc.join(path), text);
    }

    /// Writes `/sys/<path>`.
    pub fn sys(&self, path: &str, text: &str) {
        write(&self.roots.sys.join(path), text);
    }

    /// Writes a plain file `/dev/<path>`.
    pub fn dev(&self, path: &str, text: &str) {
        write(&self.roots.dev.join(path), text);
    }

    /// Writes `/<path>`.
    pub fn file(&self, path: &str, text: &str) {
        write(&self.tree.path().join(path), text);
    }

    /// Creates `/proc/driver/nvidia/gpus/<address>`.
    pub fn gpu(&self, address: &str, information: &str) {
        self.proc(&format!("driver/nvidia/gpus/{address}/information"), information);
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
