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
