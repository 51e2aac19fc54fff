//! Containers whose driver calls are mediated.

use std::os::fd::AsFd;

use mediator_process::{
    Setup,
    message::{FromMediator, ToMediator},
};

use crate::{
    Case,
    bundle::{self, Bench, Mediator, process, wait},
    cases,
};

pub fn cases() -> Vec<(&'static str, Case)> {
    cases![
        calls_of_init_and_exec_reach_the_mediator,
        calls_that_no_release_has_are_refused_and_reported,
        a_driver_that_is_not_known_is_refused_or_taken_for_the_nearest,
        without_its_mediator_no_call_succeeds,
        a_mediator_has_no_rights_left,
        a_broker_that_cannot_begin_is_told_of,
        a_container_whose_calls_no_thread_can_take_is_ended,
        a_mediator_without_its_broker_ends,
        a_storm_of_signals_does_not_keep_a_call_from_ending,
        a_container_cannot_have_a_listener_but_filters,
        many_processes_call_at_once,
        hooks_are_not_mediated,
        what_a_call_costs,
        a_mediator_lets_go_of_containers_that_end,
        while_it_is_paused_no_call_is_taken_up,
        a_mediator_answers_pings_and_reports_its_processes,
        a_mediator_ends_with_the_shims_end_of_its_socket,
    ]
    .to_vec()
}

