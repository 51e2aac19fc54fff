//! The inside of a container: nodes, files, the fence.

use fence::PROTECTED_ESCAPES;
use integration::{Node, Setup, egpu::EgpuConfig};
use serde_json::json;

use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("spec::no_request_no_nodes", no_request_no_nodes),
        Case::egpu("spec::fence_answers_driver_calls", fence_answers_driver_calls).needing(perl),
        Case::egpu("spec::fence_can_be_switched_off", fence_can_be_switched_off).on(unfenced),
        Case::egpu("spec::administrators_are_exempt_from_the_fence", administrators_are_exempt_from_the_fence),
        Case::egpu(
            "spec::the_drivers_settings_are_hidden_with_the_fence",
            the_drivers_settings_are_hidden_with_the_fence,
        ),
        Case::egpu("spec::only_three_files_are_open", only_three_files_are_open),
        Case::egpu("spec::unknown_annotations_survive", unknown_annotations_survive),
        Case::egpu("spec::nodes_of_cdi_are_the_request", nodes_of_cdi_are_the_request),
        Case::egpu("spec::a_share_has_the_nodes_memory_limit", a_share_has_the_nodes_memory_limit).on(limited),
    ]
}

fn unfenced() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("fence_other_containers = false\n"), ..Setup::default() }
}

fn limited() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("host_memory_limit = \"96MiB\"\n"), ..Setup::default() }
}

fn a_share_has_the_nodes_memory_limit(node: &Node) {
    let limit = |id: &str| {
        let v1 = format!("/sys/fs/cgroup/memory{}/memory.limit_in_bytes", node.cgroup_path(id));
        let v2 = format!("/sys/fs/cgroup{}/memory.max", node.cgroup_path(id));
        let text = std::fs::read_to_string(v1).or_else(|_| std::fs::read_to_string(v2)).unwrap();
        text.trim().to_owned()
    };
    let share = node.container("a").env("EGPU_MEMORY", "1GiB").start().unwrap();
    assert_eq!(limit("a"), (96 << 20).to_string());
    let other = node.container("b").start().unwrap();
    assert_ne!(limit("b"), (96 << 20).to_string());
    share.end();
    other.end();
}

fn perl() -> Skip {
    let there = std::path::Path::new("/usr/bin/perl").exists();
    there.then_some(()).ok_or_else(|| "no perl, which makes the system calls".to_owned())
}

fn no_request_no_nodes(node: &Node) {
    let container = node.container("a").start().unwrap();
    assert_eq!(container.read("ls /dev | grep -c nvidia || true"), "0");
    assert!(node.grant("a").is_none());
    container.end();
}

/// `_IOWR('F', number, size)`.
fn command(number: u8, size: u16) -> u32 {
    3 << 30 | u32::from(size) << 16 | u32::from(b'F') << 8 | u32::from(number)
}

/// A program that makes each call on a file descriptor that is not open and prints the error's
/// number: the kernel itself says EBADF (9), the fence ENOTTY (25).
fn prober() -> String {
    let number = if cfg!(target_arch = "aarch64") { 29 } else { 16 };
    let commands: Vec<String> = PROTECTED_ESCAPES
        .iter()
        .flat_map(|escape| escape.guarded_sizes().map(|size| command(escape.number, size).to_string()))
        // None of these is any release's: escapes, commands of UVM's.
        .chain([command(0x01, 8), command(0x60, 48), command(0xf0, 16), 8, 221, 0x3000_0003].map(|c| c.to_string()))
        .collect();
    format!(
        "for $c ({}) {{ syscall({number}, 999, $c, 0); print $!+0, \"\\n\"; }} syscall({number}, 999, 0x5401, 0); print \"ordinary \", $!+0, \"\\n\";",
        commands.join(", ")
    )
}

fn fence_answers_driver_calls(node: &Node) {
    let prober = prober();
    let (status, output) = node.container("a").rootfs("/").args(&["/usr/bin/perl", "-e", &prober]).run().unwrap();
    assert_eq!(status, 0, "{}", output.stderr());
    let answers = output.stdout();
    let (ordinary, driver): (Vec<&str>, Vec<&str>) = answers.lines().partition(|line| line.starts_with("ordinary"));
    assert!(!driver.is_empty() && driver.iter().all(|answer| *answer == "25"), "{answers}");
    assert_eq!(ordinary, ["ordinary 9"], "other calls go to the kernel");
    let container = node.container("b").rootfs("/").args(&["/bin/sleep", "infinity"]).start().unwrap();
    let (_, output) = container.exec("e", &["/usr/bin/perl", "-e", &prober]).run().unwrap();
    assert!(output.stdout().lines().filter(|line| !line.starts_with("ordinary")).all(|answer| answer == "25"));
    container.end();
}

