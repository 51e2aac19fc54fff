//! `ctr`, as a person uses it.

use integration::{
    Node, Setup,
    rootfs::{EVIL_IMAGE, IMAGE},
};

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        Case::plain("ctr::run", run),
        Case::plain("ctr::detached", detached),
        Case::plain("ctr::runtime_by_path", runtime_by_path),
        Case::plain("ctr::run_in_a_user_namespace", run_in_a_user_namespace),
        Case::plain("ctr::run_with_mapped_labels", run_with_mapped_labels).on_containerd(&["2"]),
        Case::egpu("ctr::run_with_a_request", run_with_a_request),
        Case::egpu("ctr::a_user_whom_the_image_gives_no_id", a_user_whom_the_image_gives_no_id),
    ];
    cases.into_iter().map(|case| case.on(Setup::images)).collect()
}

fn run(node: &Node) {
    node.track("r");
    let text = node.ctr_ok(&["run", "--rm", "--runtime", node.runtime(), IMAGE, "r", "echo", "hello"]);
    assert_eq!(text, "hello\n");
    let failing = node.ctr(&["run", "--rm", "--runtime", node.runtime(), IMAGE, "r", "sh", "-c", "exit 5"]);
    assert_eq!(failing.status.code(), Some(5));
    let missing = node.ctr(&["run", "--rm", "--runtime", node.runtime(), IMAGE, "r", "no-such-program"]);
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(text.contains(r#"exec: "no-such-program": executable file not found in $PATH"#), "{text}");
    // As a person finds it after that mistake.
    node.ctr(&["containers", "delete", "r"]);
}

fn detached(node: &Node) {
    node.track("d");
    node.ctr_ok(&["run", "--detach", "--runtime", node.runtime(), IMAGE, "d", "sleep", "infinity"]);
    assert!(node.ctr_ok(&["tasks", "list"]).contains("RUNNING"));
    assert_eq!(node.ctr_ok(&["tasks", "exec", "--exec-id", "e", "d", "echo", "from exec"]), "from exec\n");
    node.ctr_ok(&["tasks", "metrics", "d"]);
    assert!(node.ctr_ok(&["tasks", "ps", "d"]).lines().count() >= 2);
    node.ctr_ok(&["tasks", "pause", "d"]);
    assert!(node.ctr_ok(&["tasks", "list"]).contains("PAUSED"));
    node.ctr_ok(&["tasks", "resume", "d"]);
    end(node, "d");
}

/// Ends the only container that there is.
fn end(node: &Node, id: &str) {
    node.ctr_ok(&["tasks", "kill", "--signal", "KILL", id]);
    integration::eventually("the task can be deleted", || {
        node.ctr(&["tasks", "delete", id]);
        node.ctr_ok(&["tasks", "list", "--quiet"]).is_empty().then_some(())
    });
    node.ctr_ok(&["containers", "delete", id]);
}

fn runtime_by_path(node: &Node) {
    let path = if integration::is_egpu() {
        integration::node::shim_directory().join("containerd-shim-egpu-v1")
    } else {
        ["/usr/bin", "/usr/local/bin"]
            .iter()
            .map(|bin| std::path::Path::new(bin).join("containerd-shim-runc-v2"))
            .find(|path| path.exists())
            .expect("runc's shim is installed")
    };
    node.track("p");
    let path = path.display().to_string();
    assert_eq!(node.ctr_ok(&["run", "--rm", "--runtime", &path, IMAGE, "p", "echo", "by path"]), "by path\n");
}

/// Options that containerd 1.6 sends with the mappings are of another type than the rest of them.
fn run_in_a_user_namespace(node: &Node) {
    node.open_to_all();
    node.track("u");
    let mappings = ["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"];
    let script = "id -u; awk '{print $2}' /proc/self/uid_map; echo written >/file; cat /file; : >/dev/null";
    let program = [IMAGE, "u", "sh", "-ec", script];
    let run = ["run", "--rm", "--runtime", node.runtime()];
    assert_eq!(node.ctr_ok(&[&run[..], &mappings, &program].concat()), "0\n100000\nwritten\n");
}

/// The snapshotter has the owners mapped, not copied.
fn run_with_mapped_labels(node: &Node) {
    node.open_to_all();
    node.track("m");
    let mappings = ["--remap-labels", "--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"];
    let script = "stat -c %u:%g / /bin/busybox; echo written >/file; cat /file";
    let program = [IMAGE, "m", "sh", "-ec", script];
    let run = ["run", "--rm", "--runtime", node.runtime()];
    assert_eq!(node.ctr_ok(&[&run[..], &mappings, &program].concat()), "0:0\n0:0\nwritten\n");
}

fn run_with_a_request(node: &Node) {
    node.track("g");
    let arguments = [
        "run",
        "--rm",
        "--runtime",
        node.runtime(),
        "--env",
        "EGPU_MEMORY=2GiB",
        "--env",
        "EGPU_DEVICES=1",
        IMAGE,
        "g",
        "ls",
        "/dev",
    ];
    let text = node.ctr_ok(&arguments);
    let cards: Vec<&str> = text.lines().filter(|name| name.starts_with("nvidia") && name.len() == 7).collect();
    assert_eq!(cards, ["nvidia1"], "{text}");
    assert!(node.granted().is_empty());
}

/// By the image's passwd `evil` is 4294967295, and containerd writes that into the spec.
fn a_user_whom_the_image_gives_no_id(node: &Node) {
    node.track("n");
    let output = node.ctr(&["run", "--rm", "--runtime", node.runtime(), EVIL_IMAGE, "n"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty() && text.contains("process.user.uid"), "{output:?}");
    node.ctr(&["containers", "delete", "n"]);
    node.ctr_ok(&["run", "--detach", "--runtime", node.runtime(), IMAGE, "n", "sleep", "infinity"]);
    let output = node.ctr(&["tasks", "exec", "--exec-id", "e", "--user", "evil", "n", "id"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty() && text.contains("process.user.uid"), "{output:?}");
    end(node, "n");
}
