//! The program of a container's process: found as runc finds it, with the messages that
//! containerd's users look for.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, NulError};
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access, execve, getuid};
use oci_spec::runtime::{Process, Spec};

use crate::sys;

/// Directories in which a program without a slash is searched when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// More than a container's process has open at a time of its own.
const OWN_DESCRIPTORS: usize = 64;

/// Written to the report right before `execve`, so that the reader can distinguish an executed
/// program from an init that died.
pub(crate) const ABOUT_TO_EXECUTE: u8 = b'+';

/// Lets a process that waits at its gate execute its program.
pub(crate) const GO: u8 = b'+';

/// Executes the process of a spec. Runs in the container's init: after pivot_root, as the
/// container's user, with its capabilities and seccomp filter.
#[derive(Debug, Clone)]
pub(crate) struct ContainerProgram {
    /// Gets [`ABOUT_TO_EXECUTE`] and then, when that fails, the reason; closed by a successful
    /// `execve`.
    report: Option<Rc<OwnedFd>>,
    /// The report, or libcontainer's own pipe for that: what is not closed before.
    kept: RawFd,
    /// Gets [`GO`] from the worker, which alone has the other end: it closes when the worker ends.
    gate: Option<Rc<PipeReader>>,
    /// Descriptors that were open before; see [`may_be_open`].
    inherited: Vec<RawFd>,
    /// The environment lacks HOME; what stands in the spec is a placeholder that keeps libcontainer
    /// from asking NSS, whose modules are the image's.
    find_home: bool,
    /// The file that `validate` found.
    path: Rc<OnceCell<PathBuf>>,
}

/// A program that cannot be executed; in the words of Go's os/exec and runc, which tools search
/// for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ProgramError {
    /// Nowhere in PATH.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotInPath(String),
    /// The path cannot be examined.
    #[error("exec: {path:?}: stat {path}: {}", in_words(*errno))]
    Stat { path: String, errno: Errno },
    /// A directory.
    #[error("exec: {0:?}: is a directory")]
    Directory(String),
    /// A file that this user may not execute.
    #[error("exec: {0:?}: permission denied")]
    Permission(String),
    /// `execve` refused.
    #[error("exec {}: {}", path.display(), in_words(*errno))]
    Execute { path: PathBuf, errno: Errno },
    /// The worker that was to let it begin has ended.
    #[error("the process was not to begin: its worker has ended")]
    NobodyWaits,
    /// `process.args` is empty.
    #[error("process.args is empty; it must name a program")]
    NoArguments,
    /// An argument or variable that the kernel cannot take.
    #[error("process.args or process.env contains a NUL byte")]
    Nul,
}

impl From<NulError> for ProgramError {
    fn from(_: NulError) -> Self {
        Self::Nul
    }
}

impl ContainerProgram {
    /// `report`: see the field.
    pub(crate) fn of_init(report: OwnedFd, find_home: bool) -> io::Result<Self> {
        let program = Self::of_exec(report.as_raw_fd(), find_home)?;
        Ok(Self { report: Some(Rc::new(report)), ..program })
    }

