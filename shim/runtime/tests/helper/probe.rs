//! Programs that run inside a container when busybox has no applet for it.
#![allow(unsafe_code)]

use abi::escapes::{NV_ESC_SYS_PARAMS, command};
use nix::errno::Errno;

/// Runs what the first argument names. `false`: it names nothing.
pub fn run(arguments: &[String]) -> bool {
    match arguments.first().map(String::as_str) {
        Some("ioctl") => ioctl(),
        Some("unknown") => unknown(),
        Some("storm") => storm(),
        Some("listener") => listener(),
        Some("forks") => forks(),
        Some("time") => time(),
        Some("stay") => stay(),
        _ => return false,
    }
    true
}

/// A driver call (`NV_ESC_SYS_PARAMS`) on the control node, or, where there is none, on a
/// descriptor that is not open.
fn call() -> String {
    answer(control(), command(NV_ESC_SYS_PARAMS, 8).into())
}

/// The control node, opened once; -1 where there is none.
fn control() -> i32 {
    use std::{os::fd::AsRawFd, sync::OnceLock};
    static CONTROL: OnceLock<Option<std::fs::File>> = OnceLock::new();
    let open = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/nvidiactl").ok();
    CONTROL.get_or_init(open).as_ref().map_or(-1, AsRawFd::as_raw_fd)
}

/// Returns the answer of a call with at most 8 bytes.
fn answer(fd: i32, command: u64) -> String {
    let mut parameters = [0u8; 8];
    // SAFETY: none of the callers' commands takes more than 8 bytes.
    let answer = unsafe { libc::ioctl(fd, command as _, parameters.as_mut_ptr()) };
    if answer == -1 { format!("{:?}", Errno::last()) } else { "done".to_owned() }
}

/// Calls that no release of the driver has, on its own file and on another one; one that is a frame
/// buffer's, for a descriptor that is not open; and a driver call that there is.
fn unknown() {
    const UNKNOWN: u64 = command(0xf0, 8) as u64;
    const UNKNOWN_OF_UVM: u64 = 221;
    const FBIOGET_VSCREENINFO: u64 = 0x4600;
    let answers = [
        answer(control(), UNKNOWN),
        answer(control(), UNKNOWN_OF_UVM),
        answer(0, UNKNOWN),
        answer(-1, FBIOGET_VSCREENINFO),
        call(),
    ];
    println!("{}", answers.join(" "));
}

extern "C" fn ignore(_: i32) {}

/// Driver calls while a signal with a handler arrives every 10 us, as Go's runtime preempts its
/// threads.
fn storm() {
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    static SENT: AtomicU64 = AtomicU64::new(0);
    const STORM: u64 = 2000;
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
    let (process, thread) = (nix::unistd::getpid().as_raw(), nix::unistd::gettid().as_raw());
    std::thread::spawn(move || {
        while SENT.load(Ordering::Relaxed) < STORM {
            // SAFETY: integers only.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
            SENT.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_micros(10));
        }
    });
    let mut answers = std::collections::BTreeMap::<String, u64>::new();
    while SENT.load(Ordering::Relaxed) < STORM {
        *answers.entry(call()).or_default() += 1;
    }
    println!("{:?}", answers.keys().collect::<Vec<_>>());
}

/// A listener of its own, then a filter of its own that refuses `getppid`.
fn listener() {
    use sys::{SeccompInstruction, install_seccomp_filter, install_seccomp_listener};
    let instruction = |code, jt, jf, k| SeccompInstruction { code, jt, jf, k };
    let load = instruction(0x20, 0, 0, 0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let getppid = instruction(0x15, 0, 1, libc::SYS_getppid as u32);
    let allow = instruction(0x06, 0, 0, 0x7fff_0000);
    let refuse = instruction(0x06, 0, 0, 0x0005_0000 | 13);
    nix::sys::prctl::set_no_new_privs().unwrap();
    let own = install_seccomp_listener(&[load, getppid, instruction(0x06, 0, 0, 0x7fc0_0000), allow]);
    let own = own.map_or_else(|error| Errno::from_raw(error.raw_os_error().unwrap()), |_| Errno::UnknownErrno);
    install_seccomp_filter(&[load, getppid, refuse, allow]).unwrap();
    // SAFETY: no arguments.
    let refused = unsafe { libc::syscall(libc::SYS_getppid) };
    println!("{own:?} {refused} {}", call());
}

/// Many processes that all call at once.
fn forks() {
    let children: Vec<_> = (0..32)
        .map(|_| {
            std::process::Command::new("/probe").arg("ioctl").stdout(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let answers: Vec<String> = children
        .into_iter()
        .map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
        .collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    print!("{} {}", answers.len(), answers[0]);
}

/// A driver call, by one who does not end.
fn stay() {
    call();
    std::thread::sleep(std::time::Duration::from_secs(1_000_000));
}

/// The cost of a call; for people.
fn time() {
    for _ in 0..100 {
        call();
    }
    let begin = std::time::Instant::now();
    for _ in 0..2000 {
        call();
    }
    println!("{:?} a call", begin.elapsed() / 2000);
}

/// Returns the answer of a driver call: the kernel EBADF on a descriptor that is not open, a filter
/// its own errno.
fn ioctl() {
    println!("{}", call());
}

/// A descriptor that came over a socket.
pub fn own(fd: i32) -> std::os::fd::OwnedFd {
    // SAFETY: recvmsg has just installed it, and nobody else knows it.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}