async fn calls_of_init_and_exec_reach_the_mediator(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let container = bench.container(&["/probe", "ioctl"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
    assert_eq!(container.run().await.unwrap(), (0, "done\n".into()));
    let mut container = bench.container(&["sleep", "1000"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    for _ in 0..3 {
        let (probe, output) = container.exec(process(&["/probe", "ioctl"]), false).await.unwrap();
        assert_eq!((wait(&probe), bundle::read(output)), (0, "done\n".into()));
    }
    container.delete().await.unwrap();
    wait(&init);
    mediator.end();
}

/// By the mediator, that is: the file itself would answer ENOTTY, as it does to what is asked of
/// any other file.
async fn unknown_calls_are_mediated(bench: &Bench, mediator: &Mediator) {
    let container = bench.container(&["/probe", "unknown"], |spec| bench.add_mediated_probe(spec)).mediated(mediator);
    assert_eq!(container.run().await.unwrap(), (0, "EINVAL EINVAL ENOTTY EBADF done\n".into()));
    for name in ["ioctl 0xf0", "ioctl 0xdd"] {
        match mediator.hear() {
            FromMediator::Log { warning: true, text } => {
                assert!(text.contains(name) && text.contains("refused"), "{text}");
            }
            other => panic!("{name} was not told of: {other:?}"),
        }
    }
}

async fn calls_that_no_release_has_are_refused_and_reported(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    unknown_calls_are_mediated(bench, &mediator).await;
    mediator.end();
}

async fn a_driver_that_is_not_known_is_refused_or_taken_for_the_nearest(bench: &Bench) {
    let setup =
        |pass_unknown_driver| Setup { release: "700.1".to_owned(), pass_unknown_driver, ..bundle::setup(bench) };
    let refused = Mediator::with(bench, setup(false)).await.err().unwrap().to_string();
    assert!(refused.contains("700.01.00") && refused.contains("525 to 595"), "{refused}");
    assert!(refused.contains("`unknown_driver = \"pass\"`"), "{refused}");
    let mediator = Mediator::with(bench, setup(true)).await.unwrap();
    unknown_calls_are_mediated(bench, &mediator).await;
    mediator.end();
}

async fn without_its_mediator_no_call_succeeds(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let mut container = bench.container(&["sleep", "1000"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    let line = "while [ ! -e /tmp/go ]; do sleep 0.01; done; /probe ioctl";
    let (probe, output) = container.exec(process(&["/bin/sh", "-c", line]), false).await.unwrap();
    mediator.end();
    std::fs::write(bench.image().join("tmp/go"), "").unwrap();
    assert_eq!((wait(&probe), bundle::read(output)), (0, "ENOSYS\n".into()));
    std::fs::remove_file(bench.image().join("tmp/go")).unwrap();
    let error = container.exec(process(&["true"]), false).await.unwrap_err().to_string();
    assert!(error.contains("mediator"), "{error}");
    container.delete().await.unwrap();
    wait(&init);
}

async fn a_mediator_has_no_rights_left(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let pid = mediator.process.pid;
    let broker = broker_of(pid);
    let mut users = std::collections::BTreeSet::new();
    for (pid, name) in [(pid, "egpu-mediator"), (broker, "egpu-broker")] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")).unwrap();
        // CAP_DAC_OVERRIDE and CAP_SYS_PTRACE.
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(u64::from_str_radix(field(set), 16).unwrap(), 1 << 1 | 1 << 19, "{set}");
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        // Real, effective, saved and of the file system: what the kernel counts by user is its own.
        let ids: Vec<u32> = field("Uid").split('\t').map(|id| id.parse().unwrap()).collect();
        assert!(matches!(ids[..], [real, 0, saved, 0] if real == saved && real >= 1 << 31), "{ids:?}");
        users.insert(ids[0]);
        assert_eq!((field("NoNewPrivs"), field("Seccomp"), field("Name")), ("1", "2", name));
    }
    assert_eq!(users.len(), 1);
    // Sockets, and the mediator's watch, for whose end nobody waits: a file of the driver's would
    // outlive the mediator with it.
    let files = std::fs::read_dir(format!("/proc/{broker}/fd")).unwrap();
    let files = files.map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap());
    let others: Vec<_> = files.filter(|target| !target.to_str().unwrap().starts_with("socket:")).collect();
    assert_eq!(others, [std::path::PathBuf::from("anon_inode:inotify")]);
    sees_what_it_opens(bench, pid);
    mediator.end();
    // It may be a zombie still.
    let comes_to_its_end = || match std::fs::read_to_string(format!("/proc/{broker}/stat")) {
        Ok(stat) => !stat.contains("(egpu-broker)") || stat.contains(") Z "),
        Err(_) => true,
    };
    let deadline = std::time::Instant::now() + bundle::DEADLINE;
    while !comes_to_its_end() {
        assert!(std::time::Instant::now() < deadline, "the broker does not end");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// All mounts that a mediator has.
fn sees_what_it_opens(bench: &Bench, pid: i32) {
    let state = bench.directory.path().join("state");
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let mut found: Vec<(&str, bool)> = mounts
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[4], fields[5].split(',').any(|option| option == "ro"))
        })
        .collect();
    found.sort_unstable();
    let [simulated, timetable] = ["simulated", "timetable"].map(|name| state.join(name));
    let [simulated, timetable] = [&simulated, &timetable].map(|path| path.to_str().unwrap());
    let mut expected = vec![("/", true), ("/proc/self/fdinfo", true), (timetable, true)];
    expected.push((simulated, false));
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Runs with a limit of processes for each user, which does not bind root.
async fn with_most_processes<T>(bench: &Bench, most: u64, work: impl Future<Output = T>) -> T {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let zygote = Pid::from_raw(bench.client.zygote_pid());
    let set = |current, maximum| prlimit(zygote, Resource::Nproc, Rlimit { current, maximum }).unwrap();
    let before = rustix::process::getrlimit(Resource::Nproc);
    set(Some(most), before.maximum);
    let done = work.await;
    set(before.current, before.maximum);
    done
}

async fn a_broker_that_cannot_begin_is_told_of(bench: &Bench) {
    // Itself and its broker, which cannot start a thread.
    let refused = with_most_processes(bench, 2, Mediator::with(bench, bundle::setup(bench))).await;
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("broker") && refused.contains("Resource temporarily unavailable"), "{refused}");
}

async fn a_container_whose_calls_no_thread_can_take_is_ended(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    // Its threads are there.
    mediator.tell(&ToMediator::Ping);
    assert_eq!(mediator.hear(), FromMediator::Pong);
    let threads = |pid: i32| std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    let all = threads(mediator.process.pid) + threads(broker_of(mediator.process.pid));
    mediator.end();
    let limited = with_most_processes(bench, all as u64, Mediator::start(bench)).await;
    let container = bench.container(&["true"], |_| {}).mediated(&limited);
    container.run().await.unwrap();
    match limited.hear() {
        FromMediator::EndContainer { text } => assert!(text.contains("no thread can be started"), "{text}"),
        other => panic!("{other:?}"),
    }
    limited.end();
}

async fn a_mediator_without_its_broker_ends(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let broker = sys::pidfd_open(broker_of(mediator.process.pid)).unwrap();
    sys::pidfd_send_signal(broker.as_fd(), libc::SIGKILL).unwrap();
    match mediator.hear() {
        FromMediator::Log { warning: true, text } => assert!(text.contains("broker is gone"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(wait(&mediator.process), 1);
}

fn broker_of(mediator: i32) -> i32 {
    let children = std::fs::read_to_string(format!("/proc/{mediator}/task/{mediator}/children")).unwrap();
    children.trim().parse().unwrap()
}

async fn a_storm_of_signals_does_not_keep_a_call_from_ending(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let container = bench.container(&["/probe", "storm"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
    assert_eq!(container.run().await.unwrap(), (0, "[\"done\"]\n".into()));
    mediator.end();
}

async fn a_container_cannot_have_a_listener_but_filters(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let container = bench.container(&["/probe", "listener"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
    assert_eq!(container.run().await.unwrap(), (0, "EBUSY -1 done\n".into()));
    mediator.end();
}

async fn many_processes_call_at_once(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let container = bench.container(&["/probe", "forks"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
    assert_eq!(container.run().await.unwrap(), (0, "32 done\n".into()));
    mediator.end();
}

async fn hooks_are_not_mediated(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let probe = std::env::current_exe().unwrap();
    let log = bench.directory.path().join("hook.log");
    let line = format!("{} ioctl > {}", probe.display(), log.display());
    let container = bench
        .container(&["true"], |spec| {
            spec["hooks"]["createRuntime"] = serde_json::json!([{"path": "/bin/sh", "args": ["sh", "-c", line]}]);
        })
        .mediated(&mediator);
    assert_eq!(container.run().await.unwrap(), (0, String::new()));
    assert_eq!(std::fs::read_to_string(log).unwrap(), "EBADF\n");
    mediator.end();
}

async fn what_a_call_costs(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let container = bench.container(&["/probe", "time"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
    let (code, output) = container.run().await.unwrap();
    assert_eq!(code, 0);
    print!("  {output}");
    mediator.end();
}

async fn while_it_is_paused_no_call_is_taken_up(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let mut container = bench.container(&["sleep", "1000"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    for _ in 0..3 {
        mediator.tell(&ToMediator::Pause);
        assert_eq!(mediator.hear(), FromMediator::Paused { all: true });
        let (probe, output) = container.exec(process(&["/probe", "ioctl"]), false).await.unwrap();
        // It waits in its call: state S or D, and it has no answer.
        let waits = || {
            let call = std::fs::read_to_string(format!("/proc/{}/syscall", probe.pid)).unwrap_or_default();
            call.starts_with(&format!("{} ", libc::SYS_ioctl)) && call.contains(" 0xc00846d6 ")
        };
        let deadline = std::time::Instant::now() + bundle::DEADLINE;
        while !waits() {
            assert!(std::time::Instant::now() < deadline, "the call does not wait");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        mediator.tell(&ToMediator::Resume);
        assert_eq!((wait(&probe), bundle::read(output)), (0, "done\n".into()));
    }
    container.delete().await.unwrap();
    wait(&init);
    mediator.end();
}

async fn a_mediator_answers_pings_and_reports_its_processes(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    for _ in 0..3 {
        mediator.tell(&ToMediator::Ping);
        assert_eq!(mediator.hear_all(), FromMediator::Pong);
    }
    for _ in 0..3 {
        // Processes that come and go between two checks are not reported.
        let mut container =
            bench.container(&["/probe", "stay"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
        let init = container.create().await.unwrap();
        container.start().await.unwrap();
        assert_eq!(mediator.hear_all(), FromMediator::Presence { has_processes: true });
        container.delete().await.unwrap();
        assert_eq!(wait(&init), 137);
        assert_eq!(mediator.hear_all(), FromMediator::Presence { has_processes: false });
        mediator.tell(&ToMediator::Ping);
        assert_eq!(mediator.hear_all(), FromMediator::Pong);
    }
    mediator.end();
}

async fn a_mediator_ends_with_the_shims_end_of_its_socket(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    assert_eq!(mediator.close(), 0);
}

async fn a_mediator_lets_go_of_containers_that_end(bench: &Bench) {
    let mediator = Mediator::start(bench).await;
    let pid = mediator.process.pid;
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let run = async || {
        let container =
            bench.container(&["/probe", "forks"], |spec| bench.add_mediated_probe(spec)).mediated(&mediator);
        assert_eq!(container.run().await.unwrap(), (0, "32 done\n".into()));
    };
    run().await;
    // Main thread, accounts, leftovers, and the one that starts those that schedule; and what it
    // has open when nobody calls.
    let settle = |wanted: Option<usize>| {
        let deadline = std::time::Instant::now() + bundle::DEADLINE;
        loop {
            let (tasks, files) = (count("task"), count("fd"));
            std::thread::sleep(std::time::Duration::from_millis(100));
            // Fewer are none that was left: the first check may have seen one that was about to be
            // closed.
            if tasks == 4 && wanted.map_or_else(|| files == count("fd"), |wanted| files <= wanted) {
                return files;
            }
            assert!(std::time::Instant::now() < deadline, "{tasks} threads, {files} files, wanted {wanted:?}");
        }
    };
    let files = settle(None);
    for _ in 0..5 {
        run().await;
    }
    settle(Some(files));
    assert!(sys::is_there(mediator.process.pidfd.as_fd()));
    mediator.end();
}
