//! The program of a container's process: found as runc finds it, with the messages that
//! containerd's users look for.

use std::{
    collections::HashSet,
    convert::Infallible,
    ffi::{CString, NulError},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    rc::Rc,
};

use base::error_chain;
use libcontainer::{
    container::State,
    workload::{Executor, ExecutorError, ExecutorValidationError},
};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags},
    unistd::{AccessFlags, execve, faccessat, getuid},
};
use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::{Process, Spec};

use super::{
    hooks::{self, HookFailed},
    stdio,
};

/// More than a container's process has open at a time of its own.
const OWN_DESCRIPTORS: usize = 64;

/// Written when the process can be started.
pub(crate) const READY: u8 = b'+';

/// Written right before `execve`, so that the reader can distinguish an executed program from an
/// init that died.
pub(crate) const ABOUT_TO_EXECUTE: u8 = b'+';

/// Lets a process that waits for its start execute its program.
pub(crate) const GO: u8 = b'+';

/// The process's ends of the pipes to those that wait for it.
#[derive(Debug, Clone)]
pub(crate) struct Ends {
    /// Gets [`READY`], or the reason why the process cannot be started.
    pub(crate) ready: Rc<OwnedFd>,
    /// Yields [`GO`] when the program is to be executed; closes when nobody is left to say so.
    pub(crate) start: Rc<OwnedFd>,
    /// Gets the reason why that failed; closed by a successful `execve`.
    pub(crate) outcome: Rc<OwnedFd>,
}

/// Executes the process of a spec. Runs in the container's init: after pivot_root, as the
/// container's user, with its capabilities and seccomp filter.
///
/// It takes the place of the end of libcontainer's sequence. What libcontainer 0.7.0 does there
/// takes system calls (`sendmsg`, `accept4`) that runc does without, so that a seccomp profile
/// recorded under runc would not suffice. Here are those only that runc makes, too.
#[derive(Debug, Clone)]
pub(crate) struct ContainerProgram {
    ends: Ends,
    /// Descriptors that were open before; see [`may_be_open`].
    inherited: Vec<RawFd>,
    /// The environment lacks HOME; what stands in the spec is a placeholder that keeps libcontainer
    /// from asking NSS, whose modules are the image's.
    find_home: bool,
    /// The state that startContainer hooks read; `None`: no init.
    init: Option<State>,
}

/// Arguments of `execve`.
struct Image {
    path: PathBuf,
    program: CString,
    args: Vec<CString>,
    env: Vec<CString>,
}

/// A program that cannot be executed; in the words of Go's os/exec and runc, which tools search
/// for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ProgramError {
    /// Nowhere in PATH.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotInPath(String),
    /// Only in a directory of PATH that is relative.
    #[error("exec: {0:?}: cannot run executable found relative to current directory")]
    Relative(String),
    /// The path cannot be examined.
    #[error("exec: {path:?}: stat {path}: {}", in_words(*errno))]
    Stat { path: String, errno: Errno },
    #[error("exec: {0:?}: is a directory")]
    Directory(String),
    /// A file that this user may not execute.
    #[error("exec: {0:?}: permission denied")]
    Permission(String),
    /// `execve` refused.
    #[error("exec {}: {}", path.display(), in_words(*errno))]
    Execute { path: PathBuf, errno: Errno },
    /// `process.args` is empty.
    #[error("process.args is empty; it must name a program")]
    NoArguments,
    /// A startContainer hook.
    #[error("{0}")]
    Hook(String),
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
    /// The arguments: see the fields.
    pub(crate) fn new(ends: Ends, find_home: bool, init: Option<State>) -> io::Result<Self> {
        let names = std::fs::read_dir("/proc/self/fd")?.map(|entry| entry.map(|entry| entry.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        let inherited = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
        Ok(Self { ends, inherited, find_home, init })
    }

    /// Waits for the start and replaces the process's image; returns only when there can be none.
    fn run(&self, spec: &Spec) -> Result<Infallible, ProgramError> {
        let process = spec.process().as_ref().ok_or(ProgramError::NoArguments)?;
        let image = self.image(process)?;
        if self.init.is_some() {
            stdio::make_null_writable();
        }
        // Without a reader (the worker was killed) nobody starts it either.
        let _ = nix::unistd::write(&*self.ends.ready, &[READY]);
        // The kernel looks the program up before it closes what is to be closed on execution: a
        // path through /proc/self/fd would lead out of the container (CVE-2024-21626).
        let kept = [&self.ends.start, &self.ends.outcome].map(|end| end.as_raw_fd());
        sys::close_each(may_be_open(&self.inherited).filter(|number| *number > 2 && !kept.contains(number)));
        if !is_started(&self.ends.start) {
            sys::exit_now(255);
        }
        let reason = self.execute(spec, &image);
        let _ = nix::unistd::write(&*self.ends.outcome, reason.to_string().as_bytes());
        sys::exit_now(255)
    }

    fn image(&self, process: &Process) -> Result<Image, ProgramError> {
        let path = find(process)?;
        let args = process.args().as_deref().unwrap_or_default();
        Ok(Image {
            program: CString::new(path.as_os_str().as_encoded_bytes())?,
            args: args.iter().map(|arg| CString::new(arg.as_str())).collect::<Result<_, _>>()?,
            env: self.environment(process).into_iter().map(CString::new).collect::<Result<_, _>>()?,
            path,
        })
    }

    /// Returns what went wrong.
    fn execute(&self, spec: &Spec, image: &Image) -> ProgramError {
        sys::close_each(std::iter::once(self.ends.start.as_raw_fd()));
        if let Some(state) = &self.init {
            if let Err(error) = self.run_start_hooks(spec, state) {
                return ProgramError::Hook(error_chain(&error));
            }
            let _ = nix::unistd::write(&*self.ends.outcome, &[ABOUT_TO_EXECUTE]);
        }
        match execve(&image.program, &image.args, &image.env) {
            Ok(never) => match never {},
            Err(errno) => ProgramError::Execute { path: image.path.clone(), errno },
        }
    }

    fn run_start_hooks(&self, spec: &Spec, state: &State) -> Result<(), HookFailed> {
        let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.start_container().as_deref()).unwrap_or_default();
        if hooks.is_empty() {
            return Ok(());
        }
        let environment = spec.process().as_ref().map(|process| self.environment(process)).unwrap_or_default();
        let variable = |entry: &String| entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = environment.iter().filter_map(variable).collect();
        // One may end without reading its state.
        sys::ignore_broken_pipes();
        let result = hooks::run("startContainer", Some(hooks), state, None, Some(Pid::this()), Some(&environment));
        sys::restore_ignored_signals();
        result
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
}

impl Executor for ContainerProgram {
    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        // validate does not return to where this is called.
        Err(ExecutorError::InvalidArg)
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let error = match self.run(spec) {
            Ok(never) => match never {},
            Err(error) => error.to_string(),
        };
        let _ = nix::unistd::write(&*self.ends.ready, error.as_bytes());
        Err(ExecutorValidationError::ArgValidationError(error))
    }
}

