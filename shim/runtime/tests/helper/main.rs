//! The helper without containerd: zygote, client, libcontainer and a busybox.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, unreachable_pub)]

mod bundle;
mod mediation;
mod probe;

use std::{future::Future, os::fd::AsFd, path::Path, pin::Pin, time::Duration};

use bundle::{Bench, process, wait};
use runtime::{
    RuntimeClient, RuntimeError, delete,
    protocol::{Delete, FailureKind, StdioKind},
    spawn,
};
use serde_json::json;
use sys::Forked;

type Case = for<'a> fn(&'a Bench) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// The outcome of a case that has not failed.
#[derive(Debug)]
pub enum Outcome {
    Ran,
    /// The reason why it could not run on this machine.
    Skipped(&'static str),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Ran
    }
}

#[macro_export]
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), (|bench| Box::pin(async move { $name(bench).await.into() })) as $crate::Case)),*]
    };
}

fn main() {
    // Cargo's runners ask harnesses for a list.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if probe::run(&arguments) {
        return;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let mut cases = mediation::cases();
    cases.extend(cases![
        // Each is one line of its own.
        a_program_runs_and_its_exit_code_and_output_arrive,
        exec_joins_the_container,
        an_exec_gets_what_a_grant_gave_the_container,
        a_program_that_cannot_be_executed_is_reported_in_runcs_words,
        the_fence_holds_for_init_and_exec_only_where_asked,
        hooks_run_in_their_namespaces_and_outside_the_fence,
        a_failing_hook_ends_the_create_and_is_quoted,
        an_exec_keeps_the_seccomp_profile_and_the_user_namespace,
        a_terminal_has_its_size_and_its_owner,
        a_user_other_than_root_can_open_its_output_again,
        init_and_exec_have_their_streams_and_nothing_else,
        no_program_is_reached_through_a_descriptor,
        a_lowerdir_beyond_a_page_is_mounted,
        a_missing_working_directory_is_made,
        a_second_create_and_a_start_of_nothing_are_refused,
        a_cgroup_in_use_is_not_taken,
        a_process_with_inits_pid_is_not_init,
        a_passwd_that_never_ends_does_not_hold_up_the_start,
        an_exec_that_the_container_stops_ends_in_time,
        a_worker_that_is_killed_leaves_nothing,
        deleting_works_without_a_zygote,
        no_spec_makes_a_worker_die,
        a_hundred_starts_leave_no_descriptor_and_no_child,
    ]);
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in cases {
            println!("{name}: test");
        }
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: all: making containers needs root");
        return;
    }
    tell("a_process_is_born_in_a_v2_cgroup", &a_process_is_born_in_a_v2_cgroup());
    let zygote = spawn().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::new(RuntimeClient::new(zygote).unwrap());
        for (name, case) in cases {
            if filter.is_none_or(|filter| name.contains(filter.as_str())) {
                println!("test {name} ...");
                tell(name, &case(&bench).await);
            }
        }
    });
}

fn tell(name: &str, outcome: &Outcome) {
    match outcome {
        Outcome::Ran => println!("test {name} ... ok"),
        Outcome::Skipped(why) => println!("skipped: {name}: {why}"),
    }
}

/// Needs a process with one thread, and is therefore none of the cases. A hybrid host's unified
/// hierarchy will do.
fn a_process_is_born_in_a_v2_cgroup() -> Outcome {
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let Some(root) = roots.into_iter().find(|root| root.join("cgroup.controllers").exists()) else {
        return Outcome::Skipped("no cgroup v2");
    };
    let name = format!("egpu-test-birth-{}", std::process::id());
    let directory = root.join(&name);
    if std::fs::create_dir(&directory).is_err() {
        return Outcome::Skipped("no right to make a cgroup");
    }
    let cgroup = std::fs::File::open(&directory).unwrap().into();
    // The inner process is a sibling of its maker, and so a child of this one.
    if let Forked::Child = sys::fork().unwrap() {
        let born = sys::clone_sibling_into(&cgroup, false);
        if let Ok(None) = born {
            let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            sys::exit_now(i32::from(!text.lines().any(|line| line.starts_with("0::") && line.ends_with(&name))));
        }
        sys::exit_now(i32::from(born.is_err()));
    }
    for _ in 0..2 {
        let ended = nix::sys::wait::wait().unwrap();
        assert!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)), "{ended:?}");
    }
    std::fs::remove_dir(&directory).unwrap();
    Outcome::Ran
}