    /// `kept`: see the field.
    pub(crate) fn of_exec(kept: RawFd, find_home: bool) -> io::Result<Self> {
        let names = std::fs::read_dir("/proc/self/fd")?.map(|entry| entry.map(|entry| entry.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        let inherited = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
        Ok(Self { report: None, kept, gate: None, inherited, find_home, path: Rc::default() })
    }

    /// `gate`: see the field.
    pub(crate) fn waiting_for(self, gate: PipeReader) -> Self {
        Self { gate: Some(Rc::new(gate)), ..self }
    }

    fn wait(&self) -> Result<(), ProgramError> {
        let Some(gate) = &self.gate else { return Ok(()) };
        (&**gate).read_exact(&mut [0]).map_err(|_| ProgramError::NobodyWaits)
    }

    /// Replaces the process's image; returns only when that fails.
    fn execute(&self, process: &Process) -> Result<(), ProgramError> {
        self.wait()?;
        let args = process.args().as_deref().unwrap_or_default();
        let path = match self.path.get() {
            Some(path) => path.clone(),
            None => find(process)?,
        };
        let program = CString::new(path.as_os_str().as_encoded_bytes())?;
        let args = args.iter().map(|arg| CString::new(arg.as_str())).collect::<Result<Vec<_>, _>>()?;
        let env = self.environment(process).into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
        // The kernel looks the program up before it closes what is to be closed on execution: a
        // path through /proc/self/fd would lead out of the container (CVE-2024-21626).
        sys::close_each(may_be_open(&self.inherited).filter(|number| *number > 2 && *number != self.kept));
        self.report(&[ABOUT_TO_EXECUTE]);
        sys::restore_ignored_signals();
        match execve(&program, &args, &env) {
            Ok(never) => match never {},
            Err(errno) => Err(ProgramError::Execute { path, errno }),
        }
    }

    /// The spec's environment in its order, where the last of equal names is, with HOME from the
    /// container's `/etc/passwd` if it has none.
    fn environment(&self, process: &Process) -> Vec<String> {
        let given = process.env().as_deref().unwrap_or_default();
        let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
        let mut seen = HashSet::new();
        let mut environment: Vec<String> = Vec::new();
        for entry in given.iter().rev() {
            let name = name(entry);
            let entry = if self.find_home && name == "HOME" { home_variable() } else { entry.clone() };
            if seen.insert(name) {
                environment.push(entry);
            }
        }
        environment.reverse();
        environment
    }

    fn report(&self, bytes: &[u8]) {
        if let Some(report) = &self.report {
            // Without a reader (the starter was killed) the message is for nobody.
            let _ = nix::unistd::write(&**report, bytes);
        }
    }
}

impl Executor for ContainerProgram {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let result = spec.process().as_ref().ok_or(ProgramError::NoArguments).and_then(|process| self.execute(process));
        result.map_err(|error| {
            let message = error.to_string();
            self.report(message.as_bytes());
            ExecutorError::Other(message)
        })
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let found = spec.process().as_ref().ok_or(ProgramError::NoArguments).and_then(find);
        let path = found.map_err(|error| ExecutorValidationError::ArgValidationError(error.to_string()))?;
        // Set once: validate runs once.
        let _ = self.path.set(path);
        Ok(())
    }

    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        // The environment is handed to execve; the process's own is the shim's and goes with it.
        Ok(())
    }
}

/// Every number that may be open where these were, and at most [`OWN_DESCRIPTORS`] were opened
/// since: the kernel gives the lowest that is free.
fn may_be_open(inherited: &[RawFd]) -> impl Iterator<Item = RawFd> {
    let end = RawFd::try_from(inherited.len() + OWN_DESCRIPTORS).unwrap_or(RawFd::MAX);
    (0..end).chain(inherited.iter().copied().filter(move |number| *number >= end))
}

/// The file that a process's first argument names: as given when it has a slash, else the first
/// match in `PATH`.
fn find(process: &Process) -> Result<PathBuf, ProgramError> {
    let name = process.args().as_deref().unwrap_or_default().first().ok_or(ProgramError::NoArguments)?;
    if name.contains('/') {
        return check(Path::new(name), name).map(|()| PathBuf::from(name));
    }
    let environment = process.env().as_deref().unwrap_or_default();
    let path = environment.iter().rev().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or(DEFAULT_PATH);
    let candidates = path.split(':').map(|directory| match directory {
        "" => Path::new(".").join(name),
        directory => Path::new(directory).join(name),
    });
    candidates
        .into_iter()
        .find(|candidate| !name.is_empty() && check(candidate, name).is_ok())
        .ok_or_else(|| ProgramError::NotInPath(name.clone()))
}

/// Checks that the caller may execute the file.
fn check(path: &Path, name: &str) -> Result<(), ProgramError> {
    let metadata = std::fs::metadata(path).map_err(|e| ProgramError::Stat {
        path: name.to_owned(),
        errno: e.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
    })?;
    if metadata.is_dir() {
        return Err(ProgramError::Directory(name.to_owned()));
    }
    match access(path, AccessFlags::X_OK) {
        Ok(()) => Ok(()),
        // A seccomp profile that knows no faccessat2 answers one of these; then the mode bits
        // decide.
        Err(Errno::ENOSYS | Errno::EPERM) if std::os::unix::fs::MetadataExt::mode(&metadata) & 0o111 != 0 => Ok(()),
        Err(_) => Err(ProgramError::Permission(name.to_owned())),
    }
}

