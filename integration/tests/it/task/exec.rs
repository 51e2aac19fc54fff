//! More processes in a container.

use integration::{Node, eventually};
use nix::sys::signal::Signal;
use serde_json::json;
use tonic::Code;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("exec::output_and_exit_code", output_and_exit_code),
        Case::plain("exec::shares_the_namespaces", shares_the_namespaces),
        Case::plain("exec::stdin", stdin),
        Case::plain("exec::terminal", terminal),
        Case::plain("exec::user_cwd_and_environment", user_cwd_and_environment),
        Case::plain("exec::has_the_containers_seccomp_filter", has_the_containers_seccomp_filter),
        Case::plain("exec::is_in_the_containers_user_namespace", is_in_the_containers_user_namespace),
        Case::plain("exec::is_in_the_containers_cgroups", is_in_the_containers_cgroups),
        Case::plain("exec::killed_alone", killed_alone),
        Case::plain("exec::after_inits_end", after_inits_end),
        Case::plain("exec::many_at_once", many_at_once),
        Case::plain("exec::leaks_no_files", leaks_no_files),
        Case::plain("exec::large_output", large_output),
    ]
}

fn output_and_exit_code(node: &Node) {
    let container = node.container("a").start().unwrap();
    let (status, output) = container.sh("echo out; echo err >&2; exit 9");
    assert_eq!((status, output.stdout().as_str(), output.stderr().as_str()), (9, "out\n", "err\n"));
    container.end();
}

fn shares_the_namespaces(node: &Node) {
    let container = node.container("a").start().unwrap();
    for namespace in ["pid", "ipc", "uts", "mnt", "net", "user"] {
        let init = container.read(&format!("readlink /proc/1/ns/{namespace}"));
        assert_eq!(init, container.read(&format!("readlink /proc/self/ns/{namespace}")), "{namespace}");
    }
    container.end();
}

fn stdin(node: &Node) {
    let container = node.container("a").start().unwrap();
    let mut exec = container.exec("e", &["cat"]).stdin().start().unwrap();
    exec.stdio.write(b"round trip");
    exec.close_stdin().unwrap();
    assert_eq!(exec.wait().unwrap(), 0);
    exec.delete().unwrap();
    assert_eq!(exec.stdio.finish().stdout(), "round trip");
    container.end();
}

fn terminal(node: &Node) {
    let container = node.container("a").start().unwrap();
    let mut exec = container.exec("e", &["sh", "-c", "read x; stty size"]).terminal().start().unwrap();
    exec.resize(99, 33).unwrap();
    exec.stdio.write(b"\n");
    assert_eq!(exec.wait().unwrap(), 0);
    exec.delete().unwrap();
    let text = exec.stdio.finish().stdout();
    assert!(text.contains("33 99"), "{text:?}");
    container.end();
}

fn user_cwd_and_environment(node: &Node) {
    let container = node.container("a").env("FROM", "container").start().unwrap();
    let edit = |process: &mut serde_json::Value| {
        process["user"] = json!({ "uid": 1000, "gid": 1000, "additionalGids": [7] });
        process["cwd"] = json!("/tmp");
        process["env"] = json!(["PATH=/bin", "FROM=exec"]);
        process["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 77, "hard": 88 }]);
    };
    let script = "id -u; id -g; id -G; pwd; echo $FROM; ulimit -n";
    let (status, output) = container.exec("e", &["sh", "-c", script]).edit(edit).run().unwrap();
    assert_eq!((status, output.stdout().as_str()), (0, "1000\n1000\n1000 7\n/tmp\nexec\n77\n"), "{}", output.stderr());
    container.end();
}

fn has_the_containers_seccomp_filter(node: &Node) {
    let no_mkdir = |spec: &mut serde_json::Value| {
        spec["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
            "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
        });
    };
    let script = "mkdir /tmp/x 2>/dev/null; echo $?; exec sleep infinity";
    let container = node.container("a").script(script).edit(no_mkdir).start().unwrap();
    container.stdio.wait_for("1\n");
    let (status, _) = container.sh("mkdir /tmp/y 2>/dev/null");
    assert_eq!(status, 1, "mkdir is forbidden to an exec as it is to init");
    assert_eq!(container.read("grep Seccomp: /proc/self/status"), "Seccomp:\t2");
    container.end();
}

