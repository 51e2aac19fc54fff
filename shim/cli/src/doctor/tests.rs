//! Made-up machines, examined.

use ::cards::{DriverError, Health};
use base::Bytes;
use runtime_config::config::{Config, Driver, SimulatedCards};
use testing::FakeNode;

use super::*;

/// A healthy node, but for device nodes: a test cannot make those.
fn node() -> FakeNode {
    let node = FakeNode::new();
    node.proc(
        "driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n",
    );
    node.proc("devices", "Character devices:\n195 nvidia\n195 nvidiactl\n508 nvidia-uvm\n");
    node.proc("sys/kernel/osrelease", "6.12.1\n");
    node.proc("sys/kernel/seccomp/actions_avail", "kill_process kill_thread trap errno user_notif trace log allow\n");
    node.gpu("0000:01:00.0", "Device Minor: \t 0\nGPU Firmware: \t 580.159.04\n");
    node.sys("fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n");
    for name in ["libcuda.so.580.159.04", "libnvidia-ml.so.580.159.04"] {
        node.file(&format!("driver/usr/lib64/{name}"), "");
    }
    for numbers in ["195:0", "195:255", "508:0", "508:1"] {
        node.dev(&format!("char/{numbers}"), "");
    }
    node
}

fn config(node: &FakeNode) -> Config {
    let driver = Driver { root: node.tree.path().join("driver"), ..Config::default().driver };
    Config { driver, state_dir: node.tree.path().join("state"), ..Config::default() }
}

/// One card of NVIDIA's driver.
fn findings() -> Findings {
    let table = SimulatedCards::free("NVIDIA H200", Bytes(141 * Bytes::GIB), 1);
    let driver = Driver { kind: DriverKind::Simulated, simulated: vec![table], ..Config::default().driver };
    let mut inventory = node_cards::discover(&Config { driver, ..Config::default() }).unwrap();
    inventory.source = Source::Nvidia;
    inventory.cards[0].minor = 0;
    Findings {
        inventory: Ok(inventory),
        persistence: vec![("GPU-1".into(), true)],
        kernel: KernelFeatures { pidfd_getfd: true, mount_setattr: true, wait_killable: true },
    }
}

fn find<'a>(checks: &'a [Check], what: &str) -> &'a Check {
    checks.iter().find(|check| check.what == what).unwrap_or_else(|| panic!("no check of {what}: {checks:?}"))
}

/// Examines `node` and expects of `what` this level, and these words in detail or remedy.
#[track_caller]
fn expect(node: &FakeNode, findings: &Findings, what: &str, level: Level, words: &str) {
    let checks = driver_and_cards(&node.roots, &config(node), findings);
    let check = find(&checks, what);
    assert_eq!(check.level, level, "{check:?}");
    let text = format!("{} {}", check.detail, check.remedy.as_deref().unwrap_or_default());
    assert!(text.contains(words), "{text}");
    assert_eq!(check.remedy.is_none(), level == Level::Ok, "what is wrong has a remedy: {check:?}");
}

#[test]
fn a_healthy_node_has_nothing_wrong_but_the_nodes_that_a_test_cannot_make() {
    let node = node();
    let wrong: Vec<Check> = driver_and_cards(&node.roots, &config(&node), &findings())
        .into_iter()
        .filter(|check| check.level != Level::Ok)
        .filter(|check| check.what != "device nodes" && check.what != "unified memory")
        .collect();
    assert_eq!(wrong, []);
}

#[test]
fn the_driver_and_its_libraries() {
    let node = node();
    expect(&node, &findings(), "driver module", Level::Ok, "580.159.04 is loaded (open kernel module)");
    node.proc("driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1.2  Sat\n");
    expect(&node, &findings(), "driver module", Level::Ok, "(proprietary kernel module)");
    expect(&node, &findings(), "driver libraries", Level::Failure, "module is 570.1.2, the libraries");
    std::fs::remove_dir_all(node.tree.path().join("driver")).unwrap();
    expect(&node, &findings(), "driver libraries", Level::Failure, "no libcuda.so.570.1.2");
    std::fs::remove_file(node.roots.proc.join("driver/nvidia/version")).unwrap();
    expect(&node, &findings(), "driver module", Level::Failure, "modprobe nvidia");
}

#[test]
fn pageable_memory_that_may_move_to_a_card() {
    let node = node();
    let parameter = "module/nvidia_uvm/parameters/uvm_disable_hmm";
    node.sys(parameter, "N\n");
    expect(&node, &findings(), "pageable memory", Level::Warning, "uvm_disable_hmm=1");
    let is_told = |node: &FakeNode| {
        driver_and_cards(&node.roots, &config(node), &findings()).iter().any(|check| check.what == "pageable memory")
    };
    node.sys(parameter, "Y\n");
    assert!(!is_told(&node));
    node.sys(parameter, "N\n");
    node.proc("driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Sat\n");
    assert!(!is_told(&node), "the proprietary module does not have it");
}

