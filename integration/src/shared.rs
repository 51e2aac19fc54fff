//! Directories that all nodes of a run share. They are there until the run's process ends, in
//! whatever way: also when it is killed.

use std::{
    io::Write,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    process::{Child, Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
};

use tempfile::TempDir;

/// Reads names until nobody can write any more, and removes what they name.
const REMOVER: &str =
    r#"while IFS= read -r directory; do set -- "$@" "$directory"; done; [ $# = 0 ] || rm -rf -- "$@""#;

static KEEPER: OnceLock<Mutex<Child>> = OnceLock::new();

/// Creates one. A static value is never dropped, so another process sees to its end.
pub(crate) fn directory(prefix: &str) -> TempDir {
    let directory = tempfile::Builder::new().prefix(prefix).tempdir().expect("make a directory");
    let mut keeper = KEEPER.get_or_init(|| Mutex::new(keeper())).lock().unwrap_or_else(PoisonError::into_inner);
    let name = [directory.path().as_os_str().as_bytes(), b"\n"].concat();
    keeper.stdin.as_mut().expect("its standard input").write_all(&name).expect("tell who removes it");
    directory
}

/// In a process group of its own: what ends the run at the terminal leaves it alone. Nobody waits
/// for its streams.
fn keeper() -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", REMOVER]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().expect("run sh")
}
