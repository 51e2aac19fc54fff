//! Reach of code that an attacker executes in a mediator.

use std::{
    fs::{self, File, OpenOptions},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, PermissionsExt, chown},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns, unshare},
    sys::signal::{Signal, kill},
    unistd::{Pid, fchdir, geteuid, getppid},
};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    process::prlimit,
};
use testing::skipped;

use super::*;
use crate::{
    broker::{Broker, ProcFile},
    mount_namespace::{self, VisiblePath},
};

const NAME: &str = "privileges::tests::who_executes_code_in_a_mediator_reaches_its_container_and_nothing_else";
const IN_CHILD: &str = "EGPU_TEST_IS_CONFINED";

/// Processes that end with the test.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The sets are a thread's own.
#[test]
fn what_could_be_gained_again_is_noticed() {
    if !geteuid().is_root() {
        return skipped("needs root: who has no rights cannot give one up");
    }
    let own = capabilities(None).unwrap().permitted.difference(CapabilitySet::SYS_CHROOT);
    let given_up = std::thread::spawn(move || {
        set_capabilities(None, CapabilitySets { effective: own, permitted: own, inheritable: CapabilitySet::empty() })
            .unwrap();
        verify(own).unwrap_err().to_string()
    });
    let error = given_up.join().unwrap();
    assert!(error.contains("SYS_CHROOT) is in the bounding set"), "{error}");
}

/// Privileges are dropped for good, so another process, of this test alone, does that.
#[test]
fn who_executes_code_in_a_mediator_reaches_its_container_and_nothing_else() {
    if let Some(reported) = std::env::var_os(IN_CHILD) {
        let reported = reported.into_string().unwrap();
        let [directory, container, victim] = reported.split(' ').collect::<Vec<_>>()[..] else { panic!("{reported}") };
        return is_confined(Path::new(directory), container.parse().unwrap(), victim.parse().unwrap());
    }
    if !geteuid().is_root() {
        return skipped("needs root: who has no rights cannot give them up");
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, owner) in [
        ("secret", 1000),
        ("own", 0),
        ("state/ledger/other.json", 0),
        ("state/timetable/GPU-1.json", 0),
        ("state/inject/other/usage", 0),
        ("state/simulated/node", 0),
    ] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "untouched").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
    }
    let sleeping = |program: &str, arguments: &[&str]| {
        let stdin = Stdio::from(File::open("/").unwrap());
        Command::new(program).args(arguments).stdin(stdin).spawn().unwrap()
    };
    // As the first process of a container, which has a directory open.
    let unshare = ["--pid", "--fork", "--kill-child", "sleep", "1000"];
    let children = Children(vec![sleeping("sleep", &["1000"]), sleeping("unshare", &unshare)]);
    let [victim, parent] = [0, 1].map(|at: usize| children.0[at].id());
    let container = loop {
        let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        if let Some(child) = text.split_whitespace().next() {
            break child.to_owned();
        }
        std::thread::yield_now();
    };
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", NAME, "--nocapture", "--test-threads", "1"]);
    let output = child.env(IN_CHILD, format!("{} {container} {victim}", directory.path().display())).output().unwrap();
    let reported = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && reported.contains("1 passed"), "{}: {reported}", output.status);
    for name in ["secret", "state/ledger/other.json", "state/timetable/GPU-1.json", "state/inject/other/usage"] {
        assert_eq!(fs::read_to_string(directory.path().join(name)).unwrap(), "untouched", "{name}");
    }
}

/// Tries what a mediator could, with its privileges.
fn is_confined(directory: &Path, container: i32, victim: i32) {
    let own = OpenOptions::new().read(true).write(true).open(directory.join("own")).unwrap();
    let other_namespace = File::open(format!("/proc/{victim}/ns/pid")).unwrap();
    // Its threads exist already, and keep their privileges.
    let broker = Broker::of_namespace(&format!("/proc/{container}/ns/pid"), Vec::new());
    let state = directory.join("state");
    let mut seen = vec![VisiblePath::writable(state.join("simulated"))];
    seen.extend(["timetable", "inject"].map(|name| VisiblePath::read_only(state.join(name))));
    seen.push(VisiblePath::fdinfo());
    mount_namespace::enter(directory, &seen).unwrap();
    drop_privileges(Role::Mediator { shim: getppid().as_raw() }).unwrap();

    reaches_its_container(&broker, &state, container);
    opens_nothing_else(directory, victim);
    reaches_no_other_process(&broker, &own, victim);
    assert_eq!(own.set_len(0).unwrap_err().raw_os_error(), Some(libc::ENOSYS), "what is open is not cut");
    assert_eq!(setns(other_namespace, CloneFlags::empty()), Err(Errno::ENOSYS));
    assert_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::ENOSYS));
    let directory = directory_of(&broker, container);
    assert_eq!(fchdir(&directory), Err(Errno::ENOSYS));
    for flags in [OFlags::RDONLY, OFlags::RDWR, OFlags::PATH] {
        assert_eq!(openat(&directory, "etc/passwd", flags, Mode::empty()).unwrap_err().raw_os_error(), libc::ENOSYS);
    }
}