#[test]
fn memory_of_a_card_that_is_the_hosts_as_well() {
    let node = node();
    let is_told = |node: &FakeNode, what: &str| {
        driver_and_cards(&node.roots, &config(node), &findings()).iter().any(|check| check.what == what)
    };
    assert!(!is_told(&node, "coherent memory"));
    node.proc("driver/nvidia/gpus/0000:01:00.0/numa_status", "Node: 1\nStatus: online\n");
    expect(&node, &findings(), "coherent memory", Level::Warning, "memory of 0000:01:00.0 is a NUMA node");
    node.sys("module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n");
    assert!(!is_told(&node, "pageable memory"), "HMM is off there");
}

#[test]
fn nodes_and_their_links() {
    let node = node();
    expect(&node, &findings(), "device nodes", Level::Failure, "/dev/nvidia0 is missing; /dev/nvidiactl is missing");
    expect(&node, &findings(), "unified memory", Level::Failure, "/dev/nvidia-uvm is missing");
    node.dev("nvidia0", "");
    expect(&node, &findings(), "device nodes", Level::Failure, "/dev/nvidia0 is not a device");
    std::fs::remove_file(node.roots.dev.join("char/508:1")).unwrap();
    expect(&node, &findings(), "/dev/char links", Level::Warning, "missing for 508:1;");
    node.proc("devices", "Character devices:\n195 nvidia-frontend\n");
    expect(&node, &findings(), "unified memory", Level::Warning, "nvidia-modprobe -u");
    expect(&node, &findings(), "/dev/char links", Level::Ok, "present");
}

#[test]
fn cards_and_what_is_wrong_with_them() {
    let node = node();
    expect(&node, &findings(), "cards", Level::Ok, "1, driver 580.159.04, CUDA 13.0");
    expect(&node, &findings(), "card 0", Level::Ok, "NVIDIA H200, GPU-");
    let with = |change: fn(&mut Inventory)| {
        let mut findings = findings();
        change(findings.inventory.as_mut().unwrap());
        findings
    };
    let lost = with(|inventory| inventory.cards[0].health = Health::Unusable { reason: "Xid 79".into() });
    expect(&node, &lost, "card 0", Level::Failure, "Xid 79");
    let mig = with(|inventory| inventory.cards[0].mig_enabled = true);
    expect(&node, &mig, "card 0", Level::Warning, "no MIG devices");
    expect(&node, &findings(), "card 0 shares", Level::Ok, "hard caps and weights");
    expect(&node, &mig, "card 0 shares", Level::Ok, "from the hardware");
    let old = with(|inventory| inventory.cards[0].hard_caps = false);
    expect(&node, &old, "card 0 shares", Level::Warning, "who asks for a percentage is refused");
    expect(&node, &with(|inventory| inventory.cards.clear()), "cards", Level::Failure, "lspci");
    let error = DiscoverError::Driver(DriverError::NoLibrary { version: "580.1".into(), root: "/".into() });
    let broken = Findings { inventory: Err(error), ..findings() };
    expect(
        &node,
        &broken,
        "cards",
        Level::Failure,
        "cannot ask the NVIDIA driver for its cards: the NVIDIA driver 580.1",
    );
}

#[test]
fn persistence_and_firmware() {
    let node = node();
    expect(&node, &findings(), "persistence mode", Level::Ok, "on");
    let off = Findings { persistence: vec![("a".into(), true), ("b".into(), false)], ..findings() };
    expect(&node, &off, "persistence mode", Level::Warning, "off on 1 of 2 cards");
    node.file("run/nvidia-persistenced/socket", "");
    expect(&node, &off, "persistence mode", Level::Ok, "nvidia-persistenced");
    expect(&node, &findings(), "GSP firmware", Level::Ok, "580.159.04");
    node.gpu("0000:02:00.0", "Device Minor: \t 1\nGPU Firmware: \t N/A\n");
    expect(&node, &findings(), "GSP firmware", Level::Warning, "none on 0000:02:00.0");
}

#[test]
fn cdi_specs_of_another_driver() {
    let node = node();
    let all = |node: &FakeNode| driver_and_cards(&node.roots, &config(node), &findings());
    assert!(!all(&node).iter().any(|check| check.what == "CDI specs"), "no specs, no line");
    node.file("etc/cdi/nvidia.yaml", "- hostPath: /usr/lib64/libcuda.so.580.159.04\n");
    node.file("etc/cdi/other.json", "{\"kind\": \"vendor.example/net\"}");
    expect(&node, &findings(), "CDI specs", Level::Ok, "1 for driver 580.159.04");
    node.file("run/cdi/old.json", "{\"hostPath\": \"/usr/lib64/libcuda.so.550.54.15\"}");
    expect(&node, &findings(), "CDI specs", Level::Warning, "old.json is for driver 550.54.15, 580.159.04 is loaded");
}

