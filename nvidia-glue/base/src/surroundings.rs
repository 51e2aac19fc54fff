//! Boot and namespaces in which process ids mean something.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    sync::OnceLock,
};

/// Inode of the time namespace that the kernel begins with (`PROC_TIME_INIT_INO`).
const FIRST_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;

/// The boot and the namespaces of the pids and start times that this process knows.
#[derive(Debug)]
pub struct Surroundings {
    /// The kernel's random number of this boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// Inode of `/proc/self/ns/pid`; in its upper half that of `/proc/self/ns/time`, 0 for the one
    /// that the kernel begins with. In another time namespace `/proc/PID/stat` shows another start
    /// of the same process. In one number, as both have the same meaning for whoever compares:
    /// builds that know of pid namespaces alone leave these processes alone, too.
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
            pid_namespace: fs::metadata("/proc/self/ns/pid")?.ino() | time_namespace()? << u32::BITS,
        };
        Ok(OWN.get_or_init(|| own))
    }
}

/// Inode of this process's time namespace; 0: the kernel's first, or it has no others.
fn time_namespace() -> io::Result<u64> {
    match fs::metadata("/proc/self/ns/time") {
        Ok(found) => Ok(Some(found.ino()).filter(|inode| *inode != FIRST_TIME_NAMESPACE).unwrap_or_default()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}