fn directory_of(broker: &Broker, container: i32) -> std::os::fd::OwnedFd {
    sys::pidfd_getfd(broker.process(container).unwrap().0.as_fd(), 0).unwrap()
}

fn reaches_its_container(broker: &Broker, state: &Path, container: i32) {
    let opened = broker.thread(container, true).unwrap();
    let maps = std::io::read_to_string(broker.file(container, container, ProcFile::Maps).unwrap()).unwrap();
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
    let address = u64::from_str_radix(stack.split('-').next().unwrap(), 16).unwrap();
    opened.memory.write_all_at(b"answer", address).unwrap();
    let mut read = [0; 6];
    opened.memory.read_exact_at(&mut read, address).unwrap();
    assert_eq!(&read, b"answer");
    assert!(directory_of(broker, container).try_clone().is_ok());
    assert!(!fs::read_to_string("/proc/self/fdinfo/0").unwrap().is_empty());
    for name in ["timetable/GPU-1.json", "inject/other/usage"] {
        assert_eq!(fs::read_to_string(state.join(name)).unwrap(), "untouched");
    }
    assert!(OpenOptions::new().read(true).write(true).open(state.join("simulated/node")).is_ok());
}

fn opens_nothing_else(directory: &Path, victim: i32) {
    let state = directory.join("state");
    let opened = |path: &Path, is_written: bool| {
        OpenOptions::new().read(true).write(is_written).open(path).map_err(|error| error.raw_os_error())
    };
    let not_there: [PathBuf; 13] = [
        format!("/proc/{victim}/mem").into(),
        "/proc/1/mem".into(),
        "/proc/self/mem".into(),
        "/proc/self/root".into(),
        "/proc/self/fd/0".into(),
        "/proc/meminfo".into(),
        "/proc/sys/kernel/core_pattern".into(),
        "/etc/shadow".into(),
        "/etc/passwd".into(),
        "/dev/null".into(),
        "/sys/fs/cgroup".into(),
        directory.join("secret"),
        state.join("ledger/other.json"),
    ];
    for path in not_there {
        for is_written in [false, true] {
            assert_eq!(opened(&path, is_written).unwrap_err(), Some(libc::ENOENT), "{}", path.display());
        }
    }
    for name in ["timetable/GPU-1.json", "inject/other/usage"] {
        assert_eq!(opened(&state.join(name), true).unwrap_err(), Some(libc::EROFS), "{name}");
    }
    for flags in [OFlags::CREATE | OFlags::RDWR, OFlags::WRONLY, OFlags::TRUNC | OFlags::RDWR] {
        let made = openat(CWD, "/made", flags, Mode::RWXU);
        assert_eq!(made.unwrap_err().raw_os_error(), libc::ENOSYS, "{flags:?}");
    }
}

fn reaches_no_other_process(broker: &Broker, own: &File, victim: i32) {
    let errno = |error: io::Error| error.raw_os_error();
    assert_eq!(errno(sys::pidfd_open(victim).unwrap_err()), Some(libc::ENOSYS));
    // The first process of some hosts is kept from everybody else by the kernel itself.
    let is_refusal = |error: io::Error| matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EACCES));
    for pid in [victim, 1, getppid().as_raw(), std::process::id().cast_signed()] {
        assert!(is_refusal(broker.thread(pid, true).unwrap_err()), "{pid}");
        assert!(is_refusal(broker.process(pid).unwrap_err()), "{pid}");
        for file in [ProcFile::Stat, ProcFile::Maps, ProcFile::Memory] {
            assert!(is_refusal(broker.file(pid, pid, file).unwrap_err()), "{pid} {file:?}");
        }
        assert!(is_refusal(broker.threads(pid).unwrap_err()), "{pid}");
        assert!(is_refusal(broker.descriptors(pid, pid).unwrap_err()), "{pid}");
    }
    for signal in [None, Some(Signal::SIGKILL)] {
        assert_eq!(kill(Pid::from_raw(victim), signal), Err(Errno::ENOSYS));
    }
    for reported in sys::signal_on_input(own.as_fd(), victim) {
        assert_eq!(errno(reported.unwrap_err()), Some(libc::ENOSYS), "as a signal, which may be any");
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let limited = prlimit(rustix::process::Pid::from_raw(victim), Resource::Cpu, none);
    assert_eq!(limited.unwrap_err().raw_os_error(), libc::ENOSYS);
}