#[test]
fn the_kernel() {
    let node = node();
    expect(&node, &findings(), "seccomp notification", Level::Ok, "offered");
    node.proc("sys/kernel/seccomp/actions_avail", "kill_thread trap errno trace log allow\n");
    expect(&node, &findings(), "seccomp notification", Level::Failure, "no user_notif");
    let old = Findings {
        kernel: KernelFeatures { pidfd_getfd: false, mount_setattr: false, wait_killable: false },
        ..findings()
    };
    expect(&node, &old, "pidfd_getfd", Level::Failure, "Linux 6.12.1 does not offer it");
    expect(&node, &old, "mount_setattr", Level::Failure, "Linux 5.12");
    expect(&node, &old, "killable notifications", Level::Warning, "5.19");
    let all = |node: &FakeNode| driver_and_cards(&node.roots, &config(node), &findings());
    node.proc("sys/kernel/randomize_va_space", "2\n");
    assert!(!all(&node).iter().any(|check| check.what == "address randomization"), "on, as it should be");
    node.proc("sys/kernel/randomize_va_space", "0\n");
    expect(&node, &findings(), "address randomization", Level::Warning, "kernel.randomize_va_space = 2");
    expect(&node, &findings(), "kernel log", Level::Ok, "readable");
    std::fs::remove_file(&node.roots.kernel_log).unwrap();
    expect(&node, &findings(), "kernel log", Level::Warning, "dev/kmsg");
}

#[test]
fn control_groups() {
    let node = node();
    expect(&node, &findings(), "cgroups", Level::Ok, "version 2");
    node.sys("fs/cgroup/cgroup.controllers", "cpu memory\n");
    expect(&node, &findings(), "cgroups", Level::Failure, "version 2, without pids");
    std::fs::remove_dir_all(node.roots.sys.join("fs/cgroup")).unwrap();
    expect(&node, &findings(), "cgroups", Level::Failure, "neither");
    for controller in ["cpu", "devices", "memory", "pids"] {
        node.sys(&format!("fs/cgroup/{controller}/tasks"), "");
    }
    expect(&node, &findings(), "cgroups", Level::Failure, "version 1, without freezer");
    node.sys("fs/cgroup/freezer/tasks", "");
    expect(&node, &findings(), "cgroups", Level::Ok, "version 1");
}

#[test]
fn simulated_cards_say_that_they_are_and_leave_the_driver_out() {
    let node = FakeNode::new();
    let mut findings = findings();
    findings.inventory.as_mut().unwrap().source = Source::Simulated;
    let checks = driver_and_cards(&node.roots, &config(&node), &findings);
    assert!(!checks.iter().any(|check| check.what == "driver module" || check.what == "device nodes"));
    assert!(find(&checks, "cards").detail.starts_with("1 simulated"));
}

#[test]
fn this_machine_can_be_examined() {
    let state = tempfile::tempdir().unwrap();
    let config = Config { state_dir: state.path().into(), ..Config::default() };
    let checks = driver_and_cards(&Roots::host(), &config, &super::findings(&config));
    for check in &checks {
        println!("{check:?}");
    }
    assert!(checks.iter().any(|check| check.what == "cgroups"));
}

#[test]
fn a_driver_outside_the_known_range_is_reported() {
    use runtime_config::config::UnknownDriver;
    let calls = |version: &str, unknown_driver| {
        let config = Config { unknown_driver, ..Config::default() };
        super::driver::calls(&config, version).map(|check| (check.level, check.detail))
    };
    for version in ["525.60.13", "580.159.04", "595.45.04"] {
        assert_eq!(calls(version, UnknownDriver::Refuse).unwrap().0, Level::Ok, "{version}");
    }
    for version in ["470.256.02", "610.43.02"] {
        let (level, detail) = calls(version, UnknownDriver::Refuse).unwrap();
        assert_eq!(level, Level::Failure);
        assert!(detail.starts_with(version) && detail.contains("refused"), "{detail}");
        assert_eq!(calls(version, UnknownDriver::Pass).unwrap().0, Level::Warning, "{version}");
    }
    assert_eq!(calls("", UnknownDriver::Refuse), None, "no driver has a check of its own");
}

#[test]
fn failures_decide_and_every_remedy_is_shown() {
    let mut checks = vec![Check::ok("cards", "4"), Check::warning("runtime", "old", "update it")];
    assert_eq!(exit_code(&checks), Exit::Success);
    checks.push(Check::failure("state", "gone", "make it"));
    assert_eq!(exit_code(&checks), Exit::Failure);
    assert_eq!(
        crate::test_support::shown(listing(checks), &[]),
        "LEVEL    CHECK    RESULT\n\
         ok       cards    4\n\
         warning  runtime  old\n                  -> update it\n\
         failure  state    gone\n                  -> make it\n\
         1 failure, 1 warning\n"
    );
}

#[test]
fn json_keys_are_fixed() {
    let value = serde_json::to_value([Check::warning("a", "b", "c")]).unwrap();
    assert_eq!(value, serde_json::json!([{"level": "warning", "what": "a", "detail": "b", "remedy": "c"}]));
}
