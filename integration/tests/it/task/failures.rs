//! Creates, starts and execs that cannot succeed: what the caller gets, and that nothing stays.

use integration::Node;
use serde_json::json;

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("failures::missing_executable", missing_executable),
        Case::plain("failures::missing_executable_by_path", missing_executable_by_path),
        Case::plain("failures::not_executable", not_executable),
        Case::plain("failures::exec_of_a_missing_executable", exec_of_a_missing_executable),
        Case::egpu("failures::nothing_internal_in_the_containers_errors", nothing_internal_in_the_containers_errors),
        Case::plain("failures::exec_in_a_working_directory_that_is_none", exec_in_a_working_directory_that_is_none),
        Case::plain("failures::missing_working_directory_is_made", missing_working_directory_is_made),
        Case::plain("failures::bad_mount", bad_mount),
        Case::plain("failures::bad_rootfs", bad_rootfs),
        Case::plain("failures::failing_hook", failing_hook),
        Case::plain("failures::no_path_variable", no_path_variable),
        Case::plain("failures::private_binary_of_root", private_binary_of_root),
    ]
}

/// Fails at create (runc) or at start: the text either way.
#[track_caller]
fn refusal(builder: integration::ContainerBuilder<'_>) -> String {
    match builder.create() {
        Err(status) => status.message().to_owned(),
        Ok(mut container) => {
            let status = container.start().expect_err("it cannot start");
            let _ = container.kill(nix::sys::signal::Signal::SIGKILL);
            let _ = container.wait();
            container.delete().unwrap();
            status.message().to_owned()
        }
    }
}

fn missing_executable(node: &Node) {
    let text = refusal(node.container("a").args(&["no-such-program"]));
    assert!(text.contains(r#"exec: "no-such-program": executable file not found in $PATH"#), "{text}");
}

fn missing_executable_by_path(node: &Node) {
    let text = refusal(node.container("a").args(&["/no/such/program"]));
    assert!(text.contains("/no/such/program") && text.contains("no such file or directory"), "{text}");
}

fn not_executable(node: &Node) {
    let text = refusal(node.container("a").args(&["/etc/passwd"]));
    assert!(text.contains("/etc/passwd") && text.contains("permission denied"), "{text}");
}

fn exec_of_a_missing_executable(node: &Node) {
    let container = node.container("a").start().unwrap();
    let text = container.exec("e", &["no-such-program"]).run().unwrap_err().message().to_owned();
    assert!(text.contains(r#"exec: "no-such-program": executable file not found in $PATH"#), "{text}");
    container.read("true");
    container.end();
}

fn nothing_internal_in_the_containers_errors(node: &Node) {
    let image = node.directory().join("strange");
    integration::rootfs::populate(&image);
    let long = format!("LONG={}", "x".repeat(129 << 10));
    for (name, text, variable, reason) in [
        ("windows", "#!/bin/sh\r\n:\n", "A=b", "no such file or directory"),
        ("plain", "echo\n", "A=b", "exec format error"),
        ("gone", "#!/no/such/shell\n", "A=b", "no such file or directory"),
        ("large", "#!/bin/sh\n", long.as_str(), "argument list too long"),
    ] {
        let program = format!("/{name}");
        std::fs::write(image.join(name), text).unwrap();
        std::fs::set_permissions(image.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let container = || node.container(name).rootfs(&image);
        let mut failing = container().args(&[&program]).env("A", variable).create().unwrap();
        let said = failing.start().unwrap_err().message().to_owned();
        assert!(said.contains(&format!("exec {program}: {reason}")), "{said}");
        failing.wait().unwrap();
        failing.delete().unwrap();
        let output = failing.stdio.finish();
        assert_eq!((output.stdout().as_str(), output.stderr().as_str()), ("", ""), "{name}");
        let running = container().start().unwrap();
        let environment = |process: &mut serde_json::Value| process["env"] = json!([variable]);
        let mut exec = running.exec("e", &[&program]).edit(environment).create().unwrap();
        let said = exec.start().unwrap_err().message().to_owned();
        assert!(said.contains(&format!("exec {program}: {reason}")), "{said}");
        exec.delete().unwrap();
        let output = exec.stdio.finish();
        assert_eq!((output.stdout().as_str(), output.stderr().as_str()), ("", ""), "exec {name}");
        running.end();
    }
}

fn exec_in_a_working_directory_that_is_none(node: &Node) {
    let container = node.container("a").start().unwrap();
    // By these words Docker chooses the exit code 127.
    for (path, reason) in [("/no/such", "no such file or directory"), ("/etc/passwd", "not a directory")] {
        let edit = |process: &mut serde_json::Value| process["cwd"] = json!(path);
        let said = container.exec("e", &["pwd"]).edit(edit).run().unwrap_err().message().to_owned();
        // containerd 1.6 adds the kind of an error.
        let said = said.trim_end_matches(": unknown");
        assert!(said.ends_with(&format!("chdir to cwd ({path:?}) set in config.json failed: {reason}")), "{said}");
    }
    container.end();
}

fn missing_working_directory_is_made(node: &Node) {
    let edit = |spec: &mut serde_json::Value| spec["process"]["cwd"] = json!("/made/for/it");
    let (status, output) = node.container("a").args(&["pwd"]).edit(edit).run().unwrap();
    assert_eq!((status, output.stdout().as_str()), (0, "/made/for/it\n"));
}

fn bad_mount(node: &Node) {
    let edit = |spec: &mut serde_json::Value| {
        let mounts = spec["mounts"].as_array_mut().unwrap();
        mounts
            .push(json!({ "destination": "/mnt", "type": "bind", "source": "/no/such/source", "options": ["rbind"] }));
    };
    let text = refusal(node.container("a").edit(edit));
    assert!(text.contains("/no/such/source"), "{text}");
}

fn bad_rootfs(node: &Node) {
    refusal(node.container("a").rootfs("/no/such/rootfs"));
}

fn failing_hook(node: &Node) {
    refusal(node.container("a").hook("createRuntime", "exit 1"));
}

fn no_path_variable(node: &Node) {
    let edit = |spec: &mut serde_json::Value| spec["process"]["env"] = json!(["A=b"]);
    let (status, output) = node.container("a").args(&["/bin/echo", "fine"]).edit(edit).run().unwrap();
    assert_eq!((status, output.stdout().as_str()), (0, "fine\n"));
}

fn private_binary_of_root(node: &Node) {
    let copy = "cp /bin/busybox /tmp/echo && chmod 0700 /tmp/echo && exec /tmp/echo private";
    let (status, output) = node.container("a").script(copy).run().unwrap();
    assert_eq!((status, output.stdout().as_str()), (0, "private\n"));
}