async fn a_program_runs_and_its_exit_code_and_output_arrive(bench: &Bench) {
    let container = bench.container(&["sh", "-c", "echo hello $HOME; exit 7"], |_| {});
    assert_eq!(container.run().await.unwrap(), (7, "hello /root\n".into()));
}

async fn exec_joins_the_container(bench: &Bench) {
    let mut container = bench.container(&["sleep", "1000"], |_| {});
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    let (code, output) = container.sh("cat /proc/1/cmdline | tr '\\0' ' '; exit 3").await;
    assert_eq!((code, output.as_str()), (3, "sleep 1000 "));
    let (_, joined) = container.sh("cat /proc/self/cgroup").await;
    assert_eq!(joined, std::fs::read_to_string(format!("/proc/{}/cgroup", init.pid)).unwrap(), "every hierarchy");
    assert!(joined.contains(&container.id));
    container.delete().await.unwrap();
    assert_eq!(wait(&init), 137);
    container.assert_gone();
}

async fn an_exec_gets_what_a_grant_gave_the_container(bench: &Bench) {
    let injection = json!({
        "host_dir": bench.directory.path().join("granted"), "devices": [], "nvidia_majors": [], "files": [],
        "libraries": [], "proc_driver": null, "additional_gids": [4242], "env": [["GRANTED", "yes"]], "shared": false,
        "drop_hami": false, "warnings": [],
    });
    let injection = serde_json::from_value(injection).unwrap();
    let mut container = bench.container(&["sleep", "1000"], |_| {}).with(|create| create.injection = Some(injection));
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    let (_, output) = container.sh("id -G; echo $GRANTED").await;
    assert_eq!(output, "0 4242\nyes\n");
    container.delete().await.unwrap();
    assert_eq!(wait(&init), 137);
    container.assert_gone();
}

async fn a_program_that_cannot_be_executed_is_reported_in_runcs_words(bench: &Bench) {
    std::fs::write(bench.image().join("plain"), "x").unwrap();
    let script = bench.image().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let garbage = bench.image().join("garbage");
    std::fs::write(&garbage, "\u{1}\u{2}").unwrap();
    for path in [&script, &garbage] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    }
    let mut running = bench.container(&["sleep", "1000"], |_| {});
    let init = running.create().await.unwrap();
    running.start().await.unwrap();
    for (program, message) in [
        ("nonesuch", "exec: \"nonesuch\": executable file not found in $PATH"),
        ("/no/such", "exec: \"/no/such\": stat /no/such: no such file or directory"),
        ("/plain", "exec: \"/plain\": permission denied"),
        ("/script", "exec /script: no such file or directory"),
        ("/garbage", "exec /garbage: exec format error"),
    ] {
        let error = bench.container(&[program], |_| {}).run().await.unwrap_err();
        assert_eq!(error.to_string(), message, "create and start");
        let error = running.exec(process(&[program]), false).await.unwrap_err();
        assert_eq!(error.to_string(), message, "exec");
    }
    running.delete().await.unwrap();
    wait(&init);
}

async fn the_fence_holds_for_init_and_exec_only_where_asked(bench: &Bench) {
    for (fence, answer) in [(false, "EBADF"), (true, "ENOTTY")] {
        let container =
            bench.container(&["/probe", "ioctl"], |spec| bench.add_probe(spec)).with(|create| create.fence = fence);
        assert_eq!(container.run().await.unwrap(), (0, format!("{answer}\n")), "init, fence: {fence}");
        // Calls that no release of the driver has likewise; the third is on a file that knows none,
        // the fourth is no driver's.
        let container =
            bench.container(&["/probe", "unknown"], |spec| bench.add_probe(spec)).with(|create| create.fence = fence);
        let answers = format!("{answer} {answer} ENOTTY EBADF {answer}\n");
        assert_eq!(container.run().await.unwrap(), (0, answers), "unknown calls, fence: {fence}");
    }
    let mut container = bench.container(&["sleep", "1000"], |spec| bench.add_probe(spec));
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    for (fence, answer) in [(false, "EBADF"), (true, "ENOTTY")] {
        let (probe, output) = container.exec(process(&["/probe", "ioctl"]), fence).await.unwrap();
        assert_eq!((wait(&probe), bundle::read(output)), (0, format!("{answer}\n")), "exec, fence: {fence}");
    }
    container.delete().await.unwrap();
    wait(&init);
}

