//! Notes that a killed shim had begun to write.

use std::{fs, path::Path, time::Duration};

use super::{TEMPORARY, remove};

/// A note is written in microseconds: who has taken this long was killed. One that was only stopped
/// fails to put its note in place, and with it its create.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Removes the unfinished notes in `containers`, whoever's they are: half a note does not say.
pub(super) fn sweep(containers: &Path) {
    for entry in fs::read_dir(containers).into_iter().flatten().flatten() {
        let path = entry.path();
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if path.extension().is_some_and(|extension| extension == TEMPORARY)
            && age().is_some_and(|age| age > WRITE_TIMEOUT)
        {
            remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        time::{Duration, SystemTime},
    };

    use crate::registry::Registry;

    #[test]
    fn what_a_killed_shim_began_to_write_goes_and_what_is_being_written_stays() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::at(directory.path().to_owned());
        registry.make_directories().unwrap();
        let path = |name: &str| registry.containers().join(name);
        for name in ["killed.tmp", "writing.tmp", "other.json"] {
            let file = File::create(path(name)).unwrap();
            if name != "writing.tmp" {
                file.set_modified(SystemTime::now() - Duration::from_secs(120)).unwrap();
            }
        }
        registry.sweep("/c.sock").unwrap();
        let left = ["killed.tmp", "writing.tmp", "other.json"].map(|name| path(name).exists());
        assert_eq!(left, [false, true, true]);
    }
}
