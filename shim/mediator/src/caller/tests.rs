use std::{
    fs::OpenOptions,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
    sync::mpsc,
    thread,
};

use super::*;
use crate::broker::Broker;

/// Calls of this thread, for which nobody waits.
fn with_calls(test: impl for<'a> FnOnce(&'a (dyn Fn() -> WaitingCaller<'a> + 'a))) {
    let tid = nix::unistd::gettid().as_raw();
    let listener = File::open("/dev/null").unwrap();
    let threads = ThreadCache::new(Arc::new(ProcessTable::new(Broker::of_tests(Vec::new())).unwrap()));
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{tid}/mem")).unwrap();
    let process = ContainerProcess::of_tests(nix::unistd::getpid().as_raw());
    let thread = Arc::new(CallingThread { tid, process, memory, pidfd: None, is_read_ahead: AtomicBool::new(false) });
    let gone = |_: &Arc<ContainerProcess>| {};
    test(&|| WaitingCaller {
        threads: &threads,
        listener: listener.as_fd(),
        id: 0,
        tid,
        thread: RefCell::new(Arc::clone(&thread)),
        is_there: Cell::new(true),
        ahead: RefCell::default(),
        gone: &gone,
    });
}

/// Bytes at the beginning of a page, and their address.
fn page() -> (Vec<u8>, usize, u64) {
    let memory = vec![1_u8; 16384];
    let address = memory.as_ptr().expose_provenance() as u64;
    let offset = address.next_multiple_of(PAGE) - address;
    (memory, usize::try_from(offset).unwrap(), address + offset)
}

#[test]
fn parameters_behind_the_argument_are_read_with_it_once_that_was_seen() {
    let (mut memory, offset, base) = page();
    with_calls(|call| {
        let mut bytes = [0; 48];
        let first = call();
        first.read(base, &mut bytes).unwrap();
        memory[offset + 200] = 2;
        first.read(base + 200, &mut bytes).unwrap();
        assert_eq!(bytes[..2], [2, 1], "they were not read before they were asked for");

        let second = call();
        second.read(base, &mut bytes).unwrap();
        memory[offset + 200] = 3;
        second.read(base + 200, &mut bytes).unwrap();
        assert_eq!(bytes[..2], [2, 1], "as they were when the argument was read");
        second.write(base + 300, &[9]).unwrap();
        second.read(base + 200, &mut bytes).unwrap();
        assert_eq!(bytes[..2], [3, 1], "nothing from before a write is used");
        // Elsewhere: what comes next is read alone.
        second.read(base + 5000, &mut bytes).unwrap();
        let third = call();
        third.read(base, &mut bytes).unwrap();
        memory[offset + 200] = 4;
        third.read(base + 200, &mut bytes).unwrap();
        assert_eq!(bytes[..2], [4, 1]);
    });
}

#[test]
fn what_is_read_ahead_ends_with_the_page_and_is_never_more_than_is_there() {
    let (memory, offset, base) = page();
    let end = base + PAGE;
    let near = |argument, address, length| {
        ReadAhead { argument: Some(argument), bytes: Vec::new() }.place(address, length).is_some()
    };
    assert!(near(base, base + 1000, 24) && !near(base, base + 1000, 25));
    assert!(near(end - 48, end - 8, 8) && !near(end - 48, end - 8, 9));
    assert!(!near(base, base - 1, 1) && !near(base, u64::MAX, 2) && !near(u64::MAX, 0, 1));
    with_calls(|call| {
        let mut bytes = [0; 48];
        for _ in 0..2 {
            let call = call();
            call.read(end - 100, &mut bytes).unwrap();
            assert_eq!(call.read_up_to(end - 50, &mut bytes).unwrap(), 48);
            assert_eq!(bytes[..], memory[offset..offset + 48]);
        }
        let unmapped = call();
        assert!(matches!(unmapped.read(64, &mut bytes), Err(CallerError::Fault { address: 64 })));
        assert_eq!(unmapped.read_up_to(80, &mut bytes).unwrap(), 0);
    });
}

/// A thread that makes one call, which is notified: the listener, and a descriptor that the thread
/// has opened.
fn waiting(file: &Path, has_own_table: bool) -> (thread::JoinHandle<()>, OwnedFd, i32) {
    let instruction = |code, jt, jf, k| sys::SeccompInstruction { code, jt, jf, k };
    let [load, equal, answer] = [0x20, 0x15, 0x06];
    let program = [
        instruction(load, 0, 0, 0),
        instruction(equal, 0, 1, u32::try_from(libc::SYS_getppid).unwrap()),
        instruction(answer, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        instruction(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let file = file.to_owned();
    let (report, reported) = mpsc::channel();
    let thread = thread::spawn(move || {
        nix::sys::prctl::set_no_new_privs().unwrap();
        let listener = sys::install_seccomp_listener(&program).unwrap();
        if has_own_table {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES).unwrap();
        }
        let file = File::open(file).unwrap();
        report.send((listener, file.as_raw_fd())).unwrap();
        nix::unistd::getppid();
    });
    let (listener, opened) = reported.recv().unwrap();
    (thread, listener, opened)
}

/// The process may have any other file under the same number.
#[test]
fn descriptors_of_a_thread_are_not_looked_for_in_another_table() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (has_own_table, has_pidfds) in [(true, true), (true, false), (false, true), (false, false)] {
        let (thread, listener, opened) = waiting(file.path(), has_own_table);
        let notification = sys::receive(listener.as_fd()).unwrap();
        let threads = ThreadCache::new(Arc::new(ProcessTable::new(Broker::of_tests(Vec::new())).unwrap()));
        threads.has_thread_pidfds.store(has_pidfds, Ordering::Relaxed);
        let gone = |_: &Arc<ContainerProcess>| {};
        let caller = threads.caller(listener.as_fd(), &notification, &gone).unwrap();
        let found = caller.file(opened);
        // Before Linux 6.9 a thread has no pidfd, whatever is asked for.
        let is_reached = threads.has_thread_pidfds.load(Ordering::Relaxed) || !has_own_table;
        match found {
            Ok(found) if is_reached => {
                assert_eq!(found.metadata().unwrap().ino(), file.as_file().metadata().unwrap().ino());
            }
            Err(CallerError::Other(error)) if !is_reached => {
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                assert_eq!(threads.unreachable.load(Ordering::Relaxed), 1);
            }
            found => panic!("own table {has_own_table}, pidfds {has_pidfds}: {found:?}"),
        }
        sys::respond(listener.as_fd(), notification.id, sys::Response::Return(1)).unwrap();
        thread.join().unwrap();
    }
}