async fn hooks_run_in_their_namespaces_and_outside_the_fence(bench: &Bench) {
    let log = bench.directory.path().join("hooks.log");
    let probe = std::env::current_exe().unwrap();
    let hook = |name: &str| {
        let line = format!(
            "echo {name} $(readlink /proc/self/ns/mnt) $({} ioctl) $(grep -o '\"status\":\"[a-z]*\"') \
             $(cat /proc/$PPID/comm) >> {}",
            probe.display(),
            log.display()
        );
        json!([{"path": "/bin/sh", "args": ["sh", "-c", line], "env": ["PATH=/bin:/usr/bin"]}])
    };
    let container = bench.container(&["true"], |spec| {
        let kinds = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
        spec["hooks"] = kinds.iter().map(|kind| ((*kind).to_owned(), hook(kind))).collect();
    });
    assert_eq!(container.with(|create| create.fence = true).run().await.unwrap(), (0, String::new()));
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap().display().to_string();
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let names: Vec<&str> = lines.iter().map(|line| line[0]).collect();
    assert_eq!(names, ["prestart", "createRuntime", "createContainer", "poststart", "poststop"]);
    for line in lines {
        assert_eq!(line[1] == own, line[0] != "createContainer", "namespace of {line:?}");
        assert_eq!(line[2], "EBADF", "filter of {line:?}");
        // The shim's reaper would take their ends. (In the pid namespace its parent has no number.)
        assert_eq!(line[4..] == ["egpu-helper"], line[0] != "createContainer", "parent of {line:?}");
    }
}

async fn a_failing_hook_ends_the_create_and_is_quoted(bench: &Bench) {
    for kind in ["prestart", "createRuntime", "createContainer"] {
        let mut container = bench.container(&["true"], |spec| {
            spec["hooks"][kind] = json!([{"path": "/bin/sh", "args": ["sh", "-c", "echo no luck >&2; exit 9"]}]);
        });
        let error = container.create().await.unwrap_err().to_string();
        assert!(error.contains(kind) && error.contains("code: 9") && error.contains("no luck"), "{error}");
        container.assert_gone();
    }
    // This one is found at the start only.
    let container = bench.container(&["true"], |spec| {
        spec["hooks"]["startContainer"] = json!([{"path": "/bin/false"}]);
    });
    let error = container.run().await.unwrap_err().to_string();
    assert!(error.contains("startContainer"), "{error}");
}

async fn an_exec_keeps_the_seccomp_profile_and_the_user_namespace(bench: &Bench) {
    let mut container = bench.container(&["sleep", "1000"], |spec| {
        spec["process"]["noNewPrivileges"] = json!(false);
        spec["process"]["oomScoreAdj"] = json!(321);
        spec["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}],
        });
        spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
        for map in ["uidMappings", "gidMappings"] {
            spec["linux"][map] = json!([{"containerID": 0, "hostID": 200_000, "size": 1000}]);
        }
    });
    for path in [bench.directory.path(), bench.image()] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    let facts = "cat /proc/self/uid_map /proc/self/oom_score_adj; grep -E '^(Seccomp|SigIgn):' /proc/self/status; mkdir /tmp/x 2>&1";
    let (_, seen) = container.sh(facts).await;
    let words: Vec<&str> = seen.split_whitespace().collect();
    assert_eq!(words[..4], ["0", "200000", "1000", "321"], "{seen}");
    assert!(seen.contains("Seccomp:\t2"), "{seen}");
    let ignored = seen.split("SigIgn:\t").nth(1).unwrap().split_whitespace().next().unwrap();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap(), 0, "{seen}");
    assert!(seen.contains("not implemented"), "{seen}");
    container.delete().await.unwrap();
    wait(&init);
    container.assert_gone();
}

async fn a_terminal_has_its_size_and_its_owner(bench: &Bench) {
    let mut container = bench
        .container(&["sh", "-c", "stty size; ls -ln $(tty) | cut -d' ' -f1; id -u"], |spec| {
            spec["process"]["terminal"] = json!(true);
            spec["process"]["consoleSize"] = json!({"height": 33, "width": 99});
            spec["process"]["user"] = json!({"uid": 1000, "gid": 1000});
        })
        .with(|create| create.stdio = StdioKind::Terminal);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let init = container.create_on(vec![theirs.into()]).await.unwrap();
    let master = bundle::receive_terminal(&ours);
    container.start().await.unwrap();
    let output = bundle::read_terminal(master);
    assert_eq!(wait(&init), 0, "{output}");
    let lines: Vec<&str> = output.lines().map(str::trim).collect();
    assert_eq!(lines, ["33 99", "crw--w----", "1000"]);
    container.delete().await.unwrap();
    container.assert_gone();
}

