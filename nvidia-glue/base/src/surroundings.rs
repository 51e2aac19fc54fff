//! Boot and namespace in which process ids mean something.

use std::{fs, io, os::unix::fs::MetadataExt, sync::OnceLock};

/// The boot and the namespace of the pids that this process knows.
#[derive(Debug)]
pub struct Surroundings {
    /// The kernel's random number of this boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// Inode of `/proc/self/ns/pid`.
    pub pid_namespace: u64,
}

impl Surroundings {
    /// Those of this process. They stay for its life, and are read once: a shim looks at every
    /// other shim of the node.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn own() -> io::Result<&'static Self> {
        static OWN: OnceLock<Surroundings> = OnceLock::new();
        if let Some(known) = OWN.get() {
            return Ok(known);
        }
        let own = Self {
            boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
            pid_namespace: fs::metadata("/proc/self/ns/pid")?.ino(),
        };
        Ok(OWN.get_or_init(|| own))
    }
}
