//! Seccomp profiles that allow a program's own system calls, and those that runc makes itself.

use integration::{ContainerBuilder, Node};
use serde_json::{Value, json};

/// Of runc itself, as the Security Profiles Operator of Kubernetes lists them.
///
/// `examples/baseprofile-runc.yaml` there, for runc 1.4.2.
const OF_RUNC: [&str; 40] = [
    "arch_prctl",
    "brk",
    "capget",
    "capset",
    "chdir",
    "close",
    "close_range",
    "epoll_ctl",
    "epoll_pwait",
    "execve",
    "exit_group",
    "faccessat2",
    "fcntl",
    "fstat",
    "fstatfs",
    "futex",
    "getcwd",
    "getdents64",
    "getpid",
    "getppid",
    "getuid",
    "mmap",
    "mprotect",
    "nanosleep",
    "newfstatat",
    "openat",
    "openat2",
    "prctl",
    "read",
    "recvfrom",
    "rt_sigreturn",
    "sched_yield",
    "set_tid_address",
    "setgid",
    "setgroups",
    "setuid",
    "sigaltstack",
    "statx",
    "tgkill",
    "write",
];

/// Of busybox's `true` and `sleep`, which give up what a file's mode may have given them.
const OF_PROGRAM: [&str; 19] = [
    "arch_prctl",
    "brk",
    "clock_nanosleep",
    "exit_group",
    "getgid",
    "getrandom",
    "getuid",
    "mprotect",
    "newfstatat",
    "prctl",
    "prlimit64",
    "readlink",
    "readlinkat",
    "rseq",
    "set_robust_list",
    "set_tid_address",
    "setgid",
    "setuid",
    "statx",
];

fn profile(otherwise: &str, of_runtime: &[&str]) -> Value {
    let names = [of_runtime, &OF_PROGRAM].concat();
    json!({ "defaultAction": otherwise, "syscalls": [{ "names": names, "action": "SCMP_ACT_ALLOW" }] })
}

/// With the profile, as each kind of user: init, and an exec.
fn works<'node>(container: &dyn Fn(&str) -> ContainerBuilder<'node>, profile: &Value) {
    for (number, no_new_privileges) in [Some(true), Some(false), None].into_iter().enumerate() {
        for uid in [0, 1000] {
            let edit = |process: &mut Value| {
                process["user"] = json!({ "uid": uid, "gid": uid });
                match no_new_privileges {
                    Some(value) => process["noNewPrivileges"] = json!(value),
                    None => drop(process.as_object_mut().unwrap().remove("noNewPrivileges")),
                }
            };
            let container = container(&format!("profile{number}-{uid}")).args(&["sleep", "infinity"]).edit(|spec| {
                spec["linux"]["seccomp"] = profile.clone();
                edit(&mut spec["process"]);
            });
            let said = format!("noNewPrivileges {no_new_privileges:?}, uid {uid}");
            let container = container.start().unwrap_or_else(|status| panic!("{said}: {status}"));
            let exec = container.exec("e", &["true"]).edit(edit);
            let (status, output) = exec.run().unwrap_or_else(|status| panic!("exec, {said}: {status}"));
            assert_eq!((status, output.stderr().as_str()), (0, ""), "{said}");
            // Of its own, and the fence.
            let lines = std::fs::read_to_string(format!("/proc/{}/status", container.pid())).unwrap();
            let has = |line: &str| lines.lines().any(|one| one.split_whitespace().eq(line.split_whitespace()));
            assert!(has("Seccomp: 2"), "{said}: {lines}");
            assert!(has("CapPrm: 0000000000000000") || uid == 0, "{said}: {lines}");
            container.end();
        }
    }
}

/// Recorded under runc, a profile suffices.
pub(super) fn that_suffice_under_runc(node: &Node) {
    let runc = super::runc().unwrap();
    let profile = profile("SCMP_ACT_ERRNO", &OF_RUNC);
    works(&|id| node.container(id).runc(&runc), &profile);
    works(&|id| node.container(id), &profile);
    works(&|id| node.container(id).env("EGPU_MEMORY", "1GiB"), &profile);
}

/// egpu itself makes no other calls once the profile is loaded.
pub(super) fn that_kill(node: &Node) {
    works(&|id| node.container(id), &profile("SCMP_ACT_KILL_PROCESS", &OF_RUNC));
    works(&|id| node.container(id).without_streams(), &profile("SCMP_ACT_KILL_PROCESS", &OF_RUNC));
}

/// A failure after the profile is loaded is told, too.
pub(super) fn failures_are_told(node: &Node) {
    for no_new_privileges in [true, false] {
        let edit = |spec: &mut Value| {
            spec["linux"]["seccomp"] = profile("SCMP_ACT_ERRNO", &OF_RUNC);
            spec["process"]["noNewPrivileges"] = json!(no_new_privileges);
        };
        let said = node.container("a").args(&["no-such"]).edit(edit).create().unwrap_err().message().to_owned();
        assert!(said.contains("exec: \"no-such\": executable file not found in $PATH"), "{said}");
        let container = node.container("b").edit(edit).start().unwrap();
        let said = container.exec("e", &["no-such"]).run().unwrap_err().message().to_owned();
        assert!(said.contains("exec: \"no-such\": executable file not found in $PATH"), "exec: {said}");
        container.end();
    }
}