async fn a_user_other_than_root_can_open_its_output_again(bench: &Bench) {
    let container = bench.container(&["sh", "-c", "echo again > /proc/self/fd/1; echo $HOME; id -G"], |spec| {
        spec["process"]["user"] = json!({"uid": 1000, "gid": 1000, "additionalGids": [7, 8]});
    });
    assert_eq!(container.run().await.unwrap(), (0, "again\n/home/user\n1000 7 8\n".into()));
}

async fn init_and_exec_have_their_streams_and_nothing_else(bench: &Bench) {
    let list = ["ls", "/proc/self/fd"];
    // The fourth is the listing's own.
    assert_eq!(bench.container(&list, |_| {}).run().await.unwrap(), (0, "0\n1\n2\n3\n".into()));
    let mut container = bench.container(&["sleep", "1000"], |_| {});
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    assert_eq!(container.sh("ls /proc/self/fd; ls /proc/1/fd").await, (0, "0\n1\n2\n3\n0\n1\n2\n".into()));
    container.delete().await.unwrap();
    wait(&init);
}

/// Descriptors that init and an exec have open until they execute lead out of the container.
async fn no_program_is_reached_through_a_descriptor(bench: &Bench) {
    let outside = bench.directory.path().join("echo");
    std::fs::copy(bench.image().join("bin/busybox"), &outside).unwrap();
    let outside = outside.display();
    let mut container = bench.container(&["sleep", "1000"], |_| {});
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    for descriptor in 3..24 {
        for way in ["../../../../../../../../../..".to_owned(), format!("{}/root", std::process::id())] {
            let program = format!("/proc/self/fd/{descriptor}/{way}{outside}");
            let arguments = [program.as_str(), "outside"];
            let ran = bench.container(&arguments, |_| {}).run().await;
            assert!(ran.is_err(), "{program} {ran:?}");
            let executed = container.exec(process(&arguments), false).await.map(|(process, _)| wait(&process));
            assert!(executed.is_err(), "exec of {program} {executed:?}");
        }
    }
    container.delete().await.unwrap();
    wait(&init);
    // Nor does a profile that allows a program only what it needs keep it from being executed.
    let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["close_range", "getdents64"], "action": "SCMP_ACT_KILL_PROCESS"}
    ]});
    let strict = bench.container(&["sh", "-c", "echo inside"], |spec| spec["linux"]["seccomp"] = profile);
    assert_eq!(strict.run().await.unwrap(), (0, "inside\n".into()));
}

async fn a_lowerdir_beyond_a_page_is_mounted(bench: &Bench) -> Outcome {
    let layers = bench.directory.path().join("a-snapshotter-with-a-name-that-is-so-long-that-few-layers-fill-a-page");
    let mut lower: Vec<String> = vec![];
    for layer in 0..60 {
        let path = layers.join(format!("{layer}/fs"));
        std::fs::create_dir_all(&path).unwrap();
        lower.push(path.display().to_string());
    }
    std::fs::write(layers.join("59/fs/found"), "in the last layer").unwrap();
    let image = layers.join("image");
    std::os::unix::fs::symlink(bench.image(), &image).unwrap();
    lower.push(image.display().to_string());
    let option = format!("lowerdir={}", lower.join(":"));
    assert!(option.len() > 4096);
    let container = bench.container(&["cat", "/found"], |_| {}).with(|create| {
        let mount = &mut create.rootfs_mounts[0];
        (mount.kind, mount.source, mount.options) = ("overlay".into(), "overlay".into(), vec![option]);
    });
    if !std::fs::read_to_string("/proc/filesystems").unwrap().contains("\toverlay\n") {
        return Outcome::Skipped("this kernel has no overlay");
    }
    assert_eq!(container.run().await.unwrap(), (0, "in the last layer".into()));
    Outcome::Ran
}