/// Waits for the start; false where nobody is left to order it.
fn is_started(pipe: &OwnedFd) -> bool {
    loop {
        match nix::unistd::read(pipe, &mut [0]) {
            Err(Errno::EINTR) => {}
            read => return read == Ok(1),
        }
    }
}

/// Every number that may be open where these were, and at most [`OWN_DESCRIPTORS`] were opened
/// since: the kernel gives the lowest that is free.
fn may_be_open(inherited: &[RawFd]) -> impl Iterator<Item = RawFd> {
    let end = RawFd::try_from(inherited.len() + OWN_DESCRIPTORS).unwrap_or(RawFd::MAX);
    (0..end).chain(inherited.iter().copied().filter(move |number| *number >= end))
}

/// The file that a process's first argument names: as given when it has a slash, else the first
/// match in `PATH`, which must not depend on the working directory.
fn find(process: &Process) -> Result<PathBuf, ProgramError> {
    let name = process.args().as_deref().unwrap_or_default().first().ok_or(ProgramError::NoArguments)?;
    if name.contains('/') {
        return check(Path::new(name), name).map(|()| PathBuf::from(name));
    }
    let environment = process.env().as_deref().unwrap_or_default();
    let path = environment.iter().rev().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or_default();
    // An empty PATH has no directory; an empty part of one is the working directory.
    let directories = path.split(':').filter(|_| !path.is_empty() && !name.is_empty());
    let found = directories.map(|directory| Path::new(directory).join(name)).find(|file| check(file, name).is_ok());
    match found {
        Some(file) if file.is_absolute() => Ok(file),
        Some(_) => Err(ProgramError::Relative(name.clone())),
        None => Err(ProgramError::NotInPath(name.clone())),
    }
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
    // faccessat2(2), as runc: a seccomp profile need not allow access(2).
    match faccessat(AT_FDCWD, path, AccessFlags::X_OK, AtFlags::AT_EACCESS) {
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
pub(super) fn in_words(errno: Errno) -> String {
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
    fn the_path_is_the_environments_and_absolute() {
        let message = |env: &[&str]| find(&process(&["sh"], env)).map_err(|error| error.to_string());
        let absent = Err("exec: \"sh\": executable file not found in $PATH".to_owned());
        for env in [&[][..], &["PATH="], &["PATH=/no/such"], &["PATH=/bin", "PATH=/no/such"]] {
            assert_eq!(message(env), absent, "{env:?}");
        }
        assert_eq!(message(&["PATH=/no/such", "PATH=/nowhere:/bin"]), Ok("/bin/sh".into()));
        let up = "../".repeat(40);
        let relative = Err("exec: \"sh\": cannot run executable found relative to current directory".to_owned());
        assert_eq!(message(&[&format!("PATH={up}bin:/bin")]), relative);
        assert_eq!(message(&[&format!("PATH=/bin:{up}bin")]), Ok("/bin/sh".into()));
    }

    #[test]
    fn the_environment_keeps_its_order_and_the_last_of_equal_names() {
        let null = || Rc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        let ends = Ends { ready: null(), start: null(), outcome: null() };
        let program = ContainerProgram::new(ends, false, None).unwrap();
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
