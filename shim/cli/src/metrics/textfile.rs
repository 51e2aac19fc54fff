//! File that is replaced as a whole, for node_exporter's textfile collector, which reads `*.prom`
//! of its directory at any instant.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions, Permissions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

/// Readable by all: the collector runs as another user.
const MODE: u32 = 0o644;

pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it names no file"))?;
    // Beside the file, as a rename does not leave a file system, and under a name that the
    // collector does not read.
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = fill(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn fill(path: &Path, text: &str) -> io::Result<()> {
    // A process that was killed may have had the same id, as in a container; a link of that name is
    // not followed.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    // Independent of the umask.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_replaced_as_a_whole_and_readable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("egpu.prom");
        fs::write(directory.path().join(format!(".egpu.prom.{}.tmp", std::process::id())), "left").unwrap();
        for text in ["a 1\n", "a 2\nb 3\n"] {
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left temporary it");
    }

    #[test]
    fn what_cannot_be_replaced_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("egpu.prom");
        fs::create_dir(&path).unwrap();
        assert!(write(&path, "a 1\n").is_err());
        assert!(write(Path::new("/"), "a 1\n").is_err());
        assert!(write(&directory.path().join("no/such/egpu.prom"), "a 1\n").is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