/// `HOME=` of the process's user by the container's own `/etc/passwd`, `/` when it is not there.
/// Parsed here, because libc would load the image's NSS modules for it.
fn home_variable() -> String {
    let text = passwd(Path::new("/etc/passwd")).unwrap_or_default();
    format!("HOME={}", home_in(&text, getuid().as_raw()))
}

/// The beginning of a plain file. What is there is the container's to choose: a FIFO would never
/// answer, and a device never end.
fn passwd(path: &Path) -> std::io::Result<String> {
    const LARGEST: u64 = 1 << 20;
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn home_in(passwd: &str, uid: u32) -> &str {
    let home = passwd.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let owner: u32 = fields.next()?.parse().ok()?;
        (owner == uid).then(|| fields.nth(2)).flatten()
    });
    home.filter(|home| !home.is_empty()).unwrap_or("/")
}

/// An errno as Go words it.
fn in_words(errno: Errno) -> String {
    errno.desc().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(args: &[&str], env: &[&str]) -> Process {
        serde_json::from_value(
            serde_json::json!({ "cwd": "/", "args": args, "env": env, "user": {"uid": 0, "gid": 0} }),
        )
        .unwrap()
    }

    #[test]
    fn the_messages_are_those_that_tools_search_for() {
        let directory = tempfile::tempdir().unwrap();
        let plain = directory.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let (plain, nowhere) = (plain.to_str().unwrap(), "/no/such/program");
        for (name, message) in [
            ("nonesuch", "exec: \"nonesuch\": executable file not found in $PATH".to_owned()),
            ("", "exec: \"\": executable file not found in $PATH".to_owned()),
            (nowhere, format!("exec: {nowhere:?}: stat {nowhere}: no such file or directory")),
            (plain, format!("exec: {plain:?}: permission denied")),
            ("/etc", "exec: \"/etc\": is a directory".to_owned()),
            ("/etc/passwd/x", "exec: \"/etc/passwd/x\": stat /etc/passwd/x: not a directory".to_owned()),
        ] {
            assert_eq!(find(&process(&[name], &[])).unwrap_err().to_string(), message);
        }
        assert_eq!(find(&process(&[], &[])), Err(ProgramError::NoArguments));
    }

    #[test]
    fn the_path_is_the_environments_and_has_a_default() {
        assert!(find(&process(&["sh"], &[])).is_ok());
        assert!(find(&process(&["sh"], &["PATH=/no/such"])).is_err());
        assert!(find(&process(&["sh"], &["PATH=/no/such", "PATH=/nowhere:/bin"])).is_ok());
    }

    #[test]
    fn the_environment_keeps_its_order_and_the_last_of_equal_names() {
        let program = ContainerProgram::of_exec(-1, false).unwrap();
        let process = process(&["x"], &["A=1", "B=2", "A=3=4", "C="]);
        assert_eq!(program.environment(&process), ["B=2", "A=3=4", "C="]);
    }

    #[test]
    fn a_descriptor_may_be_open_wherever_it_was_and_below() {
        let numbers: Vec<RawFd> = may_be_open(&[0, 1, 2, 900]).collect();
        assert_eq!(numbers, (0..68).chain([900]).collect::<Vec<RawFd>>());
    }

    #[test]
    fn only_a_plain_file_is_read_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(passwd(&path).is_err());
        assert!(passwd(Path::new("/dev/zero")).is_err());
        assert!(passwd(Path::new("/etc/passwd")).unwrap().contains("root"));
    }

    #[test]
    fn home_is_read_from_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbad line\na:x:7:7::/home/a:/bin/sh\nb:x:8:8:::\n";
        for (uid, home) in [(0, "/root"), (7, "/home/a"), (8, "/"), (9, "/")] {
            assert_eq!(home_in(passwd, uid), home);
        }
    }
}