fn is_in_the_containers_user_namespace(node: &Node) {
    // The root file system must be readable to the mapped user.
    let map = |spec: &mut serde_json::Value| {
        spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "user" }));
        spec["linux"]["uidMappings"] = json!([{ "containerID": 0, "hostID": 100_000, "size": 65536 }]);
        spec["linux"]["gidMappings"] = json!([{ "containerID": 0, "hostID": 100_000, "size": 65536 }]);
        // sysfs and mqueue belong to namespaces that are the host's here.
        let mounts = spec["mounts"].as_array_mut().unwrap();
        mounts.retain(|mount| mount["destination"] != "/sys");
        for mount in mounts.iter_mut().filter(|mount| mount["destination"] == "/dev/pts") {
            mount["options"] = json!(["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]);
        }
    };
    // /tmp/egpu-it-... is 0700 of root: the mapped root must be able to enter the bundle's root
    // file system.
    node.open_to_all();
    let container = node.container("a").edit(map).start().unwrap();
    let init = std::fs::read_link(format!("/proc/{}/ns/user", container.pid())).unwrap();
    let own = std::fs::read_link("/proc/self/ns/user").unwrap();
    assert_ne!(init, own);
    let exec = container.exec("e", &["sleep", "1000"]).start().unwrap();
    let pid = exec.state().unwrap().pid;
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/ns/user")).unwrap(), init);
    exec.kill(Signal::SIGKILL).unwrap();
    exec.wait().unwrap();
    exec.delete().unwrap();
    container.end();
}

fn is_in_the_containers_cgroups(node: &Node) {
    let container = node.container("a").start().unwrap();
    let exec = container.exec("e", &["sleep", "1000"]).start().unwrap();
    let cgroups = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let (init, other) = (cgroups(container.pid()), cgroups(exec.state().unwrap().pid));
    for line in init.lines().filter(|line| line.contains(&node.cgroup_parent())) {
        assert!(other.lines().any(|other| other == line), "{line} is not in\n{other}");
    }
    exec.kill(Signal::SIGKILL).unwrap();
    exec.wait().unwrap();
    exec.delete().unwrap();
    container.end();
}

fn killed_alone(node: &Node) {
    let container = node.container("a").start().unwrap();
    let exec = container.exec("e", &["sleep", "1000"]).start().unwrap();
    exec.kill(Signal::SIGTERM).unwrap();
    assert_eq!(exec.wait().unwrap(), 143);
    assert_eq!(exec.kill(Signal::SIGTERM).unwrap_err().code(), Code::NotFound);
    assert_eq!(exec.delete().unwrap(), 143);
    container.read("true");
    container.end();
}

fn after_inits_end(node: &Node) {
    let mut container = node.container("a").start().unwrap();
    container.kill(Signal::SIGKILL).unwrap();
    container.wait().unwrap();
    assert!(container.exec("e", &["true"]).run().is_err());
    container.delete().unwrap();
}

fn many_at_once(node: &Node) {
    let container = node.container("a").start().unwrap();
    let execs: Vec<_> = (0..16)
        .map(|index| container.exec(&format!("e{index}"), &["sh", "-c", &format!("exit {index}")]).start().unwrap())
        .collect();
    for (index, exec) in execs.iter().enumerate() {
        assert_eq!(exec.wait().unwrap() as usize, index);
        exec.delete().unwrap();
    }
    container.end();
}

fn leaks_no_files(node: &Node) {
    let container = node.container("a").start().unwrap();
    let count =
        || node.shims().iter().chain(&node.helpers()).map(integration::processes::Process::open_files).sum::<usize>();
    for _ in 0..5 {
        container.read("true");
    }
    let before = count();
    for _ in 0..20 {
        container.read("true");
    }
    eventually("as many open files as before", || (count() <= before + 2).then_some(()));
    container.end();
}

fn large_output(node: &Node) {
    let container = node.container("a").start().unwrap();
    let (status, output) = container.sh("head -c 4000000 /dev/zero | tr '\\0' x");
    assert_eq!((status, output.stdout().len()), (0, 4_000_000));
    container.end();
}