async fn a_missing_working_directory_is_made(bench: &Bench) {
    let container = bench.container(&["sh", "-c", "pwd"], |spec| spec["process"]["cwd"] = json!("/made/for/it"));
    assert_eq!(container.run().await.unwrap(), (0, "/made/for/it\n".into()));
}

async fn a_second_create_and_a_start_of_nothing_are_refused(bench: &Bench) {
    let mut first = bench.container(&["true"], |_| {});
    assert_eq!(first.start().await.unwrap_err().kind(), FailureKind::NotFound);
    first.delete().await.unwrap();
    let init = first.create().await.unwrap();
    let mut second = bench.container(&["true"], |_| {}).with(|create| create.id = first.id.clone());
    assert_eq!(second.create().await.unwrap_err().kind(), FailureKind::FailedPrecondition);
    assert!(bench.root().join(&first.id).exists(), "the refused create took the first one's state");
    first.start().await.unwrap();
    assert_eq!(wait(&init), 0);
    assert_eq!(first.start().await.unwrap_err().kind(), FailureKind::FailedPrecondition);
    assert_eq!(first.exec(process(&["true"]), false).await.unwrap_err().kind(), FailureKind::FailedPrecondition);
    first.delete().await.unwrap();
    first.delete().await.unwrap();
    first.assert_gone();
}

async fn a_cgroup_in_use_is_not_taken(bench: &Bench) {
    let mut first = bench.container(&["sleep", "1000"], |_| {});
    let init = first.create().await.unwrap();
    first.start().await.unwrap();
    let path = format!("/egpu-tests/{}", first.id);
    let mut second = bench.container(&["true"], |spec| spec["linux"]["cgroupsPath"] = json!(path));
    let error = second.create().await.unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    second.assert_gone();
    assert_eq!(first.sh("echo alive").await, (0, "alive\n".into()));
    first.delete().await.unwrap();
    wait(&init);
}

/// As if init had ended and its pid had been given to another process.
async fn a_process_with_inits_pid_is_not_init(bench: &Bench) {
    let mut container = bench.container(&["sleep", "1000"], |_| {});
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    let path = bench.root().join(&container.id).join("egpu.json");
    let whole: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut other = whole.clone();
    other["init"]["start_time"] = json!(1);
    std::fs::write(&path, serde_json::to_vec(&other).unwrap()).unwrap();
    assert_eq!(container.exec(process(&["true"]), false).await.unwrap_err().kind(), FailureKind::FailedPrecondition);
    std::fs::write(&path, serde_json::to_vec(&whole).unwrap()).unwrap();
    assert_eq!(container.sh("echo alive").await, (0, "alive\n".into()));
    container.delete().await.unwrap();
    wait(&init);
}