fn seccomp_mode(node: &Node, edit: impl FnOnce(&mut serde_json::Value)) -> String {
    let (_, output) = node.container("a").script("grep Seccomp: /proc/self/status").edit(edit).run().unwrap();
    output.stdout().trim().replace("Seccomp:\t", "")
}

fn fence_can_be_switched_off(node: &Node) {
    assert_eq!(seccomp_mode(node, |_| ()), "0");
    assert_eq!(files_of_the_driver(node, "b", &[], |_| ()), "/proc/driver/nvidia/registry");
}

fn administrator(spec: &mut serde_json::Value) {
    for set in ["bounding", "effective", "permitted"] {
        spec["process"]["capabilities"][set].as_array_mut().unwrap().push(json!("CAP_SYS_ADMIN"));
    }
}

fn administrators_are_exempt_from_the_fence(node: &Node) {
    assert_eq!(seccomp_mode(node, |_| ()), "2");
    assert_eq!(seccomp_mode(node, administrator), "0");
}

/// Contents of /proc/driver in a container, from a stand-in for the host's.
fn files_of_the_driver(
    node: &Node,
    id: &str,
    env: &[(&str, &str)],
    edit: impl FnOnce(&mut serde_json::Value),
) -> String {
    let driver = node.directory().join("proc-driver");
    std::fs::create_dir_all(driver.join("nvidia")).unwrap();
    std::fs::write(driver.join("nvidia/registry"), "").unwrap();
    let mount = json!({ "destination": "/proc/driver", "type": "bind", "source": driver, "options": ["rbind"] });
    let with_driver = |spec: &mut serde_json::Value| {
        spec["mounts"].as_array_mut().unwrap().push(mount);
        edit(spec);
    };
    let container = node.container(id).script("find /proc/driver -name registry").envs(env).edit(with_driver);
    let (status, output) = container.run().unwrap();
    assert_eq!(status, 0, "{}", output.stderr());
    output.stdout().trim().to_owned()
}

/// Not from administrators, nor from containers that were promised the driver's files.
fn the_drivers_settings_are_hidden_with_the_fence(node: &Node) {
    assert_eq!(files_of_the_driver(node, "plain", &[], |_| ()), "");
    assert_eq!(files_of_the_driver(node, "administrator", &[], administrator), "/proc/driver/nvidia/registry");
    let files = [("NVIDIA_VISIBLE_DEVICES", "none"), ("NVIDIA_DRIVER_CAPABILITIES", "utility")];
    assert_eq!(files_of_the_driver(node, "files", &files, |_| ()), "/proc/driver/nvidia/registry");
}

fn only_three_files_are_open(node: &Node) {
    let container = node.container("a").env("EGPU_MEMORY", "1GiB").start().unwrap();
    assert_eq!(container.read("ls /proc/1/fd"), "0\n1\n2");
    container.end();
}

fn unknown_annotations_survive(node: &Node) {
    let container = node.container("a").env("EGPU_MEMORY", "1GiB").annotation("example.org/x", "y").start().unwrap();
    let spec = std::fs::read(node.bundle("a").join("config.json")).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
    assert_eq!(spec["annotations"]["example.org/x"], "y");
    container.end();
}

fn nodes_of_cdi_are_the_request(node: &Node) {
    let cdi = |spec: &mut serde_json::Value| {
        let device = |path: &str, minor: u32| json!({ "path": path, "type": "c", "major": 195, "minor": minor, "fileMode": 438, "uid": 0, "gid": 0 });
        spec["linux"]["devices"] = json!([device("/dev/nvidia1", 1), device("/dev/nvidiactl", 255)]);
    };
    let container =
        node.container("a").env("NVIDIA_VISIBLE_DEVICES", "void").env("EGPU_MEMORY", "3GiB").edit(cdi).start().unwrap();
    let grant = node.grant("a").expect("a grant");
    assert_eq!((grant.cards(), grant.memory_mib()), (vec![1], vec![3072]));
    assert_eq!(container.read("ls /dev | grep -c '^nvidia[0-9]'"), "1");
    container.end();
}