/// Without HOME in the environment, /etc/passwd is read, which is the container's to replace.
async fn a_passwd_that_never_ends_does_not_hold_up_the_start(bench: &Bench) {
    let mut container = bench.container(&["sleep", "1000"], |_| {});
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    let etc = bench.image().join("etc");
    std::fs::rename(etc.join("passwd"), etc.join("passwd.kept")).unwrap();
    nix::unistd::mkfifo(&etc.join("passwd"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (probe, output) = container.exec(process(&["sh", "-c", "echo $HOME"]), false).await.unwrap();
    assert_eq!((wait(&probe), bundle::read(output)), (0, "/\n".into()));
    std::fs::rename(etc.join("passwd.kept"), etc.join("passwd")).unwrap();
    container.delete().await.unwrap();
    wait(&init);
}

/// Before it executes its program, where it waits for its start.
async fn an_exec_that_the_container_stops_ends_in_time(bench: &Bench) {
    const LIMIT: Duration = Duration::from_secs(3);
    let mut container = bench.container(&["sh", "-c", "while :; do kill -STOP -1; done 2>/dev/null"], |_| {});
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    // One may be faster than the container.
    let error = loop {
        match container.exec_within(LIMIT, process(&["true"])).await {
            Err(error) => break error,
            Ok(probe) => {
                let _ = sys::pidfd_send_signal(probe.pidfd.as_fd(), libc::SIGKILL);
                wait(&probe);
            }
        }
    };
    assert!(matches!(error, RuntimeError::Deadline { operation: "exec", limit: LIMIT, .. }), "{error}");
    container.delete().await.unwrap();
    assert_eq!(wait(&init), 137);
    container.assert_gone();
}

async fn a_worker_that_is_killed_leaves_nothing(bench: &Bench) {
    let mut container = bench.container(&["true"], |spec| {
        spec["hooks"]["createRuntime"] =
            json!([{"path": "/bin/sh", "args": ["sh", "-c", "kill -9 $PPID; sleep 1"], "env": ["PATH=/bin"]}]);
    });
    let error = container.create().await.unwrap_err();
    assert!(matches!(error, RuntimeError::WorkerDied { .. }), "{error}");
    container.assert_gone();
}

async fn deleting_works_without_a_zygote(bench: &Bench) {
    let mut container = bench.container(&["sleep", "1000"], |_| {});
    let init = container.create().await.unwrap();
    container.start().await.unwrap();
    let request = Delete { id: container.id.clone(), runtime_root: bench.root(), bundle: container.bundle.clone() };
    std::thread::spawn(move || {
        delete::remove(&request).unwrap();
        delete::remove(&request).unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(wait(&init), 137);
    container.assert_gone();
}

async fn no_spec_makes_a_worker_die(bench: &Bench) {
    let strange =
        [json!(null), json!(-1), json!(1e300), json!("\u{0}"), json!([]), json!({}), json!([null]), json!({"": null})];
    let pointers = [
        "",
        "/process",
        "/process/args",
        "/process/env",
        "/process/cwd",
        "/process/user",
        "/process/capabilities",
        "/process/capabilities/bounding",
        "/root",
        "/root/path",
        "/mounts",
        "/mounts/0",
        "/mounts/0/destination",
        "/mounts/1/options",
        "/linux",
        "/linux/namespaces",
        "/linux/namespaces/0",
        "/linux/namespaces/0/type",
        "/linux/resources",
        "/linux/resources/devices",
        "/linux/resources/devices/0",
        "/linux/cgroupsPath",
        "/hostname",
        "/ociVersion",
    ];
    for pointer in pointers {
        for value in &strange {
            let mut container = bench.container(&["true"], |spec| *spec.pointer_mut(pointer).unwrap() = value.clone());
            match container.create().await {
                // Some of it is acceptable, as an empty list of mounts is.
                Ok(init) => {
                    container.delete().await.unwrap();
                    wait(&init);
                }
                Err(RuntimeError::Failed(_)) => {}
                Err(error) => panic!("{pointer} = {value}: {error}"),
            }
            container.assert_gone();
        }
    }
}

async fn a_hundred_starts_leave_no_descriptor_and_no_child(bench: &Bench) {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let zygote = format!("/proc/{}/fd", bench.client.zygote_pid());
    let zygotes = || std::fs::read_dir(&zygote).unwrap().count();
    bench.container(&["true"], |_| {}).run().await.unwrap();
    let before = (descriptors(), zygotes());
    let mut times = vec![];
    for _ in 0..100 {
        let mut container = bench.container(&["true"], |_| {});
        let begin = std::time::Instant::now();
        let init = container.create().await.unwrap();
        let created = begin.elapsed();
        container.start().await.unwrap();
        let started = begin.elapsed();
        assert_eq!(wait(&init), 0);
        let ended = std::time::Instant::now();
        container.delete().await.unwrap();
        times.push((created, started, ended.elapsed()));
        container.assert_gone();
    }
    let median = |of: fn(&(Duration, Duration, Duration)) -> Duration| {
        let mut all: Vec<Duration> = times.iter().map(of).collect();
        all.sort();
        all[all.len() / 2]
    };
    println!(
        "  medians: create {:?}, create and start {:?}, delete {:?}",
        median(|t| t.0),
        median(|t| t.1),
        median(|t| t.2)
    );
    // The zygote closes its copies a moment after the worker has them, and a worker ends a moment
    // after its answer. There may have been more to begin with, for the same reason; there are not
    // a hundred.
    let deadline = std::time::Instant::now() + bundle::DEADLINE;
    loop {
        let now = (descriptors(), zygotes());
        if now.0 <= before.0 && now.1 <= before.1 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "descriptors, the zygote's: {now:?}, and {before:?} before");
        std::thread::sleep(Duration::from_millis(5));
    }
    let children = format!("/proc/self/task/{}/children", std::process::id());
    loop {
        bundle::reap();
        let left = std::fs::read_to_string(&children).unwrap();
        if left.trim() == bench.client.zygote_pid().to_string() {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "children that are left: {left}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
